"""What stands between a wanted size and the one that is taken: a list, in the order in which it is asked.

A guard sees the proposal as the ones before it left it. Hard bounds come last, so that nothing moves a size past them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from holdfast.api.quantities import counted, format_rate
from holdfast.api.reasons import Reason
from holdfast.domain.value import value
from holdfast.policy.estimate.capacity_evidence import UNEVEN
from holdfast.policy.estimate.class_budgets import spare_requests
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.placement.on_demand_pair import affordable
from holdfast.policy.view import Bound, View

BALANCE = "balance each request, as gateways can, or have clients close connections (Connection: close)"

AFFORDABLE_SHARE = 0.05
"""Share of the requests that may still be bad, which one return of an earlier load may make so."""


@value
class Proposal:
    """Replicas of the chosen accelerator and its pair now and as proposed; `elsewhere` there are others.

    Whether there is room for both at one time is not asked here (policy.transition.make_before_break).
    """

    view: View
    before: int
    after: int
    elsewhere: int = 0

    @property
    def lowers(self) -> bool:
        """Capacity gets less: hung replicas are none, nor those without a node."""
        return self.after < self.before and self.after < self.before - self.view.replacement.leaving.total()


Guard = Callable[[Proposal], Bound | None]


def prediction_is_finite(proposal: Proposal) -> Bound | None:
    forecast, rate = proposal.view.load.forecast, proposal.view.selection.belief.rate_rps
    numbers = (rate,) if forecast is None else (rate, forecast.wanted_rps, forecast.releasable_rps)
    if all(map(math.isfinite, numbers)):
        return None
    sentence = "a prediction is not a finite number, so the size does not change"
    return Bound(proposal.before, Reason.PREDICTION_NOT_FINITE, sentence)


def size_is_observed(proposal: Proposal) -> Bound | None:
    if all(group.observed for group in proposal.view.state.groups):
        return None
    return Bound(proposal.before, Reason.SPEC_NOT_OBSERVED, "Kubernetes has not observed the last change yet")


def metrics_are_fresh(proposal: Proposal) -> Bound | None:
    doubt = proposal.view.state.doubt
    return Bound(proposal.before, Reason.METRICS_HOLD, doubt) if doubt and proposal.lowers else None


def most_replicas_move(proposal: Proposal) -> Bound | None:
    """What sick engines are asked is not seen, and where most look sick the picture may be wrong as well."""
    sick = proposal.view.state.supply.sick
    if not proposal.lowers or not sick.doubted:
        return None
    sentence = "the size does not shrink while most replicas seem sick"
    return Bound(proposal.before, sick.reason, sentence)


def no_rollout_runs(proposal: Proposal) -> Bound | None:
    """Replicas without a node may go: a rollout may wait for them for ever, and of a Deployment they go first."""
    groups = proposal.view.state.groups
    if not proposal.lowers or not any(group.rolling_out for group in groups):
        return None
    placed = proposal.before - sum(len(group.pending) + len(group.short) for group in groups)
    if proposal.after >= placed:
        return None
    return Bound(placed, Reason.ROLLOUT_UNDER_WAY, "the size does not shrink below what has a node during a rollout")


def nothing_starts(proposal: Proposal) -> Bound | None:
    if not proposal.lowers or not proposal.view.state.starting:
        return None
    return Bound(proposal.before, Reason.REPLICAS_STARTING, "the size does not shrink while replicas start")


def nothing_burns(proposal: Proposal) -> Bound | None:
    """What cannot be met burns at any size; a class that can be met keeps the size, whatever becomes of others."""
    view = proposal.view
    burning = (each.slo.name for each in view.state.classes if each.state.burning)
    if not proposal.lowers or not any(map(view.selection.belief.meets, burning)):
        return None
    sentence = "the size does not shrink while the error budget burns too fast"
    return Bound(proposal.before, Reason.BUDGET_BURNING, sentence)


def held_long_enough(proposal: Proposal) -> Bound | None:
    """Fewer replicas must have been enough for as long as it takes to have one back.

    In somebody else's Deployment they must for the idle time until a load has shown what a replica carries.
    """
    view = proposal.view
    if not proposal.lowers or view.minimum.asleep:  # an idle time is longer, and not even one request came in it
        return None
    unused = view.state.spec.adopted and not view.selection.belief.correction.looks
    peaks, hold = view.load.peaks, max(view.load.hold_seconds, view.minimum.idle_seconds if unused else 0.0)
    covered = peaks.covered_seconds(view.state.now)
    if covered < hold:
        sentence = f"fewer replicas must suffice for {hold:.0f} s before a scale-down, observed for {covered:.0f} s"
        sentence = f"{sentence}, and what a replica carries is not measured yet" if unused else sentence
        return Bound(proposal.before, Reason.DOWN_HOLD, sentence)
    needed = replicas_for(peaks.rate_rps, view.selection.belief.rate_rps) + view.replacement.spare
    if needed <= proposal.after:
        return None
    peaked = f"the demand peaked at {peaks.rate_rps:.1f} req/s in the last {hold:.0f} s"
    return Bound(min(proposal.before, needed), Reason.DOWN_HOLD, f"{peaked}, and the size must cover that")


def no_load_returns(proposal: Proposal) -> Bound | None:
    """Without the fast loop all requests are late that come until a removed replica is back."""
    view, level, lead = proposal.view, proposal.view.load.peaks.level_rps, proposal.view.state.supply.lead_seconds
    needed = replicas_for(level, view.selection.belief.rate_rps) + view.replacement.spare
    if not proposal.lowers or view.minimum.asleep or needed <= proposal.after or view.load.forecast is None:
        return None
    left = spare_requests(view.state.classes, view.selection.belief, view.load.forecast.level_rps)
    if level * lead <= AFFORDABLE_SHARE * left:
        return None
    came = f"{format_rate(level)} req/s came within the last {math.ceil(view.load.return_seconds / 60.0)} min"
    late = f"those of the {lead:.0f} s until a replica starts take more than {AFFORDABLE_SHARE:.0%} of the error budget"
    return Bound(min(proposal.before, needed), Reason.DOWN_HOLD, f"{came}; if they come back, {late} that is left")


def no_floor_is_near(proposal: Proposal) -> Bound | None:
    """What a schedule asks for within the hold time would not be back by then."""
    floor = proposal.view.minimum.scheduled.kept
    if not proposal.lowers or floor is None or proposal.after >= floor.replicas:
        return None
    return Bound(min(proposal.before, floor.replicas), Reason.SCHEDULED_FLOOR, floor.sentence)


def groups_that_serve_stay(proposal: Proposal) -> Bound | None:
    """A LeaderWorkerSet removes the groups with the highest numbers, though only these may serve."""
    own, chosen = proposal.view.selection.own, proposal.view.selection.chosen
    share = chosen.on_pair(proposal.after)
    least = share + own.size_with(min(proposal.after - share, len(own.ready)))
    if proposal.after >= min(proposal.before, least):
        return None
    sentence = "groups with lower numbers do not serve, and a LeaderWorkerSet removes those with the highest first"
    return Bound(min(proposal.before, least), Reason.DOWN_HOLD, sentence)


def step_is_bounded(proposal: Proposal) -> Bound | None:
    total = proposal.before + proposal.elsewhere
    most = max(2 * total, total + 4) - proposal.elsewhere
    if proposal.after <= most:
        return None
    wanted = counted(proposal.after, "replica")
    return Bound(most, Reason.STEP_LIMITED, f"{wanted} wanted, one step allows at most {most}")


def a_guess_is_observed(proposal: Proposal) -> Bound | None:
    """Where nobody knows what a replica carries, the first ones show it: one step for each observed start."""
    view, total = proposal.view, proposal.before + proposal.elsewhere
    if not view.selection.belief.unsure or proposal.after <= max(proposal.before, 1):
        return None
    most = proposal.before if view.state.starting else max(1, proposal.before + total)
    if proposal.after <= most:
        return None
    guess = f"what one {view.selection.name} replica carries is a guess"
    return Bound(most, Reason.CAPACITY_UNKNOWN, f"{guess}: at most twice as many replicas after each start")


def more_replicas_help(proposal: Proposal) -> Bound | None:
    """The size is the cheapest that serves as much as well, where larger ones served no more."""
    view, growth = proposal.view, proposal.view.state.supply.growth
    if not growth.useless or growth.accelerator != view.selection.name or proposal.after <= growth.size:
        return None
    share = f"{counted(growth.largest, 'replica')} served no more requests and no larger share well than {growth.size}"
    before = "look at what the requests pass before the engines, and at the engines' logs"
    remedy = BALANCE if view.state.seen.total.busiest > UNEVEN else before
    told = f"{share} ({100 * growth.share:.0f} %); {remedy}"
    return Bound(growth.size, Reason.MORE_REPLICAS_DO_NOT_HELP, told)


def accelerators_can_be_had(proposal: Proposal) -> Bound | None:
    """Replicas that found no node show that more of them would not either."""
    view, short = proposal.view, len(proposal.view.selection.own.short)
    if not short or proposal.after <= proposal.before:
        return None
    gain = view.selection.belief.rate_rps
    waits = counted(short, "replica", "waits", "wait")
    sentence = f"{waits} for a free {view.selection.name}, so no more are added; one more would carry {gain:.1f} req/s"
    return Bound(proposal.before, Reason.CAPACITY_LIMITED, sentence)


def within_what_others_leave(proposal: Proposal) -> Bound | None:
    """Where accelerators are short for several services, the allocation bounds the size.

    No guard that forbids lowering is asked after it: the allocation counts what must stay. It leaves out the pair.
    """
    allocation, own = proposal.view.selection.allocation, proposal.view.selection.own
    if allocation is None:
        return None
    serving = own.size_with(min(allocation.replicas, len(own.ready)))
    most = max(allocation.replicas, serving) + proposal.view.selection.chosen.on_pair(proposal.after)
    return None if proposal.after <= most else Bound(most, Reason.CAPACITY_LIMITED, allocation.sentence)


def at_least_the_minimum(proposal: Proposal) -> Bound | None:
    """Where others come first, what serves elsewhere is part of it: more would be taken from them."""
    least, only_hung = proposal.view.minimum.least, not proposal.lowers and proposal.after < proposal.before
    here = least.replicas if proposal.view.selection.allocation is None else least.replicas - proposal.elsewhere
    return None if proposal.after >= here or only_hung else least._replace(replicas=here)


def at_most_the_maximum(proposal: Proposal) -> Bound | None:
    most = proposal.view.state.spec.max_replicas
    if proposal.after <= most:
        return None
    wanted = counted(proposal.after, "replica")
    return Bound(most, Reason.AT_MAXIMUM, f"{wanted} wanted, scaling.max is {most}; raise it to scale further")


def within_the_accelerators_maximum(proposal: Proposal) -> Bound | None:
    option, pair = proposal.view.selection.belief.option, proposal.view.selection.chosen.pair
    own = proposal.after - proposal.view.selection.chosen.on_pair(proposal.after)
    if option.max_replicas is None or own <= option.max_replicas:
        return None
    most = option.max_replicas if pair is None else pair.total(option.max_replicas)
    told = f"{counted(own, 'replica')} wanted, the max of accelerator {option.name} is {option.max_replicas}"
    return Bound(min(proposal.after, most), Reason.AT_MAXIMUM, f"{told}; raise it to scale further")


def within_the_budget(proposal: Proposal) -> Bound | None:
    spec, chosen = proposal.view.state.spec, proposal.view.selection.chosen
    if spec.max_cost_per_hour is None:
        return None
    most = affordable(chosen.belief.option, chosen.pair, spec.max_cost_per_hour)
    if most is None or proposal.after <= most:
        return None
    paid = f"budget.maxCostPerHour ${spec.max_cost_per_hour:g} pays for {most}; raise it to scale further"
    return Bound(most, Reason.BUDGET_LIMITED, f"{counted(proposal.after, 'replica')} wanted, {paid}")


def no_flood_of_ended_pods(proposal: Proposal) -> Bound | None:
    """Pods that end are replaced without end, and half a group holds GPUs in vain: only the replicas that last stay."""
    view, name = proposal.view, proposal.view.selection.name
    backoff, share = view.state.stopped(name), view.selection.chosen.on_pair(proposal.after)
    most = view.state.bounded(name, proposal.after - share) + share
    if backoff is None or proposal.after <= most:
        return None
    half = f"a group of {name} held nodes without getting all"
    why = half if backoff.is_half else f"{name} pods end before they serve"
    sentence = f"{why}, so no more are started during the backoff: {backoff.detail}"
    return Bound(most, Reason.CAPACITY_LIMITED if backoff.is_half else Reason.POD_ENDED, sentence)


PINS_OVERRULE: tuple[Guard, ...] = (
    prediction_is_finite,
    metrics_are_fresh,
    most_replicas_move,
    no_rollout_runs,
    nothing_starts,
    nothing_burns,
    held_long_enough,
    no_load_returns,
    no_floor_is_near,
    groups_that_serve_stay,
    accelerators_can_be_had,
    a_guess_is_observed,
    step_is_bounded,
    more_replicas_help,
    within_what_others_leave,
    at_least_the_minimum,
    at_most_the_maximum,
    within_the_accelerators_maximum,
    within_the_budget,
    no_flood_of_ended_pods,
)
"""Guards that a pinned size overrules: people who pin a size decide these questions themselves."""

GUARDS: tuple[Guard, ...] = (size_is_observed, *PINS_OVERRULE)
"""A new guard goes to the end, where it bounds every size, also a pinned one."""


def apply_guards(proposal: Proposal, guards: tuple[Guard, ...] = GUARDS) -> tuple[Proposal, tuple[Bound, ...]]:
    """Ask every guard in order; return the bounded proposal, and the bounds that changed it and were not overruled.

    A size that one guard kept and a later one lowers was not kept, and nothing says that it was.
    """
    kept: list[tuple[Bound, int]] = []
    for guard in guards:
        bound = guard(proposal)
        if bound is not None and bound.replicas != proposal.after:
            kept.append((bound, proposal.after))
            proposal = replace(proposal, after=bound.replicas)
    return proposal, tuple(bound for bound, asked in kept if not asked < bound.replicas > proposal.after)
