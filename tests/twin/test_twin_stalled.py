"""A replica that hangs in the twin: what /metrics shows of it, and what the operator's own policy makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.twin.policies import Holdfast, Static
from holdfast.twin.runs.run import Finished
from tests.twin.test_twin_runs import Script, _run
from tests.twin.twin_builders import small_scenario


def hanging(replicas: int, minutes: int = 10, at: str = "2m") -> dict[str, Any]:
    """A small service of which the second replica hangs for good."""
    content = small_scenario()
    content["duration"] = f"{minutes}m"
    content["services"][0]["initialReplicas"] = {"h100": replicas}
    content["services"][0]["workload"]["arrivals"]["poisson"] = [{"at": "0s", "rps": 30}]
    return content | {"faults": [{"at": at, "kind": "replica-hang", "replica": 1}]}


def late_attainment(run: Finished) -> float:
    """Share of the requests of the last minutes that finished."""
    requests = run.services[0].fleet.requests
    late = requests[requests["at"] > 420.0]
    return float((late["generated"] == late["output"]).mean())


def test_a_hung_engine_is_named_by_its_standing_counters_and_nothing_else_is(tmp_path: Path) -> None:
    policy = Script({})
    run = _run(policy, tmp_path, hanging(3, 5))
    hung = run.services[0].pods[1].name
    named = [(at, traffic.hung) for at, traffic, _ in policy.seen if traffic.hung]
    assert {names for _, names in named} == {(hung,)}
    assert 180.0 <= named[0][0] <= 210.0
    assert all(traffic.by_accelerator[0][1].engines == 3 for at, traffic, _ in policy.seen if at >= 270.0)


def test_nobody_hangs_without_a_fault(tmp_path: Path) -> None:
    policy = Script({})
    _run(policy, tmp_path, hanging(3, 5) | {"faults": []})
    assert not any(traffic.hung for _, traffic, _ in policy.seen)


def test_the_policy_lets_a_hung_replica_go_and_keeps_the_rest_serving(tmp_path: Path) -> None:
    static, own = _run(Static(3), tmp_path, hanging(3)), _run(Holdfast(fast_loop=False), tmp_path, hanging(3))
    assert any(change.reason == "EngineHung" for change in own.changes)
    assert late_attainment(static) < 0.8
    assert late_attainment(own) > 0.99
