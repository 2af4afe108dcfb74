"""The integer program over services and accelerators: better than one claim after another, or not used."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fleet_speed
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.policy.allocation import solver
from holdfast.policy.allocation.capacity_pool import capacity_pools
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.allocation.greedy import share_out
from holdfast.policy.allocation.plan import Solver, share
from holdfast.policy.allocation.program import Program, Sharing
from holdfast.policy.capacity_request import STAYING, Allocation, CapacityRequest
from holdfast.policy.memory import Fleet
from holdfast.policy.placement.node_inventory import Inventory
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


def shared(requests: Sequence[CapacityRequest], solve: Solver = solver.solve) -> Sharing:
    known = {request.key: request for request in requests}
    scarce = [pool for pool in capacity_pools(known.values(), NODES) if pool.wanted > pool.gpus]
    return share(scarce, known, NODES, solve)


def never(program: Program, start: Sequence[float]) -> Sequence[float]:
    raise AssertionError("there is nothing to gain")


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
    known = {request.key: request for request in (small, large)}
    in_turn = share_out([pool for pool in capacity_pools(known.values(), NODES) if pool.wanted > pool.gpus])
    assert (in_turn[small.key], in_turn[large.key]) == (5, 0)
    assert shared([small, large]).replicas == {small.key: 4, large.key: 1}


def test_without_an_answer_in_time_nothing_is_undone_that_an_earlier_answer_made() -> None:
    """In turn the fifth small replica would take the place of a large one that runs, and leave 3 GPUs idle."""
    small = a_claim("small", 5, least=0, running=4)
    large = a_claim("large", 2, on("a", 4), least=0, rate_rps=14.0, demand_rps=28.0, running=1)
    for solve in (solver.solve, lambda program, start: None):
        assert shared([small, large], solve).replicas == {small.key: 4, large.key: 1}
    idle = replace(large, running=0)
    assert shared([replace(small, running=5), idle], lambda program, start: None).replicas[idle.key] == 0


def test_the_program_is_not_asked_where_the_order_is_the_optimum_anyway() -> None:
    assert shared([a_claim("chat", 8, priority=1), a_claim("batch", 4)], never).replicas
    many = [movable(a_claim(f"s{index:03}", 1), on("b"), 1) for index in range(401)]
    assert shared(many, never).moved == {}


@pytest.mark.parametrize("values", [None, [], [float("nan")] * 7, [-5.0] * 7, [float("inf")] * 7])
def test_in_any_doubt_about_the_program_gpus_are_shared_out_in_turn(values: list[float] | None) -> None:
    requests = [a_claim("chat", 8, priority=10), movable(a_claim("batch", 4, running=4), on("b"), 5)]
    known = {request.key: request for request in requests}
    in_turn = share_out([pool for pool in capacity_pools(known.values(), NODES) if pool.wanted > pool.gpus])
    assert shared(requests, lambda program, start: values) == Sharing(in_turn)


# -- properties


def test_out_of_iterations_gpus_are_shared_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = claims_by(5)
    in_turn = shared(requests, lambda program, start: None)
    assert shared(requests) != in_turn
    monkeypatch.setattr(solver, "MOST_ITERATIONS", 0)
    assert shared(requests) == in_turn


@pytest.mark.parametrize(("count", "seed"), [(50, 2), (100, 3)])
def test_a_fleet_of_many_priorities_has_an_answer_within_the_iterations(count: int, seed: int) -> None:
    """Both took 5 to 10 times as many when the search went on with more services than a few undecided."""
    chance = random.Random(seed)
    with_priorities = [replace(c, priority=chance.randrange(8)) for c in fleet_speed.requests(count, chance).values()]
    known = {request.key: fleet_speed.mobile(request, chance) for request in with_priorities}
    nodes = fleet_speed.uneven(known, 0.5, chance)
    answers: list[bool] = []

    def noted(program: Program, start: Sequence[float]) -> Sequence[float] | None:
        values = solver.solve(program, start)
        answers.append(values is not None)
        return values

    share([pool for pool in capacity_pools(known.values(), nodes) if pool.wanted > pool.gpus], known, nodes, noted)
    assert answers == [True]


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
def test_the_program_serves_no_priority_worse_that_the_ones_above_do_not_pay_for(
    requests: list[CapacityRequest],
) -> None:
    planned = served(requests, shared(requests))
    in_turn = served(requests, shared(requests, lambda program, start: None))
    for (ours, _), (theirs, lasting) in zip(planned, in_turn, strict=True):
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
