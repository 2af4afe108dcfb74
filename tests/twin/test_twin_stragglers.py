"""A replica that is slow in the twin, with the plugin or without: what shows it, and what the policy makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.twin.policies import Holdfast, Static
from holdfast.twin.runs.results import good
from holdfast.twin.runs.run import Finished
from tests.twin.test_twin_runs import Script, _run
from tests.twin.test_twin_stalled import hanging


def slowed(replicas: int, minutes: int = 12, at: str = "4m") -> dict[str, Any]:
    """A small service of a fixed size of which the second replica is five times as slow for good.

    Its limits are fixed: a rollout of better ones would replace the slow replica by chance.
    """
    content = hanging(replicas, minutes)
    content["services"][0]["spec"]["batching"] = {"mode": "Fixed", "maxNumSeqs": 256, "maxNumBatchedTokens": 8192}
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


@pytest.mark.parametrize("fast_loop", [True, False])
def test_a_slow_engine_is_named_and_nobody_else_is(tmp_path: Path, fast_loop: bool) -> None:
    policy = Watching(fast_loop)
    run = _run(policy, tmp_path, slowed(4, 7))
    named = [(at, traffic.lagging) for at, traffic, _ in policy.seen if traffic.lagging]
    assert {names for _, names in named} == {(run.services[0].pods[1].name,)}
    assert 245.0 <= named[0][0] <= 300.0


def test_a_slow_engine_says_nothing_about_the_speed_of_the_others(tmp_path: Path) -> None:
    with_plugin, without = Watching(fast_loop=True), Watching(fast_loop=False)
    for policy in (with_plugin, without):
        _run(policy, tmp_path, slowed(4, 7))
    before, after = (dict(traffic.steps)["h100"] for at, traffic, _ in with_plugin.seen if at in (230.0, 415.0))
    assert after.seconds / after.steps == pytest.approx(before.seconds / before.steps, rel=0.25)
    counts = [dict(traffic.by_accelerator)["h100"] for at, traffic, _ in without.seen if at in (230.0, 415.0)]
    assert counts[1].tpot_typical_seconds == pytest.approx(counts[0].tpot_typical_seconds, rel=0.25)


@pytest.mark.parametrize("fast_loop", [True, False])
def test_nobody_lags_without_a_fault(tmp_path: Path, fast_loop: bool) -> None:
    policy = Watching(fast_loop)
    _run(policy, tmp_path, slowed(4, 7) | {"faults": []})
    assert not any(traffic.lagging for _, traffic, _ in policy.seen)


@pytest.mark.parametrize("fast_loop", [True, False])
def test_the_policy_replaces_a_slow_replica_and_goodput_is_back(tmp_path: Path, fast_loop: bool) -> None:
    static, own = Static(3), Holdfast(fast_loop=fast_loop)
    static.fast_loop = fast_loop
    late = slowed(3, 20, at="12m")
    kept, replaced = _run(static, tmp_path, late), _run(own, tmp_path, late)
    slow = kept.services[0].pods[1].name
    assert any(change.reason == "EngineLagging" for change in replaced.changes)
    assert slow not in {pod.name for pod in replaced.services[0].pods}
    assert good_share(kept, 960.0) < 0.95
    assert good_share(replaced, 960.0) > 0.99
