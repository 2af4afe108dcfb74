"""What a scenario says of reality happens in the simulated cluster: late samples, clients, slow steps, stragglers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.cli.main import main
from holdfast.domain.signals import SignalState
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing
from holdfast.twin.arrays.state_arrays import FINISHED, REJECTED, UNSERVED
from holdfast.twin.policies import Static
from holdfast.twin.runs.results import latencies
from holdfast.twin.scenarios.scenario import Retries, Scenario
from tests.twin.test_twin_runs import Script, _run
from tests.twin.twin_builders import LAW, SLO, drawn_workload, scenario_file, small_scenario

NEVER_CLOSED = {"closeShare": 0, "idleTimeout": "300d"}
NO_RETRIES = EngineSpec(LAW, SchedulerLimits(1, 512, 20_000, max_num_queued_reqs=1))
"""An engine that computes one request and lets no other one wait: vLLM counts both."""


def real(cluster: dict[str, Any] | None = None, **service: Any) -> dict[str, Any]:
    """The small scenario with this reality of its cluster and its service."""
    content = small_scenario()
    content["services"][0]["reality"] = service
    content["cluster"]["reality"] = cluster or {}
    return content


@pytest.mark.parametrize(
    ("place", "field", "value", "told"),
    [
        ("cluster", "sampleDelay", "NaN", "cluster.reality.sampleDelay: 'NaN' is not a duration"),
        ("cluster", "sampleDelay", "-5s", "cluster.reality.sampleDelay: '-5s' is not a duration"),
        ("cluster", "sampleDelay", "11m", "cluster.reality.sampleDelay: Input should be less than or equal to 600"),
        ("cluster", "colour", 1, "cluster.reality.colour: unknown field"),
        ("service", "connections", 0, "services[0].reality.connections: Input should be greater than or equal to 1"),
        ("service", "connections", True, "services[0].reality.connections: true is not a number: give one"),
        ("service", "busyHalfShare", math.nan, "services[0].reality.busyHalfShare: Input should be"),
        ("service", "busyHalfShare", 0.4, "services[0].reality.busyHalfShare: Input should be greater than or equal"),
        ("service", "closeShare", -0.1, "services[0].reality.closeShare: Input should be greater than or equal to 0"),
        ("service", "closeShare", math.inf, "services[0].reality.closeShare: Input should be"),
        ("service", "idleTimeout", "soon", "services[0].reality.idleTimeout: 'soon' is not a duration"),
        ("service", "retries", {}, "services[0].reality.retries.most: is required: add it"),
        ("service", "retries", {"most": 0}, "services[0].reality.retries.most: Input should be greater than or equal"),
        ("service", "retries", {"most": 2, "growth": 0.5}, "services[0].reality.retries.growth: Input should be"),
        ("service", "retries", {"most": 2, "wait": "2h"}, "services[0].reality.retries.wait: Input should be less"),
        ("service", "sticky", 1, "services[0].reality.sticky: unknown field"),
        ("accelerator", "stepFactor", 0, "cluster.accelerators.h100.stepFactor: Input should be greater than or equal"),
        ("accelerator", "stepFactor", math.nan, "cluster.accelerators.h100.stepFactor: Input should be"),
    ],
)
def test_a_bad_reality_is_refused_with_the_place_of_its_fault(
    place: str, field: str, value: object, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = real()
    if place == "accelerator":
        content["cluster"]["accelerators"]["h100"][field] = value
    else:
        (content["cluster"] if place == "cluster" else content["services"][0])["reality"][field] = value
    assert main(["simulate", str(scenario_file(tmp_path, content))]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_single_connection_has_no_busier_half(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = real(connections=1, busyHalfShare=0.8)
    assert main(["simulate", str(scenario_file(tmp_path, content))]) == 2
    assert "services[0].reality.busyHalfShare: a single connection has no busier half: give" in capsys.readouterr().err


def test_without_reality_a_scenario_is_what_it_was(tmp_path: Path) -> None:
    plain, told = (Scenario.model_validate(each) for each in (small_scenario(), real({"sampleDelay": "0s"})))
    assert plain.cluster.reality.model_dump() == told.cluster.reality.model_dump()
    assert plain.services[0].reality.model_dump() == told.services[0].reality.model_dump()
    assert Retries(most=3, wait="500ms").waits_seconds == (0.5, 1.0, 2.0)


def test_samples_arrive_so_much_later_than_they_were_taken_and_keep_their_time(tmp_path: Path) -> None:
    late, prompt = Script({}), Script({})
    for policy, delay in ((late, "30s"), (prompt, "0s")):
        _run(policy, tmp_path, real({"sampleDelay": delay}))
    assert late.at(25.0)[0].state is SignalState.ABSENT
    assert [late.at(at)[0].sample_age_seconds for at in (30.0, 40.0, 45.0, 100.0)] == [30.0, 40.0, 30.0, 40.0]
    assert [prompt.at(at)[0].sample_age_seconds for at in (30.0, 40.0, 45.0, 100.0)] == [0.0, 10.0, 0.0, 10.0]
    before, after = (dict(each[0].by_accelerator)["h100"] for each in (prompt.at(90.0), late.at(120.0)))
    assert (after.running, after.waiting) == (before.running, before.waiting)


def test_with_too_few_samples_in_an_interval_the_counts_are_called_partial_and_not_zero(tmp_path: Path) -> None:
    late = Script({})
    _run(late, tmp_path, real({"sampleDelay": "35s"}))
    traffic = late.at(60.0)[0]
    assert traffic.state is SignalState.PARTIAL
    assert "too few samples in this interval" in traffic.detail
    known = late.at(100.0)[0]
    assert (known.state, known.late_seconds) == (SignalState.FRESH, 35.0), "as of when all samples had arrived"
    sparse = Script({})
    _run(sparse, tmp_path, small_scenario() | {"scrapeInterval": "30s"})
    assert sparse.at(170.0)[0].state is SignalState.FRESH


def test_a_step_factor_stretches_every_step_and_nothing_else(tmp_path: Path) -> None:
    content = small_scenario()
    content["services"][0]["workload"]["arrivals"]["poisson"][0]["rps"] = 0.05
    usual = _run(Static(1), tmp_path, content)
    content["cluster"]["accelerators"]["h100"]["stepFactor"] = 1.5
    slow = _run(Static(1), tmp_path, content)
    (before, after) = (latencies(run.services[0].fleet) for run in (usual, slow))
    assert after.tpot == pytest.approx(1.5 * before.tpot, rel=1e-6)
    assert after.ttft == pytest.approx(1.5 * before.ttft, rel=1e-6)


def test_one_replica_is_twice_as_slow_from_its_minute_on(tmp_path: Path) -> None:
    content = real(**NEVER_CLOSED)
    content["services"][0]["workload"]["arrivals"]["poisson"][0]["rps"] = 1
    content["faults"] = [{"at": "90s", "kind": "replica-slow", "replica": 1, "factor": 2}]
    run = _run(Static(2), tmp_path, content)
    fleet, tpot = run.services[0].fleet, latencies(run.services[0].fleet).tpot
    slow = fleet.requests["engine"] == run.services[0].pods[1].engine
    late = fleet.requests["at"] > 95.0
    assert np.median(tpot[slow & late]) == pytest.approx(2.0 * np.median(tpot[~slow & late]), rel=0.2)
    assert np.median(tpot[slow & ~late]) == pytest.approx(np.median(tpot[~slow]), rel=0.2)


def test_cold_starts_differ_as_widely_as_their_jitter_says(tmp_path: Path) -> None:
    content = small_scenario() | {"duration": "11m"}
    content["cluster"]["accelerators"]["h100"] |= {"gpus": 40, "coldStart": "315s", "coldStartJitter": 0.905}
    content["services"][0]["spec"]["scaling"]["max"] = 40
    run = _run(Script({0.0: 40}), tmp_path, content)
    took = [pod.ready_at or math.nan for pod in run.services[0].pods[1:]]
    assert len(took) == 39
    assert 29.0 <= min(took) < 100.0
    assert 500.0 < max(took) <= 601.0


def requests_of(routing: Routing) -> Any:
    """Four thousand requests by what chance decided about them."""
    load = drawn_workload([(0.01, 10, 5, 0)] * 4000)
    return EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(64, 2048, 20_000))], SLO, routing).requests


def test_so_many_connections_and_one_half_gets_its_share_of_the_requests() -> None:
    usual = requests_of(Routing())
    assert np.unique(usual["connection"]).size > 900
    few = requests_of(Routing(connections=9, busy_half_share=0.8))
    assert np.unique(few["connection"]).tolist() == list(range(9))
    assert (few["connection"] < 4).mean() == pytest.approx(0.8, abs=0.03)
    assert requests_of(Routing())["connection"].tolist() == usual["connection"].tolist()


def test_connections_that_nobody_closes_never_lead_to_a_new_replica(tmp_path: Path) -> None:
    content = real(**NEVER_CLOSED, connections=8)
    run = _run(Script({60.0: 2}), tmp_path, content)
    assert set(run.services[0].fleet.requests["engine"].tolist()) == {0}
    content["services"][0]["reality"] = {"connections": 8}
    moved = _run(Script({60.0: 2}), tmp_path, content)
    assert set(moved.services[0].fleet.requests["engine"].tolist()) == {0, 1}


def retried(*waits: float, engines: int = 1) -> EngineFleet:
    """Three requests at once for engines that hold one each."""
    load = replace(drawn_workload([(0.0, 100, 50, 0)] * 3), at=np.array([1.0, 1.0, 1.0]))
    fleet = EngineFleet(load, [NO_RETRIES], SLO, Routing("round-robin", retry_seconds=waits))
    for _ in range(engines):
        fleet.add()
    fleet.advance(60.0)
    fleet.check()
    assert fleet.done
    return fleet


def test_a_refused_request_comes_again_after_its_waits_until_it_is_served() -> None:
    once = retried()
    assert once.requests["state"].tolist() == [FINISHED, REJECTED, REJECTED]
    again = retried(1.0, 2.0)
    assert again.requests["state"].tolist() == [FINISHED, FINISHED, FINISHED]
    assert again.requests["tried_at"].tolist() == [1.0, 2.0, 4.0]
    assert again.requests["at"].tolist() == [1.0, 1.0, 1.0]
    assert again.state(0)["rejected"][0] == 3
    assert again.state(0)["ttft_within"][0] == 3, "the server measures from the try that it served"
    assert (latencies(again).ttft > [0.0, 1.0, 3.0]).all(), "the client measures from its first try"


def test_tries_at_once_are_refused_at_once_and_end() -> None:
    fleet = retried(*[0.0] * 10)
    assert fleet.requests["state"].tolist() == [FINISHED, REJECTED, REJECTED]
    assert fleet.state(0)["rejected"][0] == 22
    assert fleet.requests["tries"].tolist() == [0, 10, 10]


def test_a_request_that_meets_no_replica_comes_again_too() -> None:
    fleet = EngineFleet(
        drawn_workload([(1.0, 100, 50, 0)]), [NO_RETRIES], SLO, Routing("round-robin", retry_seconds=(1.0, 2.0))
    )
    fleet.advance(3.0)
    assert fleet.requests["state"].tolist() == [UNSERVED]
    assert not fleet.done
    fleet.add()
    fleet.advance(10.0)
    assert fleet.requests["state"].tolist() == [FINISHED]


def test_retries_of_a_scenario_reach_its_engines(tmp_path: Path) -> None:
    content = real(retries={"most": 4})
    content["services"][0]["workload"]["arrivals"]["poisson"][0]["rps"] = 80
    content["services"][0]["spec"]["batching"] = {"mode": "Fixed", "maxNumSeqs": 4, "maxNumBatchedTokens": 2048}
    policy = Static(1)
    policy.admission = True
    run = _run(policy, tmp_path, content)
    fleet = run.services[0].fleet
    tried = fleet.requests["tries"]
    assert tried.max() == 4
    refused = fleet.states([0])["rejected"][0]
    assert tried.sum() <= refused <= tried.sum() + (fleet.requests["state"] == REJECTED).sum(), "each try counts once"
