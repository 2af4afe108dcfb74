"""Sick replicas: Ready, but next to none of the requests that reach them get good tokens; one rule for all symptoms.

A symptom is believed once it has lasted. The replica is then named, counts as no capacity, teaches nothing and is
replaced, one at a time. If more than half of several replicas are sick, a shared cause is more likely: all of them
stay.

Errors and lateness may come with the requests that a replica happens to receive, which its successor would receive as
well. So after such a replacement no other replica is replaced for a while. Of a stalled replica nothing can be lost.

Source: docs/designs/0011-lagging.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.signals import SignalState, still_seconds
from holdfast.domain.snapshot import ServiceSnapshot, Timing
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value

QUIET_SECONDS, LONGEST_QUIET_SECONDS = 600.0, 6 * 3600.0
"""Cooldown after a replica that was replaced for errors or lateness, and its upper bound.

The cooldown doubles where replacing the replica did not help.
"""

RESTARTED = "a group before its restart"
"""In place of the name of a replica that was the last sick one: a group of pods keeps its name."""

WORST_FIRST = (Reason.ENGINE_HUNG, Reason.ENGINE_ERRORS, Reason.ENGINE_LAGGING)


@value
class Symptom:
    """A replica that has been sick `since`, last observed `seen_at`; `sure` once that has lasted."""

    name: str
    reason: Reason
    since: float
    seen_at: float
    sure: bool = False

    @property
    def stalled(self) -> bool:
        """Whether it serves nothing at all."""
        return self.reason is Reason.ENGINE_HUNG


@value
class Sick:
    """All replicas with a symptom, sorted by name.

    `doubted`: more than half of several replicas are sick. `last` was the last replica that counted as sick for errors
    or lateness, until `last_at`. The cooldown after it takes `quiet_seconds`.
    """

    each: tuple[Symptom, ...] = ()
    doubted: bool = False
    last: str = ""
    last_at: float = -math.inf
    quiet_seconds: float = QUIET_SECONDS

    @property
    def found(self) -> tuple[Symptom, ...]:
        """Symptoms that are sure, whatever their cause."""
        return tuple([symptom for symptom in self.each if symptom.sure])

    @property
    def believed(self) -> tuple[Symptom, ...]:
        """Symptoms of the replicas that count as no capacity."""
        return () if self.doubted else tuple([s for s in self.found if s.stalled or s.name == self.last])

    @property
    def named(self) -> tuple[Symptom, ...]:
        """The worst symptoms that count, or would if there were fewer."""
        return tuple([symptom for symptom in self._counting if symptom.reason is self.reason])

    @property
    def reason(self) -> Reason:
        """The worst symptom that counts, or would if there were fewer."""
        shown = {symptom.reason for symptom in self._counting}
        return next((reason for reason in WORST_FIRST if reason in shown), Reason.ENGINE_HUNG)

    @property
    def _counting(self) -> tuple[Symptom, ...]:
        return self.found if self.doubted else self.believed

    @property
    def passed_over(self) -> tuple[Symptom, ...]:
        """Symptoms of the replicas that still count as capacity, because the cooldown is running."""
        return () if self.doubted else tuple([s for s in self.found if not s.stalled and s.name != self.last])

    @property
    def unproven(self) -> tuple[Symptom, ...]:
        """Symptoms of replicas that only look stalled: their gauges may have stayed after all clients left."""
        return tuple([symptom for symptom in self.each if symptom.stalled and not symptom.sure])

    @property
    def serve(self) -> bool:
        """Whether the sick replicas still serve some requests."""
        return bool(self.believed) and not any(symptom.stalled for symptom in self.believed)


def watch_sick(memory: Sick, service: ServiceSnapshot, seen: Seen, now: float, timing: Timing) -> Sick:
    """Update the symptoms of the Ready replicas; without usable metrics they stay as they are."""
    traffic = service.traffic
    again = (each for each in service.replicas if each.name == memory.last and not each.can_be_chosen)
    if any((replica.ready_at or 0.0) > memory.last_at for replica in again):
        memory = replace(memory, last=RESTARTED)
    if not memory.each and not (traffic.hung or traffic.silent or traffic.failing or traffic.lagging):
        return memory
    may_show, interval = _may_show(service, now, seen.interval_seconds), seen.interval_seconds
    before = {each.name: each for each in memory.each if each.name in may_show[each.reason]}
    each = {name: symptom for name, symptom in before.items() if not _is_over(symptom, seen, now)}
    lasting = max(timing.scrape_seconds, still_seconds(interval) - interval)
    for names, reason in ((traffic.lagging, Reason.ENGINE_LAGGING), (traffic.failing, Reason.ENGINE_ERRORS)):
        for name in may_show[reason].intersection(names) if seen.fresh else ():
            each[name] = _again(before.get(name), Symptom(name, reason, now, now), interval, lasting)
    for name in may_show[Reason.ENGINE_HUNG].intersection((*traffic.hung, *traffic.silent)):  # for a minute already
        shown = Symptom(name, Reason.ENGINE_HUNG, now, now)
        found = _again(before.get(name), shown, math.inf, timing.scrape_seconds)
        each[name] = replace(found, sure=found.sure and name in traffic.hung)
    sick = replace(memory, each=tuple([each[name] for name in sorted(each)]))
    return _in_turn(replace(sick, doubted=1 < len(may_show[Reason.ENGINE_HUNG]) < 2 * len(sick.found)), now)


def _may_show(service: ServiceSnapshot, now: float, interval_seconds: float) -> dict[Reason, frozenset[str]]:
    """Return the Ready replicas that can be judged, by symptom.

    In a rollout and with a canary, replicas of one accelerator differ by more than their node. A new replica is late
    because it still compiles kernels and has an empty cache. The peers of a stalled replica have more load.
    """
    ready = [replica for replica in service.replicas if replica.phase is ReplicaPhase.READY]
    names, age = frozenset([replica.name for replica in ready]), 2.0 * still_seconds(interval_seconds)
    differ = any(each.rolling_out or each.batching_before is not None for each in service.placements)
    old = [each.name for each in ready if each.ready_at is not None and now - each.ready_at >= age]
    no_peers = differ or len(ready) < 2 or bool(service.traffic.hung)
    return {
        Reason.ENGINE_HUNG: names,
        Reason.ENGINE_ERRORS: frozenset() if differ else names,
        Reason.ENGINE_LAGGING: frozenset() if no_peers else frozenset(old),
    }


def _is_over(symptom: Symptom, seen: Seen, now: float) -> bool:
    """Return whether a symptom ends if it does not show now.

    Any token ends a stall. Errors and lateness end after a counting interval without them: a replica that is sick time
    and again is sick.
    """
    if symptom.stalled:
        return seen.state in (SignalState.FRESH, SignalState.FOREIGN, SignalState.DUPLICATE)
    return seen.fresh and now - symptom.seen_at > seen.interval_seconds


def _again(before: Symptom | None, shown: Symptom, gap_seconds: float, lasting_seconds: float) -> Symptom:
    """Return the symptom that shows now, with what is known of the replica; a longer gap starts anew."""
    if before is None or not (before.sure or shown.seen_at - before.seen_at <= gap_seconds):
        return shown
    return replace(shown, since=before.since, sure=before.sure or shown.seen_at - before.since >= lasting_seconds)


def _in_turn(sick: Sick, now: float) -> Sick:
    """Return the state after it was decided which replica counts as sick for errors or lateness: one at a time."""
    names = [symptom.name for symptom in sick.found if not symptom.stalled]
    quiet = now - sick.last_at < sick.quiet_seconds or len(names) < len(sick.found)
    shown = [symptom.name for symptom in sick.found if symptom.name in names and symptom.seen_at == now]
    name = sick.last if sick.last in names else next((each for each in shown if not quiet), "")
    if not name or sick.doubted:
        return sick
    quiet_seconds = sick.quiet_seconds
    if name != sick.last:
        again = bool(sick.last) and now - sick.last_at < 2.0 * sick.quiet_seconds
        quiet_seconds = min(LONGEST_QUIET_SECONDS, 2.0 * sick.quiet_seconds) if again else QUIET_SECONDS
    return replace(sick, last=name, last_at=now, quiet_seconds=quiet_seconds)
