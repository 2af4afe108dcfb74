"""Spot replicas beside regular ones of the same hardware: the floor off spot, reclaimed nodes, and no flapping."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import Placement, Replica, ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.enginemodel.hardware import same_hardware
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.policy.allocation.capacity_pool import capacity_pools
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.decide import decide
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.memory import Memory
from holdfast.policy.placement.on_demand_pair import Pair
from holdfast.policy.placement.options import describe_options
from holdfast.policy.settings import PolicySettings
from tests.builders import ServiceBuilder, ServiceView, a_snapshot, accelerator, node, replicas, service, traffic
from tests.builders import sizes as decided
from tests.policy.contest import Contest
from tests.policy.fluid import FixedRates, FluidCluster, steps

SPOT = accelerator("h100-spot", cost_per_gpu_hour=1.0, spot=True)
REGULAR = accelerator("h100", cost_per_gpu_hour=3.0)
OTHER = accelerator("l40s-spot", cost_per_gpu_hour=0.1, spot=True)
SPOT_NODES = replace(SPOT, node_selector=(("kind", "h100-spot"),))
ON_DEMAND_NODES = replace(REGULAR, node_selector=(("kind", "h100"),))
RATES = {"h100": 4.0, "h100-spot": 4.0, "l40s-spot": 4.0, "l40s": 4.0}
CHAT = service().with_accelerators(SPOT, REGULAR).with_replicas_between(1, 20)


def running(cluster: FluidCluster) -> tuple[int, int]:
    """Sizes of spot and regular."""
    return cluster.replicas("h100-spot"), cluster.replicas("h100")


def settled(floor: int = 2, rate: float = 14.0, chat: ServiceBuilder = CHAT, tick: float = 5.0) -> FluidCluster:
    """Five minutes of constant load."""
    return FluidCluster(chat.with_on_demand(floor), steps((0, rate)), RATES, tick=tick, scrape=5.0).run(300)


def least_regular(cluster: FluidCluster) -> int:
    """The smallest size of the regular accelerator that was ever decided."""
    return min(decided(decision).get("h100", 0) for _, decision in cluster.decisions)


# -- who serves beside whom


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (SPOT, REGULAR, True),
        (SPOT, replace(REGULAR, gpus_per_replica=2), False),
        (SPOT, replace(REGULAR, resource="amd.com/gpu"), False),
        (OTHER, REGULAR, False),
        (accelerator("spot", node_selector=(("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),)), REGULAR, True),
        (accelerator("x9-spot"), accelerator("x9"), True),
        (accelerator("x9-spot"), accelerator("x8"), False),
        (
            accelerator("cheap", node_selector=(("amd.com/gpu.product-name", "X9"), ("zone", "a"))),
            accelerator("dear", node_selector=(("amd.com/gpu.product-name", "X9"),)),
            True,
        ),
    ],
)
def test_hardware_is_the_same_by_resource_count_and_gpu(
    one: AcceleratorOption, other: AcceleratorOption, alike: bool
) -> None:
    assert same_hardware(one, other) is alike
    assert same_hardware(other, one) is alike


def test_a_share_is_never_more_than_there_is_and_comes_after_the_first() -> None:
    floor, left = Pair("h100", 2), Pair("h100-spot", 3, first=2)
    assert [floor.share(size) for size in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert [left.share(size) for size in (0, 2, 3, 9)] == [0, 0, 1, 3]


# -- through time


def test_the_floor_runs_off_spot_and_all_else_on_the_cheaper_nodes() -> None:
    cluster = settled()
    spot, regular = running(cluster)
    assert regular == 2
    assert spot >= 2
    assert cluster.attainment(120, 300) >= 0.99
    assert "scaling.minOnDemand requires 2 on-demand replicas" in cluster.last().verdict.message


def test_without_a_floor_all_run_on_the_cheaper_nodes() -> None:
    spot, regular = running(settled(floor=0))
    assert (spot >= 4, regular) == (True, 0)


def test_a_floor_above_what_the_load_needs_is_kept_and_said() -> None:
    cluster = settled(floor=3, rate=1.0)
    assert running(cluster) == (0, 3)
    assert "scaling.minOnDemand is 3" in cluster.last().verdict.message


def test_spot_that_is_dearer_is_not_used() -> None:
    dear = CHAT.with_accelerators(replace(SPOT, cost_per_gpu_hour=5.0), REGULAR)
    spot, regular = running(settled(chat=dear))
    assert (spot, regular >= 4) == (0, True)


def test_spot_on_other_hardware_is_no_candidate_where_a_floor_must_be_kept() -> None:
    mixed = CHAT.with_accelerators(OTHER, REGULAR)
    cluster = FluidCluster(mixed.with_on_demand(1), steps((0, 14.0)), RATES).run(60)
    assert cluster.replicas("l40s-spot") == 0
    assert "same resource and count" in str(cluster.last().explanation.candidates)
    free = FluidCluster(mixed.with_on_demand(0), steps((0, 14.0)), RATES).run(60)
    assert free.replicas("h100") == 0


def test_reclaimed_spot_nodes_are_replaced_by_regular_ones_at_once_and_the_floor_serves_on() -> None:
    cluster = settled()
    size = cluster.replicas()
    cluster.reclaim("h100-spot")
    cluster.run(15)
    assert cluster.replicas("h100") >= size
    cluster.run(45)
    assert cluster.replicas("h100-spot") == 0
    assert least_regular(cluster) == 2
    switch = next(d for at, d in cluster.decisions if at >= 300 and d.verdict.action is Action.SWITCH)
    assert switch.verdict.reason == "AcceleratorUnavailable"
    assert "h100-spot was unavailable" in switch.verdict.message


def test_one_reclaimed_node_takes_only_its_own_replica_to_the_dearer_nodes() -> None:
    cluster = settled()
    spot, regular = running(cluster)
    cluster.reclaim("h100-spot", left=spot - 1)
    cluster.run(60)
    assert running(cluster) == (spot - 1, regular + 1)


def test_spot_nodes_that_come_back_are_used_again_and_regular_ones_stay_until_they_serve() -> None:
    cluster = settled(tick=15.0)
    cluster.reclaim("h100-spot")
    cluster.run(60)
    cluster.give_back("h100-spot")
    cluster.run(1200)
    spot, regular = running(cluster)
    assert (spot >= 2, regular) == (True, 2)
    assert cluster.attainment(420, 1560) >= 0.99


def test_spot_nodes_that_come_and_go_are_left_alone_ever_longer() -> None:
    cluster = settled(tick=30.0)
    for _ in range(20):
        cluster.reclaim("h100-spot")
        cluster.run(60)
        cluster.give_back("h100-spot")
        cluster.run(180)
    moves = [at for at, decision in cluster.decisions if at >= 300 and decision.verdict.action is Action.SWITCH]
    asked = sum(later - before > 300 for before, later in itertools.pairwise(moves))
    assert 1 <= asked <= 3  # in 80 minutes, after pauses of 10, 20 and 40
    assert least_regular(cluster) == 2


def test_an_operator_restarted_beside_a_pair_moves_nothing() -> None:
    cluster = settled()
    before = running(cluster)
    cluster.restart_operator()
    cluster.run(100)
    assert running(cluster) == before


def test_a_floor_that_is_raised_takes_no_spot_replica_before_the_regular_ones_serve() -> None:
    cluster = settled(floor=0)
    spot, _ = running(cluster)
    cluster.with_spec(cluster.builder.with_on_demand(2).at_generation(2))
    cluster.run(25)
    assert running(cluster) == (spot, 2)
    cluster.run(150)
    assert running(cluster) == (spot - 2, 2)
    assert cluster.attainment(120, 475) >= 0.99


def test_when_load_falls_spot_goes_and_the_floor_stays() -> None:
    cluster = FluidCluster(CHAT.with_on_demand(2), steps((0, 24.0), (200, 2.0)), RATES, plugin=True).run(200)
    assert cluster.replicas("h100-spot") >= 4
    cluster.run(300)
    assert running(cluster) == (0, 2)
    assert least_regular(cluster) == 2


def test_a_pinned_size_keeps_the_floor() -> None:
    cluster = settled()
    cluster.with_spec(cluster.builder.pinned_to(3).at_generation(2))
    cluster.run(60)
    assert running(cluster) == (1, 2)
    cluster.with_spec(cluster.builder.pinned_to(1).at_generation(3))
    cluster.run(60)
    assert running(cluster) == (0, 1)


def test_a_recommended_service_begins_with_its_floor() -> None:
    cluster = FluidCluster(CHAT.with_replicas_between(3, 9).with_on_demand(2).recommending(), steps((0, 8.0)), RATES)
    cluster.run(10)
    assert running(cluster) == (1, 2)


def test_the_budget_pays_for_the_floor_first() -> None:
    cluster = settled(rate=40.0, chat=CHAT.costing_at_most(8.0))
    assert running(cluster) == (2, 2)  # 2 x $3 and 2 x $1


def test_a_pair_carries_what_is_believed_of_its_slower_accelerator() -> None:
    spec, now = CHAT.with_on_demand(2).spec, 1e9
    beliefs = tuple(
        Belief(option, ReplicaRate(rate, "TPOT", True, 0.8), 1.0) for option, rate in ((SPOT, 8.0), (REGULAR, 4.0))
    )
    spot, regular = describe_options(spec, beliefs, (), Backoffs(), Inventory(), 40.0, 1, now)
    assert (spot.belief.rate_rps, spot.replicas) == (4.0, 10)
    assert regular.belief.rate_rps == 4.0


# -- with others


def test_gpus_that_serve_beside_spot_are_nobody_elses() -> None:
    held = CapacityRequest(ServiceKey("prod", "chat"), SPOT_NODES, 2, 0, 4.0, 8.0, paired=((ON_DEMAND_NODES, 2),))
    other = CapacityRequest(ServiceKey("prod", "batch"), ON_DEMAND_NODES, 8, 1, 4.0, 32.0, priority=9)
    inventory = Inventory((node("a", 4, kind="h100-spot"), node("b", 4, kind="h100")))
    pools = {
        tuple(request.key.name for request in pool.requests): pool.gpus
        for pool in capacity_pools([held, other], inventory)
    }
    assert pools == {("chat",): 4, ("batch",): 2}


def test_a_higher_priority_takes_no_floor() -> None:
    chat = service("chat").with_accelerators(SPOT_NODES, ON_DEMAND_NODES).with_on_demand(2)
    batch = service("batch").with_accelerators(ON_DEMAND_NODES).with_priority(10)
    contest = Contest({"h100": 6, "h100-spot": 2}, {"chat": (chat, 24.0, 2), "batch": (batch, 30.0, 2)})
    contest.run(300.0)
    assert contest.running("chat", "h100") == 2
    assert contest.running("chat", "h100-spot") == 2
    assert contest.running("batch") == 4


# -- one decision


def pods(on: str, ready: int, pending: int, age: float) -> tuple[Replica, ...]:
    return replicas(ready, on=on) + replicas(pending, ReplicaPhase.UNSCHEDULABLE, on=on, age=age)


@dataclass(frozen=True)
class State:
    """A service with replicas that serve, and some that wait for a node, on spot and on regular nodes."""

    floor: int
    spot: tuple[int, int]
    regular: tuple[int, int]
    waited: float
    rate: float
    most: int
    sight: SignalState


some_states = st.builds(
    State,
    floor=st.integers(0, 5),
    spot=st.tuples(st.integers(0, 5), st.integers(0, 2)),
    regular=st.tuples(st.integers(0, 5), st.integers(0, 2)),
    waited=st.sampled_from([10.0, 400.0]),
    rate=st.floats(0.0, 60.0),
    most=st.integers(5, 20),
    sight=st.sampled_from([SignalState.FRESH, SignalState.PARTIAL, SignalState.STALE]),
)


def made(state: State, memory: Memory | None = None, seed: int = 0) -> tuple[Decision, Memory]:
    """One decision about a service in that state; the order of its pods and Deployments follows from the seed."""
    there = {"h100-spot": state.spot, "h100": state.regular}
    found = [pod for name, counts in there.items() for pod in pods(name, *counts, state.waited)]
    places = [Placement(name, sum(counts)) for name, counts in there.items() if sum(counts)]
    chance = random.Random(seed)
    chance.shuffle(found)
    chance.shuffle(places)
    chat = CHAT.with_replicas_between(1, state.most).with_on_demand(state.floor)
    shown = traffic(state.rate, state=state.sight)
    snapshot = a_snapshot(ServiceView(chat, shown, tuple(found), tuple(places)))
    decisions, after = decide(snapshot, memory or Memory(), PolicySettings(), FixedRates(RATES))
    return decisions[0], after


@given(state=some_states)
@settings(max_examples=80, deadline=None)
def test_whatever_the_state_the_floor_is_decided_as_far_as_there_is_room_beside_who_serves(state: State) -> None:
    there = decided(made(state)[0])
    assert there.get("h100", 0) >= min(state.floor, max(1, state.most - state.spot[0]))
    assert sum(there.values()) <= max(sum(state.spot) + sum(state.regular), state.most)
    assert all(size >= 0 for size in there.values())


@given(state=some_states, seed=st.integers(1, 100))
@settings(max_examples=25, deadline=None)
def test_the_order_of_pods_and_deployments_changes_nothing(state: State, seed: int) -> None:
    one, other = made(state)[0], made(state, seed=seed)[0]
    assert decided(one) == decided(other)
    assert (one.verdict.reason, one.verdict.message) == (other.verdict.reason, other.verdict.message)


@given(state=some_states)
@example(state=State(0, (0, 1), (3, 2), 10.0, 15.0, 6, SignalState.FRESH))  # one at a time at scaling.max
@example(state=State(0, (0, 1), (2, 2), 10.0, 34.0, 11, SignalState.FRESH))  # in two waves until it is full, then so
@settings(max_examples=25, deadline=None)
def test_once_what_was_decided_is_there_it_comes_to_rest(state: State) -> None:
    memory: Memory | None = None
    # With little room spot comes in two waves, replaces the regular ones one at a time, and then it rests.
    for _ in range(max(6, 3 + sum(state.regular))):
        decision, memory = made(state, memory)
        there = decided(decision)
        state = replace(state, spot=(there.get("h100-spot", 0), 0), regular=(there.get("h100", 0), 0))
    assert decision.verdict.action is Action.HOLD


@given(size=st.integers(0, 50), more=st.integers(0, 5), floor=st.integers(0, 20), left=st.integers(0, 20))
def test_regular_replicas_are_monotone_in_size_and_floor(size: int, more: int, floor: int, left: int) -> None:
    def regular(size: int, floor: int) -> tuple[int, int]:
        """While spot is chosen, and while it is not."""
        return Pair("h100", floor).share(size), size - Pair("h100-spot", left, floor).share(size)

    for bigger in (regular(size + more, floor), regular(size, floor + more)):
        assert all(after >= before for before, after in zip(regular(size, floor), bigger, strict=True))
    assert all(min(size, floor) <= count <= size for count in regular(size, floor))
