"""The oracle's schedules, by numbers that were worked out by hand, and one in the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli.simulate import declare
from holdfast.twin.policies import Static
from holdfast.twin.runs.oracle import Needs, SizePlan, _better, oracle, schedules
from holdfast.twin.runs.peak import static_peak
from holdfast.twin.runs.results import attainment, attains, gpu_hours, shortfall
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.scenario import Scenario
from tests.twin.twin_builders import play, scenario_file, small_scenario


def needs(*work: float, highest: int = 10, restart_slots: float = 2.0) -> Needs:
    return Needs(np.array(work), lowest=1, highest=highest, restart_slots=restart_slots)


def schedule(of: Needs, budget: float) -> list[int]:
    (found,) = schedules(of, [budget])
    return found.tolist()


def test_every_slot_has_as_many_replicas_as_its_work_needs() -> None:
    assert schedule(needs(0.5, 1.0, 1.2, 3.0, 2.1, 0.0), 0.0) == [1, 1, 2, 3, 3, 1]


def test_a_gap_shorter_than_a_restart_is_kept_and_a_longer_one_is_not() -> None:
    assert schedule(needs(2.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0), 0.0) == [2, 2, 2, 1, 1, 1, 2]


def test_nobody_gets_more_than_the_maximum() -> None:
    assert schedule(needs(9.0, 1.0, highest=4), 0.0) == [4, 1]


def test_the_budget_goes_where_a_replica_saves_the_least() -> None:
    # 0.1 above one replica for a slot, then 0.9 for three: a budget of 0.2 pays for the first only.
    work = needs(1.1, 1.0, 1.0, 1.0, 1.9, 1.9, 1.9, restart_slots=1.0)
    assert schedule(work, 0.0) == [2, 1, 1, 1, 2, 2, 2]
    assert schedule(work, 0.2 / 9.8) == [1, 1, 1, 1, 2, 2, 2]


def test_budgets_one_after_the_other_give_what_each_gives_alone() -> None:
    work, budgets = needs(1.1, 2.05, 1.0, 3.3, 2.4, 1.9, restart_slots=1.0), [0.0, 0.01, 0.05, 0.05, 0.3, 1.0]
    together = [found.tolist() for found in schedules(work, budgets)]
    assert together == [schedule(work, budget) for budget in budgets]
    assert together[0] != together[-1] == [1] * 6


def test_a_lower_replica_goes_only_after_those_above_it() -> None:
    # The third replica carries 0.05, the second beneath it 0.1 and 1.0: the budget takes the third, not the second.
    work = needs(1.1, 2.05, 1.0, restart_slots=1.0)
    assert schedule(work, 0.2 / 4.15) == [2, 2, 1]


def test_replicas_are_ordered_a_cold_start_ahead_and_left_at_once() -> None:
    ordered = SizePlan(np.array([1, 1, 1, 3, 1, 1]), lead_seconds=20.0)
    assert ordered._ordered == [1, 3, 3, 3, 1, 1]
    assert ordered.start == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_oracle_attains_with_less_than_the_static_peak(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = small_scenario()
    content["duration"] = "10m"
    content["services"][0]["workload"]["arrivals"]["poisson"] = [
        {"at": "0s", "rps": 5},
        {"at": "4m", "rps": 70},
        {"at": "6m", "rps": 5},
    ]
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    declared = [declare(scenario, each, path, tmp_path, seed) for each in scenario.services]
    peak = static_peak(scenario, declared, seed, lambda share: None)
    played: list[tuple[int, Finished]] = []

    def noted(*asked: Any) -> Finished:
        played.append((asked[2].planned_slots, simulate(*asked)))
        return played[-1][1]

    monkeypatch.setattr("holdfast.twin.runs.oracle.simulate", noted)
    found = oracle(scenario, declared, seed)
    able = [run for _, run in played if attains(run)]
    assert gpu_hours(found) == min(map(gpu_hours, able))
    for place, (planned, _) in enumerate(played):
        before = [(gpu_hours(run), slots) for slots, run in played[:place] if attains(run)]
        assert not before or planned < min(before)[1], "played what was planned for more than what was found"
    assert attains(peak)
    assert attains(found)
    assert gpu_hours(found) < 0.8 * gpu_hours(peak)


def tight(rps: float, ttft: str, tpot: str, tight_tpot: str) -> dict[str, Any]:
    """75 seconds of the small service, with a class of few requests that asks for a TPOT of its own."""
    content = small_scenario() | {"duration": "75s"}
    (service,) = content["services"]
    bounds = {"name": "tight", "ttft": "1s", "tpot": tight_tpot, "priority": 10}
    service["spec"]["slo"] |= {"ttft": ttft, "tpot": tpot, "objective": "95%", "classes": [bounds]}
    service["workload"] |= {"arrivals": {"poisson": [{"at": "0s", "rps": rps}]}, "classes": {"tight": 0.04}}
    return content


@pytest.mark.slow
def test_the_oracle_finds_sizes_that_keep_the_tightest_class_too(tmp_path: Path) -> None:
    content = tight(18.0, "60s", "100ms", "7ms")
    lone = play(
        content, tmp_path, SizePlan(np.array([1]), 0.0, Scenario.model_validate(content).begins.timestamp(), True)
    )
    assert attainment(lone, lone.services[0]) > 0.95
    assert not attains(lone), "one replica is enough for all requests together, and not for the tight ones"
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    found = oracle(scenario, [declare(scenario, each, path, tmp_path, 1) for each in scenario.services], 1)
    assert attains(found)


def test_a_run_is_better_whose_worst_class_misses_less_though_more_requests_are_bad(tmp_path: Path) -> None:
    hopeless = play(tight(8.0, "1s", "50ms", "5ms"), tmp_path, Static(2))
    late = play(tight(8.0, "1s", "7ms", "7ms"), tmp_path, Static(1))
    hopeless_good, late_good = (attainment(run, run.services[0]) for run in (hopeless, late))
    assert hopeless_good > late_good
    assert shortfall(hopeless) == 0.95
    assert 0.0 < shortfall(late) < 0.95
    assert _better(late, hopeless)
    assert not _better(hopeless, late)
    assert not _better(late, late)
