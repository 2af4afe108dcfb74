"""Engines that report as a service's but are not its pods here: another cluster writes to the same Prometheus.

A reporting pod that the API server does not show may also have just been deleted, while its last samples remain, or be
so new that the watch does not show it yet. So an engine is foreign only if it has samples from later than a grace
period after the first failed lookup, and never if the cluster had that pod earlier. This state may be lost at any
time: then the grace period starts again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from holdfast.domain.service import ServiceKey

LEAST_TAIL_SECONDS = 60.0
"""Grace period: covers scrapes of deleted pods, watch delay and clock skew. One scrape interval is added."""

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Seen:
    """One service at the last tick: its pods, past pods that still report, and since when unknown pods report."""

    at: float
    ours: frozenset[str] = frozenset()
    unknown_since: Mapping[str, float] = field(default_factory=dict)


_NOTHING = _Seen(0.0)


class ForeignEngineTracker:
    """Remembers the pods of each service, and since when unknown pods report."""

    def __init__(self, scrape_seconds: float) -> None:
        self._tail_seconds = LEAST_TAIL_SECONDS + scrape_seconds
        self._stale_seconds = 3.0 * scrape_seconds
        self._seen: dict[ServiceKey, _Seen] = {}

    def found(
        self, key: ServiceKey, pods: Collection[str], sampled_at: Mapping[str, float], now: float
    ) -> tuple[str, ...]:
        """Return the names of the foreign engines among the sampled ones, sorted; `pods` are the service's own."""
        before = self._seen.get(key, _NOTHING)
        ours = before.ours.intersection(sampled_at).union(pods)
        unseen = not 0.0 <= now - before.at <= self._tail_seconds  # there was a gap between ticks, or the clock was set
        since = {} if unseen else before.unknown_since
        unknown = {pod: since.get(pod, now) for pod in sampled_at if pod and pod not in ours}
        self._seen[key] = _Seen(now, ours, unknown)
        return tuple(sorted(pod for pod, at in unknown.items() if self._is_late(sampled_at[pod], at, now)))

    def _is_late(self, sampled_at: float, unknown_since: float, now: float) -> bool:
        return sampled_at > max(unknown_since + self._tail_seconds, now - self._stale_seconds)

    def forget_all_but(self, keys: Collection[ServiceKey]) -> None:
        """Drop services that are gone."""
        for gone in set(list(self._seen)).difference(keys):  # a list: another thread may change the dict meanwhile
            self._seen.pop(gone, None)


def told(pods: tuple[str, ...]) -> str:
    """Message: whose engines these may be, and the remedy."""
    named = ", ".join(pods[:MOST_NAMED]) + (", ..." if len(pods) > MOST_NAMED else "")
    who = "an engine reports" if len(pods) == 1 else f"{len(pods)} engines report"
    return (
        f"{who} under the name of this service but {'is no pod' if len(pods) == 1 else 'are not pods'} of this"
        f" cluster: {named}. Their load is counted as load of the service. If clusters share a Prometheus, set the"
        " label of this cluster: --prometheus-matcher cluster=prod-eu (chart: settings.prometheusMatcher)"
    )
