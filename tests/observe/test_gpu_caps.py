"""Quotas and shares as the loop sees them: kopf's own indexing, fed with events."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import kopf
import pytest

from holdfast.domain.cluster import GpuCap, Placement, Replica, ReplicaPhase
from holdfast.domain.gpu_caps import without
from holdfast.domain.service import ServiceSpec
from holdfast.observe.objects.gpu_caps import GpuCaps, caps_from_quota
from holdfast.observe.objects.nodes import Nodes, gpus_of_node
from tests.builders import ServiceView, a_snapshot, accelerator, replicas, service, traffic
from tests.observe.indexed import Indexed

GPU = "nvidia.com/gpu"
CHAT = service("chat", "team-a").spec


class World(Indexed):
    """Quotas and nodes."""

    def __init__(self, shares: Mapping[str, Fraction] | None = None, *, quotas: bool = True) -> None:
        self.caps = GpuCaps(shares or {}, nodes := Nodes())
        registry = kopf.OperatorRegistry()
        nodes.register(registry)
        self.caps.register(registry, quotas=quotas)
        super().__init__(registry)

    def of(self, *specs: ServiceSpec) -> list[tuple[str, str, int, int | None, str]]:
        return [(cap.namespace, cap.resource, cap.gpus, cap.used, cap.name) for cap in self.caps.of(specs)]


def quota(hard: object = "4", used: object = "3", name: str = "gpus", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team-a", "name": name},
        "spec": {"hard": {f"requests.{GPU}": hard}, **spec},
        "status": {"hard": {f"requests.{GPU}": hard}, "used": {f"requests.{GPU}": used}},
    }


def gpu_node(name: str, capacity: str, allocatable: str | None = None, **spec: Any) -> dict[str, Any]:
    status = {"capacity": {GPU: capacity, "cpu": "8"}, "allocatable": {GPU: allocatable or capacity, "cpu": "8"}}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


async def test_a_quota_bounds_the_resource_in_its_namespace() -> None:
    world = await World().start()
    await world.put("quotas", quota())
    assert world.of(CHAT) == [("team-a", GPU, 4, 3, "ResourceQuota gpus")]
    assert world.of(service("chat", "team-b").spec) == []
    other = service("chat", "team-a").with_accelerators(accelerator("a100", resource="example.com/gpu")).spec
    assert world.of(other) == []


async def test_a_quota_that_is_deleted_or_edited_bounds_as_it_stands() -> None:
    world = await World().start()
    await world.put("quotas", quota())
    await world.put("quotas", quota(hard="9"))
    assert [gpus for _, _, gpus, *_ in world.of(CHAT)] == [9]
    world.remove("quotas", quota())
    assert world.of(CHAT) == []


@pytest.mark.parametrize("scoped", [{"scopes": ["NotTerminating"]}, {"scopeSelector": {"matchExpressions": [{}]}}])
async def test_a_quota_with_scopes_bounds_nothing_and_that_is_said_once(
    scoped: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    world = await World().start()
    await world.put("quotas", quota(**scoped))
    await world.put("quotas", quota(used="4", **scoped))
    assert world.of(CHAT) == []
    assert [record.getMessage() for record in caplog.records] == [
        "ResourceQuota gpus of namespace team-a has scopes, so it bounds no size; "
        "CapacityAvailable says if it refuses pods"
    ]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (quota(hard="1k", used="0"), [(1000, 0)]),
        (quota(hard=4, used=None), [(4, None)]),
        (quota(hard="4", used="many"), [(4, None)]),
        (quota(hard="many"), []),
        (quota(hard="-1"), []),
        (quota(hard="nan"), []),
        ({"metadata": {"namespace": "team-a", "name": "new"}, "spec": {"hard": {f"requests.{GPU}": "2"}}}, [(2, None)]),
        ({"metadata": {"namespace": "team-a", "name": "empty"}}, []),
        ({"metadata": {"namespace": "team-a", "name": "x"}, "spec": {"hard": {"requests.cpu": "2", "pods": "1"}}}, []),
        # Kubernetes accepts neither for an extended resource.
        ({"metadata": {"namespace": "team-a", "name": "x"}, "spec": {"hard": {GPU: "2", f"limits.{GPU}": "1"}}}, []),
    ],
)
def test_only_whole_requests_of_extended_resources_are_read(
    body: dict[str, Any], found: list[tuple[int, int | None]]
) -> None:
    assert [(cap.gpus, cap.used) for cap in caps_from_quota(body)] == found


async def test_a_share_is_of_all_gpus_of_the_cluster_and_rounded_down() -> None:
    world = await World({"team-a": Fraction(1, 2), "*": Fraction(1, 3)}).start()
    for body in (gpu_node("n1", "8"), gpu_node("n2", "7", unschedulable=True), gpu_node("n3", "2", "0")):
        await world.put("nodes", body)
    assert world.of(CHAT) == [("team-a", GPU, 8, None, "--namespace-share (50% of 17 GPUs)")]
    assert world.of(service("chat", "team-b").spec) == [
        ("team-b", GPU, 5, None, "--namespace-share (33.3333% of 17 GPUs)")
    ]


async def test_a_share_of_unknown_gpus_is_unknown() -> None:
    world = await World({"*": Fraction(0)}).start()
    assert world.of(CHAT) == []
    await world.put("nodes", gpu_node("n1", "8"))
    assert [gpus for _, _, gpus, *_ in world.of(CHAT)] == [0]


async def test_quotas_that_may_not_be_read_are_not_watched() -> None:
    world = await World({"*": Fraction(1)}, quotas=False).start()
    assert set(world.indexers) == {"nodes"}
    assert world.of(CHAT) == []


def test_nodes_without_a_status_have_nothing() -> None:
    assert gpus_of_node({"metadata": {"name": "new"}}) == {}
    assert gpus_of_node({"metadata": {"name": "n"}, "status": {"allocatable": {GPU: "2"}}}) == {GPU: 2}


@pytest.mark.parametrize(
    ("pods", "size", "used", "others"),
    [
        (3, 3, 3, 0),
        (3, 3, 5, 2),
        (3, 4, 4, 0),  # the fourth was made just now, and its pod is not seen yet
        (5, 4, 5, 0),  # during a rollout
        (3, 3, 2, 0),  # the count of the quota is late
        (0, 0, 2, 2),
        (3, 3, None, 0),
    ],
)
def test_what_others_use_of_a_quota(pods: int, size: int, used: int | None, others: int) -> None:
    shown = ServiceView(service("chat", "team-a"), traffic(1.0), replicas(pods), (Placement("h100", size),))
    services = a_snapshot(shown).services
    cap = GpuCap("team-a", GPU, 4, "ResourceQuota gpus", used)
    assert [each.used for each in without({CHAT.key}, [cap], services)] == [others]


def test_services_that_are_not_decided_on_use_what_they_hold() -> None:
    waiting = Replica("p", "h100", ReplicaPhase.UNSCHEDULABLE, 0.0)
    shown = ServiceView(service("chat", "team-a"), traffic(1.0), (*replicas(2), waiting), ())
    apart = ServiceView(service("chat", "team-b"), traffic(1.0), replicas(5), ())
    services = a_snapshot(shown, apart).services
    cap = GpuCap("team-a", GPU, 4, "share")
    assert [each.used for each in without((), [cap], services)] == [3]
    assert [each.used for each in without({CHAT.key}, [cap], services)] == [0]
