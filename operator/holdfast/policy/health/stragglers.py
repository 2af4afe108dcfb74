"""Stragglers: a replica that answers late while its peers answer in time, and when such a finding is trusted.

The cause may be its node or its share of the traffic; in the latter case replacing the replica would not help. So only
one replica at a time counts as a straggler, followed by a cooldown.

Source: docs/designs/0011-lagging.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.signals import still_seconds
from holdfast.domain.snapshot import ServiceSnapshot, Timing
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.health.stalled import Stalls

QUIET_SECONDS, LONGEST_QUIET_SECONDS = 600.0, 6 * 3600.0
"""Cooldown after a straggler, and its upper bound.

The cooldown doubles where replacing the straggler did not help.
"""


@value
class Straggler:
    """The replica that has been late `since`; `sure` once it was late for as long as detecting a stall takes.

    `seen_at`: when that was last observed. A gap in observation longer than a counting interval restarts the time.
    `last` was the last confirmed straggler, until `last_at`. The cooldown after it takes `quiet_seconds`.
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
        """The replica that counts as no capacity."""
        return frozenset({self.name}) if self.sure else frozenset()

    def quiet(self, now: float) -> bool:
        """Return whether the cooldown after the last straggler is still running."""
        return now - self.last_at < self.quiet_seconds


def watch_straggler(
    memory: Straggler, service: ServiceSnapshot, stalls: Stalls, seen: Seen, now: float, timing: Timing
) -> Straggler:
    """Update the straggler; without fresh metrics no new one is found, and a known one remains."""
    if not memory.name and not service.traffic.lagging:
        return memory
    comparable, ended = _comparable(service, seen, now), replace(memory, name="", since=0.0, sure=False)
    # In a rollout and with a canary, replicas of one accelerator differ by more than their node.
    if stalls.found or any(each.rolling_out or each.batching_before is not None for each in service.placements):
        return ended
    if not seen.fresh:
        return memory if memory.name in comparable else ended
    lagging = sorted(comparable.intersection(service.traffic.lagging))
    name = next((each for each in (memory.name, memory.last) if each in lagging), "")
    name = name or next((each for each in lagging if not memory.quiet(now)), "")
    if not name:
        return ended
    continues = name == memory.name and (memory.sure or now - memory.seen_at <= seen.interval_seconds)
    since = memory.since if continues else now
    if now - since < max(timing.scrape_seconds, still_seconds(seen.interval_seconds) - seen.interval_seconds):
        return replace(memory, name=name, since=since, seen_at=now, sure=False)
    quiet_seconds = memory.quiet_seconds if name == memory.last else _cooldown_seconds(memory, now)
    return Straggler(name, since, True, name, now, quiet_seconds, now)


def _cooldown_seconds(memory: Straggler, now: float) -> float:
    """Return the next cooldown: doubled where the last replacement did not help."""
    again = bool(memory.last) and now - memory.last_at < 2.0 * memory.quiet_seconds
    return min(LONGEST_QUIET_SECONDS, 2.0 * memory.quiet_seconds) if again else QUIET_SECONDS


def _comparable(service: ServiceSnapshot, seen: Seen, now: float) -> frozenset[str]:
    """Return the replicas, of several, that have long been ready.

    A new replica still compiles kernels and has an empty cache.
    """
    ready = [replica for replica in service.replicas if replica.phase is ReplicaPhase.READY]
    age = 2.0 * still_seconds(seen.interval_seconds)
    old = [each.name for each in ready if each.ready_at is not None and now - each.ready_at >= age]
    return frozenset(old if len(ready) > 1 else ())
