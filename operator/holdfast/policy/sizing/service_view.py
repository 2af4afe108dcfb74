"""One service as the steps after learning see it: demand, hold time, minimums, and the accelerator that is chosen."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.service import ServiceSpec
from holdfast.enginemodel.class_mix import mean_ttft_seconds
from holdfast.policy.capacity_request import Allocation
from holdfast.policy.estimate import demand, forecast, scale_to_zero
from holdfast.policy.estimate.batch_work import with_batch
from holdfast.policy.estimate.class_budgets import spare_requests
from holdfast.policy.estimate.cold_start import node_seconds
from holdfast.policy.estimate.replica_capacity import same_engines
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimums, scheduled_minimums
from holdfast.policy.health.replicas import group_on
from holdfast.policy.memory import ServiceMemory, Supply
from holdfast.policy.placement.choice import Choice, choose
from holdfast.policy.placement.on_demand_pair import together
from holdfast.policy.placement.options import describe_options
from holdfast.policy.settings import PolicySettings, Tick
from holdfast.policy.sizing.minimum import minimum_of
from holdfast.policy.sizing.replacement import replacement_of
from holdfast.policy.view import Load, Selection, ServiceState, View


def view_of(state: ServiceState, tick: Tick, moves_to: str = "") -> View:
    """Forecast the demand and choose the accelerator, unless the allocation moves the service to another one."""
    requests, supply, now = state.demand, state.supply, tick.now
    service, known, seen, groups, spec = state.service, state.known, state.seen, state.groups, state.spec
    lead, interval = supply.lead_seconds, seen.interval_seconds
    believed = supply.capacity.belief(known.choice.accelerator)
    spare = spare_requests(state.classes, believed, requests.arrivals.level_rps)
    sizing = requests.headroom.sizing
    expected = forecast.forecast(requests.arrivals, requests.residuals, sizing, lead, interval, spare)
    hopeful = seen.total.waiting - seen.total.waiting_late  # late ones wait behind all that can still be good
    patience_seconds = mean_ttft_seconds(spec.slo, supply.capacity.shares)
    waiting = demand.backlog(hopeful, expected, patience_seconds)
    useful_rps = demand.demand_rps(expected, waiting, patience_seconds, state.starting)
    level_rps = 0.0 if expected is None else expected.level_rps
    used = supply.capacity, known.choice.accelerator
    demand_rps, batch = with_batch(useful_rps, level_rps, requests.batch, *used)
    cycle = lead + tick.settings.drain_seconds  # what is removed is not back before that
    scheduled = _scheduled(spec, supply, now, cycle, tick.settings)
    idle_seconds = max(cycle, tick.settings.idle_seconds)
    slumber = scale_to_zero.slumber(requests.idle, service, seen, state.starting, scheduled, idle_seconds, now)
    fallback = max((group.baseline for group in groups), default=0)
    beliefs, least = supply.capacity.beliefs, _awake(spec, scheduled)
    considered = describe_options(least, beliefs, groups, supply.backoffs, tick.inventory, demand_rps, fallback, now)
    before = Choice() if state.edited else known.choice
    chosen_now = choose(before, spec, considered, groups, cycle, now, known.peaks.rate_rps)
    choice = Choice(moves_to, judged_at=now) if moves_to else chosen_now
    chosen = next(option for option in considered if option.name == choice.accelerator)
    own, joined = group_on(groups, chosen.name), together(groups, chosen.name, chosen.pair)
    selection = Selection(considered, choice, chosen, own, *joined)
    hold = known.flapping.patience * cycle
    returns = demand.return_seconds(hold, cycle, bool(supply.fast_loops))
    # as many must carry what comes, too
    filled_rps = supply.kv_cache.replicas(lead, chosen.belief.facts.kv_tokens) * chosen.belief.rate_rps
    trusted = seen.fresh and not _renewed(known, spec)
    peaks, useful = (
        demand.remember_peak(before, expected, None if rate is None else max(rate, filled_rps), now, hold, trusted)
        for before, rate in ((known.peaks, demand_rps), (known.useful, useful_rps))
    )
    peaks = demand.remember_level(peaks, _lasting_rps(state, expected), now, returns)
    load = Load(expected, waiting, demand_rps, peaks, useful, hold, returns, batch)
    minimum = minimum_of(state, load, selection, scheduled, slumber, idle_seconds)
    return View(state, load, selection, minimum, replacement_of(state, load, selection, minimum))


def within(view: View, allocation: Allocation) -> View:
    """Return the view with the fleet's share of the chosen accelerator."""
    selection = replace(view.selection, allocation=allocation)
    replacement = replacement_of(view.state, view.load, selection, view.minimum)
    return replace(view, selection=selection, replacement=replacement)


def _lasting_rps(state: ServiceState, expected: forecast.Forecast | None) -> float:
    """The level of arrivals; 0 in a burst with a period, and while replicas could not have served it yet."""
    if expected is None or state.now - state.demand.arrivals.steady_since < state.supply.lead_seconds:
        return 0.0
    return 0.0 if expected.bursts.includes(expected.level_rps) else expected.level_rps


def _renewed(known: ServiceMemory, spec: ServiceSpec) -> bool:
    """Whether nothing shows yet that less does: engines were changed, or Holdfast sizes somebody's Deployment now."""
    compared, last = known.supply.capacity.spec, known.spec
    taken_over = spec.adopted and last is not None and last.recommend_only and not spec.recommend_only
    return taken_over or (compared is not None and not same_engines(compared, spec))


def _scheduled(
    spec: ServiceSpec, supply: Supply, now: float, cycle: float, settings: PolicySettings
) -> ScheduledMinimums:
    """The floors of the schedules, asked for early enough for nodes to come where replicas had to wait for them.

    How long that took is learned anew with each replica: within the longest wait that may be none is let go.
    """
    waits = node_seconds(supply.cold_starts, settings)
    spare = settings.provisioning_seconds - waits if waits else 0.0
    return scheduled_minimums(spec.schedules, now, supply.lead_seconds + waits, cycle + spare)


def _awake(spec: ServiceSpec, scheduled: ScheduledMinimums) -> ServiceSpec:
    """The spec as accelerators are chosen for: at least one replica, for a service at rest the next one."""
    least = max(1, spec.min_replicas, spec.min_on_demand, scheduled.now.replicas if scheduled.now else 0)
    return spec if spec.min_replicas == least else replace(spec, min_replicas=least)
