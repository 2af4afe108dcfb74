"""Measure the time from a replica's scheduling to its readiness, and derive the lead time of decisions from it."""

from __future__ import annotations

import math

from holdfast.domain.cluster import Replica
from holdfast.domain.snapshot import Timing
from holdfast.domain.value import value
from holdfast.policy.settings import PolicySettings

REMEMBERED = 20
LONGEST_SECONDS = 3600.0


@value
class ColdStarts:
    """Durations of the last cold starts in seconds, oldest first, and the replicas that were ready at the last tick.

    `waits`: how long the same replicas had waited for a node before, in seconds.
    """

    seconds: tuple[float, ...] = ()
    known: frozenset[str] | None = None
    waits: tuple[float, ...] = ()

    @property
    def p90_seconds(self) -> float | None:
        """90th percentile of the cold starts; None where none was observed."""
        ranked = sorted(self.seconds)
        return ranked[math.ceil(0.9 * len(ranked)) - 1] if ranked else None


def watch_cold_starts(memory: ColdStarts, ready: tuple[Replica, ...], remembered: float | None) -> ColdStarts:
    """Add the replicas that became ready since the last tick.

    `remembered` is the value in the status from before a restart. Where it exists, replicas that are ready at the first
    tick add nothing: their readiness may have flapped, which makes their ages wrong.
    """
    names = frozenset(replica.name for replica in ready)
    if names == memory.known:
        return memory
    fresh = sorted(
        (replica for replica in ready if replica.name not in (memory.known or ())),
        key=lambda replica: (replica.ready_at or 0.0, replica.name),
    )
    waited = [each.placed_at - each.created_at for each in fresh]
    waits = (*memory.waits, *(each if _is_possible(each) else 0.0 for each in waited))[-REMEMBERED:]
    if memory.known is None and remembered is not None and _is_possible(remembered):
        return ColdStarts((remembered,), names, waits)
    took = [each.ready_at - each.placed_at for each in fresh if each.ready_at is not None]  # without the wait for a GPU
    return ColdStarts((*memory.seconds, *filter(_is_possible, took))[-REMEMBERED:], names, waits)


def node_seconds(memory: ColdStarts, settings: PolicySettings) -> float:
    """Return the longest recent wait for a node; capacity for a scheduled time is requested that much earlier."""
    return min(max(memory.waits, default=0.0), settings.provisioning_seconds)


def lead_seconds(memory: ColdStarts, timing: Timing, interval_seconds: float, settings: PolicySettings) -> float:
    """Return the time from a change of load until new capacity serves: detection, decision and cold start."""
    cold = memory.p90_seconds
    start = settings.cold_start_seconds if cold is None else cold
    return start + max(timing.tick_seconds, 0.0) + max(timing.scrape_seconds, 0.0) + 0.5 * interval_seconds


def _is_possible(seconds: float) -> bool:
    """Return whether the times that this lies between are consistent."""
    return 0.0 < seconds < LONGEST_SECONDS
