"""What an activator tells: to the operator as JSON, to Prometheus as metrics."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.domain.activator import WAIT_EDGES

FORWARDED, GONE, TURNED_AWAY = "forwarded", "gone", "turned_away"


class RequestCounts:
    """Requests in hand, and what became of all others, since the process started."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._boot = secrets.token_hex(8)
        self._since: dict[int, float] = {}
        self._last_at: float | None = None
        self._waits = {outcome: [0] * len(WAIT_EDGES) for outcome in (FORWARDED, GONE)}
        self._turned_away = 0
        self.untold = False
        """Something was counted since the operator last asked."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_activator_requests", "Number of requests by outcome.", ["outcome"], registry=self.registry
        )
        self._seconds = Histogram(
            "holdfast_activator_wait_seconds", "Time from the arrival of a request until it was forwarded or rejected.",
            ["outcome"], buckets=WAIT_EDGES, registry=self.registry,
        )  # fmt: skip
        # Reported as 0 from the start: Prometheus sees no increase in a first value.
        for outcome in (FORWARDED, GONE, TURNED_AWAY):
            self._requests.labels(outcome)
        for outcome in (FORWARDED, GONE):
            self._seconds.labels(outcome)
        waiting = Gauge("holdfast_activator_waiting_requests", "Number of requests held now.", registry=self.registry)
        waiting.set_function(lambda: float(len(self._since)))

    def came(self, number: int) -> float:
        """Note a request, and return when it came."""
        self._last_at = self._since[number] = self._clock()
        return self._last_at

    def left(self, number: int) -> None:
        """An answer has begun, or nobody waits for one any more."""
        self._since.pop(number, None)

    def ended(self, outcome: str, waited_seconds: float) -> None:
        """Note what became of a request that was forwarded, or whose client is gone."""
        self.untold = True
        self._waits[outcome][next(i for i, edge in enumerate(WAIT_EDGES) if waited_seconds <= edge)] += 1
        self._requests.labels(outcome).inc()
        self._seconds.labels(outcome).observe(waited_seconds)

    def turned_away(self) -> None:
        """Note a request that was refused, or had waited for too long."""
        self.untold = True
        self._turned_away += 1
        self._requests.labels(TURNED_AWAY).inc()

    def told(self) -> dict[str, Any]:
        """Everything as JSON knows it, to the operator."""
        self.untold, now = False, self._clock()
        return {
            "boot": self._boot,
            "waiting": len(self._since),
            "oldest_seconds": now - min(self._since.values(), default=now),
            "quiet_seconds": None if self._last_at is None else now - self._last_at,
            "edges_seconds": [edge for edge in WAIT_EDGES if math.isfinite(edge)],
            FORWARDED: self._waits[FORWARDED],
            GONE: self._waits[GONE],
            TURNED_AWAY: self._turned_away,
        }
