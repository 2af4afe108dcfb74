"""What a service's memory becomes by one more look at it, before anything is decided."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.snapshot import ServiceSnapshot, Timing
from holdfast.policy import budget, capacity, coldstart, demand, forecast, headroom, mix, setbacks
from holdfast.policy.memory import ServiceMemory
from holdfast.policy.placement import Choice
from holdfast.policy.replicarate import EngineModel
from holdfast.policy.replicas import Group, anything_starting
from holdfast.policy.settings import PolicySettings
from holdfast.policy.traffic import Seen

RETRY_SHARE = 0.0
"""Share of refused requests that come back; none is assumed, so that a step is never underestimated."""


def learn(
    memory: ServiceMemory,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    now: float,
    timing: Timing,
    settings: PolicySettings,
    model: EngineModel,
) -> ServiceMemory:
    """Return the memory after this look."""
    memory = _with_cold_starts(memory, service, seen, groups, timing, settings)
    if memory.decided_at is None and service.history is not None:
        memory = _with_history(memory, service, now)
    if memory.generation != service.spec.generation:  # another spec may run where the last one could not
        memory = replace(memory, generation=service.spec.generation, setbacks=setbacks.Setbacks(), choice=Choice())
    memory = replace(memory, setbacks=setbacks.watch_setbacks(memory.setbacks, groups, now, settings))
    passed = seen.interval_seconds if memory.decided_at is None else min(now - memory.decided_at, seen.interval_seconds)
    memory = _with_traffic(memory, service, seen, groups, now)
    return _with_capacity(memory, service, seen, groups, now, max(passed, 0.0), model)


def _with_cold_starts(
    memory: ServiceMemory,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    timing: Timing,
    settings: PolicySettings,
) -> ServiceMemory:
    ready = tuple(replica for group in groups for replica in group.ready)
    starts = coldstart.watch_cold_starts(memory.cold_starts, ready, service.last_cold_start_seconds)
    interval = seen.interval_seconds or 2.0 * max(timing.scrape_seconds, 0.0)
    return replace(memory, cold_starts=starts, lead_seconds=coldstart.lead_seconds(starts, timing, interval, settings))


def _with_history(memory: ServiceMemory, service: ServiceSnapshot, now: float) -> ServiceMemory:
    history = service.history
    if history is None:
        return memory
    return replace(
        memory,
        demand=demand.from_history(history, now, memory.lead_seconds),
        budget=budget.budget_from_history(history, service.spec.slo, now),
    )


def _with_traffic(
    memory: ServiceMemory, service: ServiceSnapshot, seen: Seen, groups: tuple[Group, ...], now: float
) -> ServiceMemory:
    """Arrivals, lengths, verdicts, and the headroom that follows from them."""
    slo = service.spec.slo
    arrived = demand.arrivals(seen, RETRY_SHARE)
    arrivals = demand.observe_arrivals(memory.demand, seen, arrived, now, memory.lead_seconds)
    accounted = budget.account(memory.budget, seen, slo, now)
    state = budget.slo_state(accounted, slo, now)
    level = arrivals.line.level_rps if arrivals.line else 0.0
    frozen = memory.limited or _engine_fault(seen, groups)
    adapted = headroom.adapt(memory.headroom, accounted, state, slo, level * slo.window_seconds, frozen)
    return replace(
        memory,
        demand=arrivals,
        residuals=forecast.learn_residuals(memory.residuals, arrivals, memory.lead_seconds),
        lengths=mix.observe_lengths(memory.lengths, seen, now),
        budget=accounted,
        headroom=headroom.in_force(adapted, anything_starting(groups)),
    )


def _engine_fault(seen: Seen, groups: tuple[Group, ...]) -> bool:
    """Requests are lost to a broken engine: more headroom would not help."""
    late = max(0.0, seen.total.ttft_count - seen.total.ttft_within)
    return seen.total.failed > late + seen.total.rejected or any(group.failing for group in groups)


def _with_capacity(
    memory: ServiceMemory,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    now: float,
    passed: float,
    model: EngineModel,
) -> ServiceMemory:
    beliefs = capacity.believe(memory.capacity, service.spec, memory.lengths, seen, model)
    used = [group for group in groups if group.size > 0]
    serving = len(used[0].ready) if len(used) == 1 else 0
    settled = not anything_starting(groups) and not any(group.draining or group.useless for group in groups)
    arrived = demand.arrivals(seen, RETRY_SHARE)
    watched = capacity.watch(beliefs, seen, arrived, memory.budget.latest, serving, settled, passed, now)
    accelerator = used[0].accelerator if len(used) == 1 else ""
    return replace(memory, capacity=capacity.correct(watched, accelerator, model, now))
