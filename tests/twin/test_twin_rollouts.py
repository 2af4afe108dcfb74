"""Another queue limit is a rollout: which pods are replaced when, and what their engines refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.cluster import Placement, QueueLimit, Replica, ReplicaPhase
from holdfast.domain.decision import PlacementTarget, QueueLimitTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.twin.arrays.state_arrays import LOST
from holdfast.twin.policies import Holdfast
from holdfast.twin.policy_port import Move
from holdfast.twin.runs.run import Finished
from tests.twin.twin_builders import play, small_scenario

LIMIT = QueueLimit(777, 1_800_000_000)
CHANGE = QueueLimitTarget("h100", LIMIT, "")


class Rollout:
    """Another limit after 30 s, and sizes by second."""

    name = "rollout"
    tick_seconds = 5.0
    admission = True
    fast_loop = False

    def __init__(self, start: int, sizes: Mapping[float, int] | None = None) -> None:
        self.start: int | None = start
        self._sizes = dict(sizes or {})
        self.seen: dict[float, tuple[Sequence[Replica], Placement]] = {}
        self._began: float | None = None

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        self._began = snapshot.now if self._began is None else self._began
        at, service = snapshot.now - self._began, snapshot.services[0]
        self.seen[at] = service.replicas, service.placements[0]
        targets = (PlacementTarget("h100", self._sizes[at]),) if at in self._sizes else ()
        return {service.spec.key: Move(targets, "Script", queue_limit=CHANGE if at == 30.0 else None)}

    def pods(self, at: float) -> dict[str, tuple[str, bool]]:
        """Phase of each pod, and whether it has the new limit."""
        return {pod.name[-1]: (pod.phase.value, pod.revision == str(LIMIT)) for pod in self.seen[at][0]}


def run(policy: Rollout, folder: Path, gpus: int = 6) -> Finished:
    content = small_scenario()
    content["cluster"]["accelerators"]["h100"]["gpus"] = gpus
    return play(content, folder, policy)


def test_with_a_free_gpu_the_new_replica_serves_before_an_old_one_drains(tmp_path: Path) -> None:
    policy = Rollout(2)
    finished = run(policy, tmp_path)
    assert policy.pods(35.0) == {"1": ("ready", False), "2": ("ready", False), "3": ("starting", True)}
    assert policy.pods(70.0)["1"] == ("ready", False)
    assert policy.pods(70.0)["3"] == ("ready", True)
    assert policy.pods(110.0) == {"3": ("ready", True), "4": ("ready", True)}
    assert min(finished.sizes[0].ready) == 2
    assert not (finished.services[0].fleet.requests["state"] == LOST).any()


def test_the_rollout_is_seen_until_the_last_old_replica_is_told_to_go(tmp_path: Path) -> None:
    policy = Rollout(1)
    run(policy, tmp_path)
    rolling = [at for at, (_, placement) in policy.seen.items() if placement.rolling_out]
    assert (min(rolling), max(rolling)) == (35.0, 60.0)
    assert policy.seen[30.0][1].queue_limit != LIMIT
    assert policy.seen[35.0][1].queue_limit == LIMIT


def test_without_a_free_gpu_an_old_replica_goes_first(tmp_path: Path) -> None:
    policy = Rollout(2)
    finished = run(policy, tmp_path, gpus=2)
    after = [ready for at, ready in zip(finished.sizes[0].at, finished.sizes[0].ready, strict=True) if 35 <= at < 60]
    assert set(after) == {1}
    assert policy.pods(170.0) == {"3": ("ready", True), "4": ("ready", True)}


@pytest.mark.parametrize(("gpus", "most"), [(20, 10), (9, 9)])
def test_a_rollout_replaces_a_quarter_at_a_time_as_far_as_gpus_are_free(gpus: int, most: int, tmp_path: Path) -> None:
    policy = Rollout(8)
    finished = run(policy, tmp_path, gpus=gpus)
    there = [[phase for phase, _ in policy.pods(at).values() if phase != "draining"] for at in policy.seen]
    assert max(map(len, there)) == most
    assert min(finished.sizes[0].ready) >= 7
    # Four rounds of 30 s replace all; one at a time they take twice as long.
    assert all(new for _, new in policy.pods(165.0).values()) is (most == 10)


def test_pods_that_are_added_during_a_rollout_have_both_templates_in_proportion(tmp_path: Path) -> None:
    policy = Rollout(3, {35.0: 6})
    run(policy, tmp_path, gpus=12)
    added = [policy.pods(40.0)[name] for name in "56"]
    assert added == [("starting", False), ("starting", False)]


def test_engines_of_the_new_template_refuse_by_the_new_limit(tmp_path: Path) -> None:
    policy = Rollout(1)
    finished = run(policy, tmp_path)
    service = finished.services[0]
    bounds = [int(service.fleet.state(pod.engine)["most_queued"][0]) for pod in service.pods if pod.engine is not None]
    assert bounds == [777]


@pytest.mark.parametrize("fast_loop", [False, True])
def test_only_engines_without_the_plugin_have_a_limit_that_the_policy_sets(fast_loop: bool, tmp_path: Path) -> None:
    limits: list[QueueLimit | None] = []

    class Looking(Holdfast):
        def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
            limits.extend(placement.queue_limit for placement in snapshot.services[0].placements)
            return super().decide(snapshot)

    play(small_scenario(), tmp_path, Looking(fast_loop))
    assert (None in limits) is fast_loop


def wrong(product: str, rps: float) -> dict[str, Any]:
    """A small service on H100 that is labelled as something else."""
    content = small_scenario()
    content["duration"] = "20m"
    service = content["services"][0]
    service["spec"]["accelerators"][0]["nodeSelector"] = {"nvidia.com/gpu.product": product}
    service["workload"]["arrivals"] = {"poisson": [{"at": "0s", "rps": rps}]}
    service["workload"]["lengths"] = {"fixed": {"promptTokens": 1155, "outputTokens": 211}}
    return content


def test_a_limit_that_is_far_too_small_for_the_real_engines_is_changed_once(tmp_path: Path) -> None:
    said: list[QueueLimitTarget] = []

    class Listening(Holdfast):
        def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
            moves = super().decide(snapshot)
            said.extend(move.queue_limit for move in moves.values() if move.queue_limit)
            return moves

    finished = play(wrong("NVIDIA-L4", 10.0), tmp_path, Listening(fast_loop=False))
    assert len(said) == 1
    ready = [pod for pod in finished.services[0].pods if pod.phase(finished.ended_at) is ReplicaPhase.READY]
    assert {pod.queue_limit for pod in ready} == {said[0].limit}
