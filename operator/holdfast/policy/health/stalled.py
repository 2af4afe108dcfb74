"""Replicas that hold requests and make nothing of them: which of those that look so are taken for it, and when not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import Timing
from holdfast.domain.value import value
from holdfast.policy.estimate.traffic import Seen


@value
class Stall:
    """One replica that looks hung `since`; `sure` once a later scrape has shown the same."""

    name: str
    since: float
    sure: bool = False


@value
class Stalls:
    """`doubted`: more than half of several replicas look hung, which is rather the doing of something they share."""

    each: tuple[Stall, ...] = ()
    doubted: bool = False

    @property
    def found(self) -> tuple[str, ...]:
        """Replicas that certainly look hung, whatever the cause."""
        return tuple([stall.name for stall in self.each if stall.sure])

    @property
    def believed(self) -> frozenset[str]:
        """Replicas that carry nothing."""
        return frozenset() if self.doubted else frozenset(self.found)


def watch_stalls(
    memory: Stalls, looks_hung: Collection[str], replicas: Iterable[Replica], seen: Seen, now: float, timing: Timing
) -> Stalls:
    """Note which ready replicas hold requests without making a token; metrics that are missing show none at work."""
    if not memory.each and not looks_hung:
        return memory
    ready = {replica.name for replica in replicas if replica.phase is ReplicaPhase.READY}
    whole = seen.state in (SignalState.FRESH, SignalState.FOREIGN, SignalState.DUPLICATE)
    kept = {stall.name: stall for stall in memory.each if stall.name in looks_hung or not whole}
    again = {
        name: replace(stall, sure=stall.sure or now - stall.since >= timing.scrape_seconds)
        for name, stall in kept.items()
        if name in looks_hung
    }
    known = {name: Stall(name, now) for name in looks_hung} | kept | again
    stalls = Stalls(tuple(known[name] for name in sorted(ready & known.keys())))
    return replace(stalls, doubted=1 < len(ready) < 2 * len(stalls.found))
