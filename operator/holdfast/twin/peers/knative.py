"""Knative's pod autoscaler on concurrency, as KServe uses it.

Source: knative/serving at 98e5ef9, pkg/autoscaler/scaling/autoscaler.go; defaults of config-autoscaler: stable window
60 s, panic window 6 s entered at 200 %, up 1000x, down 2x, target 70 % of a concurrency of 100. Scrapes stand
for its own.
"""

from __future__ import annotations

import math
from collections import deque

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import Sight


class KnativeConcurrency(Peer):
    """ceil(mean of requests in flight over the window / target); in panic by the newest and never down."""

    name = "knative"
    tick_seconds = 5.0
    behavior = None
    _stable_seconds, _panic_ratio, _up_rate, _down_rate, _utilization = 60.0, 2.0, 1000.0, 2.0, 0.7

    def __init__(self, concurrency: float = 100.0) -> None:
        super().__init__()
        self._target = self._utilization * positive(self.name, "concurrency", concurrency)
        self._seen: dict[ServiceKey, deque[float]] = {}
        self._panic: dict[ServiceKey, tuple[float, int]] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        samples = self._seen.setdefault(key, deque(maxlen=round(self._stable_seconds / self.tick_seconds)))
        samples.append(seen.running + seen.waiting)
        ready = max(1, seen.ready)
        most, least = math.ceil(self._up_rate * ready), math.floor(ready / self._down_rate)
        stable, newest = (
            min(max(math.ceil(value / self._target), least), most)
            for value in (sum(samples) / len(samples), samples[-1])
        )
        return self._in_panic(key, now, ready, stable, newest)

    def _in_panic(self, key: ServiceKey, now: float, ready: int, stable: int, newest: int) -> int:
        if math.ceil(newest) / ready >= self._panic_ratio:
            self._panic[key] = now, self._panic.get(key, (now, 0))[1]
        if key not in self._panic:
            return stable
        since, most = self._panic[key]
        if now - since > self._stable_seconds:
            del self._panic[key]
            return stable
        self._panic[key] = since, max(most, stable, newest)
        return self._panic[key][1]
