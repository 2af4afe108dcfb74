"""Spot and regular nodes where one of both, scaling.max or the budget leaves too little: what serves goes on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.allocation.capacity_pool import capacity_pools
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.decide import decide
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.memory import Memory
from holdfast.policy.placement.on_demand_pair import Pair, affordable, pair_of
from holdfast.policy.settings import PolicySettings
from holdfast.policy.sizing.guards import Proposal, within_the_accelerators_maximum
from tests.builders import ServiceBuilder, ServiceView, a_snapshot, accelerator, node, replicas, service, sizes, traffic
from tests.policy.fluid import FixedRates, FluidCluster, steps
from tests.policy.placement.test_accelerator_choice import OUT
from tests.policy.views import changed, view

SPOT = accelerator("h100-spot", cost_per_gpu_hour=1.0, spot=True)
REGULAR = accelerator("h100", cost_per_gpu_hour=3.0)
RESERVED = accelerator("h100-reserved", cost_per_gpu_hour=3.5)
L40S = accelerator("l40s", cost_per_gpu_hour=1.5)
RATES = {"h100": 4.0, "h100-spot": 4.0, "h100-reserved": 4.0, "l40s": 4.0}
CHAT = service().with_accelerators(SPOT, REGULAR).with_replicas_between(1, 20).with_on_demand(2)
QUICK = PolicySettings(provisioning_seconds=60.0)


def cluster_of(
    chat: ServiceBuilder = CHAT, *loads: tuple[float, float], gpus: dict[str, int] | None = None
) -> FluidCluster:
    return FluidCluster(chat, steps(*loads or ((0, 14.0),)), RATES, gpus=gpus or {}, settings=QUICK)


def running(cluster: FluidCluster) -> tuple[int, int]:
    """Sizes of spot and regular."""
    return cluster.replicas("h100-spot"), cluster.replicas("h100")


# -- regular nodes are short


def test_a_regular_replica_without_a_node_stops_no_growth_on_spot() -> None:
    cluster = cluster_of(CHAT, (0, 6.0), (150, 24.0), gpus={"h100": 1}).run(300)
    assert cluster.replicas("h100") == 2
    assert cluster.replicas("h100-spot") >= 6
    assert cluster.attainment(220, 300) >= 0.99


def test_spot_stands_in_for_regular_nodes_that_are_gone_until_they_are_back() -> None:
    cluster = cluster_of().run(150)
    spot, _ = running(cluster)
    cluster.reclaim("h100")
    cluster.run(90)
    assert running(cluster) == (spot + 2, 2)
    assert cluster.last().verdict.message.endswith("2 of them replace replicas that cannot serve")
    assert "AcceleratorUnavailable" in {str(decision.verdict.reason) for _, decision in cluster.decisions}
    cluster.give_back("h100")
    for pod in cluster.pods:
        pod.ready_at = pod.ready_at or cluster.clock + 30.0
    cluster.run(200)
    assert running(cluster) == (spot, 2)


def test_spot_stands_in_for_what_the_load_needs_and_not_for_an_idle_floor() -> None:
    cluster = cluster_of(CHAT.with_on_demand(3), (0, 1.0), gpus={"h100": 1}).run(150)
    assert running(cluster) == (0, 3)


def test_a_new_service_whose_regular_nodes_are_gone_serves_on_spot() -> None:
    cluster = cluster_of(CHAT, (0, 6.0), gpus={"h100": 0}).run(240)
    assert cluster.replicas("h100") == 2
    assert cluster.replicas("h100-spot") >= 2
    assert cluster.attainment(150, 240) >= 0.99


def test_a_floor_that_another_keeper_takes_over_serves_on_until_that_one_does() -> None:
    chat = CHAT.with_accelerators(SPOT, REGULAR, RESERVED)
    there = replicas(5, on="h100-spot") + replicas(1) + replicas(1, ReplicaPhase.UNSCHEDULABLE, age=400.0)
    decisions, _ = decide(
        a_snapshot(ServiceView(chat, traffic(14.0), there)), Memory(), PolicySettings(), FixedRates(RATES)
    )
    decided = sizes(decisions[0])
    assert decided["h100-reserved"] == 2
    assert decided["h100"] >= 1


def keeper(reserved: int) -> str:
    """Of a floor of three two run on h100, where no more find room; so many would on the reserved nodes."""
    one, other = replace(REGULAR, node_selector=(("kind", "a"),)), replace(RESERVED, node_selector=(("kind", "b"),))
    spec = CHAT.with_accelerators(SPOT, one, other).with_on_demand(3).spec
    groups = (Group("h100", size=3, exists=True, ready=replicas(2), short=replicas(1)),)
    inventory = Inventory((node("a", 2, used=2, kind="a"), node("b", reserved, kind="b")))
    found = pair_of(spec, SPOT, groups, Backoffs((replace(OUT, accelerator="h100"),)), inventory, OUT.until - 1.0)
    assert found is not None
    return found.accelerator


def test_the_floor_moves_only_to_where_more_of_it_finds_room() -> None:
    assert [keeper(reserved) for reserved in (0, 2, 3)] == ["h100", "h100", "h100-reserved"]


def test_only_the_accelerator_that_is_waited_for_is_short_for_others() -> None:
    spot, regular = (replace(o, node_selector=(("kind", o.name),)) for o in (SPOT, REGULAR))
    chat = CapacityRequest(ServiceKey("prod", "chat"), spot, 4, 0, 4.0, 8.0, short=True, paired=((regular, 2),))
    batch = CapacityRequest(ServiceKey("prod", "batch"), regular, 8, 1, 4.0, 32.0)
    inventory = Inventory((node("a", 2, kind="h100-spot"), node("b", 4, kind="h100")))
    for waits in (False, True):
        pools = capacity_pools([replace(chat, waits=waits), batch], inventory)
        assert [pool.waits for pool in pools if batch in pool.requests] == [waits]


# -- scaling.max and the budget


def test_an_operator_restarted_while_regular_replicas_stand_in_moves_nothing() -> None:
    cluster = cluster_of(CHAT.with_replicas_between(1, 5)).run(150)
    cluster.reclaim("h100-spot", left=1)
    cluster.run(60)
    before = running(cluster)
    assert before == (1, 4)
    cluster.restart_operator()
    cluster.run(100)
    assert running(cluster) == before


def test_a_floor_that_is_raised_breaks_no_budget_on_the_way() -> None:
    dear = replace(SPOT, cost_per_gpu_hour=2.8)
    chat = CHAT.with_accelerators(dear, REGULAR).with_on_demand(0).costing_at_most(18.0)
    cluster = cluster_of(chat, (0, 22.0)).run(150)
    assert running(cluster) == (6, 0)
    cluster.with_spec(chat.with_on_demand(1))
    cluster.run(100)
    assert running(cluster) == (5, 1)
    sized = [sizes(decision) for _, decision in cluster.decisions]
    assert max(2.8 * size.get("h100-spot", 0) + 3.0 * size.get("h100", 0) for size in sized) <= 18.0


prices = st.sampled_from([0.0, 0.5, 1.0, 2.8, 3.0])
pairs = st.builds(Pair, st.just("other"), st.integers(0, 6), st.integers(0, 6), prices)


@given(pair=pairs, cost=prices, dollars=st.floats(-5.0, 60.0))
def test_money_pays_for_so_many_of_both_and_for_no_more(pair: Pair, cost: float, dollars: float) -> None:
    def price(replicas: int) -> float:
        return cost * (replicas - pair.share(replicas)) + (pair.cost_per_hour or 0.0) * pair.share(replicas)

    most = affordable(AcceleratorOption("h100", cost_per_gpu_hour=cost), pair, dollars)
    if most is None:
        assert cost == 0.0
        assert price(100) <= max(0.0, dollars) + 1e-6
    else:
        assert price(most) <= max(0.0, dollars) + 1e-6
        assert price(most + 1) > dollars - 1e-6


@given(pair=pairs, most=st.integers(0, 8), after=st.integers(0, 20))
def test_the_maximum_of_an_accelerator_holds_beside_another_whatever_the_floor(
    pair: Pair, most: int, after: int
) -> None:
    seen = view(option=replace(REGULAR, max_replicas=most))
    seen = changed(seen, chosen=replace(seen.selection.chosen, pair=pair))
    bound = within_the_accelerators_maximum(Proposal(seen, 4, after))
    found = after if bound is None else bound.replicas
    assert found - pair.share(found) <= most
    assert found == after or found + 1 - pair.share(found + 1) > most


def test_a_recommended_service_begins_on_the_same_hardware() -> None:
    chat = CHAT.with_accelerators(SPOT, L40S, REGULAR).with_replicas_between(3, 9).recommending()
    cluster = cluster_of(chat).run(10)
    assert {name: size for name, size in cluster.size.items() if size} == {"h100-spot": 1, "h100": 2}
