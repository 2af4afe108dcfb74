"""Collect observations of replicas under load since the last comparison, as evidence about their capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from zlib import crc32

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LEAST_LOOK_SECONDS
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Verdicts, plus

LEAST_REQUESTS = 20.0
"""Requests below which nothing is concluded."""

LOOK_SECONDS = 60.0
"""Length of an evidence window: observation and prediction are compared that often, so the correction is slow."""


@value
class EvidenceWindow:
    """Observations since the last comparison, collected while the load changed by noise only.

    `leftover`: requests that must still end before as many have ended as were in flight at the last disturbance. The
    disturbance affects those requests, so the window starts after them.

    `busiest`: the load of the busiest replica, relative to the mean. Clients with long-lived connections stay on their
    replicas, so that new replicas idle next to overloaded ones. The results of overloaded replicas say nothing about
    the mean load.

    `before`: verdicts of the previous window, if nothing disturbed the service since. `replicas`: a checksum
    of the names of the ready replicas.
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
    replicas: int = 0

    @property
    def rate_rps(self) -> float:
        """Requests per second that arrived at the mean replica."""
        return self.arrivals / self.replica_seconds

    @property
    def highest_rps(self) -> float:
        """Load of the busiest replica, requests/s: its arrivals, or more while it serves a backlog."""
        return max(self.arrivals, self.begun) / self.replica_seconds * self.busiest


def watch(
    window: EvidenceWindow,
    seen: Seen,
    arrivals: float,
    verdicts: Verdicts,
    serving: Sequence[str],
    passed: float,
    now: float,
    steady_since: float = 0.0,
) -> EvidenceWindow:
    """Add the `passed` seconds of observations of the `serving` replicas to the window.

    A disturbance restarts the window, and so does the first look. Disturbances are stale metrics, replicas that start
    or stop (none is `serving` then), other replicas than before, and a load that changed at `steady_since`. The new
    window begins once one counting interval has passed and as many requests have ended as were in flight.
    """
    total = seen.total
    replicas = crc32(" ".join(sorted(serving)).encode())
    same = serving and window.replicas == replicas
    if window.since is None or not same or not seen.fresh or window.since < steady_since:
        leftover = total.running + total.waiting
        since = now + seen.interval_seconds + seen.late_seconds
        return EvidenceWindow(since=since, leftover=leftover, replicas=replicas)
    share = passed / seen.interval_seconds
    if now < window.since or window.leftover > 0.0:
        ended = share * (total.finished + total.failed + total.aborted)
        left = max(0.0, window.leftover - ended)
        return replace(window, since=max(window.since, now), leftover=left, replicas=replicas)
    return replace(
        window,
        arrivals=window.arrivals + share * arrivals,
        begun=window.begun + share * total.ttft_count,
        replica_seconds=window.replica_seconds + passed * len(serving),
        busiest=max(1.0, total.busiest),
        verdicts=plus(window.verdicts, verdicts),
        failed=window.failed + share * seen.failed,
    )


def is_due(window: EvidenceWindow, key: ServiceKey, now: float) -> bool:
    """Return whether a window is complete: once per `LOOK_SECONDS`, spread over the services by their key."""
    if window.since is None or now - window.since < LEAST_LOOK_SECONDS:
        return False
    return a_minute_ended(key, window.since, now)


def a_minute_ended(key: ServiceKey, before: float, now: float) -> bool:
    """Return whether one of a service's minutes ended between two times; services have theirs at different times."""
    offset = crc32(str(key).encode()) % int(LOOK_SECONDS)
    return (now + offset) // LOOK_SECONDS != (before + offset) // LOOK_SECONDS
