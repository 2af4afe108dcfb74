"""A service takes GPUs from others only for pods that wait for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from holdfast.domain.cluster import ReplicaPhase
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.contest import Contest

ON_H100 = accelerator("h100", node_selector=(("kind", "h100"),))


class Held(Contest):
    """Pods of `greedy` are never scheduled; the scheduler says why."""

    why = ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")

    def _schedule(self) -> None:
        greedy = self.pods["greedy"]
        self.pods["greedy"] = []
        super()._schedule()
        reason, detail = self.why
        self.pods["greedy"] = [replace(pod, reason=reason, detail=detail) for pod in greedy]


def world(why: tuple[str, str], greedy: ServiceBuilder, tenants: int = 3) -> Held:
    """A node of 12 GPUs full of tenants with four replicas each, who need three."""
    tenant: Mapping[str, tuple[ServiceBuilder, float, int]] = {
        f"tenant-{index}": (service(f"tenant-{index}").with_replicas_between(1, 8).with_accelerators(ON_H100), 11.0, 4)
        for index in range(tenants)
    }
    found = Held(12, {**tenant, "greedy": (greedy.with_accelerators(ON_H100), 1.0, 0)})
    found.why = why
    return found


GATED = "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
NO_CPU = "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available"
NO_GPU = "Unschedulable", "0/3 nodes are available: 1 Insufficient cpu, 3 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize("priority", [0, 100])
@pytest.mark.parametrize("why", [GATED, NO_CPU], ids=["gate", "cpu"])
@pytest.mark.parametrize("pin", [None, 16])
def test_no_other_tenant_loses_a_replica_for_pods_that_do_not_wait_for_gpus(
    why: tuple[str, str], priority: int, pin: int | None
) -> None:
    greedy = service("greedy").with_replicas_between(16, 16).with_priority(priority)
    contest = world(why, greedy if pin is None else greedy.pinned_to(pin))
    for _ in range(240):
        contest.run(5.0)
        assert contest.running() >= 9, "what three tenants need"
    assert contest.gave_way == []


def test_pods_that_wait_for_gpus_get_them_by_priority() -> None:
    contest = world(NO_GPU, service("greedy").with_replicas_between(6, 6).with_priority(100))
    contest.run(600.0)
    assert contest.gave_way
    assert contest.running() <= 6


def test_a_gated_pod_tries_no_other_accelerator() -> None:
    other = accelerator("l40s", node_selector=(("kind", "l40s"),))
    greedy = service("greedy").with_replicas_between(2, 4).with_accelerators(ON_H100, other)
    contest = Held({"h100": 4, "l40s": 4}, {"greedy": (greedy, 1.0, 0)})
    contest.run(1200.0)
    assert contest.size["greedy"] == {"h100": 2}
    assert {pod.phase for pod in contest.pods["greedy"]} == {ReplicaPhase.UNSCHEDULABLE}
