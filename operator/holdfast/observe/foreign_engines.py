"""Engines that report as a service's and are no pods of it here: twins in another cluster whose series land here too.

A pod that reports although the API server shows none of its name may also be one just deleted, whose last samples are
still there, or a new one that the watch has yet to show. So an engine counts as foreign only by samples from later than
a while after it was first looked for in vain, and never if the cluster had that pod at an earlier look. What is
remembered can be lost at any time, at the price of that while.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from holdfast.domain.service import ServiceKey

LEAST_TAIL_SECONDS = 60.0
"""So long a pod that is gone may still be scraped, a watch be late, and two clocks differ; a scrape comes on top."""

MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Seen:
    """One service at its last look: the pods it has, or had while they report, and since when others do."""

    at: float
    ours: frozenset[str] = frozenset()
    unknown_since: Mapping[str, float] = field(default_factory=dict)


_NOTHING = _Seen(0.0)


class Strangers:
    """Remembers the pods of each service, and since when pods report that are none of them."""

    def __init__(self, scrape_seconds: float) -> None:
        self._tail_seconds = LEAST_TAIL_SECONDS + scrape_seconds
        self._stale_seconds = 3.0 * scrape_seconds
        self._seen: dict[ServiceKey, _Seen] = {}

    def found(
        self, key: ServiceKey, pods: Collection[str], sampled_at: Mapping[str, float], now: float
    ) -> tuple[str, ...]:
        """Return the foreign engines among those sampled, by names in order; `pods` are those the service has."""
        before = self._seen.get(key, _NOTHING)
        ours = before.ours.intersection(sampled_at).union(pods)
        unseen = not 0.0 <= now - before.at <= self._tail_seconds  # nobody looked, or a clock was set
        since = {} if unseen else before.unknown_since
        unknown = {pod: since.get(pod, now) for pod in sampled_at if pod and pod not in ours}
        self._seen[key] = _Seen(now, ours, unknown)
        return tuple(sorted(pod for pod, at in unknown.items() if self._is_late(sampled_at[pod], at, now)))

    def _is_late(self, sampled_at: float, unknown_since: float, now: float) -> bool:
        return sampled_at > max(unknown_since + self._tail_seconds, now - self._stale_seconds)

    def forget_all_but(self, keys: Collection[ServiceKey]) -> None:
        """Drop services that are gone."""
        for gone in set(list(self._seen)).difference(keys):  # a list: another thread may look meanwhile
            self._seen.pop(gone, None)


def told(pods: tuple[str, ...]) -> str:
    """Say whose engines these may be, and the remedy."""
    named = ", ".join(pods[:MOST_NAMED]) + (", ..." if len(pods) > MOST_NAMED else "")
    who = "an engine reports" if len(pods) == 1 else f"{len(pods)} engines report"
    return (
        f"{who} under the name of this service beside its pods in this cluster: {named}. Such load is counted with its"
        " own; where clusters share a Prometheus, name the label that only this one's series have:"
        " --prometheus-matcher cluster=prod-eu (chart: settings.prometheusMatcher)"
    )
