"""Which accelerator is taken, when another takes over, and what is remembered of failures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import NodeOffer, Replica, ReplicaPhase
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity, believe
from holdfast.policy.explain.decision import candidates
from holdfast.policy.health.backoff import Backoff, Backoffs, watch_backoffs
from holdfast.policy.health.replicas import Group, group_replicas
from holdfast.policy.placement.choice import Choice, choose
from holdfast.policy.placement.options import Option, describe_options
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceView, accelerator, node, replicas, service, traffic
from tests.policy.fluid import FixedRates

SETTINGS = PolicySettings()
FAST, SLOW = accelerator("fast", cost_per_gpu_hour=4.0), accelerator("slow", cost_per_gpu_hour=1.0)
OUT = Backoff("fast", NOW + 600.0, 600.0, Reason.INSUFFICIENT_GPUS, "0/4 nodes are available")


def considered(
    *accelerators: AcceleratorOption,
    rates: dict[str, float] | None = None,
    demand: float | None = 10.0,
    nodes: tuple[NodeOffer, ...] = (),
    backoffs: Backoffs | None = None,
    groups: tuple[Group, ...] = (),
    most: int = 20,
    least: int = 1,
    dollars: float | None = None,
) -> tuple[ServiceSpec, tuple[Option, ...]]:
    builder = service().with_accelerators(*accelerators).with_replicas_between(least, most)
    spec = (builder if dollars is None else builder.costing_at_most(dollars)).spec
    model = FixedRates(rates or {"fast": 5.0, "slow": 2.0})
    beliefs = believe(Capacity(), spec, Lengths(), judge(traffic(1.0)), model).beliefs
    return spec, describe_options(spec, beliefs, groups, backoffs or Backoffs(), Inventory(nodes), demand, 1, NOW)


def taken(
    *accelerators: AcceleratorOption, memory: Choice | None = None, groups: tuple[Group, ...] = (), **more
) -> str:  # type: ignore[no-untyped-def]
    spec, found = considered(*accelerators, groups=groups, **more)
    return choose(memory or Choice(), spec, found, groups, 75.0, NOW).accelerator


def test_the_cheapest_per_good_request_comes_first_and_not_the_cheapest_per_hour() -> None:
    assert taken(FAST, SLOW) == "slow"  # $0.80 against $0.50 for a request/s
    assert taken(FAST, SLOW, rates={"fast": 5.0, "slow": 0.4}) == "fast"


def test_without_costs_the_order_of_the_list_is_the_preference() -> None:
    assert taken(accelerator("slow"), accelerator("fast")) == "slow"
    assert taken(accelerator("fast"), accelerator("slow")) == "fast"


def test_what_cannot_meet_the_objectives_or_cannot_be_had_comes_last() -> None:
    assert taken(FAST, SLOW, rates={"fast": 5.0, "slow": 0.0}) == "fast"
    assert taken(SLOW, FAST, backoffs=Backoffs((replace(OUT, accelerator="slow"),))) == "fast"
    assert taken(FAST, replace(SLOW, max_replicas=2)) == "fast"
    full = (node("a", 2, used=2), node("b", 8, resource="fast.com/gpu"))
    assert taken(replace(FAST, resource="fast.com/gpu"), SLOW, nodes=full) == "fast"


def test_where_none_can_carry_the_load_the_one_that_carries_most_is_taken() -> None:
    assert taken(replace(FAST, max_replicas=1), replace(SLOW, max_replicas=4)) == "slow"


def test_the_one_in_use_stays_while_the_other_is_cheaper_by_less_than_a_tenth() -> None:
    used = (Group("fast", size=2, exists=True),)
    assert taken(FAST, replace(SLOW, cost_per_gpu_hour=1.45), groups=used, memory=Choice("fast")) == "fast"


def test_a_cheaper_one_takes_over_when_staying_has_cost_as_much_as_switching() -> None:
    used = (Group("fast", size=2, exists=True),)
    spec, found = considered(FAST, SLOW, groups=used)
    choice, seconds = Choice("fast"), 0.0
    while choice.accelerator == "fast" and seconds < 1000.0:
        seconds += 5.0
        choice = choose(choice, spec, found, used, 75.0, NOW + seconds)
    assert 125.0 <= seconds <= 135.0  # saves $3 an hour, switching costs 75 s at $5 an hour


def test_a_cheaper_one_that_comes_and_goes_never_takes_over() -> None:
    used = (Group("fast", size=2, exists=True),)
    spec, cheap = considered(FAST, SLOW, groups=used)
    _, dear = considered(FAST, replace(SLOW, cost_per_gpu_hour=3.0), groups=used)
    choice = Choice("fast")
    for index in range(200):
        choice = choose(choice, spec, dear if index % 10 == 9 else cheap, used, 75.0, NOW + 5.0 * index)
    assert choice.accelerator == "fast"


def test_a_cheaper_one_takes_over_only_where_it_could_have_carried_what_was_reckoned_with_lately() -> None:
    used = (Group("fast", size=2, exists=True),)
    spec, found = considered(FAST, replace(SLOW, max_replicas=5), groups=used)
    for peak_rps, expected in ((10.0, "slow"), (10.1, "fast")):
        choice = Choice("fast")
        for index in range(100):
            choice = choose(choice, spec, found, used, 75.0, NOW + 5.0 * index, peak_rps)
        assert choice.accelerator == expected


def test_the_only_replica_that_is_allowed_stays_while_it_serves_though_another_would_carry_more() -> None:
    serving = (Group("slow", size=1, exists=True, ready=replicas(1, on="slow")),)
    assert taken(FAST, SLOW, groups=serving, most=1, demand=4.5) == "slow"
    assert taken(FAST, SLOW, groups=serving, most=2, demand=4.5) == "fast"
    starting = (Group("slow", size=1, exists=True),)
    waited = Choice("slow", "fast", judged_at=NOW - 70.0)
    assert taken(FAST, SLOW, groups=starting, most=1, demand=4.5, memory=waited) == "fast"
    assert taken(FAST, SLOW, groups=serving, most=1, demand=4.5, memory=waited) == "slow"


def test_the_only_replica_that_is_allowed_goes_where_its_accelerator_can_or_may_not_serve() -> None:
    serving = (Group("slow", size=1, exists=True, ready=replicas(1, on="slow")),)
    assert taken(FAST, replace(SLOW, max_replicas=0), groups=serving, most=1) == "fast"
    assert taken(FAST, SLOW, rates={"fast": 5.0, "slow": 0.0}, groups=serving, most=1) == "fast"


def test_a_restarted_operator_stays_on_what_runs() -> None:
    assert taken(FAST, SLOW, groups=(Group("fast", size=2, exists=True),)) == "fast"


def short_of(name: str, size: int, ready: int) -> tuple[tuple[Group, ...], Backoffs]:
    """Some of the replicas serve, the others found no node."""
    pods = replicas(size, on=name)
    group = Group(name, size=size, exists=True, ready=pods[:ready], short=pods[ready:])
    return (group,), Backoffs((replace(OUT, accelerator=name),))


@pytest.mark.parametrize(
    ("ready", "elsewhere", "expected"),  # of 5 wanted, or of 2 elsewhere
    [(4, 1, "slow"), (3, 1, "slow"), (2, 1, "fast"), (1, 1, "fast"), (4, 2, "fast"), (4, 3, "fast")],
)
def test_one_that_lacks_room_for_more_is_left_only_for_one_that_serves_more(
    ready: int, elsewhere: int, expected: str
) -> None:
    groups, backoffs = short_of("slow", 5, ready)
    nodes = (node("b", 8, used=8 - elsewhere, resource="fast.com/gpu"),)
    fast = replace(FAST, resource="fast.com/gpu")
    known = Choice("slow")
    assert taken(SLOW, fast, demand=8.5, nodes=nodes, groups=groups, backoffs=backoffs, memory=known) == expected


def test_one_that_lacks_room_for_more_and_carries_the_demand_is_not_hindered() -> None:
    groups, backoffs = short_of("slow", 6, 5)
    _, found = considered(SLOW, FAST, groups=groups, backoffs=backoffs)
    assert not any(any(option.hindrance) for option in found)


def test_one_that_lacks_room_for_more_is_not_asked_for_more_to_save_money() -> None:
    """Both carry a part of the demand, as where spot nodes and regular ones serve beside each other."""
    groups = tuple(Group(n, size=3, exists=True, ready=replicas(2, on=n), short=replicas(1)) for n in ("fast", "slow"))
    backoffs = Backoffs((OUT, replace(OUT, accelerator="slow")))
    spec, found = considered(FAST, SLOW, groups=groups, backoffs=backoffs, rates={"fast": 2.0, "slow": 2.0})
    choice = Choice("fast")
    for second in range(0, 600, 5):
        choice = choose(choice, spec, found, groups, 75.0, NOW + second)
    assert choice.accelerator == "fast"


def test_one_of_which_nothing_serves_and_no_more_can_be_had_is_hindered() -> None:
    groups, backoffs = short_of("slow", 5, 0)
    assert taken(SLOW, FAST, groups=groups, backoffs=backoffs, memory=Choice("slow")) == "fast"


NONE = replace(FAST, name="none", max_replicas=0)
ONE = replace(FAST, name="one", max_replicas=1)
WITH_ONE = {"fast": 5.0, "slow": 2.0, "none": 9.0, "one": 9.0}


def test_one_that_may_have_no_replica_is_not_even_taken_where_the_others_are_out() -> None:
    assert taken(NONE, FAST, SLOW, rates=WITH_ONE, backoffs=Backoffs((OUT,))) == "slow"
    assert taken(NONE, FAST, rates=WITH_ONE, backoffs=Backoffs((OUT,))) == "fast"
    assert taken(NONE, FAST, rates=WITH_ONE | {"fast": 0.0}) == "fast"


def test_one_that_the_budget_pays_no_replica_of_is_not_even_taken_where_the_others_are_out() -> None:
    assert taken(SLOW, FAST, dollars=3.0, backoffs=Backoffs((replace(OUT, accelerator="slow"),))) == "slow"


@pytest.mark.parametrize("demand", [None, 0.0, 1.0, 100.0])
def test_one_that_may_have_fewer_than_there_must_be_is_left_for_one_that_may_have_as_many(
    demand: float | None,
) -> None:
    assert taken(ONE, SLOW, least=2, demand=demand, rates=WITH_ONE, memory=Choice("one")) == "slow"
    assert taken(FAST, SLOW, least=2, demand=demand, dollars=5.0, rates=WITH_ONE, memory=Choice("fast")) == "slow"


def test_one_that_may_have_fewer_than_there_must_be_serves_while_the_others_are_out() -> None:
    assert taken(ONE, FAST, least=2, rates=WITH_ONE, backoffs=Backoffs((OUT,))) == "one"


def test_bounds_that_leave_too_few_replicas_are_named() -> None:
    _, found = considered(NONE, ONE, SLOW, least=2, rates=WITH_ONE)
    assert [candidate.lost_because for candidate in candidates(found, "slow", 0.99)] == [
        "its max or budget.maxCostPerHour allows no replica; raise the limit",
        "its max or budget.maxCostPerHour allows only 1 of the 2 replicas that must run; raise the limit",
        "",
    ]


def test_the_prices_that_were_compared_are_told() -> None:
    _, found = considered(FAST, SLOW)
    dear = candidates(found, "slow", 0.99)[0].lost_because
    assert dear == "$8.00/h for the same load, slow $5.00/h: less than 10 % cheaper, so no migration"
    told = candidates(found, "fast", 0.99)[1].lost_because
    assert told == (
        "$5.00/h for the same load, fast $8.00/h: cheaper too recently, or no room to run both during a migration"
    )


def test_every_accelerator_that_lost_says_why() -> None:
    full = replace(SLOW, name="full", max_replicas=1)
    bad = accelerator("bad", cost_per_gpu_hour=0.1)
    _, found = considered(
        FAST, SLOW, full, bad, rates={"fast": 5.0, "slow": 2.0, "full": 2.0, "bad": 0.0}, backoffs=Backoffs((OUT,))
    )
    lost = {candidate.accelerator: candidate.lost_because for candidate in candidates(found, "slow", 0.99)}
    assert lost["slow"] == ""
    assert "0/4 nodes are available" in lost["fast"]
    assert lost["full"] == "only 1 of 5 replicas can be placed"
    assert "even without load" in lost["bad"]


def group(pods: tuple[Replica, ...], now: float = NOW) -> tuple[Group, ...]:
    return group_replicas(ServiceView(service(), replicas=pods).snapshot(), now, SETTINGS)


def failing(since: float = 100.0) -> tuple[Replica, ...]:
    return replicas(1, ReplicaPhase.FAILING, age=since, reason="CrashLoopBackOff", detail="CUDA error")


def test_failing_replicas_are_given_a_minute_through_all_their_restarts() -> None:
    memory, starting = Backoffs(), replicas(1, ReplicaPhase.STARTING, age=100.0)
    for second, pods in ((0, failing()), (20, starting), (40, failing()), (55, starting)):
        memory = watch_backoffs(memory, group(pods), NOW + second, SETTINGS)
        assert memory.past == ()
    memory = watch_backoffs(memory, group(failing()), NOW + 65.0, SETTINGS)
    assert memory.active("h100", NOW + 70.0) == Backoff(
        "h100", NOW + 665.0, 600.0, Reason.ENGINE_FAILING, "CrashLoopBackOff: CUDA error"
    )


def test_a_failing_replica_beside_ready_ones_says_nothing_about_the_accelerator() -> None:
    memory = Backoffs()
    for second in range(0, 300, 5):
        memory = watch_backoffs(memory, group(failing() + replicas(2)), NOW + second, SETTINGS)
    assert memory.past == ()


def test_setbacks_double_up_to_a_bound_and_one_success_clears_them() -> None:
    memory, now, delays = Backoffs(), NOW, []
    short = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=400.0)
    for _ in range(9):
        memory = watch_backoffs(memory, group(short, now), now, SETTINGS)
        delays.append(memory.past[0].delay_seconds)
        now = memory.past[0].until
    assert delays[:4] == [600.0, 1200.0, 2400.0, 4800.0]
    assert delays[-1] == SETTINGS.longest_retry_seconds
    assert watch_backoffs(memory, group(replicas(1)), now, SETTINGS) == Backoffs()


def test_an_image_that_cannot_be_pulled_is_called_by_its_name() -> None:
    pods = replicas(1, ReplicaPhase.FAILING, reason="ImagePullBackOff", detail="not found")
    memory = watch_backoffs(Backoffs(), group(pods), NOW, SETTINGS)
    memory = watch_backoffs(memory, group(pods), NOW + 61.0, SETTINGS)
    assert memory.past[0].reason is Reason.IMAGE_PULL_FAILING


LEFT = replace(OUT, accelerator="slow", reason=Reason.CAPACITY_LIMITED)
KNOWN = Backoffs((OUT, LEFT), (("fast", NOW), ("slow", NOW)), (("fast", 2),))


@pytest.mark.parametrize(
    "edited",
    [
        service().with_accelerators(FAST, SLOW).with_replicas_between(0, 99).spec,
        service().with_accelerators(SLOW, replace(FAST, cost_per_gpu_hour=9.0)).spec,
        service().with_accelerators(FAST, SLOW).with_priority(7).spec,
    ],
)
def test_an_edit_of_bounds_and_prices_forgets_no_shortage(edited: ServiceSpec) -> None:
    """But what was left to others is asked for again: it may be worth more now."""
    before = service().with_accelerators(FAST, SLOW).spec
    assert KNOWN.after_edit(before, edited) == replace(KNOWN, past=(OUT,))


@pytest.mark.parametrize(
    "other",
    [
        replace(FAST, pods="another template"),
        replace(FAST, revision="another image"),
        replace(FAST, node_selector=(("pool", "b"),)),
        replace(FAST, name="renamed"),
        replace(FAST, max_replicas=4),
    ],
)
def test_an_edit_of_its_pods_or_a_lower_maximum_gives_an_accelerator_another_chance(other: AcceleratorOption) -> None:
    before = service().with_accelerators(FAST, SLOW).spec
    edited = service().with_accelerators(other, SLOW).spec
    assert KNOWN.after_edit(before, edited) == Backoffs((), (("slow", NOW),))


def test_a_lower_maximum_gives_all_accelerators_another_chance() -> None:
    before = service().with_accelerators(FAST, SLOW).with_replicas_between(1, 8).spec
    assert KNOWN.after_edit(before, replace(before, max_replicas=4)) == Backoffs()
    assert KNOWN.after_edit(before, replace(before, max_replicas=9)) != Backoffs()
