"""The fewest replicas that a service needs, and why."""

from __future__ import annotations

from holdfast.api.quantities import format_duration
from holdfast.api.reasons import Reason
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.estimate.scale_to_zero import Slumber
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums
from holdfast.policy.view import Bound, Load, Minimum, Selection, ServiceState

LEAST_HELD_SECONDS = 15.0
"""Shortest time over which the rate of held requests is computed."""

NO_ACTIVATOR = "scaling.min is 0, but no activator runs to hold requests; start the operator with --activator-image"


def minimum_of(
    state: ServiceState,
    load: Load,
    selection: Selection,
    scheduled: ScheduledMinimums,
    slumber: Slumber,
    idle_seconds: float,
) -> Minimum:
    """Return the fewest replicas of the chosen accelerator."""
    belief, asleep = selection.belief, slumber is Slumber.ASLEEP
    least, waking = _least(state, scheduled, asleep, idle_seconds), _waking(state, belief.rate_rps)
    carrying = max(selection.chosen.replicas, waking, least.replicas)
    holding = state.supply.kv_cache.replicas(state.supply.lead_seconds, belief.facts.kv_tokens)
    return Minimum(
        least=least,
        scheduled=scheduled,
        slumber=slumber,
        idle_seconds=idle_seconds,
        waking=waking,
        carrying=max(carrying, holding),
        cache_rules=holding > carrying,
        above_demand=replicas_for(load.demand_rps or 0.0, belief.rate_rps) < least.replicas,
        at_zero=not state.size and (asleep or state.left_at_zero),
    )


def _least(state: ServiceState, scheduled: ScheduledMinimums, asleep: bool, idle_seconds: float) -> Bound:
    """The lower bound: scaling.min, or a higher scaling.minOnDemand or scheduled minimum."""
    floor, least, on_demand = scheduled.now, state.spec.min_replicas, state.spec.min_on_demand
    if floor is not None and floor.replicas > max(least, on_demand):
        return Bound(floor.replicas, Reason.SCHEDULED_FLOOR, floor.sentence)
    if not asleep and on_demand > max(1, least):
        return Bound(on_demand, Reason.AT_MINIMUM, f"scaling.minOnDemand is {on_demand}")
    if least == 0 and not asleep:
        return _near_zero(state, idle_seconds)
    return Bound(least, Reason.AT_MINIMUM, f"scaling.min is {least}")


def _near_zero(state: ServiceState, idle_seconds: float) -> Bound:
    """The lower bound, with the reason why a service that may scale to zero does not."""
    silent = Reason.ACTIVATOR_SILENT
    if state.service.activator is None:
        return Bound(1, silent, NO_ACTIVATOR)
    if state.demand.idle.silent(state.now):
        return Bound(1, silent, "the activator does not answer, so one replica stays up to serve requests")
    if state.held:
        return Bound(1, Reason.REQUESTS_HELD, "the activator holds requests until a replica is ready")
    spell = format_duration(float(round(idle_seconds)))
    return Bound(1, Reason.AT_MINIMUM, f"scaling.min is 0: the last replica is removed after {spell} without a request")


def _waking(state: ServiceState, rate_rps: float) -> int:
    """Replicas that carry the held requests at the rate they arrived, as far as a few seconds show it."""
    activator = state.service.activator
    if activator is None or not state.held or not rate_rps > 0.0:
        return 0
    came_within = max(activator.oldest_seconds, state.spec.slo.ttft_seconds, LEAST_HELD_SECONDS)
    return replicas_for(activator.waiting / came_within, rate_rps)
