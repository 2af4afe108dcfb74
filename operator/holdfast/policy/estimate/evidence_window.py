"""What replicas made of their load since the last comparison: the evidence that beliefs about them are held against."""

from __future__ import annotations

from dataclasses import field, replace
from zlib import crc32

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LEAST_LOOK_SECONDS
from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Verdicts, plus
from holdfast.policy.estimate.traffic import Seen

LOOK_SECONDS = 60.0
"""The correction is a slow one: observation and prediction are compared that often."""


@value
class EvidenceWindow:
    """What was observed since the last comparison, while nothing but noise changed the load.

    `leftover`: requests that have yet to end before as many have as were in flight at the last disturbance; what
    becomes of these is its doing.

    `busiest`: the load of the busiest replica, relative to the mean one's. Clients that keep their connections stay
    with the replicas they have, so that new ones idle beside overloaded ones; what those make of their load says
    nothing about the mean load.

    `before`: verdicts of the look before this one, where nothing disturbed since.
    """

    since: float | None = None
    leftover: float = 0.0
    arrivals: float = 0.0
    begun: float = 0.0
    replica_seconds: float = 0.0
    busiest: float = 1.0
    verdicts: Verdicts = field(default_factory=Verdicts)
    before: Verdicts = field(default_factory=Verdicts)
    failed: float = 0.0
    tpot_count: float = 0.0
    tpot_seconds: float = 0.0

    @property
    def rate_rps(self) -> float:
        """Requests per second that arrived for the mean replica."""
        return self.arrivals / self.replica_seconds

    @property
    def served_rps(self) -> float:
        """Requests per second that the mean replica began, those of a backlog included."""
        return self.begun / self.replica_seconds

    @property
    def highest_rps(self) -> float:
        """Load of the busiest replica in requests per second: what came, or more while a backlog is served."""
        return max(self.arrivals, self.begun) / self.replica_seconds * self.busiest


def watch(
    window: EvidenceWindow,
    seen: Seen,
    arrivals: float,
    verdicts: Verdicts,
    serving: int,
    passed: float,
    now: float,
    steady_since: float = 0.0,
) -> EvidenceWindow:
    """Collect what `serving` replicas did with their load in the `passed` seconds that are new.

    Whatever disturbs the picture (no fresh metrics; replicas on the move: none counts as serving; a load that is
    another one since `steady_since`) begins anew once the counting interval has passed it and as many requests have
    ended as were in flight.
    """
    total = seen.total
    if serving <= 0 or not seen.fresh or (window.since is not None and window.since < steady_since):
        return EvidenceWindow(since=now + seen.interval_seconds, leftover=total.running + total.waiting)
    if window.since is None:
        return EvidenceWindow(since=now)
    share = passed / seen.interval_seconds
    if now < window.since or window.leftover > 0.0:
        ended = share * (total.finished + total.failed + total.aborted)
        return replace(window, since=max(window.since, now), leftover=max(0.0, window.leftover - ended))
    return EvidenceWindow(
        since=window.since,
        arrivals=window.arrivals + share * arrivals,
        begun=window.begun + share * total.ttft_count,
        replica_seconds=window.replica_seconds + passed * serving,
        busiest=max(1.0, total.busiest),
        verdicts=plus(window.verdicts, verdicts),
        before=window.before,
        failed=window.failed + share * seen.failed,
        tpot_count=window.tpot_count + share * total.tpot_count,
        tpot_seconds=window.tpot_seconds + share * total.tpot_sum_seconds,
    )


def is_due(window: EvidenceWindow, key: ServiceKey, now: float) -> bool:
    """Once per `LOOK_SECONDS`, services one after another and not all at once."""
    if window.since is None or now - window.since < LEAST_LOOK_SECONDS:
        return False
    offset = crc32(str(key).encode()) % int(LOOK_SECONDS)
    return (now + offset) // LOOK_SECONDS != (window.since + offset) // LOOK_SECONDS
