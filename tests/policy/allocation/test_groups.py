"""Replicas that are groups of pods: where they find room, and what they hold."""

from dataclasses import replace

import pytest

from holdfast.domain.cluster import Replica
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption
from holdfast.policy.health.replicas import Group
from holdfast.policy.transition.sizes import removal_order
from tests.builders import ServiceView, node, replicas, service
from tests.policy.allocation.test_fleet import a_claim, shared

PAIR = AcceleratorOption("h100x16", gpus_per_replica=16, nodes=2)
WHOLE = replace(PAIR, nodes=1)


def inventory(*free: int) -> Inventory:
    return Inventory(tuple(node(f"n{at}", gpus) for at, gpus in enumerate(free)))


@pytest.mark.parametrize(
    ("free", "groups"),
    [((8, 8), 1), ((8, 8, 8), 1), ((8, 8, 8, 8), 2), ((8,), 0), ((7, 7, 7), 0), ((16,), 1), ((15, 8), 1), ((), 0)],
)
def test_a_group_finds_room_where_each_of_its_pods_does(free: tuple[int, ...], groups: int) -> None:
    room = inventory(*free).room(PAIR)
    assert room.free_replicas == groups
    assert bool(room.free_on) == bool(groups)  # half a group has no use of a node


def test_a_group_and_a_single_pod_of_as_many_gpus_have_rooms_of_their_own() -> None:
    nodes = inventory(8, 8)
    assert [nodes.room(option).free_replicas for option in (PAIR, WHOLE, PAIR)] == [1, 0, 1]


def test_each_pod_of_a_group_holds_its_part_of_the_gpus_on_its_node() -> None:
    spec = service().with_accelerators(PAIR)
    ours = ServiceView(spec, replicas=(a_group("both", "n0", "n1"),)).snapshot()
    held = Inventory(tuple(node(f"n{at}", 8, used=8) for at in range(3)))
    assert held.available_to([ours]).spoken_for == {("n2", "nvidia.com/gpu"): 8}


def test_groups_are_shared_out_by_the_gpus_of_their_pods() -> None:
    requests = [a_claim("large", 2, option=PAIR, least=0), a_claim("first", 1, priority=10)]
    assert shared(requests, inventory(8, 8, 8)) == {"large": 1, "first": 1}
    assert shared(requests, inventory(8, 8)) == {"large": 0, "first": 1}


def test_a_group_leaves_first_where_any_of_its_nodes_is_wanted() -> None:
    group = Group(PAIR.name, 2, ready=(a_group("first", "n0", "n1"), a_group("second", "n2", "n3")))
    assert removal_order(group, {"n1"})[0] == "first"
    assert removal_order(group, {"n2"})[0] == "second"


def a_group(name: str, home: str, *followers: str) -> Replica:
    (replica,) = replicas(1, on=PAIR.name)
    return replace(replica, name=name, node=home, followers=followers)
