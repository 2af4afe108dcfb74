"""How a size that people have fixed is shared out: within each accelerator's max and the budget, moving little."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.node_inventory import Room
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.health.backoff import Backoff, Backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.placement.allowance import allowance
from holdfast.policy.sizing.guards import GUARDS, Proposal
from holdfast.policy.transition.migration import migration_to, next_sizes
from holdfast.policy.transition.pinned import pinned_verdict, share_out
from holdfast.policy.view import Bound
from tests.builders import ServiceBuilder, accelerator, replicas, service
from tests.policy.fluid import FluidCluster, steps
from tests.policy.views import changed, view

H100 = accelerator("h100", cost_per_gpu_hour=3.0)
L40S = accelerator("l40s", cost_per_gpu_hour=1.0)
SPOT = replace(accelerator("h100-spot", cost_per_gpu_hour=1.0), spot=True)
ONE = replace(H100, max_replicas=1)
RATES = {"h100": 5.0, "l40s": 2.0}


def of(*options: AcceleratorOption, floor: int = 0, dollars: float | None = None) -> ServiceSpec:
    builder = service().with_accelerators(*options).with_on_demand(floor)
    return (builder if dollars is None else builder.costing_at_most(dollars)).spec


def shared(spec: ServiceSpec, wanted: int, **now: int) -> dict[str, int]:
    return share_out(spec, now, spec.accelerators, wanted)


def test_those_in_use_stay_as_they_are_and_the_first_takes_the_difference() -> None:
    assert shared(of(H100, L40S), 5, h100=1, l40s=2) == {"h100": 3, "l40s": 2}


def test_the_last_in_the_order_gives_way_first() -> None:
    assert shared(of(H100, L40S), 2, h100=1, l40s=2) == {"h100": 1, "l40s": 1}


def test_no_accelerator_gets_more_than_its_max_and_the_next_takes_what_is_left() -> None:
    assert shared(of(ONE, L40S), 3, h100=1) == {"h100": 1, "l40s": 2}
    assert shared(of(ONE, L40S), 3, h100=3) == {"h100": 1, "l40s": 2}


def test_the_budget_is_kept_by_those_that_cost_less() -> None:
    assert shared(of(H100, L40S, dollars=5.0), 3, h100=1) == {"h100": 1, "l40s": 2}
    assert shared(of(H100, L40S, dollars=5.0), 3, h100=3) == {"h100": 1, "l40s": 2}


def test_where_nothing_has_room_fewer_run() -> None:
    assert shared(of(ONE, replace(L40S, max_replicas=1)), 3) == {"h100": 1, "l40s": 1}
    assert shared(of(H100, dollars=4.0), 3) == {"h100": 1}


def test_none_is_nothing_at_all() -> None:
    assert shared(of(H100, L40S), 0, h100=2) == {}


def test_the_floor_off_spot_comes_first_where_its_accelerator_has_room() -> None:
    assert shared(of(SPOT, ONE, L40S, floor=2), 4, **{"h100-spot": 4}) == {"h100": 1, "l40s": 1, "h100-spot": 2}


def pinned(builder: ServiceBuilder, size: int) -> FluidCluster:
    """A cluster that came to rest before the size was pinned."""
    cluster = FluidCluster(builder, steps((0, 1.0)), RATES).run(120)
    cluster.with_spec(builder.pinned_to(size).at_generation(2))
    return cluster.run(120)


def test_a_pinned_size_is_kept_within_each_max_and_the_last_decision_says_so() -> None:
    both = service().with_accelerators(ONE, replace(L40S, max_replicas=1)).with_replicas_between(1, 9)
    cluster = pinned(both, 3)
    assert (cluster.replicas("h100"), cluster.replicas("l40s")) == (1, 1)
    assert "the accelerators, their max and the budget allow only 2;" in cluster.last().verdict.message


def test_a_pinned_size_beyond_a_max_runs_on_the_next_accelerator_too() -> None:
    dear = replace(L40S, cost_per_gpu_hour=4.0)
    cluster = pinned(service().with_accelerators(ONE, dear).with_replicas_between(1, 9), 3)
    assert (cluster.replicas("h100"), cluster.replicas("l40s")) == (1, 2)
    assert "allow only" not in cluster.last().verdict.message


def test_a_new_guard_in_the_list_bounds_a_pinned_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_most_two(proposal: Proposal) -> Bound | None:
        return Bound(2, Reason.CAPACITY_LIMITED, "two are enough") if proposal.after > 2 else None

    monkeypatch.setattr(sys.modules[pinned_verdict.__module__], "GUARDS", (*GUARDS, at_most_two))
    seen = view(of=service().pinned_to(4))
    verdict = pinned_verdict(seen, 4)
    assert [target.replicas for target in verdict.targets] == [2]
    assert verdict.message.endswith("two are enough")


def test_a_recommended_service_begins_where_the_first_accelerator_may_have_replicas() -> None:
    none = replace(H100, max_replicas=0)
    chat = service().with_accelerators(none, L40S).with_replicas_between(2, 9).recommending()
    cluster = FluidCluster(chat, steps((0, 1.0)), RATES).run(10)
    assert (cluster.replicas("h100"), cluster.replicas("l40s")) == (0, 2)


_OPTIONS = st.builds(
    lambda name, most, cost, spot: replace(accelerator(name, cost_per_gpu_hour=cost), max_replicas=most, spot=spot),
    st.sampled_from(["h100", "h100-spot", "l40s", "a100"]),
    st.none() | st.integers(0, 6),
    st.floats(0.0, 10.0),
    st.booleans(),
)
_SPECS = st.builds(
    lambda options, floor, dollars: of(*options, floor=floor, dollars=dollars),
    st.lists(_OPTIONS, min_size=1, max_size=4, unique_by=lambda option: option.name),
    st.integers(0, 4),
    st.none() | st.floats(0.5, 50.0),
)


@given(
    _SPECS,
    st.dictionaries(st.sampled_from(["h100", "h100-spot", "l40s", "gone"]), st.integers(0, 6)),
    st.integers(0, 12),
)
def test_whatever_the_spec_no_bound_is_broken_and_no_room_is_left(
    spec: ServiceSpec, now: dict[str, int], wanted: int
) -> None:
    found = share_out(spec, now, spec.accelerators, wanted)
    options = {option.name: option for option in spec.accelerators}
    spent = sum(count * (options[name].cost_per_replica_hour or 0.0) for name, count in found.items())
    limit = float("inf") if spec.max_cost_per_hour is None else spec.max_cost_per_hour
    assert all(n > 0 and (options[a].max_replicas is None or n <= options[a].max_replicas) for a, n in found.items())
    assert sum(found.values()) <= wanted
    assert spent <= limit + 1e-6
    if sum(found.values()) < wanted:
        for name, option in options.items():
            full = option.max_replicas is not None and found.get(name, 0) == option.max_replicas
            assert full or spent + (option.cost_per_replica_hour or 0.0) > limit - 1e-6
    if limit == float("inf"):
        regular = sum(o.max_replicas if o.max_replicas is not None else 99 for o in spec.accelerators if not o.spot)
        kept = sum(count for name, count in found.items() if not options[name].spot)
        assert kept >= min(spec.min_on_demand, wanted, regular)


def _group(name: str, ready: int, starting: int) -> Group:
    waiting = replicas(starting, ReplicaPhase.STARTING)
    return Group(name, size=ready + starting, exists=True, ready=replicas(ready), starting=waiting)


_GROUPS = st.lists(
    st.builds(_group, st.sampled_from(["h100", "h100-spot", "l40s", "gone"]), st.integers(0, 4), st.integers(0, 3)),
    max_size=4,
    unique_by=lambda group: group.accelerator,
)


@given(_SPECS, _GROUPS, st.integers(0, 8))
def test_on_the_way_no_bound_is_broken_further_something_comes_and_no_more_are_sent_away_than_must_be(
    spec: ServiceSpec, groups: list[Group], wanted: int
) -> None:
    now = {group.accelerator: group.size for group in groups}
    ready = {group.accelerator: len(group.ready) for group in groups}
    goal, cost = share_out(spec, now, spec.accelerators, wanted), allowance(spec).cost
    seen = view(of=ServiceBuilder(spec).pinned_to(wanted), groups=tuple(groups))
    sizes, _ = next_sizes(
        seen.state, seen.selection, migration_to(seen.state, seen.selection, seen.minimum, goal, pinned=True)
    )
    assert sum(sizes.values()) <= max(spec.max_replicas, wanted)
    served = {name: min(ready.get(name, 0), count) for name, count in goal.items()}
    stays = {name: min(ready.get(name, 0), count) for name, count in sizes.items()}
    if spec.max_cost_per_hour is not None:
        last = sum(stays.values()) == 1 and sum(sizes.values()) == 2
        assert cost(sizes) <= max(spec.max_cost_per_hour, cost(now)) + 1e-6 or last
    comes = sum(min(sizes.get(name, 0), count) for name, count in goal.items())
    assert comes > sum(served.values()) or {name: count for name, count in sizes.items() if count} == goal
    assert sum(stays.values()) > 0 or not goal or not sum(ready.values()) or spec.max_replicas < 2
    if spec.max_cost_per_hour is None and sum(now.values()) + wanted <= spec.max_replicas:
        assert sum(stays.values()) >= min(sum(goal.values()), sum(ready.values()))


@given(_SPECS, st.integers(0, 8))
def test_what_was_shared_out_stays_as_it_is(spec: ServiceSpec, wanted: int) -> None:
    found = share_out(spec, {}, spec.accelerators, wanted)
    assert share_out(spec, found, spec.accelerators, wanted) == found


def on_node(count: int, node: str) -> tuple[Replica, ...]:
    return tuple(replace(replica, node=node) for replica in replicas(count, on="old"))


def renamed(serving: tuple[Replica, ...], new: Group) -> dict[str, int]:
    """Sizes that follow for two pinned replicas under another name, which only one node has, and which proved short."""
    old = Group("old", size=len(serving), exists=True, ready=serving)
    seen = view(of=service().pinned_to(2), groups=(old, new), group=new, others=(old,))
    option = replace(seen.selection.chosen, room=Room(0, frozenset({"node-1"}), 1))
    short = Backoff("h100", seen.state.now + 600.0, 600.0, Reason.INSUFFICIENT_GPUS, "", asked=2, elsewhere=2)
    supply = replace(seen.state.supply, backoffs=Backoffs((short,)))
    verdict = pinned_verdict(changed(seen, considered=(option,), chosen=option, supply=supply), 2)
    return {target.accelerator: target.replicas for target in verdict.targets}


WAITING = Group("h100", size=2, exists=True, short=replicas(2, ReplicaPhase.UNSCHEDULABLE))


def test_whoever_holds_the_nodes_that_the_pinned_ones_wait_for_makes_room_one_by_one() -> None:
    assert renamed(on_node(2, "node-1"), WAITING) == {"old": 1, "h100": 2}
    half = replace(WAITING, ready=replicas(1), short=WAITING.short[:1])
    assert renamed(on_node(1, "node-1"), half) == {"old": 0, "h100": 2}


def test_the_last_one_that_serves_and_those_in_nobodys_way_stay() -> None:
    assert renamed(on_node(1, "node-1"), WAITING) == {"old": 1, "h100": 2}
    assert renamed(on_node(2, "node-2"), WAITING) == {"old": 2, "h100": 2}
    coming = replace(WAITING, starting=replicas(1, ReplicaPhase.STARTING), short=WAITING.short[:1])
    assert renamed(on_node(2, "node-1"), coming) == {"old": 2, "h100": 2}
