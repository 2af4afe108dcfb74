"""Stalled engines: replicas that hold requests and produce no tokens, and when such an observation is trusted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import Timing
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value


@value
class Stall:
    """A replica that seems stalled `since`; `sure` once a later scrape has confirmed it."""

    name: str
    since: float
    sure: bool = False


@value
class Stalls:
    """All replicas that seem stalled.

    `doubted`: more than half of several replicas seem stalled, so a shared cause is more likely.
    """

    each: tuple[Stall, ...] = ()
    doubted: bool = False

    @property
    def found(self) -> tuple[str, ...]:
        """Replicas that are confirmed as stalled, whatever the cause."""
        return tuple([stall.name for stall in self.each if stall.sure])

    @property
    def believed(self) -> frozenset[str]:
        """Replicas that count as no capacity."""
        return frozenset() if self.doubted else frozenset(self.found)


def watch_stalls(
    memory: Stalls, looks_hung: Collection[str], replicas: Iterable[Replica], seen: Seen, now: float, timing: Timing
) -> Stalls:
    """Record which ready replicas hold requests without producing a token.

    Where metrics are missing, the previous findings are retained.
    """
    if not memory.each and not looks_hung:
        return memory
    ready = {replica.name for replica in replicas if replica.phase is ReplicaPhase.READY}
    usable = seen.state in (SignalState.FRESH, SignalState.FOREIGN, SignalState.DUPLICATE)
    known = {stall.name: stall for stall in memory.each if stall.name in looks_hung or not usable}
    for name in looks_hung:
        stall = known.get(name, Stall(name, now))
        known[name] = replace(stall, sure=stall.sure or now - stall.since >= timing.scrape_seconds)
    stalls = Stalls(tuple(known[name] for name in sorted(ready & known.keys())))
    return replace(stalls, doubted=1 < len(ready) < 2 * len(stalls.found))
