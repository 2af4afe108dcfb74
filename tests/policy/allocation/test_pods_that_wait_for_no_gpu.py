"""A service takes GPUs from others only for pods that wait for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.scheduling import may_wait_for
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import Contest

ON_H100 = accelerator("h100", node_selector=(("kind", "h100"),))


class Held(Contest):
    """Pods of `greedy` are never scheduled; the scheduler says why."""

    why = ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    phase = ReplicaPhase.UNSCHEDULABLE

    def _schedule(self) -> None:
        greedy = self.pods["greedy"]
        self.pods["greedy"] = []
        super()._schedule()
        reason, detail = self.why
        self.pods["greedy"] = [replace(pod, reason=reason, detail=detail, phase=self.phase) for pod in greedy]


def world(why: tuple[str, str], greedy: ServiceBuilder, tenants: int = 3) -> Held:
    """A node of 12 GPUs full of tenants with four replicas each, who need three."""
    found = Held(12, {**tenants_of(tenants), "greedy": (greedy.with_accelerators(ON_H100), 1.0, 0)})
    found.why = why
    return found


def tenants_of(count: int) -> Mapping[str, tuple[ServiceBuilder, float, int]]:
    return {
        f"tenant-{index}": (service(f"tenant-{index}").with_replicas_between(1, 8).with_accelerators(ON_H100), 11.0, 4)
        for index in range(count)
    }


def unschedulable(reasons: str) -> tuple[str, str]:
    """As kube-scheduler writes it."""
    preemption = "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    return "Unschedulable", f"0/3 nodes are available: {reasons}. {preemption}"


NO_GPU = unschedulable("1 Insufficient cpu, 3 Insufficient nvidia.com/gpu")
WAITS_FOR = {
    "gate": ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"),
    "cpu": unschedulable("3 Insufficient cpu"),
    "cpu, on full nodes": unschedulable("3 Insufficient cpu, 3 Insufficient nvidia.com/gpu"),
    "memory": unschedulable("2 Insufficient memory, 1 node(s) had untolerated taint {cloud: , old}"),
    "memory, on full nodes": unschedulable("3 Insufficient memory, 3 Insufficient nvidia.com/gpu"),
    "pods": unschedulable("3 Insufficient nvidia.com/gpu, 3 Too many pods"),
    "another GPU": unschedulable("3 Insufficient nvidia.com/gpu-large"),
    "volume claim": unschedulable('persistentvolumeclaim "model" not found'),
    "volume claim, in short": ("Unschedulable", 'persistentvolumeclaim "model" not found'),
    "volume": unschedulable("3 node(s) didn't find available persistent volumes to bind"),
    "taint": unschedulable("3 node(s) had untolerated taint {team: other}"),
    "node selector": unschedulable("3 node(s) didn't match Pod's node affinity/selector"),
    "nodes without GPUs that it may not use": unschedulable(
        "1 Insufficient cpu, 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {a: b}"
    ),
}


@pytest.mark.parametrize("why", WAITS_FOR.values(), ids=WAITS_FOR)
@pytest.mark.parametrize(("priority", "pin"), [(0, None), (100, 16)])
def test_no_other_tenant_loses_a_replica_for_pods_that_do_not_wait_for_gpus(
    why: tuple[str, str], priority: int, pin: int | None
) -> None:
    greedy = service("greedy").with_replicas_between(16, 16).with_priority(priority)
    contest = world(why, greedy if pin is None else greedy.pinned_to(pin))
    for _ in range(120):
        contest.run(5.0)
        assert contest.running() >= 9, "what three tenants need"
    assert contest.gave_way == []


@pytest.mark.parametrize("priority", [0, 100])
@pytest.mark.parametrize(
    ("phase", "reason"),
    [(ReplicaPhase.STARTING, ""), (ReplicaPhase.FAILING, "VolumeMissing")],
    ids=["ignored", "no volume"],
)
def test_no_replica_is_lost_for_pods_without_a_node_that_do_not_say_so_even_while_another_service_waits(
    phase: ReplicaPhase, reason: str, priority: int
) -> None:
    greedy = service("greedy").with_replicas_between(16, 16).with_priority(priority)
    contest = world((reason, ""), greedy)
    contest.phase = phase
    contest.rates["tenant-0"] = 19.0
    for _ in range(120):
        contest.run(5.0)
        assert contest.running() >= 11, "what fits"


@pytest.mark.parametrize("priority", [0, 100])
def test_no_replica_is_lost_for_pods_whose_image_cannot_be_pulled(priority: int) -> None:
    broken = accelerator("odd", node_selector=(("kind", "h100"),))
    greedy = service("greedy").with_replicas_between(16, 16).with_priority(priority).with_accelerators(broken)
    services = {**tenants_of(3), "greedy": (greedy, 1.0, 0)}
    contest = Contest(16, services, same={"odd": "h100"}, broken=frozenset({"odd"}))
    for _ in range(120):
        contest.run(5.0)
        assert contest.running() >= 9, "what three tenants need"
    assert contest.gave_way == []


@pytest.mark.parametrize(
    "message",
    [
        "",
        NO_GPU[1],
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
        "0/9 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu, 7 node(s) had untolerated taint.",
        "0/14 nodes are available: 10 Insufficient cpu, 10 Insufficient memory, 14 Insufficient nvidia.com/gpu. "
        "no new claims to deallocate, preemption: 0/14 nodes are available: 14 No preemption victims found.",
        "0/3 nodes are unavailable: 3 Insufficient nvidia.com/gpu.",
        "0/900 nodes are available: 4 Insufficient nvidia.com/gpu, 80 node(s) had untolerated taint {a: b}, 816 node(…",
    ],
)
def test_a_pod_waits_for_gpus_if_they_could_be_all_that_it_lacks(message: str) -> None:
    assert may_wait_for("nvidia.com/gpu", message)


@given(st.text(max_size=200), st.lists(st.tuples(st.integers(0, 10**30), st.text(max_size=40)), max_size=5))
def test_no_message_of_a_scheduler_is_an_error(words: str, reasons: list[tuple[int, str]]) -> None:
    told = ", ".join(f"{count} {reason}" for count, reason in reasons)
    for message in (words, f"0/3 nodes are available: {words}", f"0/3 nodes are available: {told}."):
        assert may_wait_for("nvidia.com/gpu", message) in (True, False)


def test_pods_that_wait_for_gpus_get_them_by_priority() -> None:
    contest = world(NO_GPU, service("greedy").with_replicas_between(6, 6).with_priority(100))
    contest.run(600.0)
    assert contest.gave_way
    assert contest.running() <= 6


def test_what_was_given_up_and_cannot_be_taken_returns_at_once() -> None:
    contest = world(NO_GPU, service("greedy").with_replicas_between(6, 6).with_priority(100))
    contest.run(600.0)
    contest.why = WAITS_FOR["cpu"]
    contest.run(10.0)
    assert contest.running() >= 9, "what three tenants need"


def test_a_gated_pod_tries_no_other_accelerator() -> None:
    other = accelerator("l40s", node_selector=(("kind", "l40s"),))
    greedy = service("greedy").with_replicas_between(2, 4).with_accelerators(ON_H100, other)
    contest = Held({"h100": 4, "l40s": 4}, {"greedy": (greedy, 1.0, 0)})
    contest.run(1200.0)
    assert contest.size["greedy"] == {"h100": 2}
    assert {pod.phase for pod in contest.pods["greedy"]} == {ReplicaPhase.UNSCHEDULABLE}
