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
class Hang:
    """One replica that looks hung `since`; `sure` once a later scrape has shown the same."""

    name: str
    since: float
    sure: bool = False


@value
class Hangs:
    """`doubted`: more than half of several replicas look hung, which is rather the doing of something they share."""

    each: tuple[Hang, ...] = ()
    doubted: bool = False

    @property
    def found(self) -> tuple[str, ...]:
        """Replicas that certainly look hung, whatever the cause."""
        return tuple([hang.name for hang in self.each if hang.sure])

    @property
    def believed(self) -> frozenset[str]:
        """Replicas that carry nothing."""
        return frozenset() if self.doubted else frozenset(self.found)


def watch_hangs(
    memory: Hangs, looks_hung: Collection[str], replicas: Iterable[Replica], seen: Seen, now: float, timing: Timing
) -> Hangs:
    """Note which ready replicas hold requests without making a token; metrics that are missing show none at work."""
    if not memory.each and not looks_hung:
        return memory
    ready = {replica.name for replica in replicas if replica.phase is ReplicaPhase.READY}
    whole = seen.state in (SignalState.FRESH, SignalState.FOREIGN, SignalState.DUPLICATE)
    kept = {hang.name: hang for hang in memory.each if hang.name in looks_hung or not whole}
    again = {
        name: replace(hang, sure=hang.sure or now - hang.since >= timing.scrape_seconds)
        for name, hang in kept.items()
        if name in looks_hung
    }
    known = {name: Hang(name, now) for name in looks_hung} | kept | again
    hangs = Hangs(tuple(known[name] for name in sorted(ready & known.keys())))
    return replace(hangs, doubted=1 < len(ready) < 2 * len(hangs.found))
