"""From a decision to the writes that follow from it."""

import dataclasses
from collections.abc import Iterable

import pytest

from holdfast.control.objects.plan import Plan, plan
from holdfast.domain.cluster import NodeOffer, Placement, QueueLimit, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, Decision, PlacementTarget, QueueLimitTarget
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.taints import Taint
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.mapping import node_offer_from_node
from holdfast.rendered.context import Deployed
from tests.control.parts import decision, llmservice, parts


def planned(part: ServiceParts, decided: Decision, *nodes: NodeOffer) -> Plan:
    return plan(part, decided, Inventory(nodes), pod_monitor=False, admission=lambda *_: 7)


def test_a_new_service_is_created_at_the_decided_size() -> None:
    part = parts()
    changes = planned(part, decision(part, Action.CREATE, h100=2))
    assert (changes.accelerators, dict(changes.create), changes.grow) == (("h100",), {"chat-h100": 2}, ())


def test_an_accelerator_without_replicas_gets_no_deployment() -> None:
    part = parts()
    changes = planned(part, decision(part, Action.CREATE, h100=1, l40s=0))
    assert changes.accelerators == ("h100",)


def test_a_size_that_differs_is_scaled_and_one_that_stands_is_not() -> None:
    part = parts(sizes={"h100": 1, "l40s": 2})
    changes = planned(part, decision(part, Action.SCALE_UP, h100=3, l40s=2))
    assert [(each.name, target.replicas, target.observed_replicas) for each, target in changes.grow] == [
        ("chat-h100", 3, 1)
    ]


def test_what_did_not_shrink_leaves_so_many_fewer_places_to_what_comes() -> None:
    assert [coming(moving(), places) for places in (0, 1, 2, 3, 99)] == [
        {"chat-n": 2, "chat-g": 1, "chat-l": 4},
        {"chat-n": 1, "chat-g": 1, "chat-l": 4},
        {"chat-n": 0, "chat-g": 1, "chat-l": 4},
        {"chat-n": 0, "chat-g": 0, "chat-l": 4},
        {"chat-n": 0, "chat-g": 0, "chat-l": 1},
    ]


def test_only_so_many_fewer_come_as_scaling_max_has_no_place_for() -> None:
    assert coming(moving(most=10), 2) == {"chat-n": 2, "chat-g": 1, "chat-l": 4}
    assert coming(moving(most=10), 3) == {"chat-n": 1, "chat-g": 1, "chat-l": 4}


def test_under_a_budget_nothing_comes_beside_what_did_not_shrink() -> None:
    assert coming(moving(most=20, dollars=99.0), 0) == {"chat-n": 2, "chat-g": 1, "chat-l": 4}
    assert coming(moving(most=20, dollars=99.0), 1) == {"chat-n": 0, "chat-g": 0, "chat-l": 1}


def test_what_a_retired_accelerator_still_has_takes_no_place_twice() -> None:
    service = llmservice(accelerators=[{"name": name} for name in "hl"], scaling={"min": 1, "max": 5})
    part = parts(service, sizes={"h": 0, "l": 3, "old": 2}, ready={"l": 3, "old": 2})
    changes = planned(part, decision(part, Action.SWITCH, h=2, l=1))
    assert (sizes(changes.shrink), changes.spare) == ({"chat-l": 1, "chat-old": 0}, 2)


def test_a_decided_queue_limit_reaches_the_renderer_for_its_accelerator_alone() -> None:
    part = parts(sizes={"h100": 1, "l40s": 2})
    hold = decision(part, Action.HOLD, h100=1, l40s=2)
    decided = dataclasses.replace(hold, queue_limit=QueueLimitTarget("h100", QueueLimit(2900, 1_800_000_000), ""))
    facts = dict(planned(part, decided).context.accelerators)
    found = {name: (fact.admission_tokens, fact.admission_changed_at) for name, fact in facts.items()}
    assert found == {"h100": (2900, 1_800_000_000), "l40s": (7, None)}


def test_the_time_of_the_last_measured_limit_is_kept() -> None:
    part = parts(sizes={"h100": 1})
    known = dataclasses.replace(part.deployed[0], rendered=Deployed("x", "{}", 0, admission_changed_at=1_800_000_000))
    part = dataclasses.replace(part, deployed=(known,))
    facts = dict(planned(part, decision(part, Action.HOLD, h100=1)).context.accelerators)["h100"]
    assert (facts.admission_tokens, facts.admission_changed_at) == (7, 1_800_000_000)


def coming(changes: Plan, unmoved: int) -> dict[str, int]:
    """Sizes of what comes where so many did not shrink."""
    left = changes.reduced_by([PlacementTarget("h", 0, unmoved)])
    return {**left.create, **sizes(left.grow)}


def moving(most: int = 8, dollars: float | None = None) -> Plan:
    """Four kinds change and one is new."""
    budget = {} if dollars is None else {"budget": {"maxCostPerHour": dollars}}
    kinds = [{"name": name, "costPerHour": 1} for name in "ghkln"]
    service = llmservice(accelerators=kinds, scaling={"min": 1, "max": most}, **budget)
    part = parts(service, sizes={"g": 0, "h": 9, "k": 2, "l": 1})
    return planned(part, decision(part, Action.SWITCH, g=1, h=0, k=1, l=4, n=2))


def sizes(changes: Iterable[tuple[Workload, PlacementTarget]]) -> dict[str, int]:
    return {workload.name: target.replicas for workload, target in changes}


def test_holding_moves_nothing() -> None:
    part = parts(sizes={"h100": 2}, ready={"h100": 2})
    assert not planned(part, decision(part, Action.HOLD, h100=2)).moves


def test_an_accelerator_that_left_the_spec_is_emptied_once_the_others_serve() -> None:
    service = llmservice(accelerators=[{"name": "l40s"}])
    starting = parts(service, sizes={"h100": 2, "l40s": 2}, ready={"h100": 2, "l40s": 1})
    assert not planned(starting, decision(starting, Action.HOLD, l40s=2)).moves
    serving = parts(service, sizes={"h100": 2, "l40s": 2}, ready={"h100": 2, "l40s": 2})
    changes = planned(serving, decision(serving, Action.HOLD, l40s=2))
    assert [(each.name, target.replicas) for each, target in changes.shrink] == [("chat-h100", 0)]


def test_an_empty_deployment_of_an_accelerator_that_left_the_spec_is_deleted() -> None:
    part = parts(llmservice(accelerators=[{"name": "l40s"}]), sizes={"h100": 0, "l40s": 1}, ready={"l40s": 1})
    assert planned(part, decision(part, Action.HOLD, l40s=1)).delete == (Workload("chat-h100"),)


def test_a_free_gpu_on_a_matching_node_lets_a_rollout_surge() -> None:
    part = parts(sizes={"h100": 1})
    node = NodeOffer("n1", (), (("nvidia.com/gpu", 2),), (("nvidia.com/gpu", 1),))
    full = NodeOffer("n1", (), (("nvidia.com/gpu", 2),), (("nvidia.com/gpu", 2),))
    decided = decision(part, Action.HOLD, h100=1)
    assert planned(part, decided, node).context.facts("h100").surge_room
    assert not planned(part, decided, full).context.facts("h100").surge_room


@pytest.mark.parametrize(("size", "free", "surge"), [(1, 5, 1), (8, 5, 2), (9, 5, 3), (40, 5, 5), (40, 20, 10)])
def test_a_rollout_may_surge_by_a_quarter_as_far_as_gpus_are_free(size: int, free: int, surge: int) -> None:
    part = parts(sizes={"h100": size})
    node = NodeOffer("n1", (), (("nvidia.com/gpu", free),))
    assert planned(part, decision(part, Action.HOLD, h100=size), node).context.facts("h100").surge_room == surge


def test_emulated_engines_surge_on_any_node_that_takes_pods() -> None:
    service = llmservice(accelerators=[{"name": "h100", "resource": "None"}])
    part = parts(service, sizes={"h100": 8}, ready={"h100": 8})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    plain = node_offer_from_node({"metadata": {"name": "n1"}, "status": ready})
    assert plain is not None
    assert planned(part, decision(part, Action.HOLD, h100=8), plain).context.facts("h100").surge_room == 2


@pytest.mark.parametrize(("surge", "size", "free", "then"), [(1, 25, 9, 7), (1, 25, 3, 4), (5, 8, 9, 5), (0, 25, 9, 0)])
def test_the_surge_of_a_rollout_under_way_grows_with_the_size(surge: int, size: int, free: int, then: int) -> None:
    part = parts(sizes={"h100": size})
    rolling = dataclasses.replace(
        part.deployed[0],
        placement=Placement("h100", size, rolling_out=True, workload=Workload("chat-h100")),
        rendered=Deployed("", "", max_surge=surge),
    )
    node = NodeOffer("n1", (), (("nvidia.com/gpu", free),))
    changes = planned(dataclasses.replace(part, deployed=(rolling,)), decision(part, Action.HOLD, h100=size), node)
    assert changes.context.facts("h100").surge_under_way == then


def test_a_replica_on_a_node_that_takes_no_pods_is_not_given_up_for_the_next_one() -> None:
    part = parts(sizes={"h100": 1}, ready={"h100": 1})
    there = dataclasses.replace(part, replicas=tuple(dataclasses.replace(r, node="n1") for r in part.replicas))
    full = NodeOffer("n1", (), (("nvidia.com/gpu", 1),), (("nvidia.com/gpu", 1),))
    other = NodeOffer("n2", (), (("nvidia.com/gpu", 1),), (("nvidia.com/gpu", 1),))
    decided = decision(part, Action.HOLD, h100=1)
    assert not planned(there, decided, full, other).context.facts("h100").surge_room
    assert planned(there, decided, other).context.facts("h100").surge_room
    assert planned(there, decided).context.facts("h100").surge_room


def test_a_surge_replica_waits_for_a_node_while_the_old_one_could_not_be_replaced_where_it_is() -> None:
    part = parts(sizes={"h100": 1}, ready={"h100": 1})
    waiting = Replica("h100-next", "h100", ReplicaPhase.UNSCHEDULABLE, created_at=0.0)
    serving = dataclasses.replace(part.replicas[0], node="n1")
    rolling = dataclasses.replace(
        part.deployed[0],
        placement=Placement("h100", 1, rolling_out=True, workload=Workload("chat-h100")),
        rendered=Deployed("", "", max_surge=1),
    )
    there = dataclasses.replace(part, replicas=(serving, waiting), deployed=(rolling,))
    begun = dataclasses.replace(part, replicas=(serving,))
    full = NodeOffer("n1", (), (("nvidia.com/gpu", 1),), (("nvidia.com/gpu", 1),))
    decided = decision(part, Action.HOLD, h100=1)
    assert planned(there, decided, full).context.facts("h100").surge_under_way == 0
    assert planned(there, decided).context.facts("h100").surge_under_way == 1
    through_dra = NodeOffer("n1", (), ())
    assert planned(there, decided, through_dra).context.facts("h100").surge_under_way == 0
    assert planned(begun, decided, through_dra).context.facts("h100").surge_room, "a free one may be there"


def test_a_replica_is_not_given_up_for_one_that_a_taint_keeps_from_its_place() -> None:
    part = parts(sizes={"h100": 1}, ready={"h100": 1})
    serving = dataclasses.replace(part.replicas[0], node="n1")
    rolling = dataclasses.replace(
        part.deployed[0],
        placement=Placement("h100", 1, rolling_out=True, workload=Workload("chat-h100")),
        rendered=Deployed("", "", max_surge=1),
    )
    whole = (("nvidia.com/gpu", 1),)
    # Nearly every message of the scheduler speaks of some taint, that of the control plane at least.
    words = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)."
    waiting = Replica("h100-next", "h100", ReplicaPhase.UNSCHEDULABLE, created_at=0.0, detail=words)
    rolls = dataclasses.replace(part, replicas=(serving, waiting), deployed=(rolling,))
    begins = dataclasses.replace(part, replicas=(serving,))
    for taints, stuck in (((), True), ((Taint("maintenance", "true", "NoSchedule"),), False)):
        full = NodeOffer("n1", (), whole, whole, taints)
        decided = decision(part, Action.HOLD, h100=1)
        assert planned(rolls, decided, full).context.facts("h100").surge_under_way == (0 if stuck else 1)
        assert planned(begins, decided, full).context.facts("h100").surge_room == (not stuck)
