"""A replica that answers late what its peers answer in time: which one is taken for it, and when none is.

The cause may be its node or what it happens to be asked, which a successor would meet as well. So only one at a time
is believed to lag, and no other one for a while.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.signals import still_seconds
from holdfast.domain.snapshot import ServiceSnapshot, Timing
from holdfast.domain.value import value
from holdfast.policy.estimate.traffic import Seen
from holdfast.policy.health.stalled import Stalls

QUIET_SECONDS, LONGEST_QUIET_SECONDS = 600.0, 6 * 3600.0
"""After one replica lagged no other is taken for it; doubles where that did not end it."""


@value
class Straggler:
    """The replica that looks like it `since`; `sure` once it has for as long as a hang takes to be seen.

    `seen_at`: when that was last to be seen. What passed unseen for longer than a counting interval does not count.
    `last` was the last one to be sure, until `last_at`: for `quiet_seconds` from then on there is no other.
    """

    name: str = ""
    since: float = 0.0
    sure: bool = False
    last: str = ""
    last_at: float = -math.inf
    quiet_seconds: float = QUIET_SECONDS
    seen_at: float = -math.inf

    @property
    def believed(self) -> frozenset[str]:
        """The replica that carries nothing."""
        return frozenset({self.name}) if self.sure else frozenset()

    def quiet(self, now: float) -> bool:
        """Whether it is too soon after the last one for another."""
        return now - self.last_at < self.quiet_seconds

    @property
    def ended(self) -> Straggler:
        """None lags."""
        return replace(self, name="", since=0.0, sure=False)


def watch_straggler(
    memory: Straggler, service: ServiceSnapshot, stalls: Stalls, seen: Seen, now: float, timing: Timing
) -> Straggler:
    """Note who lags; without fresh metrics nobody begins to, or ceases."""
    if not memory.name and not service.traffic.lagging:
        return memory
    grown = _grown_up(service, seen, now)
    if stalls.found or not _alike(service):
        return memory.ended
    if not seen.fresh:
        return memory if memory.name in grown else memory.ended
    lagging = sorted(grown.intersection(service.traffic.lagging))
    name = next((each for each in (memory.name, memory.last) if each in lagging), "")
    name = name or next((each for each in lagging if not memory.quiet(now)), "")
    if not name:
        return memory.ended
    on = name == memory.name and (memory.sure or now - memory.seen_at <= seen.interval_seconds)
    since = memory.since if on else now
    if now - since < max(timing.scrape_seconds, still_seconds(seen.interval_seconds) - seen.interval_seconds):
        return replace(memory, name=name, since=since, seen_at=now, sure=False)
    quiet_seconds = memory.quiet_seconds if name == memory.last else _quiet(memory, now)
    return Straggler(name, since, True, name, now, quiet_seconds, now)


def _quiet(memory: Straggler, now: float) -> float:
    """How long it is to be quiet after one more: the longer, the less the replacement before it helped."""
    again = bool(memory.last) and now - memory.last_at < 2.0 * memory.quiet_seconds
    return min(LONGEST_QUIET_SECONDS, 2.0 * memory.quiet_seconds) if again else QUIET_SECONDS


def _grown_up(service: ServiceSnapshot, seen: Seen, now: float) -> frozenset[str]:
    """Ready replicas, of several, that have long been so: a new one compiles kernels and has nothing cached."""
    ready = [replica for replica in service.replicas if replica.phase is ReplicaPhase.READY]
    age = 2.0 * still_seconds(seen.interval_seconds)
    old = [each.name for each in ready if each.ready_at is not None and now - each.ready_at >= age]
    return frozenset(old if len(ready) > 1 else ())


def _alike(service: ServiceSnapshot) -> bool:
    """Replicas of an accelerator differ in nothing but their place: no rollout and no trial is under way."""
    return not any(each.rolling_out or each.batching_before is not None for each in service.placements)
