"""A day follows from its seed alone, has what it must have, and stays within what was promised of it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import drawn_days
from benchmarks.days import DayFigures, Played, main, report, verdicts
from benchmarks.drawn_days import CARRIED_RPS, FEATURES, HOURS, SEEDS, TREE, Day, content, drawn, lived, pairs
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.scenarios.scenario import Scenario
from tests.shared_data import shared_data

MANY = range(200)
ROOT = Path(__file__).resolve().parents[2]


def test_a_day_is_a_pure_function_of_its_seed() -> None:
    assert [drawn(seed) for seed in MANY] == [drawn(seed) for seed in MANY]
    assert len({repr(drawn(seed)) for seed in MANY}) == len(MANY)
    assert Day("day 7").digest() == Day("day 7").digest() != Day("day 8").digest()


def test_the_ten_seeds_are_the_digits_of_the_tree() -> None:
    assert len(TREE) == 40
    assert len(SEEDS) == len(set(SEEDS)) == 10
    assert "".join(f"{seed:04x}" for seed in SEEDS) == TREE


@pytest.mark.parametrize("seeds", [MANY, SEEDS])
def test_each_day_has_at_least_two_of_the_five_features_and_each_feature_is_drawn(seeds: list[int]) -> None:
    assert min(len(drawn(seed).features) for seed in seeds) >= 2
    assert {name for seed in seeds for name in drawn(seed).features} == set(FEATURES)


def test_every_value_is_within_its_range() -> None:
    for day in map(drawn, MANY):
        assert day.swing == 1.0 or 2.0 <= day.swing <= 10.0
        assert 2.0 <= day.peak <= 6.0
        assert len(day.bursts) <= 6
        assert all(1.5 <= burst.height <= 4.0 and 2.0 <= burst.minutes <= 20.0 for burst in day.bursts)
        assert day.trend == 1.0 or 1.25 <= max(day.trend, 1.0 / day.trend) <= 2.0
        assert day.mix is None or (day.mix.source != day.source and 0.3 <= day.mix.share <= 1.0)
        assert 45.0 <= day.cold_start_seconds <= 240.0
        if day.prefix is not None:
            shares = day.prefix.at(np.linspace(0.0, 3600.0 * HOURS, 2000))
            assert 0.0 <= shares.min() < shares.max() <= 0.8
            assert shares.max() - shares.min() >= 0.1 - 1e-3, "it varies"
    assert {day.source for day in map(drawn, MANY)} == set(CARRIED_RPS)
    assert {len(day.bursts) for day in map(drawn, MANY)} == set(range(7))


def test_the_load_swings_as_far_as_it_says_and_rises_in_bursts_alone() -> None:
    for day in map(drawn, MANY):
        calm = np.array([rps for _, rps in replace(day, bursts=(), trend=1.0).rates()])
        assert calm.max() / calm.min() == pytest.approx(day.swing, rel=0.01)
        assert calm.max() == pytest.approx(day.peak * day.carried_rps)
        times, rates = map(np.array, zip(*day.rates(), strict=True))
        assert all(before < after for before, after in pairwise(times.tolist()))
        for burst in day.bursts:
            begins, ends = burst.seconds
            before, inside = (np.interp(at, times, rates) for at in (begins, begins + 1.0))
            others = [each for each in day.bursts if each is not burst]
            if all(end < begins - 600.0 or start > ends for start, end in (each.seconds for each in others)):
                assert inside / before == pytest.approx(burst.height, rel=0.05)


def test_every_day_is_a_scenario_that_the_twin_takes() -> None:
    for seed in MANY[::10]:
        scenario = Scenario.model_validate(content(seed))
        rates = [step.rps for step in scenario.services[0].workload.arrivals.poisson or ()]
        assert len(rates) >= 145
        assert min(rates) > 0.0
        assert math.isfinite(max(rates))


def load(count: int = 40_000) -> Workload:
    """Requests of a whole day."""
    at = np.linspace(0.0, 3600.0 * HOURS, count, endpoint=False)
    return Workload(at, np.ones(count, np.int64), np.ones(count, np.int64), np.zeros(count, np.int64))


def test_lengths_change_and_prefixes_are_cached_as_the_day_says() -> None:
    data = shared_data("azure2023").parent
    mix = drawn_days.Mix("code", 10.0, 30.0, 0.6)
    day = replace(drawn(0), source="conversations", mix=mix, prefix=drawn_days.Prefix(0.1, 0.7, 6.0, 0.0))
    found = lived(load(), day, data, 1)
    hours = found.at / 3600.0
    before, after = (float(found.output_tokens[part].mean()) for part in (hours < 10.0, hours > 10.6))
    answers = [float(pairs(source, data).output_tokens.mean()) for source in ("conversations", "code")]
    assert before == pytest.approx(answers[0], rel=0.03)
    assert after == pytest.approx(0.4 * answers[0] + 0.6 * answers[1], rel=0.05)
    shares = found.cached_tokens / found.prompt_tokens
    assert shares[hours < 0.1].mean() == pytest.approx(0.1, abs=0.02)
    assert shares[np.abs(hours - 3.0) < 0.1].mean() == pytest.approx(0.7, abs=0.02)
    assert (found.cached_tokens < found.prompt_tokens).all()
    assert (lived(load(), replace(day, mix=None, prefix=None), data, 1).cached_tokens == 0).all()


def test_lengths_are_those_of_the_recordings() -> None:
    data = shared_data("servegen").parent
    means = {source: pairs(source, data) for source in CARRIED_RPS}
    told = {"conversations": (1155, 211), "code": (2048, 28), "m-large": (914, 155), "aibrix": (796, 131)}
    for source, (prompt, output) in told.items():
        assert means[source].prompt_tokens.mean() == pytest.approx(prompt, rel=0.12), source
        assert means[source].output_tokens.mean() == pytest.approx(output, rel=0.12), source
        assert min(means[source].prompt_tokens.min(), means[source].output_tokens.min()) >= 1


@pytest.mark.parametrize("recorded", sorted((ROOT / "benchmarks" / "results").glob("days-*.jsonl")), ids=str)
def test_the_docs_hold_the_report_of_the_recorded_days(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recorded", str(recorded)]) == 0
    told, lines = (ROOT / "docs" / "benchmarks" / "days.md").read_text(), capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    for line in lines:
        assert line in told


def day(seed: int = 1, **changed: object) -> DayFigures:
    """A day on which Holdfast pays 5 % more than the oracle and 20 % less than the peer."""
    runs = {"fast": Played(0.995, 105.0), "slow": Played(0.992, 120.0), "oracle": Played(0.991, 100.0)}
    made = DayFigures(seed, 0.99, **runs, static=Played(0.993, 200.0), static_label="static:8")  # type: ignore[arg-type]
    return replace(replace(made, peer=Played(0.99, 131.25), peer_label="keda-token"), **changed)  # type: ignore[arg-type]


def test_ratios_are_of_gpu_hours_at_the_objective() -> None:
    assert day().ratio(day().fast, day().oracle) == pytest.approx(1.05)
    missed = day(fast=Played(0.98, 90.0))
    assert missed.ratio(missed.fast, missed.oracle) == pytest.approx(2.0), "the static size is paid where it is missed"
    dear = day(fast=Played(0.98, 300.0))
    assert dear.ratio(dear.fast, dear.oracle) == pytest.approx(3.0)


def test_bars_are_judged_as_they_are_written() -> None:
    good = {each.name: each.met for each in verdicts([day(), day(2), day(3, slow=Played(0.99, 110.0))])}
    assert [name for name, met in good.items() if not met] == ["without: median GPU-hours over the oracle's"]
    bad = [day(fast=Played(0.995, 121.0)), day(2, slow=Played(0.98, 110.0)), day(3, peer=None)]
    judged = {each.name: each.met for each in verdicts(bad)}
    assert judged["with plugin: GPU-hours over the oracle's on the worst day"] is False
    assert judged["without: objective in nine of ten"] is False
    assert judged["with plugin: objective on every day"] is True
    alone = {each.name: each.met for each in verdicts([day(peer=None)])}
    assert [name for name, met in alone.items() if met is None] == [
        "with plugin: GPU-hours over those of the better tuned peer, median",
        "with plugin: GPU-hours over those of the better tuned peer, worst day",
    ]


def test_the_report_has_a_line_for_each_day_and_each_bar() -> None:
    lines = list(report([day(SEEDS[0]), day(SEEDS[1], peer=None)]))
    assert lines[2].startswith(f"| {SEEDS[0]} | ")
    assert lines[2].endswith(
        "| 99.50 % 105.0 | 99.20 % 120.0 | 99.10 % 100.0 | 8: 200.0 | keda-token 131.2 | 1.05 | 1.20 |"
    )
    assert sum("MISSED" in line or "| met |" in line for line in lines) == 7
