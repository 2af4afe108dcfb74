"""What a ResourceQuota or a share allows a namespace bounds what its services get, but for their minimums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import GpuCap
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.memory import Fleet
from tests.builders import NOW, ServiceBuilder, accelerator, condition, node, service
from tests.policy.allocation.test_fleet_exchanges import a_claim, movable, on
from tests.policy.contest import RATE_RPS, SETTINGS, Contest

GPU = "nvidia.com/gpu"
A100 = accelerator("a100", resource="example.com/gpu")


class Capped(Contest):
    """Services on one node, whose namespaces have caps; a quota counts `foreign` GPUs of other pods as well."""

    def __init__(
        self,
        offered: int,
        services: Mapping[str, tuple[ServiceBuilder, float, int]],
        *caps: GpuCap,
        foreign: int | None = None,
    ) -> None:
        super().__init__(offered, services, cold_seconds=20.0)
        self.caps, self.foreign, self.most = caps, foreign, 0

    def snapshot(self) -> Snapshot:
        self.most = max(self.most, self.held_in("prod"))
        used = None if self.foreign is None else self.foreign + self.held_in("prod")
        return replace(super().snapshot(), gpu_caps=tuple(replace(cap, used=used) for cap in self.caps))

    def held_in(self, namespace: str) -> int:
        keys = {name: builder.spec.key for name, builder in self.builders.items()}
        return sum(
            self._gpus(name, pod) for name, key in keys.items() if key.namespace == namespace for pod in self.pods[name]
        )

    def capacity_of(self, name: str) -> tuple[bool | None, str]:
        return condition(self.last[name], "CapacityAvailable")

    def message_of(self, name: str) -> str:
        found = (each for each in self.last[name].conditions if each.type == "CapacityAvailable")
        return next(found).message


def quota(gpus: int, resource: str = GPU, namespace: str = "prod") -> GpuCap:
    return GpuCap(namespace, resource, gpus, "ResourceQuota gpus")


def loaded(replicas: int, least: int = 1, **given: object) -> tuple[ServiceBuilder, float, int]:
    """A service whose load needs so many replicas, and that starts with its minimum."""
    return service(**given).with_replicas_between(least, 16), RATE_RPS * (replicas - 0.5), least  # type: ignore[arg-type]


def test_a_service_grows_to_what_its_quota_leaves_and_says_which_one() -> None:
    contest = Capped(16, {"chat": loaded(6)}, quota(4), foreign=0)
    contest.run(400.0)
    assert (contest.size["chat"], contest.most) == ({"h100": 4}, 4)
    assert contest.capacity_of("chat") == (False, Reason.CAPACITY_LIMITED)
    message = contest.message_of("chat")
    assert "ResourceQuota gpus allows namespace prod 4 nvidia.com/gpu;" in message
    assert "one more GPU would add" in message
    assert message.endswith("raise ResourceQuota gpus or spec.priority")


def test_a_higher_quota_is_used_at_once() -> None:
    contest = Capped(16, {"chat": loaded(6)}, quota(4), foreign=0)
    contest.run(300.0)
    contest.caps = (quota(16),)
    contest.run(60.0)
    assert contest.size["chat"]["h100"] > 4
    assert contest.capacity_of("chat") == (True, Reason.ALL_PLACED)


def test_what_other_pods_use_of_a_quota_is_not_given_to_services() -> None:
    contest = Capped(16, {"chat": loaded(6)}, quota(6), foreign=3)
    contest.run(400.0)
    assert contest.most == 3
    assert "allows namespace prod 6 nvidia.com/gpu, 3 in use by other pods" in contest.message_of("chat")


def test_the_smallest_of_several_caps_binds() -> None:
    contest = Capped(16, {"chat": loaded(6)}, quota(5), replace(quota(3), name="--namespace-share (20% of 16 GPUs)"))
    contest.run(400.0)
    assert contest.most == 3
    assert "--namespace-share (20% of 16 GPUs) allows" in contest.message_of("chat")
    assert contest.message_of("chat").endswith("raise --namespace-share or spec.priority")


@pytest.mark.parametrize("gpus", [0, 2, -5])
def test_no_cap_takes_a_service_below_its_minimum(gpus: int) -> None:
    contest = Capped(16, {"chat": loaded(6, least=3)}, quota(gpus))
    contest.run(300.0)
    assert contest.size["chat"] == {"h100": 3}


def test_replicas_of_several_gpus_are_rounded_down() -> None:
    large = loaded(6)[0].with_accelerators(accelerator("h100", gpus_per_replica=2))
    contest = Capped(16, {"chat": (large, RATE_RPS * 5.5, 1)}, quota(7))
    contest.run(300.0)
    assert (contest.size["chat"], contest.most) == ({"h100": 3}, 6)


def test_within_a_cap_the_priority_of_services_decides() -> None:
    batch, chat = loaded(4, name="batch"), loaded(3, name="chat")
    contest = Capped(16, {"batch": batch, "chat": (chat[0].with_priority(10), *chat[1:])}, quota(5))
    contest.run(400.0)
    assert contest.running("chat") >= 3
    assert (contest.running(), contest.most) == (5, 5)
    assert "GPUs went to prod/chat (priority 10)" in contest.message_of("batch")


def test_who_is_over_a_new_cap_gives_back_what_is_above_its_minimum_for_others() -> None:
    greedy, other = loaded(8, name="greedy"), loaded(6, name="other", namespace="other")
    contest = Capped(10, {"greedy": (greedy[0].with_priority(100), *greedy[1:]), "other": other})
    contest.run(300.0)
    assert contest.running("other") < 5
    contest.caps = (quota(5),)
    contest.run(400.0)
    assert (contest.running("greedy"), contest.running("other")) == (5, 5)


@pytest.mark.parametrize("cap", [quota(1, namespace="other"), quota(1, "example.com/gpu")])
def test_a_cap_binds_no_other_namespace_and_no_other_resource(cap: GpuCap) -> None:
    contest = Capped(16, {"chat": loaded(6)}, cap)
    contest.run(200.0)
    assert contest.running("chat") >= 6


def test_a_service_moves_to_a_resource_that_is_not_capped() -> None:
    chat = movable(a_claim("chat", 6, running=2, short=False), replace(A100, node_selector=()), 6)
    nodes = Inventory((node("n-a", 8, kind="a"), node("n-b", 8, resource="example.com/gpu")))
    allocations, _ = allocate({chat.key: chat}, Fleet(), nodes, NOW, SETTINGS, caps=[quota(2)])
    assert allocations[chat.key].moves_to == "a100"


def test_no_service_moves_to_another_accelerator_that_its_cap_does_not_allow() -> None:
    chat = movable(a_claim("chat", 6, running=2, short=False), on("b"), 6)
    nodes = Inventory((node("n-a", 8, kind="a"), node("n-b", 8, kind="b")))
    allocations, _ = allocate({chat.key: chat}, Fleet(), nodes, NOW, SETTINGS, caps=[quota(2)])
    assert (allocations[chat.key].moves_to, allocations[chat.key].replicas) == ("", 2)


def test_a_namespace_above_its_cap_keeps_no_other_one_from_moving() -> None:
    nodes = Inventory((node("n-a", 8, kind="a"), node("n-b", 8, kind="b")))
    batch = movable(a_claim("batch", 4, running=4, short=False), on("b"), 5, 3.5)
    above = replace(a_claim("above", 4, running=4, short=False, least=3), key=service("above", "poor").spec.key)
    above = replace(above, option=on("b"))
    requests = {each.key: each for each in (a_claim("chat", 8, priority=10), batch, above)}
    caps = [quota(1, namespace="poor")]
    allocations, _ = allocate(requests, Fleet(), nodes, NOW, SETTINGS, caps=caps)
    assert allocations[batch.key].moves_to == "b"
    assert allocations[above.key].replicas == 3


CLAIMS = st.builds(
    lambda want, least, size, priority, outside: (want, min(want, least), size, priority, min(outside, least, want)),
    st.integers(0, 9), st.integers(0, 4), st.sampled_from([1, 2, 4]), st.integers(-3, 3), st.integers(0, 2),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), CLAIMS), min_size=1, max_size=6), st.integers(-1, 12))
def test_no_namespace_gets_more_than_its_cap_but_for_minimums(
    claims: list[tuple[str, tuple[int, int, int, int, int]]], gpus: int
) -> None:
    requests: dict[object, CapacityRequest] = {}
    for index, (namespace, (want, least, size, priority, outside)) in enumerate(claims):
        made = a_claim(f"s{index}", want, on("a", size), least=least, priority=priority, outside=outside, short=False)
        key = service(f"s{index}", namespace).spec.key
        requests[key] = replace(made, key=key)
    nodes = Inventory((node("n-a", 64, kind="a"),))
    allocations, fleet = allocate(requests, Fleet(), nodes, NOW, SETTINGS, caps=[quota(gpus, namespace="a")])  # type: ignore[arg-type]
    assert fleet == Fleet()
    assert all(key.namespace == "a" for key in allocations)
    mine = [each for each in requests.values() if each.key.namespace == "a"]
    given = {each.key: allocations[each.key].replicas if each.key in allocations else each.want for each in mine}
    size = {each.key: each.option.gpus_per_replica for each in mine}
    promised = sum(each.least * size[each.key] for each in mine)
    assert sum(replicas * size[key] for key, replicas in given.items()) <= max(gpus, promised)
    assert all(each.least <= given[each.key] <= each.want for each in mine)
