"""What one tick shows of a service, before anything is learned from it."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import Seen, judge
from holdfast.domain.value import value
from holdfast.enginemodel.hardware import same_hardware
from holdfast.policy.estimate import cold_start, set_backs
from holdfast.policy.estimate.contradictions import believed, last_contradiction
from holdfast.policy.estimate.hidden_requests import hidden_requests, watch_queue
from holdfast.policy.health.replicas import Group, anything_starting, group_replicas
from holdfast.policy.health.sick import Sick, watch_sick
from holdfast.policy.memory import ServiceMemory, Supply
from holdfast.policy.settings import Tick


@value
class Observation:
    """What one tick shows of the pool of a service that answers its clients.

    `known` is what was remembered of it before, Prometheus' history included, and `supply` what of it the tick shows by
    itself. `seems_sick`: any replica has a symptom, so that what is measured next to it says nothing of a healthy one.
    `starting`: capacity is on its way.
    """

    service: ServiceSnapshot
    known: ServiceMemory
    seen: Seen
    groups: tuple[Group, ...]
    seems_sick: bool
    starting: bool
    supply: Supply

    @property
    def used(self) -> tuple[Group, ...]:
        """Accelerators that replicas run on."""
        return tuple(group for group in self.groups if group.size > 0)

    @property
    def whole(self) -> bool:
        """No replica is leaving or sick, as far as can be seen."""
        return not any(g.draining or g.useless for g in self.groups) and not self.seems_sick

    @property
    def undisturbed(self) -> bool:
        """Replicas of one kind of hardware serve, and none starts or leaves."""
        return self.whole and not self.starting and _alike(self.service.spec, self.used)


def observe(service: ServiceSnapshot, known: ServiceMemory, tick: Tick) -> Observation:
    """Judge what was observed, and sort replicas by what they are worth."""
    now, last, old = tick.now, known.last, known.supply
    decided = None if last is None else last.decision.verdict.targets
    edited = last is not None and last.facts.spec.generation != service.spec.generation
    fought = set_backs.watch(old.set_backs, service, decided, edited, now)
    service = set_backs.respecting(service, fought, now)
    judged = judge(service.traffic)
    contradiction = last_contradiction(old.contradiction, judged, now)
    seen = believed(judged, contradiction)
    # After a start of the operator nobody knows which replica was replaced last.
    before = old.sick if known.decided_at is not None else Sick(last_at=now)
    sick, traffic = watch_sick(before, service, seen, now, tick.timing), service.traffic
    seems_sick = bool(traffic.hung or traffic.silent or traffic.failing or traffic.lagging or sick.each)
    groups = group_replicas(service, now, tick.settings, frozenset([symptom.name for symptom in sick.believed]))
    ready = sum(len(group.ready) for group in groups)
    queue = watch_queue(old.queue, seen, ready, not seems_sick, now)
    hidden = hidden_requests(queue, seen.total, service.spec.slo.ttft_seconds, seen.interval_seconds)
    started = tuple(replica for group in groups for replica in (*group.ready, *group.ailing))
    cold_starts = cold_start.watch_cold_starts(old.cold_starts, started, service.recalled.cold_start_seconds)
    interval = seen.interval_seconds or 2.0 * max(tick.timing.scrape_seconds, 0.0)
    supply = replace(
        old,
        lead_seconds=seen.late_seconds + cold_start.lead_seconds(cold_starts, tick.timing, interval, tick.settings),
        cold_starts=cold_starts,
        queue=queue,
        contradiction=contradiction,
        sick=sick,
        set_backs=fought,
    )
    seen = replace(seen, hidden=hidden)
    return Observation(service, known, seen, groups, seems_sick, anything_starting(groups), supply)


def _alike(spec: ServiceSpec, used: tuple[Group, ...]) -> bool:
    """Replicas are of one accelerator, or of spot and regular nodes of the same hardware."""
    if len(used) == 1:
        return True
    options = [option for group in used if (option := spec.accelerator(group.accelerator)) is not None]
    return 0 < len(options) == len(used) and all(same_hardware(options[0], option) for option in options)
