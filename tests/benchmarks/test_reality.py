"""Accidents are the scenarios that they say, bars are judged as written, and the docs hold what was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.accidents import ACCIDENTS, SLOW, STATIC, WITH, Bar
from benchmarks.reality import Key, Row, Runs, key_of, main, misses, table
from holdfast.twin.scenarios.scenario import Scenario

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "benchmarks" / "results").glob("reality-*.jsonl"))
ROW = Row(attainment=0.992, gpu_hours=10.0, largest=6, changes=12, worst=0.9, named_seconds=200.0)
STATICS = [replace(ROW, gpu_hours=12.0)]


@pytest.mark.parametrize("name", ACCIDENTS)
def test_every_accident_is_a_scenario_under_every_policy_that_plays_it(name: str) -> None:
    accident = ACCIDENTS[name]
    for policy in accident.policies:
        scenario = Scenario.model_validate(accident.content(policy))
        assert scenario.name == name
        (entry,) = scenario.services
        assert entry.spec is not None
        assert {each.name for each in entry.spec.accelerators} == set(scenario.cluster.accelerators)


def test_each_accident_differs_from_the_plain_day_and_from_all_others() -> None:
    told = {str({**each.content(SLOW), "name": ""}) for each in ACCIDENTS.values()}
    assert len(told) == len(ACCIDENTS)


def test_accidents_are_what_they_say() -> None:
    def scenario(name: str, policy: str = SLOW) -> Scenario:
        return Scenario.model_validate(ACCIDENTS[name].content(policy))

    late = scenario("samples 45 s late, scrape 30 s")
    assert (late.cluster.reality.sample_delay, late.scrape_interval) == (45.0, 30.0)
    clients = scenario("8 connections, never closed").services[0].reality
    assert (clients.connections, clients.close_share) == (8, 0.0)
    assert clients.idle_timeout > scenario("plain").duration
    retries = scenario("the same, 4 retries (1 s x 2^k)").services[0].reality.retries
    assert retries is not None
    assert retries.waits_seconds == (1.0, 2.0, 4.0, 8.0)
    spec = scenario("the same, 10 retries at once", WITH).services[0].spec
    assert spec is not None
    assert spec.overload == "Reject"
    steps = scenario("bursts every 1,000 s").services[0].workload.arrivals.poisson or ()
    assert [(step.at, step.rps) for step in steps[:4]] == [(0, 6), (880, 20), (1000, 6), (1880, 20)]
    straggler = scenario("straggler: one replica 2 x slower from minute 30").faults[0]
    assert (straggler.at, straggler.kind, straggler.factor, straggler.lasts) == (1800.0, "replica-slow", 2.0, None)


def test_an_accident_is_printed_as_a_scenario_for_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "connections never closed"]) == 0
    told = yaml.safe_load(capsys.readouterr().out)
    assert Scenario.model_validate(told).services[0].reality.close_share == 0.0


@pytest.mark.parametrize(
    ("bar", "rows", "missed"),
    [
        (Bar(), [ROW], []),
        (Bar(), [replace(ROW, attainment=0.9)], ["attainment"]),
        (Bar(attains=0.98), [replace(ROW, attainment=0.985)], []),
        (Bar(seeds_below=0.1), [ROW] * 9 + [replace(ROW, attainment=0.5)], []),
        (Bar(seeds_below=0.1), [ROW] * 2 + [replace(ROW, attainment=0.5)], ["1 of 3 seeds below"]),
        (Bar(of_static=0.95), [ROW], []),
        (Bar(of_static=0.8), [ROW], ["GPU-hours"]),
        (Bar(of_other=(1.1, "plain")), [replace(ROW, gpu_hours=11.1)], ["GPU-hours"]),
        (Bar(hours=9.9), [ROW], ["GPU-hours"]),
        (Bar(sized_only=True, largest=6), [replace(ROW, attainment=0.1)], []),
        (Bar(sized_only=True, largest=5), [ROW], ["largest size"]),
        (Bar(named_within=300.0), [ROW], []),
        (Bar(named_within=199.0), [ROW], ["not named in time"]),
        (Bar(named_within=300.0), [ROW, replace(ROW, named_seconds=None)], ["not named in time"]),
    ],
)
def test_a_bar_says_what_is_missed(bar: Bar, rows: list[Row], missed: list[str]) -> None:
    assert misses(bar, rows, STATICS, [ROW], 0.99) == missed


def test_runs_are_kept_and_told_beside_their_bars(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "runs.jsonl")
    plain = ACCIDENTS["plain"]
    for policy, hours in ((WITH, 14.0), (SLOW, 16.0), (STATIC, 20.0)):
        runs.add(key_of(plain, policy, 1), replace(ROW, gpu_hours=hours))
    again = Runs(tmp_path / "runs.jsonl")
    assert again.rows == runs.rows
    fast, slow = list(table(again, ["plain"]))[2:]
    assert fast.endswith("| >= 99 %, <= 13.3 GPU-hours | missed: GPU-hours |")
    assert slow.endswith("| at most 10% of the seeds below 99 %, <= 0.95 x static | met |")
    assert " 16.0 (20.0) " in slow


def test_another_scenario_or_policy_is_another_run() -> None:
    keys = {key_of(each, policy, 1) for each in ACCIDENTS.values() for policy in (WITH, SLOW)}
    assert len(keys) == 2 * len(ACCIDENTS)
    assert isinstance(next(iter(keys)), Key)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_the_docs_hold_the_tables_of_the_recorded_runs(recorded: Path) -> None:
    told = (ROOT / "docs" / "benchmarks" / "days.md").read_text()
    lines = list(table(Runs(recorded), ACCIDENTS))
    assert len(lines) > 2
    for line in lines:
        assert line in told
