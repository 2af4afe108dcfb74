"""What one more look at a service teaches, before anything is decided."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.service import BatchingLimits, ServiceSpec, Slo
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.policy.estimate import (
    activator_misses,
    cold_start,
    forecast,
    headroom,
    length_mix,
    replica_capacity,
    scale_to_zero,
    slo_budget,
)
from holdfast.policy.estimate.arrivals import Arrivals, arrived_requests, observe_arrivals
from holdfast.policy.estimate.engine_model import EngineModel
from holdfast.policy.estimate.evidence_window import EvidenceWindow, is_due, watch
from holdfast.policy.estimate.fast_loops import FastLoops, watch_fast_loops
from holdfast.policy.estimate.hardware import same_hardware
from holdfast.policy.estimate.headroom import Headroom
from holdfast.policy.estimate.length_mix import Lengths
from holdfast.policy.estimate.replica_capacity import Capacity
from holdfast.policy.estimate.retries import learn_retries
from holdfast.policy.estimate.slo_budget import Budget, SloState, Verdicts
from holdfast.policy.estimate.traffic import Seen, judge
from holdfast.policy.health.backoff import watch_backoffs
from holdfast.policy.health.replicas import Group, anything_starting, group_replicas
from holdfast.policy.health.stalled import Stalls, watch_stalls
from holdfast.policy.health.stragglers import Straggler, watch_straggler
from holdfast.policy.memory import Learned, Promise, ServiceMemory
from holdfast.policy.tick import Tick

THE_SPECS = BatchingLimits()
"""Limits of a Deployment that has no others than its spec."""


@value
class Learning:
    """What one tick taught about a service.

    `known` is what was remembered of it before, Prometheus' history included. `starting`: capacity is on its way.
    """

    service: ServiceSnapshot
    known: ServiceMemory
    seen: Seen
    groups: tuple[Group, ...]
    starting: bool
    learned: Learned
    slo: SloState


def learn(
    service: ServiceSnapshot, known: ServiceMemory, promise: Promise | None, tick: Tick, model: EngineModel
) -> Learning:
    """Judge what was observed, sort replicas by what they are worth, and update every estimate.

    `promise`: other services give up GPUs for this one.
    """
    now, seen = tick.now, judge(service.traffic)
    stalls = watch_stalls(known.learned.stalls, service.traffic.hung, service.replicas, seen, now, tick.timing)
    # After a start of the operator nobody knows which replica was replaced last.
    before = known.learned.straggler if known.decided_at is not None else Straggler(last_at=now)
    straggler = watch_straggler(before, service, stalls, seen, now, tick.timing)
    groups = group_replicas(service, now, tick.settings, stalls.believed | straggler.believed)
    starting, awaited = anything_starting(groups), _awaited(known, promise, tick)
    learned, slo = _learned(known, service, seen, groups, stalls, straggler, starting, awaited, tick, model)
    return Learning(service, known, seen, groups, starting, learned, slo)


def _awaited(known: ServiceMemory, promise: Promise | None, tick: Tick) -> str:
    """The accelerator in use, as long as other services give up some of it, or were not asked to yet."""
    name, request = known.choice.accelerator, known.request
    asked = request is not None and request.short and request.option.name == name
    return name if not asked or (promise is not None and promise.holds(name, tick.now, tick.settings)) else ""


def _learned(
    known: ServiceMemory,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    stalls: Stalls,
    straggler: Straggler,
    starting: bool,
    awaited: str,
    tick: Tick,
    model: EngineModel,
) -> tuple[Learned, SloState]:
    """Return what is known after this tick, and where the objective stands.

    `awaited` is the accelerator that other services may still give up some of.
    """
    now, timing, settings = tick.now, tick.timing, tick.settings
    old, spec = known.learned, service.spec
    ready = tuple(replica for group in groups for replica in group.ready)
    started = ready + tuple(replica for group in groups for replica in group.ailing)
    cold_starts = cold_start.watch_cold_starts(old.cold_starts, started, service.recalled.cold_start_seconds)
    interval = seen.interval_seconds or 2.0 * max(timing.scrape_seconds, 0.0)
    lead = cold_start.lead_seconds(cold_starts, timing, interval, settings)
    arrived = arrived_requests(seen, old.retries.share)
    arrivals = observe_arrivals(old.arrivals, seen, arrived, now, lead, _strained(seen, spec.slo))
    lengths = length_mix.observe_lengths(old.lengths, seen, now)
    verdicts = slo_budget.account(old.budget, seen, spec.slo, now)
    held, judged = activator_misses.account(old.activator_misses, service.activator, verdicts, spec.slo, now)
    state = slo_budget.slo_state(judged, spec.slo, now)
    loops = watch_fast_loops(old.fast_loops, seen, now)
    beliefs, evidence = _compare(
        known, old, loops, service, seen, groups, starting, lengths, arrived, arrivals, verdicts.latest, now, model
    )
    before = known.spec or spec
    backoffs = old.backoffs if before.generation == spec.generation else old.backoffs.after_edit(before, spec)
    learned = Learned(
        lead_seconds=lead,
        cold_starts=cold_starts,
        arrivals=arrivals,
        residuals=forecast.learn_residuals(old.residuals, arrivals, lead),
        retries=learn_retries(old.retries, seen, len(ready), now),
        lengths=lengths,
        budget=judged,
        headroom=_headroom(known, old.headroom, service, seen, groups, starting, arrivals, verdicts, state),
        capacity=beliefs,
        evidence=evidence,
        fast_loops=loops,
        backoffs=watch_backoffs(backoffs, groups, now, settings, awaited, _spot(spec)),
        stalls=stalls,
        straggler=straggler,
        idle=scale_to_zero.watch(old.idle, service, seen, now),
        activator_misses=held,
    )
    return learned, state


def with_history(known: ServiceMemory, service: ServiceSnapshot, tick: Tick) -> ServiceMemory:
    """Once after a start, as soon as Prometheus answers, what it remembers.

    What was learned before that tells of less: Prometheus was away.
    """
    history, old = service.history, known.learned
    now, timing, settings = tick.now, tick.timing, tick.settings
    if history is None:
        return known
    cold_starts = cold_start.watch_cold_starts(old.cold_starts, (), service.recalled.cold_start_seconds)
    lead = cold_start.lead_seconds(cold_starts, timing, 2.0 * max(timing.scrape_seconds, 0.0), settings)
    arrivals, residuals = forecast.recall(history, now, lead)
    held, judged = activator_misses.from_history(history)
    learned = replace(
        old,
        arrivals=arrivals,
        residuals=residuals,
        budget=slo_budget.budget_from_history(judged, service.spec.slo, now),
        activator_misses=held,
        idle=scale_to_zero.with_history(old.idle, history, now),
    )
    return replace(known, learned=learned)


def _spot(spec: ServiceSpec) -> frozenset[str]:
    return frozenset(option.name for option in spec.accelerators if option.spot)


def _headroom(
    known: ServiceMemory,
    old: Headroom,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    starting: bool,
    arrivals: Arrivals,
    verdicts: Budget,
    state: SloState,
) -> Headroom:
    old = headroom.recalled(service.recalled.quantile) if known.decided_at is None else old
    level = arrivals.line.level_rps if arrivals.line else 0.0
    frozen = known.limited or bool(service.traffic.lagging) or _engine_fault(seen, groups)
    slo = service.spec.slo
    adapted = headroom.adapt(old, verdicts, state, slo, level * slo.window_seconds, frozen, known.short)
    return headroom.in_force(adapted, starting)


def _strained(seen: Seen, slo: Slo) -> bool:
    """More requests are refused or get their first token too late than the objective allows."""
    return seen.late + seen.refused > 1.0 + slo.budget_share * (seen.started + seen.refused)


def _engine_fault(seen: Seen, groups: tuple[Group, ...]) -> bool:
    """Requests are lost to a broken engine: more headroom would not help."""
    return seen.failed > seen.late + seen.refused or any(group.failing or group.ailing for group in groups)


def _tuned(service: ServiceSnapshot) -> dict[str, BatchingLimits]:
    """Limits by accelerator that replicas were started with beside the spec's; what is on trial is one replica's."""
    in_force = {
        placement.accelerator: placement.batching if placement.batching_before is None else placement.batching_before
        for placement in service.placements
    }
    return {name: limits for name, limits in in_force.items() if limits != THE_SPECS}


def _compare(
    known: ServiceMemory,
    old: Learned,
    loops: FastLoops,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    starting: bool,
    lengths: Lengths,
    arrived: float,
    arrivals: Arrivals,
    verdicts: Verdicts,
    now: float,
    model: EngineModel,
) -> tuple[Capacity, EvidenceWindow]:
    """Beliefs about capacity, corrected where one kind of hardware served alone and undisturbed for long enough."""
    beliefs = replica_capacity.believe(
        old.capacity,
        service.spec,
        lengths,
        seen,
        model,
        loops.accelerators,
        _tuned(service),
        service.measured,
        service.recalled,
    )
    used = [group for group in groups if group.size > 0]
    whole = not any(g.draining or g.useless for g in groups) and not (service.traffic.hung or service.traffic.lagging)
    undisturbed = _alike(service.spec, used) and not starting and whole
    since = now - seen.interval_seconds if known.decided_at is None else known.decided_at
    passed = min(max(0.0, now - since), seen.interval_seconds)
    serving = sum(len(group.ready) for group in used) if undisturbed else 0
    evidence = watch(old.evidence, seen, arrived, verdicts, serving, passed, now, arrivals.steady_since)
    if not undisturbed or not is_due(evidence, service.spec.key, now):
        return beliefs, evidence
    for name in (group.accelerator for group in used):
        beliefs = replica_capacity.correct(beliefs, evidence, name, model, seen.steps_on(name), old.headroom.is_least)
    return beliefs, EvidenceWindow(since=now, before=evidence.verdicts)


def _alike(spec: ServiceSpec, used: list[Group]) -> bool:
    """Replicas are of one accelerator, or of spot and regular nodes of the same hardware."""
    if len(used) == 1:
        return True
    options = [option for group in used if (option := spec.accelerator(group.accelerator)) is not None]
    return 0 < len(options) == len(used) and all(same_hardware(options[0], option) for option in options)
