"""Exchanges between services that compete: better than one request after another, or not made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.allocation import plan
from holdfast.policy.allocation.capacity_pool import CapacityPool, capacity_pools
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.allocation.plan import Sharing, share, share_out
from holdfast.policy.capacity_request import STAYING, Allocation, CapacityRequest
from holdfast.policy.memory import Fleet
from tests.builders import NOW, accelerator, condition, node, service
from tests.policy.contest import SETTINGS, Contest

KINDS = ("a", "b", "c")
NODES = Inventory(tuple(node(f"n-{kind}", gpus, kind=kind) for kind, gpus in zip(KINDS, (8, 6, 4), strict=True)))


def on(kind: str, gpus: int = 1) -> AcceleratorOption:
    return accelerator(kind, gpus_per_replica=gpus, node_selector=(("kind", kind),))


def a_claim(name: str, want: int, option: AcceleratorOption | None = None, **changes: object) -> CapacityRequest:
    """It makes use of all it wants at 4 requests/s for each replica, and waits for GPUs."""
    given_up = {"least": min(1, want), "short": True, "rate_rps": 4.0, "demand_rps": 4.0 * want, **changes}
    return CapacityRequest(key=ServiceKey("prod", name), option=option or on("a"), want=want, **given_up)  # type: ignore[arg-type]


def movable(request: CapacityRequest, to: AcceleratorOption, want: int, rate_rps: float = 4.0) -> CapacityRequest:
    """The same claim with another accelerator to move to."""
    there = replace(request, option=to, want=want, least=want, rate_rps=rate_rps, running=0, elsewhere=(), short=False)
    return replace(request, elsewhere=(*request.elsewhere, there))


def shared(requests: Sequence[CapacityRequest]) -> Sharing:
    known = {request.key: request for request in requests}
    return share(_scarce(requests), known, NODES)


def in_turn(requests: Sequence[CapacityRequest]) -> Sharing:
    return Sharing(share_out(_scarce(requests)))


def _scarce(requests: Sequence[CapacityRequest]) -> list[CapacityPool]:
    return [pool for pool in capacity_pools(requests, NODES) if pool.wanted > pool.gpus]


def test_a_lower_priority_moves_to_where_there_is_room_instead_of_shrinking() -> None:
    batch = movable(a_claim("batch", 4, running=4, short=False), on("b"), 5, 3.5)
    requests = {request.key: request for request in (a_claim("chat", 8, priority=10), batch)}
    allocations, _ = allocate(requests, Fleet(), NODES, NOW, SETTINGS)
    assert allocations == {batch.key: Allocation(5, "its GPUs are allocated to prod/chat (priority 10)", "a", "b")}


def test_accelerators_that_cost_nothing_are_moved_to_as_well() -> None:
    free = replace(on("b"), cost_per_gpu_hour=0.0)
    batch = movable(a_claim("batch", 4, running=4, short=False), free, 5, 3.5)
    found = shared([a_claim("chat", 8, priority=10), batch])
    assert {key: to.option.name for key, to in found.moved.items()} == {batch.key: "b"}


def test_nobody_moves_for_less_than_a_tenth_of_what_runs() -> None:
    settled = movable(a_claim("settled", 7, running=7, short=False), on("b"), 6, 5.0)
    assert not shared([settled, a_claim("new", 2, demand_rps=4.5)]).moved
    assert shared([settled, a_claim("new", 4)]).moved


def test_who_moves_must_find_room_for_all_of_it() -> None:
    batch = movable(a_claim("batch", 8, running=8, short=False), on("b"), 7)
    assert not shared([a_claim("chat", 8, priority=10), batch]).moved


def test_a_large_replica_is_packed_beside_small_ones() -> None:
    """In turn the 5 small ones, worth more for each GPU, leave 3 GPUs that the large one cannot use."""
    small, large = (
        a_claim("small", 5, least=0),
        a_claim("large", 2, on("a", 4), least=0, rate_rps=15.0, demand_rps=30.0),
    )
    first = in_turn([small, large]).replicas
    assert (first[small.key], first[large.key]) == (5, 0)
    assert shared([small, large]).replicas == {small.key: 4, large.key: 1}


def test_nothing_that_runs_is_undone_where_that_serves_worse() -> None:
    """In turn the fifth small replica would take the place of a large one that runs, and leave 3 GPUs idle."""
    small = a_claim("small", 5, least=0, running=4)
    large = a_claim("large", 2, on("a", 4), least=0, rate_rps=14.0, demand_rps=28.0, running=1)
    assert shared([small, large]).replicas == {small.key: 4, large.key: 1}


def test_nothing_is_tried_where_the_order_is_the_optimum_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_rooms", lambda *_: pytest.fail("there is nothing to gain"))
    assert shared([a_claim("chat", 8, priority=1), a_claim("batch", 4)]).replicas


def test_the_work_is_bounded_however_many_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, handed_out = [], plan._handed_out
    monkeypatch.setattr(plan, "_handed_out", lambda *given: tried.append(1) or handed_out(*given))
    shared([movable(a_claim(f"s{index:03}", 3, least=0), on("b"), 3) for index in range(300)])
    assert len(tried) == plan.MOST_TRIALS


# -- properties


def claims_by(seed: int) -> list[CapacityRequest]:
    chance, found = random.Random(seed), []
    for index in range(chance.randint(2, 7)):
        kind, want = chance.choice(KINDS), chance.randint(0, 6)
        rate = chance.choice((0.0, 4.0, chance.uniform(0.1, 20.0), 1e-9, 1e9))
        request = a_claim(
            f"s{index}",
            want,
            on(kind, chance.choice((1, 1, 2, 4))),
            least=chance.randint(0, min(want, 2)),
            running=chance.randint(0, want),
            rate_rps=rate,
            demand_rps=chance.uniform(0.0, 8.0) * rate,
            priority=chance.randint(-1, 1),
        )
        for to in chance.sample(KINDS, 2):
            if to != kind:
                request = movable(
                    request, on(to, chance.choice((1, 2))), chance.randint(1, 6), chance.uniform(0.1, 20.0)
                )
        found.append(request)
    return found


some_claims = st.integers(0, 2**32).map(claims_by)


def served(requests: Sequence[CapacityRequest], sharing: Sharing) -> list[tuple[float, float]]:
    """By priority, highest first: good requests/s, and these with a tenth more for what goes on running."""
    found: dict[int, tuple[float, float]] = {}
    for request in requests:
        if request.key in sharing.replicas or request.key in sharing.moved:
            moved, replicas = sharing.moved.get(request.key), sharing.replicas.get(request.key, 0)
            good = moved.good_rps(moved.want) if moved else request.good_rps(replicas)
            lasting = (STAYING - 1.0) * request.good_rps(min(replicas, request.running))
            before = found.get(request.priority, (0.0, 0.0))
            found[request.priority] = before[0] + good, before[1] + good + lasting
    return [found[priority] for priority in sorted(found, reverse=True)]


@given(requests=some_claims)
@settings(max_examples=60, deadline=None)
def test_exchanges_serve_no_priority_worse_that_the_ones_above_do_not_pay_for(
    requests: list[CapacityRequest],
) -> None:
    found, first = served(requests, shared(requests)), served(requests, in_turn(requests))
    for (ours, _), (theirs, lasting) in zip(found, first, strict=True):
        if abs(ours - theirs) > 1e-5 * max(1.0, theirs):
            assert ours > theirs or ours > lasting - 0.1 * lasting
            return


@given(requests=some_claims)
@settings(max_examples=60, deadline=None)
def test_no_limit_is_ever_passed(requests: list[CapacityRequest]) -> None:
    sharing = shared(requests)
    known = {request.key: request for request in requests}
    for key, replicas in sharing.replicas.items():
        assert known[key].least <= replicas <= known[key].want
    assert not set(sharing.replicas) & set(sharing.moved)
    for place, gpus in zip(KINDS, (8, 6, 4), strict=True):
        here = [request for request in requests if request.option.name == place]
        staying = sum(
            request.gpus(sharing.replicas.get(request.key, request.want))
            for request in here
            if request.key not in sharing.moved
        )
        coming = sum(to.gpus(to.want) for to in sharing.moved.values() if to.option.name == place)
        least = sum(request.gpus(request.least) for request in here)
        assert not coming or staying + coming <= gpus
        assert staying <= max(gpus, least) or not any(request.key in sharing.replicas for request in here)


@given(requests=some_claims, seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_order_of_services_changes_nothing(requests: list[CapacityRequest], seed: int) -> None:
    assert shared(random.Random(seed).sample(requests, len(requests))) == shared(requests)


@given(requests=some_claims)
@settings(max_examples=30, deadline=None)
def test_who_was_moved_is_not_moved_again(requests: list[CapacityRequest]) -> None:
    first = shared(requests)
    second = shared([settled(request, first) for request in requests])
    assert not set(first.moved) & set(second.moved)


@given(requests=some_claims)
@settings(max_examples=20, deadline=None)
def test_what_is_shared_out_of_the_same_again_and_again_settles_soon(requests: list[CapacityRequest]) -> None:
    seen = []
    for _ in range(5):
        first = shared(requests)
        requests = [settled(request, first) for request in requests]
        seen.append([(request.option.name, request.running) for request in requests])
    # Once in a round or two after the first: what was freed lets another find room. Nothing ever goes back and forth.
    assert seen[3] == seen[4]


def settled(request: CapacityRequest, sharing: Sharing) -> CapacityRequest:
    """The claim once all runs that was shared out."""
    if request.key in sharing.moved:
        to = sharing.moved[request.key]
        back = tuple(one for one in request.elsewhere if one is not to)
        return replace(to, least=request.least, running=to.want, elsewhere=back)
    return replace(request, running=sharing.replicas.get(request.key, request.want))


# -- as decisions, through time


def test_a_service_is_moved_once_and_stays_where_it_went() -> None:
    fast, slow = (accelerator(name, node_selector=(("kind", name),)) for name in ("h100", "l40s"))
    chat = service("chat").with_priority(10).with_accelerators(fast)
    batch = service("batch").with_accelerators(fast, slow)
    contest = Contest({"h100": 8, "l40s": 8}, {"batch": (batch, 16.0, 5), "chat": (chat, 24.0, 2)})
    contest.run(900.0)
    assert contest.running("batch", on="l40s") >= 4
    assert contest.running("batch", on="h100") == 0
    assert contest.running("chat") >= 6
    assert set(contest.switched) == {"batch"}
    assert contest.gave_way == []
    assert condition(contest.last["batch"], "CapacityAvailable")[0] is not None
