"""Services that compete for the same GPUs: who gives way, how far, and what the losers are told."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.domain.taints import Taint, Toleration
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.memory import Fleet
from tests.builders import H100, NOW, ServiceView, accelerator, condition, node, replicas, service
from tests.policy.contest import SETTINGS, Contest

WIDE = AcceleratorOption("h100x4", gpus_per_replica=4)
PICKY = AcceleratorOption("h100", node_selector=(("zone", "a"),))
NODES = (node("n1", 8, zone="a"), node("n2", 4, zone="b"))
ONE_NODE = Inventory((node("n1", 8),))


def a_claim(name: str, want: int, **changes: object) -> CapacityRequest:
    """A service that makes use of all it wants, runs nothing yet and waits for GPUs."""
    rate = float(changes.setdefault("rate_rps", 4.0))  # type: ignore[arg-type]
    changes.setdefault("demand_rps", rate * want)
    given_up = {"option": H100, "least": min(1, want), "short": True, **changes}
    return CapacityRequest(key=ServiceKey("prod", name), want=want, **given_up)  # type: ignore[arg-type]


def allocated(requests: Sequence[CapacityRequest], inventory: Inventory = ONE_NODE) -> dict[str, Allocation]:
    """What those may have that must give way."""
    allocations, _ = allocate({request.key: request for request in requests}, Fleet(), inventory, NOW, SETTINGS)
    return {key.name: grant for key, grant in allocations.items()}


def shared(requests: Sequence[CapacityRequest], inventory: Inventory = ONE_NODE) -> dict[str, int]:
    """What every service may have in the end."""
    allocations = allocated(requests, inventory)
    return {request.key.name: request.want for request in requests} | {
        name: grant.replicas for name, grant in allocations.items()
    }


def test_the_lower_priority_gives_way_down_to_its_minimum() -> None:
    requests = [a_claim("batch", 6, running=6, least=2, short=False), a_claim("chat", 7, priority=10)]
    assert shared(requests) == {"chat": 6, "batch": 2}


def test_of_equal_priority_the_one_whose_gpus_make_more_good_requests_comes_first() -> None:
    requests = [a_claim("wide", 2, option=WIDE, rate_rps=8.0, least=0), a_claim("small", 6, rate_rps=4.0)]
    assert shared(requests) == {"small": 6, "wide": 0}


def test_a_replica_that_serves_is_not_taken_for_a_little_more_elsewhere() -> None:
    settled, newcomer = a_claim("settled", 8, rate_rps=4.0, running=8, short=False), a_claim("new", 4, rate_rps=4.3)
    assert shared([settled, newcomer]) == {"settled": 7, "new": 1}
    assert shared([settled, replace(newcomer, rate_rps=8.0, demand_rps=32.0)]) == {"settled": 4, "new": 4}


def test_replicas_that_nobody_needs_now_go_before_those_of_lower_priority_that_serve() -> None:
    idle = a_claim("idle", 8, demand_rps=4.0, running=8, priority=5, short=False)
    assert shared([idle, a_claim("busy", 4)]) == {"idle": 4, "busy": 4}


def test_only_nodes_that_match_count_and_what_others_want_elsewhere_does_not() -> None:
    picky, free = a_claim("picky", 8, option=PICKY), a_claim("free", 6, priority=1)
    assert shared([picky, free], Inventory(NODES)) == {"free": 6, "picky": 6}
    assert shared([picky, replace(free, priority=-1)], Inventory(NODES)) == {"free": 4, "picky": 8}


def test_without_a_replica_that_waits_in_vain_nodes_may_still_come_and_nothing_is_shared_out() -> None:
    requests = [a_claim("chat", 8, short=False), a_claim("batch", 8, short=False)]
    assert shared(requests) == {"chat": 8, "batch": 8}


def tolerating(value: str) -> AcceleratorOption:
    return replace(H100, tolerations=(Toleration("pool", value=value),))


def closed_to(value: str) -> Taint:
    return Taint("pool", value, "NoSchedule")


SPLIT = Inventory((node("x1", 4, taints=(closed_to("x"),)), node("y1", 4, taints=(closed_to("y"),))))
CLOSED = Inventory((node("x1", 4, taints=(closed_to("x"),)), node("open", 4)))


def test_who_waits_on_nodes_closed_to_others_takes_nothing_from_these() -> None:
    waiting = [a_claim(name, 4, option=tolerating("x"), running=2) for name in ("a1", "a2")]
    others = [a_claim(name, 3, option=tolerating("y"), running=2, short=False) for name in ("c1", "c2")]
    assert shared([*waiting, *others], SPLIT) == {"a1": 2, "a2": 2, "c1": 3, "c2": 3}


@pytest.mark.parametrize("priority", [0, 9])
def test_who_may_run_on_a_part_of_the_nodes_goes_on_asking_until_it_has_waited_itself(priority: int) -> None:
    wide = [a_claim(name, 3, option=tolerating("x"), running=2) for name in ("a1", "a2")]
    narrow = [a_claim(name, 3, running=2, short=False, priority=priority) for name in ("b1", "b2")]
    assert shared([*wide, *narrow], CLOSED) == {"a1": 2, "a2": 2, "b1": 3, "b2": 3}


def test_who_may_run_on_all_nodes_takes_open_ones_by_priority_and_is_cut_for_none_that_cannot_use_its_own() -> None:
    wide = a_claim("a1", 6, option=tolerating("x"), running=4, priority=9)
    assert shared([wide, a_claim("b1", 4, running=4, short=False)], CLOSED) == {"a1": 6, "b1": 2}
    wide = a_claim("a1", 4, option=tolerating("x"), running=4, short=False)
    narrow = [a_claim(name, 4, running=2, priority=5) for name in ("b1", "b2")]
    assert shared([wide, *narrow], CLOSED)["a1"] == 4


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("priority", [-5, 5])
def test_a_floor_beyond_its_own_nodes_takes_nothing_from_others(short: bool, priority: int) -> None:
    picky = a_claim("picky", 10, option=PICKY, least=10, running=8, priority=priority, short=short)
    free = a_claim("free", 5, running=4)
    assert shared([picky, free], Inventory(NODES)) == {"picky": 10, "free": 4}


def test_what_one_wants_beyond_its_own_nodes_takes_nothing_from_others() -> None:
    picky = a_claim("picky", 10, option=PICKY, running=8, priority=5, short=False)
    assert shared([picky, a_claim("free", 6, running=4)], Inventory(NODES)) == {"picky": 10, "free": 4}


def test_one_service_alone_competes_with_nobody() -> None:
    assert shared([a_claim("chat", 20)]) == {"chat": 20}


def test_who_waits_for_nodes_that_are_not_there_yet_competes_with_nobody() -> None:
    absent = AcceleratorOption("h100", node_selector=(("zone", "c"),))
    requests = [a_claim("early", 8, option=absent), a_claim("late", 8, option=absent), a_claim("chat", 8)]
    assert shared(requests, Inventory(NODES)) == {"early": 8, "late": 8, "chat": 8}


def test_replicas_on_a_cordoned_node_take_nothing_from_others() -> None:
    away = a_claim("away", 4, running=4, outside=4, least=4, short=False)
    assert shared([away, a_claim("chat", 8)]) == {"away": 4, "chat": 8}


def test_what_a_switch_still_keeps_is_not_given_to_others() -> None:
    switching = a_claim("moving", 2, kept=((H100, 4),))
    assert shared([switching, a_claim("chat", 8, priority=1)]) == {"moving": 1, "chat": 3}


def test_a_replica_of_many_gpus_needs_them_on_one_node() -> None:
    odd = Inventory((node("n1", 6), node("n2", 6)))
    requests = [a_claim("wide", 3, option=WIDE, rate_rps=40.0, least=0), a_claim("small", 8, least=0)]
    assert shared(requests, odd) == {"wide": 2, "small": 4}


def test_the_loser_is_told_what_one_more_gpu_would_give_and_who_has_them() -> None:
    requests = [a_claim("chat", 8, priority=10), a_claim("batch", 4, option=WIDE, rate_rps=10.0, least=0)]
    allocations, _ = allocate({request.key: request for request in requests}, Fleet(), ONE_NODE, NOW, SETTINGS)
    sentence = (
        "the fleet allocation gives 0 of 4 wanted replicas at priority 0; GPUs went to prod/chat (priority 10);"
        " one more GPU would add 2.5 req/s, 6.2% of its sized load; add nodes or raise spec.priority"
    )
    assert allocations == {ServiceKey("prod", "batch"): Allocation(0, sentence)}


def test_the_loser_is_told_who_gives_up_no_more() -> None:
    requests = [a_claim("chat", 8, priority=10), a_claim("low", 4, least=2), a_claim("batch", 4, least=0)]
    allocations, _ = allocate({request.key: request for request in requests}, Fleet(), ONE_NODE, NOW, SETTINGS)
    told = "GPUs went to prod/chat (priority 10), prod/low (priority 0, at its minimum);"
    assert told in allocations[ServiceKey("prod", "batch")].sentence


@pytest.mark.parametrize(
    ("holders", "told"),
    [
        ({"prod/a": 1}, "prod/a (priority 1)"),
        ({"prod/a": 1, "team/secret": 2}, "prod/a (priority 1) and 1 more"),
        ({"team/secret": 2, "team/other": 3}, "2 services in other namespaces"),
        (
            dict.fromkeys(["prod/a", "prod/b", "prod/c", "prod/d"], 1),
            "prod/a (priority 1), prod/b (priority 1), prod/c (priority 1) and 1 more",
        ),
    ],
)
def test_services_of_other_namespaces_are_counted_and_not_named(holders: dict[str, int], told: str) -> None:
    others = [
        replace(a_claim("x", 8, priority=priority), key=ServiceKey(*name.split("/")))
        for name, priority in holders.items()
    ]
    requests = {request.key: request for request in (a_claim("batch", 4), *others)}
    allocations, _ = allocate(requests, Fleet(), Inventory((node("n1", 8 * len(others)),)), NOW, SETTINGS)
    assert f"; GPUs went to {told}; one more" in allocations[ServiceKey("prod", "batch")].sentence


def test_a_shortage_lasts_without_further_proof_and_is_put_to_the_test_ever_more_rarely() -> None:
    requests = {request.key: request for request in (a_claim("chat", 8), a_claim("batch", 8))}
    calm = {key: replace(request, short=False) for key, request in requests.items()}
    _, known = allocate(requests, Fleet(), ONE_NODE, NOW, SETTINGS)
    selector = ("nvidia.com/gpu", (), ())
    assert known.shortages == {selector: (NOW + 600.0, 600.0)}
    assert allocate(calm, known, ONE_NODE, NOW + 599.0, SETTINGS)[0]
    assert allocate(calm, known, ONE_NODE, NOW + 600.0, SETTINGS)[0] == {}
    _, again = allocate(requests, known, ONE_NODE, NOW + 700.0, SETTINGS)
    assert again.shortages == {selector: (NOW + 1900.0, 1200.0)}
    assert allocate(calm, again, Inventory((node("n1", 16),)), NOW + 701.0, SETTINGS) == ({}, Fleet())


# -- properties


def claims_by(seed: int) -> list[CapacityRequest]:
    """Up to six services of any size and worth, on two nodes of 12 GPUs: a number draws faster than all their parts."""
    chance, found = random.Random(seed), []
    for index in range(chance.randint(2, 6)):
        want = chance.randint(0, 9)
        rate = chance.choice((0.0, 1.0, 4.0, chance.uniform(0.0, 20.0)))
        found.append(
            a_claim(
                f"s{index}",
                want,
                option=chance.choice((H100, PICKY, WIDE)),
                least=chance.randint(0, min(want, 2)),
                running=chance.randint(0, want),
                rate_rps=rate,
                demand_rps=chance.choice((0.0, chance.uniform(0.0, 10.0))) * rate,
                priority=chance.randint(-2, 2),
            )
        )
    return found


some_claims = st.integers(0, 2**32).map(claims_by)


def gpus(
    requests: Sequence[CapacityRequest], allocated: Mapping[str, int], option: AcceleratorOption | None = None
) -> int:
    held = [request for request in requests if option is None or request.option == option]
    return sum(allocated[request.key.name] * request.option.gpus_per_replica for request in held)


@given(requests=some_claims)
@settings(max_examples=300)
def test_no_more_is_granted_than_asked_nor_than_there_is_beside_the_minima(requests: list[CapacityRequest]) -> None:
    allocated = shared(requests, Inventory(NODES))
    least = {request.key.name: request.least for request in requests}
    assert all(request.least <= allocated[request.key.name] <= request.want for request in requests)
    assert gpus(requests, allocated) <= max(12, gpus(requests, least))
    if sum(request.option == PICKY for request in requests) > 1:  # what one waits for alone is taken from nobody
        assert gpus(requests, allocated, PICKY) <= max(8, gpus(requests, least, PICKY))


@given(requests=some_claims, seed=st.integers(0, 100))
@settings(max_examples=100)
def test_the_order_of_services_changes_nothing(requests: list[CapacityRequest], seed: int) -> None:
    shuffled = random.Random(seed).sample(requests, len(requests))
    ordered, other = ({request.key: request for request in some} for some in (requests, shuffled))
    assert allocate(ordered, Fleet(), Inventory(NODES), NOW, SETTINGS) == allocate(
        other, Fleet(), Inventory(NODES), NOW, SETTINGS
    )


@given(requests=some_claims, raised=st.integers(1, 4))
@settings(max_examples=300)
def test_a_higher_priority_never_gets_less(requests: list[CapacityRequest], raised: int) -> None:
    before = shared(requests, Inventory(NODES))
    favoured = replace(requests[0], priority=requests[0].priority + raised)
    after = shared([favoured, *requests[1:]], Inventory(NODES))
    assert after["s0"] >= before["s0"]


@given(requests=some_claims)
@settings(max_examples=100)
def test_where_all_fits_nobody_is_bounded(requests: list[CapacityRequest]) -> None:
    allocations, known = allocate(
        {request.key: request for request in requests},
        Fleet(),
        Inventory((node("big", 1000, zone="a"),)),
        NOW,
        SETTINGS,
    )
    assert (allocations, known) == ({}, Fleet())


# -- as decisions, through time


def test_a_service_of_higher_priority_gets_the_gpus_of_a_lower_one_and_both_are_told() -> None:
    chat, batch = service("chat").with_priority(10), service("batch")
    contest = Contest(8, {"batch": (batch, 20.0, 6), "chat": (chat, 20.0, 2)})
    contest.run(300.0)
    assert contest.running("chat") >= 5
    assert contest.running("chat") + contest.running("batch") == 8
    loser = contest.last["batch"]
    assert condition(loser, "CapacityAvailable") == (False, "CapacityLimited")
    assert condition(contest.last["chat"], "CapacityAvailable") == (True, "AllPlaced")
    told = next(value.message for value in loser.conditions if value.type == "CapacityAvailable")
    assert "GPUs went to prod/chat (priority 10); one more GPU would add " in told
    assert contest.gave_way == ["batch"]


def test_who_comes_first_waits_for_what_others_give_up_and_does_not_try_the_next_accelerator() -> None:
    fast, slow = (accelerator(name, node_selector=(("kind", name),)) for name in ("h100", "l40s"))
    chat = service("chat").with_priority(10).with_accelerators(fast, slow)
    batch, other = service("batch").with_accelerators(fast), service("other").with_priority(20).with_accelerators(slow)
    contest = Contest(
        {"h100": 8, "l40s": 2}, {"batch": (batch, 32.0, 8), "other": (other, 8.0, 2), "chat": (chat, 16.0, 2)}
    )
    contest.run(300.0)
    assert contest.running("chat") >= 4
    assert {pod.accelerator for pod in contest.pods["chat"]} == {"h100"}
    assert contest.switched == []


def test_a_service_that_lacks_one_more_replica_keeps_those_it_has_where_elsewhere_is_room_for_fewer() -> None:
    fast, slow = (accelerator(name, node_selector=(("kind", name),)) for name in ("h100", "l40s"))
    contest = Contest({"h100": 4, "l40s": 2}, {"chat": (service("chat").with_accelerators(fast, slow), 20.0, 4)})
    for _ in range(240):
        contest.run(5.0)
        assert contest.running("chat", "h100") == 4
    assert condition(contest.last["chat"], "CapacityAvailable") == (False, "InsufficientGPUs")


def test_a_service_that_lacks_one_more_replica_moves_once_to_where_all_of_it_finds_room() -> None:
    fast, slow = (accelerator(name, node_selector=(("kind", name),)) for name in ("h100", "l40s"))
    contest = Contest({"h100": 4, "l40s": 8}, {"chat": (service("chat").with_accelerators(fast, slow), 20.0, 4)})
    for _ in range(240):
        contest.run(5.0)
        assert contest.running("chat") >= 4
    assert contest.running("chat", "l40s") >= 5
    assert {pod.accelerator for pod in contest.pods["chat"]} == {"l40s"}


def test_gpus_of_services_that_cannot_be_decided_on_are_handed_out_to_nobody() -> None:
    """Of 8 GPUs the pods of an invalid service hold 3."""
    chat, batch = service("chat").with_priority(10), service("batch")
    contest = Contest(8, {"batch": (batch, 16.0, 3), "chat": (chat, 12.0, 2)}, held=3)
    contest.run(200.0)
    assert (contest.running("chat"), contest.running("batch")) == (4, 1)


def test_what_pods_of_no_known_service_hold_is_left_out() -> None:
    shown = ServiceView(service(), replicas=tuple(replace(pod, node="n1") for pod in replicas(2))).snapshot()
    inventory = Inventory((node("n1", 8, used=5), node("n2", 8, used=1)))
    places = inventory.room(H100).names
    assert inventory.available_to([shown]).gpus("nvidia.com/gpu", places) == (8 - 3) + (8 - 1)
    assert inventory.available_to([shown]).gpus("nvidia.com/gpu", places, 4) == 4 + 4


def test_missing_data_takes_no_replica_from_a_service() -> None:
    chat, batch = service("chat").with_priority(10), service("batch")
    contest = Contest(8, {"batch": (batch, 20.0, 6), "chat": (chat, 20.0, 2)})
    contest.sight["batch"] = SignalState.STALE
    contest.run(300.0)
    assert contest.running("batch") == 6


@given(
    rates=st.lists(st.floats(1.0, 40.0), min_size=2, max_size=3),
    priorities=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    offered=st.integers(4, 16),
)
@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
def test_at_constant_load_nobody_gives_way_twice(rates: list[float], priorities: list[int], offered: int) -> None:
    names = [f"s{index}" for index in range(len(rates))]
    contest = Contest(
        offered,
        {
            name: (service(name).with_priority(priority), rate, 1)
            for name, rate, priority in zip(names, rates, priorities, strict=False)
        },
    )
    contest.run(400.0)
    assert len(set(contest.gave_way)) == len(contest.gave_way)


@given(rates=st.lists(st.floats(1.0, 40.0), min_size=2, max_size=3), free=st.integers(0, 3))
@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate])
def test_with_enough_gpus_decisions_are_those_of_services_alone(rates: list[float], free: int) -> None:
    """To the last bit, whatever the priorities are."""
    told = Contest(64 + free, {f"s{i}": (service(f"s{i}").with_priority(i), rate, 1) for i, rate in enumerate(rates)})
    told.run(100.0)
    assert told.memory.fleet == Fleet()
    for index, rate in enumerate(rates):
        alone = Contest(64 + free, {f"s{index}": (service(f"s{index}").with_priority(index), rate, 1)})
        alone.run(100.0)
        assert told.last[f"s{index}"] == alone.last[f"s{index}"]
