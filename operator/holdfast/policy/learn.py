"""What one more tick teaches about a service, before anything is decided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.domain.service import BatchingLimits
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.estimate import (
    activator_misses,
    capacity_evidence,
    class_budgets,
    cold_start,
    forecast,
    headroom,
    length_mix,
    replica_capacity,
    scale_to_zero,
    slo_budget,
)
from holdfast.policy.estimate.arrivals import observe_arrivals
from holdfast.policy.estimate.batch_work import watch_batch
from holdfast.policy.estimate.class_budgets import ClassState
from holdfast.policy.estimate.evidence_window import EvidenceWindow, a_minute_ended, is_due, watch
from holdfast.policy.estimate.fast_loops import FastLoops, watch_fast_loops
from holdfast.policy.estimate.growth import Growth, watch_growth
from holdfast.policy.estimate.kv_cache import watch_kv_cache
from holdfast.policy.estimate.replica_capacity import Engines
from holdfast.policy.health.backoff import Backoffs, watch_backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.memory import Closing, Demand, Promise, ServiceMemory, Supply
from holdfast.policy.observation import Observation, observe
from holdfast.policy.settings import Tick
from holdfast.policy.view import ServiceState


def learn(
    service: ServiceSnapshot, known: ServiceMemory, promise: Promise | None, tick: Tick, model: EngineModel
) -> ServiceState:
    """Observe, and update every estimate: of the requests first, then of the replicas that serve them.

    `promise`: other services give up GPUs for this one.
    """
    observed = observe(service, known, tick)
    requests = learn_demand(observed, tick.now)
    shown = observed.service, known, tick.now, observed.seen, observed.groups, observed.starting
    supply = learn_supply(observed, requests, promise, tick, model)
    return ServiceState(*shown, requests.demand, supply, requests.classes)


@value
class DemandLearning:
    """What one tick taught about the requests, and the `verdicts` of engines alone."""

    demand: Demand
    classes: tuple[ClassState, ...]
    verdicts: slo_budget.Verdicts


def learn_demand(observed: Observation, now: float) -> DemandLearning:
    """Learn from the pool that answers the clients."""
    old, service, seen, lead = observed.known.demand, observed.service, observed.seen, observed.supply.lead_seconds
    slo = service.spec.slo
    # More requests are refused or get their first token too late than the objective allows.
    strained = seen.late + seen.refused > 1.0 + slo.budget_share * (seen.started + seen.refused)
    arrivals = observe_arrivals(old.arrivals, seen, seen.arrived, now, lead, strained)
    # Requests that end with an error have no tokens.
    lengths = old.lengths if service.traffic.failing else length_mix.observe_lengths(old.lengths, seen, now)
    verdicts = slo_budget.account(old.budget, seen, slo, now)
    misses, judged = activator_misses.account(old.activator_misses, service.activator, verdicts, slo, now)
    budgets = class_budgets.account_classes(old.classes, old.budget, judged, verdicts.latest, seen, slo, now)
    classes = class_budgets.class_states(budgets, judged, verdicts.latest, slo, now)
    demand = Demand(
        arrivals=arrivals,
        residuals=forecast.learn_residuals(old.residuals, arrivals, lead),
        lengths=lengths,
        budget=judged,
        classes=budgets,
        headroom=_headroom(observed, arrivals.level_rps, classes),
        idle=scale_to_zero.watch(old.idle, service, seen, now),
        activator_misses=misses,
        batch=watch_batch(old.batch, seen, service.spec.batch, lead, now),
    )
    evidence = class_budgets.evidence_of(verdicts.latest, classes, _belief(observed), slo, arrivals.level_rps, now)
    return DemandLearning(demand, classes, evidence)


def _headroom(observed: Observation, level_rps: float, classes: tuple[ClassState, ...]) -> headroom.Headroom:
    known, service = observed.known, observed.service
    old = headroom.recalled(service.recalled.quantile) if known.decided_at is None else known.demand.headroom
    # Requests are lost to a broken engine: more headroom would not help.
    broken = any(group.failing or group.ailing for group in observed.groups)
    broken = broken or observed.seen.failed > observed.seen.late + observed.seen.refused
    frozen = known.limited or observed.seems_sick or broken
    judged = class_budgets.helped(classes, _belief(observed))
    return headroom.follow(old, judged, level_rps, frozen, observed.starting, known.short, known.ample)


def _belief(observed: Observation) -> replica_capacity.Belief | None:
    return observed.known.supply.capacity.belief(observed.known.choice.accelerator)


def learn_supply(
    observed: Observation, requests: DemandLearning, promise: Promise | None, tick: Tick, model: EngineModel
) -> Supply:
    """Learn what replicas carry under this demand; `promise`: other services give up GPUs for this one."""
    old, now, service = observed.supply, tick.now, observed.service
    loops = watch_fast_loops(old.fast_loops, observed.seen, now)
    kv_tokens = {name: facts.kv_tokens for name, facts in service.traffic.facts if facts.kv_tokens is not None}
    window = _window(observed, requests, now)
    believed = _believe(observed, requests, loops, model, class_budgets.shares(requests.classes, now))
    beliefs = _measured(observed, believed, window, now, model)
    beliefs, evidence, growth = _compared(observed, beliefs, window, now)
    return replace(
        old,
        capacity=beliefs,
        evidence=evidence,
        growth=growth,
        kv_cache=watch_kv_cache(old.kv_cache, observed.seen, kv_tokens, now),
        fast_loops=loops,
        backoffs=_backoffs(observed, promise, tick),
        slow_since=replica_capacity.slow_since(old.slow_since, beliefs, now),
        closing=_closing(old.closing, observed.groups, tick),
    )


def _backoffs(observed: Observation, promise: Promise | None, tick: Tick) -> Backoffs:
    """Backoffs; the accelerator in use gets none while other services give up some of it, or were not asked to yet."""
    known, spec = observed.known, observed.service.spec
    before, backoffs = known.spec or spec, known.supply.backoffs
    if before.generation != spec.generation:
        backoffs = backoffs.after_edit(before, spec)
    name, request = known.choice.accelerator, known.request
    asked = request is not None and request.short and request.option.name == name
    waited = math.inf if promise is None or promise.accelerator != name else tick.now - promise.since
    # A service that does not give up its GPUs in time may never do so.
    awaited = name if not asked or 0.0 <= waited < tick.settings.yielding_seconds else ""
    spot = frozenset(option.name for option in spec.accelerators if option.spot)
    return watch_backoffs(backoffs, observed.groups, tick.now, tick.settings, awaited, spot)


def _closing(before: Closing | None, groups: tuple[Group, ...], tick: Tick) -> Closing | None:
    """The wait for a successor is long enough for a node and a start."""
    if not any(replica.closing for group in groups for replica in group.ready):
        return None
    until = tick.now + tick.settings.provisioning_seconds + tick.settings.starting_seconds
    return before or Closing(until, sum(group.size for group in groups))


def _believe(
    observed: Observation, requests: DemandLearning, loops: FastLoops, model: EngineModel, classes: Mapping[str, float]
) -> replica_capacity.Capacity:
    """What replicas are believed to carry, before it is compared with what they did with their load.

    Limits that differ from the spec's count, except limits on trial, which only one replica has. During a rollout
    engines of the old revision report too, so their reports say nothing about the new one.
    """
    service, spec, placements = observed.service, observed.service.spec, observed.service.placements
    limits = {p.accelerator: p.batching if p.batching_before is None else p.batching_before for p in placements}
    started = {name: each for name, each in limits.items() if each != BatchingLimits()}
    rolling = {p.accelerator for p in placements if p.rolling_out or not p.observed}
    measured = {result.accelerator: result for result in service.measured}
    facts = {name: facts for name, facts in service.traffic.facts if name not in rolling}
    engines = {
        name: Engines(started.get(name, spec.batching), name in loops, measured.get(name), facts.get(name))
        for name in (option.name for option in spec.accelerators)
    }
    known, lengths = observed.known.supply.capacity, requests.demand.lengths
    return replica_capacity.believe(known, spec, lengths, observed.seen, model, engines, service.recalled, classes)


def _window(observed: Observation, requests: DemandLearning, now: float) -> EvidenceWindow:
    """What happened since capacities were compared, as far as the same replicas served undisturbed."""
    seen, known = observed.seen, observed.known
    since = now - seen.interval_seconds if known.decided_at is None else known.decided_at
    passed = min(max(0.0, now - since), seen.interval_seconds)
    serving = [replica.name for group in observed.used for replica in group.ready] if observed.undisturbed else []
    steady_since = max(requests.demand.arrivals.steady_since, requests.demand.lengths.changed_at)
    return watch(known.supply.evidence, seen, seen.arrived, requests.verdicts, serving, passed, now, steady_since)


def _measured(
    observed: Observation, beliefs: replica_capacity.Capacity, window: EvidenceWindow, now: float, model: EngineModel
) -> replica_capacity.Capacity:
    """Beliefs about step times after one more minute. Sums of steps count also while other replicas start."""
    before, key = observed.known.decided_at, observed.service.spec.key
    if not observed.whole or before is None or not a_minute_ended(key, before, now):
        return beliefs
    # The same replicas have served for at least one counting interval.
    undisturbed = observed.undisturbed and window.since is not None and now >= window.since
    for group in observed.used:
        found = capacity_evidence.step_evidence(observed.seen, group.accelerator, len(group.ready), undisturbed)
        if found is not None:
            beliefs = capacity_evidence.measure_steps(beliefs, found, group.accelerator, model)
            beliefs = capacity_evidence.observe_saturation(beliefs, found, group.accelerator)
    return beliefs


def _compared(
    observed: Observation, beliefs: replica_capacity.Capacity, window: EvidenceWindow, now: float
) -> tuple[replica_capacity.Capacity, EvidenceWindow, Growth]:
    """Beliefs about what replicas carry, and whether more of them help, where a window is complete."""
    known, spec = observed.known, observed.service.spec
    if not observed.undisturbed or not is_due(window, spec.key, now):
        return beliefs, window, known.supply.growth
    names, size = [group.accelerator for group in observed.used], sum(len(group.ready) for group in observed.used)
    belief, growth = beliefs.belief(names[0]), known.supply.growth
    if belief is not None and not belief.drifted:
        missed = capacity_evidence.missed_by_far(spec, window)
        growth = watch_growth(growth, names[0], size, window, belief.modelled_rps, missed)
    least = known.demand.headroom.quantile <= headroom.LOWEST
    for name in names:
        beliefs = capacity_evidence.observe_load(beliefs, window, name, least, growth.useless)
    return beliefs, EvidenceWindow(since=now, before=window.verdicts, replicas=window.replicas), growth


def with_history(known: ServiceMemory, service: ServiceSnapshot, tick: Tick) -> ServiceMemory:
    """Return the memory with what Prometheus remembers, once after a start, as soon as it answers.

    What was learned before that tells of less: Prometheus was away.
    """
    history, old, now = service.history, known.demand, tick.now
    if history is None:
        return known
    cold_starts = cold_start.watch_cold_starts(known.supply.cold_starts, (), service.recalled.cold_start_seconds)
    lead = cold_start.lead_seconds(cold_starts, tick.timing, 2.0 * max(tick.timing.scrape_seconds, 0.0), tick.settings)
    arrivals, residuals = forecast.recall(history, now, lead)
    held, judged = activator_misses.from_history(history)
    budget = slo_budget.budget_from_history(judged, service.spec.slo, now)
    classes = class_budgets.classes_from_history(judged, service.spec.slo, now)
    demand = replace(old, arrivals=arrivals, residuals=residuals, budget=budget, classes=classes)
    return replace(known, demand=replace(demand, activator_misses=held))
