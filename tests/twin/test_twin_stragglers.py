"""A replica that is slow in the twin: what its plugin's counts show, and what the operator's own policy makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from holdfast.twin.policies import Holdfast, Static
from holdfast.twin.results import good
from holdfast.twin.run import Finished
from tests.twin.test_twin_runs import Script, _run
from tests.twin.test_twin_stalled import hanging


def slowed(replicas: int, minutes: int = 12, at: str = "4m") -> dict[str, Any]:
    """A small service of a fixed size of which the second replica is five times as slow for good."""
    content = hanging(replicas, minutes)
    content["services"][0]["spec"]["scaling"]["min"] = replicas
    return content | {"faults": [{"at": at, "kind": "replica-slow", "replica": 1, "factor": 5}]}


class Watching(Script):
    """Moves nothing, in front of engines with the plugin or without."""

    def __init__(self, fast_loop: bool) -> None:
        super().__init__({})
        self.fast_loop = fast_loop


def good_share(run: Finished, since: float) -> float:
    """Share of the requests from then on that met every objective."""
    service = run.services[0]
    return float(np.mean(good(service)[service.fleet.requests["at"] > since]))


def test_a_slow_engine_is_named_by_what_its_plugin_judged_and_nobody_else_is(tmp_path: Path) -> None:
    policy = Watching(fast_loop=True)
    run = _run(policy, tmp_path, slowed(4, 7))
    named = [(at, traffic.lagging) for at, traffic, _ in policy.seen if traffic.lagging]
    assert {names for _, names in named} == {(run.services[0].pods[1].name,)}
    assert 265.0 <= named[0][0] <= 300.0


def test_nobody_lags_without_a_fault_or_without_the_plugin(tmp_path: Path) -> None:
    for fast_loop, content in ((True, slowed(4, 7) | {"faults": []}), (False, slowed(4, 7))):
        policy = Watching(fast_loop)
        _run(policy, tmp_path, content)
        assert not any(traffic.lagging for _, traffic, _ in policy.seen)


def test_the_policy_replaces_a_slow_replica_and_goodput_is_back(tmp_path: Path) -> None:
    static, own = Static(3), Holdfast()
    static.fast_loop = True
    late = slowed(3, 20, at="12m")
    kept, replaced = _run(static, tmp_path, late), _run(own, tmp_path, late)
    slow = kept.services[0].pods[1].name
    assert any(change.reason == "EngineLagging" for change in replaced.changes)
    assert slow not in {pod.name for pod in replaced.services[0].pods}
    assert good_share(kept, 960.0) < 0.95
    assert good_share(replaced, 960.0) > 0.99
