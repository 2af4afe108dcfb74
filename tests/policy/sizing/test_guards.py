"""Each guard by itself, and the list in its order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.domain.service import Slo
from holdfast.domain.signals import MissingHistory, SignalState
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.maths.normal_belief import NormalBelief
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate.class_budgets import ClassState
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.estimate.flapping import Flapping, remember_change
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.growth import Growth
from holdfast.policy.estimate.replica_capacity import Correction
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimum, ScheduledMinimums
from holdfast.policy.estimate.slo_budget import Budget, SloState
from holdfast.policy.health.backoff import Backoff, Backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.health.sick import Sick, Symptom
from holdfast.policy.memory import Supply
from holdfast.policy.sizing import guards
from holdfast.policy.sizing.guards import GUARDS, Guard, Proposal, apply_guards
from holdfast.policy.view import Bound, View
from tests.builders import NOW, accelerator, no_traffic, replicas
from tests.policy.views import CHAT, changed, view

DOWN, UP, STAY = (4, 2), (4, 6), (4, 4)


def asked(guard: Guard, sizes: tuple[int, int], seen: View) -> Bound | None:
    return guard(Proposal(seen, *sizes))


BURNING = SloState(0.9, -9.0, True, 1000.0)
STALE = judge(no_traffic(SignalState.STALE, "the newest sample is 60 s old"))
WITHOUT_HISTORY = view(service=replace(view().state.service, missing_history=MissingHistory()))
UNOBSERVED = Group("h100", size=4, exists=True, observed=False)
ROLLING = Group("h100", size=4, exists=True, rolling_out=True)
SHORT = Group("h100", size=4, exists=True, ready=replicas(3), short=replicas(1))


def numbered(*ready: int) -> Group:
    """Four groups of pods, of which these serve and the others wait for nodes."""
    serving = tuple(replace(replica, number=number) for replica, number in zip(replicas(4), ready, strict=False))
    return Group("h100", size=4, exists=True, ready=serving, short=replicas(4 - len(ready)))


def ended_pods(asked: int) -> Supply:
    """A backoff because pods ended: so many within minutes that no more of `asked` are started, or a few."""
    backoff = Backoff("h100", NOW + 600.0, 600.0, Reason.POD_ENDED, "Evicted: disk full", asked=asked)
    return Supply(45.0, backoffs=Backoffs((backoff,)))


def after_growth(useless: bool) -> Supply:
    """Up to 9 replicas had no larger share of good requests than 5, in two steps or in the first."""
    growth = Growth("h100", size=5, share=0.4, rate_rps=5.0, largest=9, steps=2 if useless else 1)
    return Supply(45.0, growth=growth)


KNOWN = Correction(NormalBelief(deviation=0.1), NormalBelief(deviation=0.1), looks=3)
A_GUESS = Correction(NormalBelief(deviation=1.2))
"""What nobody has measured yet."""

CAME_LATELY = view(peaks=Peaks(((NOW, 5.0),), NOW - 3600.0, ((NOW - 900.0, 14.0), (NOW, 5.0))), return_seconds=1000.0)
"""Three replicas carry what came a quarter of an hour ago: 630 requests within a lead time."""
FOR_A_MONTH = view(of=CHAT.with_window(30 * 86_400.0)).state.service
SPENT = SloState(0.99, 0.0, False, 5.0 * 30 * 86_400.0)

MONTHLY = Slo(0.5, 0.03, 0.99, 30 * 86_400.0)
TIERS = replace(MONTHLY, classes=(replace(MONTHLY, ttft_seconds=0.0001, name="premium"),))
CALM = SloState(1.0, 1.0, False, SPENT.judged)


def helpless(own: SloState, premium: SloState) -> View:
    """The view of `CAME_LATELY`, where a class cannot be met by any number of replicas."""
    met = ReplicaRate(5.0, "TPOT", True, 0.8)
    rate = replace(met, feasible=False, slo=TIERS, by_class=(met, replace(met, feasible=False)), name="premium")
    chosen = CAME_LATELY.selection.chosen
    classes = (ClassState(TIERS, Budget(), own), ClassState(TIERS.classes[0], Budget(), premium))
    return changed(CAME_LATELY, chosen=replace(chosen, belief=replace(chosen.belief, rate=rate)), classes=classes)


# guard, what it sees, how it bounds down (4 -> 2) and up (4 -> 6); None: no objection
TABLE: list[tuple[Guard, View, int | None, int | None]] = [
    (guards.prediction_is_finite, view(), None, None),
    (guards.prediction_is_finite, view(rate=math.nan), 4, 4),
    (guards.prediction_is_finite, view(forecast=Forecast(5.0, math.inf, 5.0, 0.9, 45.0)), 4, 4),
    (guards.size_is_observed, view(group=UNOBSERVED), 4, 4),
    (guards.metrics_are_fresh, view(seen=STALE), 4, None),
    (guards.metrics_are_fresh, WITHOUT_HISTORY, 4, None),
    (guards.metrics_are_fresh, view(), None, None),
    (
        guards.most_replicas_move,
        view(supply=Supply(45.0, sick=Sick((Symptom("a", Reason.ENGINE_HUNG, NOW, NOW, True),)))),
        None,
        None,
    ),
    (guards.most_replicas_move, view(supply=Supply(45.0, sick=Sick(doubted=True))), 4, None),
    (guards.no_rollout_runs, view(group=ROLLING), 4, None),
    (guards.no_rollout_runs, view(group=replace(ROLLING, ready=replicas(3), short=replicas(1))), 3, None),
    (guards.no_rollout_runs, view(group=replace(ROLLING, ready=replicas(2), short=replicas(2))), None, None),
    (guards.nothing_starts, view(starting=True), 4, None),
    (guards.nothing_burns, view(slo=BURNING), 4, None),
    (guards.nothing_burns, helpless(CALM, BURNING), None, None),
    (guards.nothing_burns, helpless(BURNING, replace(BURNING, budget_remaining=-99.0)), 4, None),
    (guards.held_long_enough, view(), None, None),
    (guards.held_long_enough, view(peaks=Peaks(((NOW, 5.0),), NOW - 74.0)), 4, None),
    (guards.held_long_enough, view(peaks=Peaks(((NOW, 14.0),), NOW - 3600.0)), 3, None),
    (guards.held_long_enough, view(peaks=Peaks(((NOW, 99.0),), NOW - 3600.0)), 4, None),
    (guards.held_long_enough, view(of=CHAT.adopting(), idle_seconds=3601.0), 4, None),
    (guards.held_long_enough, view(of=CHAT.adopting(), idle_seconds=3600.0), None, None),
    (guards.held_long_enough, view(of=CHAT.adopting(), idle_seconds=3601.0, correction=KNOWN), None, None),
    (guards.no_load_returns, view(), None, None),
    (guards.no_load_returns, CAME_LATELY, 3, None),
    (guards.no_load_returns, changed(CAME_LATELY, slumber=Slumber.ASLEEP), None, None),
    (guards.no_load_returns, changed(CAME_LATELY, service=FOR_A_MONTH), None, None),
    (guards.no_load_returns, changed(CAME_LATELY, service=FOR_A_MONTH, slo=SPENT), 3, None),
    (guards.no_load_returns, helpless(CALM, SPENT), None, None),
    (guards.no_load_returns, helpless(SPENT, BURNING), 3, None),
    (guards.no_load_returns, changed(CAME_LATELY, forecast=None), None, None),
    (guards.no_floor_is_near, view(), None, None),
    (guards.no_floor_is_near, view(scheduled=ScheduledMinimums(kept=ScheduledMinimum(3, "by the schedule"))), 3, None),
    (guards.groups_that_serve_stay, view(group=SHORT), None, None),
    (guards.groups_that_serve_stay, view(group=numbered(0, 1)), None, None),
    (guards.groups_that_serve_stay, view(group=numbered(0, 2, 3)), 3, None),
    (guards.groups_that_serve_stay, view(group=numbered(3)), 4, None),
    (guards.groups_that_serve_stay, view(group=numbered()), None, None),
    (guards.accelerators_can_be_had, view(group=SHORT), None, 4),
    (guards.step_is_bounded, view(), None, None),
    (guards.within_what_others_leave, view(), None, None),
    (guards.within_what_others_leave, view(allocation=Allocation(5, "others come first")), None, 5),
    (guards.within_what_others_leave, view(allocation=Allocation(1, "others"), group=numbered(3)), None, 4),
    (guards.at_least_the_minimum, view(of=CHAT.with_replicas_between(3, 10)), 3, None),
    (guards.at_most_the_maximum, view(of=CHAT.with_replicas_between(2, 5)), None, 5),
    (guards.within_the_budget, view(), None, None),
    (
        guards.within_the_budget,
        view(option=accelerator("h100", cost_per_gpu_hour=2.0), of=CHAT.costing_at_most(11.0)),
        None,
        5,
    ),
    (guards.a_guess_is_observed, view(correction=KNOWN), None, None),
    (guards.a_guess_is_observed, view(correction=A_GUESS, starting=True), None, 4),
    (guards.a_guess_is_observed, view(correction=A_GUESS), None, None),
    (guards.more_replicas_help, view(supply=after_growth(useless=False)), None, None),
    (guards.more_replicas_help, view(supply=after_growth(useless=True)), None, 5),
    (guards.no_flood_of_ended_pods, view(), None, None),
    (guards.no_flood_of_ended_pods, view(supply=ended_pods(asked=5)), None, 4),
    (guards.no_flood_of_ended_pods, view(supply=ended_pods(asked=0)), None, None),
    (guards.no_flood_of_ended_pods, view(supply=ended_pods(asked=5), group=numbered(3)), None, 4),
    (guards.within_the_accelerators_maximum, view(option=accelerator("h100", max_replicas=5)), None, 5),
]


@pytest.mark.parametrize(
    ("guard", "seen", "down", "up"), TABLE, ids=[f"{n} {row[0].__name__}" for n, row in enumerate(TABLE)]
)
def test_a_guard_binds_in_its_directions_only(guard: Guard, seen: View, down: int | None, up: int | None) -> None:
    for sizes, expected in ((DOWN, down), (UP, up)):
        bound = asked(guard, sizes, seen)
        assert (bound and bound.replicas) == expected
    assert asked(guard, STAY, seen) is None or guard in (guards.prediction_is_finite, guards.size_is_observed)


def test_every_guard_has_a_row() -> None:
    assert {row[0] for row in TABLE} == set(GUARDS)


def test_no_sentence_says_that_a_size_does_not_shrink_that_shrinks() -> None:
    seen = view(slo=BURNING, supply=after_growth(useless=True))
    proposal, bounds = apply_guards(Proposal(seen, 8, 3))
    assert proposal.after == 5
    assert [bound.reason for bound in bounds] == [Reason.MORE_REPLICAS_DO_NOT_HELP]


@pytest.mark.parametrize(("before", "after", "most"), [(0, 9, 1), (1, 9, 2), (4, 20, 8), (4, 7, 7)])
def test_while_a_replica_is_a_guess_a_step_doubles_the_size_at_most(before: int, after: int, most: int) -> None:
    proposal, _ = apply_guards(Proposal(view(correction=A_GUESS), before, after), (guards.a_guess_is_observed,))
    assert proposal.after == most


@pytest.mark.parametrize(("before", "after", "most"), [(1, 20, 5), (4, 20, 8), (6, 20, 12), (0, 9, 4), (5, 9, 9)])
def test_a_step_is_at_most_the_larger_of_double_and_four_more(before: int, after: int, most: int) -> None:
    proposal, _ = apply_guards(Proposal(view(), before, after), (guards.step_is_bounded,))
    assert proposal.after == most


def test_hard_bounds_win_over_every_hold() -> None:
    too_many = view(group=Group("h100", size=14, exists=True, rolling_out=True), seen=STALE, slo=BURNING)
    proposal, bounds = apply_guards(Proposal(too_many, 14, 1))
    assert proposal.after == 10
    assert bounds[-1].reason is Reason.AT_MAXIMUM
    few, _ = apply_guards(Proposal(view(), 1, 1))
    assert few.after == 2


def test_only_guards_that_changed_something_are_named() -> None:
    _, bounds = apply_guards(Proposal(view(), 4, 6))
    assert bounds == ()


def test_the_list_holds_every_guard_once() -> None:
    names = [guard.__name__ for guard in GUARDS]
    assert len(names) == len(set(names))
    functions = {
        n for n, f in vars(guards).items() if getattr(f, "__annotations__", {}).get("return") == "Bound | None"
    }
    assert functions == set(names)


def turned(*actions: tuple[Action, float]) -> Flapping:
    memory = Flapping()
    for action, level in actions:
        memory = remember_change(memory, action, level)
    return memory


UPWARDS, DOWNWARDS = Action.SCALE_UP, Action.SCALE_DOWN


def test_letting_go_by_mistake_doubles_the_patience_and_real_load_ends_it() -> None:
    mistaken = turned((DOWNWARDS, 10.0), (UPWARDS, 10.5), (DOWNWARDS, 10.0), (UPWARDS, 10.0))
    assert mistaken.patience == 4.0
    assert remember_change(mistaken, DOWNWARDS, 10.0).patience == 4.0
    called = turned((DOWNWARDS, 10.0), (UPWARDS, 10.5), (DOWNWARDS, 10.0), (UPWARDS, 20.0))
    assert called.patience == 1.0
