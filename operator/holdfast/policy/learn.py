"""What one more tick teaches about a service, before anything is decided."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.service import BatchingLimits, ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import Seen, judge
from holdfast.domain.value import value
from holdfast.enginemodel.hardware import same_hardware
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.estimate import (
    activator_misses,
    capacity_evidence,
    cold_start,
    forecast,
    headroom,
    length_mix,
    replica_capacity,
    scale_to_zero,
    set_backs,
    slo_budget,
)
from holdfast.policy.estimate.arrivals import Arrivals, arrived_requests, observe_arrivals
from holdfast.policy.estimate.contradictions import believed, last_contradiction
from holdfast.policy.estimate.evidence_window import EvidenceWindow, a_minute_ended, is_due, watch
from holdfast.policy.estimate.fast_loops import FastLoops, watch_fast_loops
from holdfast.policy.estimate.growth import Growth, watch_growth
from holdfast.policy.estimate.hidden_requests import Queue, hidden_requests, watch_queue
from holdfast.policy.estimate.kv_cache import watch_kv_cache
from holdfast.policy.estimate.retries import learn_retries
from holdfast.policy.health.backoff import Backoffs, watch_backoffs
from holdfast.policy.health.replicas import Group, anything_starting, group_replicas
from holdfast.policy.health.sick import Sick, watch_sick
from holdfast.policy.memory import Closing, Learned, Promise, ServiceMemory
from holdfast.policy.tick import Tick


@value
class Observation:
    """What one tick shows of a service.

    `known` is what was remembered of it before, Prometheus' history included. `starting`: capacity is on its way.
    """

    service: ServiceSnapshot
    known: ServiceMemory
    seen: Seen
    groups: tuple[Group, ...]
    sick: Sick
    starting: bool
    queue: Queue
    contradiction: float | None

    @property
    def used(self) -> tuple[Group, ...]:
        """Accelerators that replicas run on."""
        return tuple(group for group in self.groups if group.size > 0)

    @property
    def whole(self) -> bool:
        """No replica is leaving or sick, as far as can be seen."""
        return not any(g.draining or g.useless for g in self.groups) and not _seems_sick(self.service, self.sick)

    @property
    def undisturbed(self) -> bool:
        """Replicas of one kind of hardware serve, and none starts or leaves."""
        return self.whole and not self.starting and _alike(self.service.spec, self.used)

    @property
    def engine_fault(self) -> bool:
        """Requests are lost to a broken engine: more headroom would not help."""
        seen = self.seen
        broken = any(group.failing or group.ailing for group in self.groups)
        return seen.failed > seen.late + seen.refused or broken


@value
class Learning:
    """What one tick taught about a service, and where its objective stands."""

    observed: Observation
    learned: Learned
    slo: slo_budget.SloState


def learn(
    service: ServiceSnapshot, known: ServiceMemory, promise: Promise | None, tick: Tick, model: EngineModel
) -> Learning:
    """Judge what was observed, sort replicas by what they are worth, and update every estimate.

    `promise`: other services give up GPUs for this one.
    """
    old, now, fought = known.learned, tick.now, _set_backs(service, known, tick)
    service = set_backs.respecting(service, fought, now)
    observed, spec = _observe(service, known, tick), service.spec
    seen, groups = observed.seen, observed.groups
    ready = tuple(replica for group in groups for replica in group.ready)
    started = ready + tuple(replica for group in groups for replica in group.ailing)
    cold_starts = cold_start.watch_cold_starts(old.cold_starts, started, service.recalled.cold_start_seconds)
    interval = seen.interval_seconds or 2.0 * max(tick.timing.scrape_seconds, 0.0)
    lead = seen.late_seconds + cold_start.lead_seconds(cold_starts, tick.timing, interval, tick.settings)
    arrived = arrived_requests(seen, old.retries.share)
    # More requests are refused or get their first token too late than the objective allows.
    strained = seen.late + seen.refused > 1.0 + spec.slo.budget_share * (seen.started + seen.refused)
    arrivals = observe_arrivals(old.arrivals, seen, arrived, now, lead, strained)
    # Requests that end with an error have no tokens.
    lengths = old.lengths if service.traffic.failing else length_mix.observe_lengths(old.lengths, seen, now)
    verdicts = slo_budget.account(old.budget, seen, spec.slo, now)
    misses, judged = activator_misses.account(old.activator_misses, service.activator, verdicts, spec.slo, now)
    slo = slo_budget.slo_state(judged, spec.slo, now)
    loops = watch_fast_loops(old.fast_loops, seen, now)
    kv_tokens = {name: facts.kv_tokens for name, facts in service.traffic.facts if facts.kv_tokens is not None}
    steady_since = max(arrivals.steady_since, lengths.changed_at)
    window = _window(observed, arrived, steady_since, verdicts.latest, now)
    beliefs = _measured(observed, _believe(observed, lengths, loops, model), window, now, model)
    beliefs, evidence, growth = _compared(observed, beliefs, window, now)
    learned = Learned(
        lead_seconds=lead,
        cold_starts=cold_starts,
        arrivals=arrivals,
        residuals=forecast.learn_residuals(old.residuals, arrivals, lead),
        retries=learn_retries(old.retries, seen, len(ready), now),
        lengths=lengths,
        budget=judged,
        headroom=_headroom(observed, arrivals, verdicts, slo),
        capacity=beliefs,
        evidence=evidence,
        growth=growth,
        queue=observed.queue,
        contradiction=observed.contradiction,
        kv_cache=watch_kv_cache(old.kv_cache, seen, kv_tokens, now),
        fast_loops=loops,
        backoffs=_backoffs(observed, promise, tick),
        sick=observed.sick,
        slow_since=replica_capacity.slow_since(old.slow_since, beliefs, now),
        idle=scale_to_zero.watch(old.idle, service, seen, now),
        activator_misses=misses,
        closing=_closing(old.closing, groups, tick),
        set_backs=fought,
    )
    return Learning(observed, learned, slo)


def _set_backs(service: ServiceSnapshot, known: ServiceMemory, tick: Tick) -> set_backs.SetBacks:
    last = known.last
    decided = None if last is None else last.decision.verdict.targets
    edited = last is not None and last.facts.spec.generation != service.spec.generation
    return set_backs.watch(known.learned.set_backs, service, decided, edited, tick.now)


def _observe(service: ServiceSnapshot, known: ServiceMemory, tick: Tick) -> Observation:
    now, judged = tick.now, judge(service.traffic)
    contradiction = last_contradiction(known.learned.contradiction, judged, now)
    seen = believed(judged, contradiction)
    # After a start of the operator nobody knows which replica was replaced last.
    before = known.learned.sick if known.decided_at is not None else Sick(last_at=now)
    sick = watch_sick(before, service, seen, now, tick.timing)
    groups = group_replicas(service, now, tick.settings, frozenset([symptom.name for symptom in sick.believed]))
    ready = sum(len(group.ready) for group in groups)
    queue = watch_queue(known.learned.queue, seen, ready, not _seems_sick(service, sick), now)
    hidden = hidden_requests(queue, seen.total, service.spec.slo.ttft_seconds, seen.interval_seconds)
    starting, seen = anything_starting(groups), replace(seen, hidden=hidden)
    return Observation(service, known, seen, groups, sick, starting, queue, contradiction)


def _seems_sick(service: ServiceSnapshot, sick: Sick) -> bool:
    """Return whether any replica has a symptom: what is measured next to it says nothing of a healthy one."""
    traffic = service.traffic
    return bool(traffic.hung or traffic.silent or traffic.failing or traffic.lagging or sick.each)


def _backoffs(observed: Observation, promise: Promise | None, tick: Tick) -> Backoffs:
    known, spec = observed.known, observed.service.spec
    before, backoffs = known.spec or spec, known.learned.backoffs
    if before.generation != spec.generation:
        backoffs = backoffs.after_edit(before, spec)
    spot = frozenset(option.name for option in spec.accelerators if option.spot)
    return watch_backoffs(backoffs, observed.groups, tick.now, tick.settings, _awaited(known, promise, tick), spot)


def _awaited(known: ServiceMemory, promise: Promise | None, tick: Tick) -> str:
    """The accelerator in use, as long as other services give up some of it, or were not asked to yet."""
    name, request = known.choice.accelerator, known.request
    asked = request is not None and request.short and request.option.name == name
    return name if not asked or (promise is not None and promise.holds(name, tick.now, tick.settings)) else ""


def _closing(before: Closing | None, groups: tuple[Group, ...], tick: Tick) -> Closing | None:
    """The wait for a successor is long enough for a node and a start."""
    if not any(replica.closing for group in groups for replica in group.ready):
        return None
    until = tick.now + tick.settings.provisioning_seconds + tick.settings.starting_seconds
    return before or Closing(until, sum(group.size for group in groups))


def with_history(known: ServiceMemory, service: ServiceSnapshot, tick: Tick) -> ServiceMemory:
    """Return the memory with what Prometheus remembers, once after a start, as soon as it answers.

    What was learned before that tells of less: Prometheus was away.
    """
    history, old, now = service.history, known.learned, tick.now
    if history is None:
        return known
    cold_starts = cold_start.watch_cold_starts(old.cold_starts, (), service.recalled.cold_start_seconds)
    lead = cold_start.lead_seconds(cold_starts, tick.timing, 2.0 * max(tick.timing.scrape_seconds, 0.0), tick.settings)
    arrivals, residuals = forecast.recall(history, now, lead)
    held, judged = activator_misses.from_history(history)
    budget, idle = slo_budget.budget_from_history(judged, service.spec.slo, now), old.idle
    idle = scale_to_zero.with_history(idle, history, now)
    learned = replace(old, arrivals=arrivals, residuals=residuals, budget=budget, activator_misses=held, idle=idle)
    return replace(known, learned=learned)


def _headroom(
    observed: Observation, arrivals: Arrivals, verdicts: slo_budget.Budget, state: slo_budget.SloState
) -> headroom.Headroom:
    known, service, slo = observed.known, observed.service, observed.service.spec.slo
    old = headroom.recalled(service.recalled.quantile) if known.decided_at is None else known.learned.headroom
    frozen = known.limited or _seems_sick(observed.service, observed.sick) or observed.engine_fault
    adapted = headroom.adapt(old, verdicts, state, slo, arrivals.level_rps * slo.window_seconds, frozen, known.short)
    return headroom.in_force(adapted, observed.starting)


def _believe(
    observed: Observation, lengths: length_mix.Lengths, loops: FastLoops, model: EngineModel
) -> replica_capacity.Capacity:
    """What replicas are believed to carry, before what they did with their load is compared.

    Limits beside the spec's count, except those on trial, which one replica has. During a rollout engines of the old
    revision report too, so that what they report says nothing new.
    """
    service, placements = observed.service, observed.service.placements
    limits = {p.accelerator: p.batching if p.batching_before is None else p.batching_before for p in placements}
    rolling = {p.accelerator for p in placements if p.rolling_out or not p.observed}
    return replica_capacity.believe(
        observed.known.learned.capacity,
        service.spec,
        lengths,
        observed.seen,
        model,
        loops.accelerators,
        {name: each for name, each in limits.items() if each != BatchingLimits()},
        service.measured,
        service.recalled,
        {name: facts for name, facts in service.traffic.facts if name not in rolling},
    )


def _window(
    observed: Observation, arrived: float, steady_since: float, verdicts: slo_budget.Verdicts, now: float
) -> EvidenceWindow:
    """What happened since capacities were compared, as far as the same replicas served undisturbed.

    Arrivals and lengths have not changed since `steady_since`.
    """
    seen, known = observed.seen, observed.known
    since = now - seen.interval_seconds if known.decided_at is None else known.decided_at
    passed = min(max(0.0, now - since), seen.interval_seconds)
    serving = [replica.name for group in observed.used for replica in group.ready] if observed.undisturbed else []
    return watch(known.learned.evidence, seen, arrived, verdicts, serving, passed, now, steady_since)


def _measured(
    observed: Observation, beliefs: replica_capacity.Capacity, window: EvidenceWindow, now: float, model: EngineModel
) -> replica_capacity.Capacity:
    """Beliefs about step times after one more minute. Sums of steps count also while other replicas start."""
    before, key = observed.known.decided_at, observed.service.spec.key
    if not observed.whole or before is None or not a_minute_ended(key, before, now):
        return beliefs
    undisturbed = observed.undisturbed and window.settled(now)
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
    old, spec = observed.known.learned, observed.service.spec
    if not observed.undisturbed or not is_due(window, spec.key, now):
        return beliefs, window, old.growth
    names, size = [group.accelerator for group in observed.used], sum(len(group.ready) for group in observed.used)
    belief, growth = beliefs.belief(names[0]), old.growth
    if belief is not None and not belief.drifted:
        missed = capacity_evidence.missed_by_far(spec, window)
        growth = watch_growth(growth, names[0], size, window, belief.modelled_rps, missed)
    for name in names:
        beliefs = capacity_evidence.observe_load(beliefs, window, name, old.headroom.is_least, growth.useless)
    return beliefs, EvidenceWindow(since=now, before=window.verdicts, replicas=window.replicas), growth


def _alike(spec: ServiceSpec, used: tuple[Group, ...]) -> bool:
    """Replicas are of one accelerator, or of spot and regular nodes of the same hardware."""
    if len(used) == 1:
        return True
    options = [option for group in used if (option := spec.accelerator(group.accelerator)) is not None]
    return 0 < len(options) == len(used) and all(same_hardware(options[0], option) for option in options)
