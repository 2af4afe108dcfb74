"""AIBrix's APA strategy on KV cache usage.

Source: vllm-project/aibrix at e3e10f9, pkg/controller/podautoscaler/algorithm/apa.go and context/context.go; target 0.5
of samples/autoscaling/apa.yaml. Its loop runs every 10 s and takes the mean of the stable window, 180 s by default
(metrics/client.go, GetMetricValue); the panic window is KPA's alone. The cooldown is what its documentation promises:
stabilizeRecommendation of podautoscaler_controller.go takes the smallest size of those 300 s at once instead.
"""

from __future__ import annotations

import math
from collections import deque

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import Sight


class AibrixApa(Peer):
    """Up beyond 1.1 x the target, at most double; down below 0.9 x, at most half, 300 s after the last change."""

    name = "aibrix-apa"
    tick_seconds = 10.0
    behavior = None
    _tolerance, _rate, _cooldown_seconds, _samples = 0.1, 2.0, 300.0, 18

    def __init__(self, kv: float = 0.5) -> None:
        super().__init__()
        self._target = positive(self.name, "kv", kv)
        self._seen: dict[ServiceKey, deque[float]] = {}
        self._changed: dict[ServiceKey, float] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone, and not down while it cools."""
        usage = seen.kv_usage
        samples = self._seen.setdefault(key, deque(maxlen=self._samples))
        samples.append(sum(usage) / len(usage) if usage else 0.0)
        size = self.law(sum(samples) / len(samples), seen.size)
        if size < seen.size and now - self._changed.get(key, -math.inf) < self._cooldown_seconds:
            return seen.size
        if size != seen.size:
            self._changed[key] = now
        return size

    def law(self, usage: float, replicas: int) -> int:
        """Replicas by the mean usage of engines."""
        ratio = usage / self._target
        if ratio > 1.0 + self._tolerance:
            return min(math.ceil(replicas * ratio), math.ceil(self._rate * replicas))
        if ratio < 1.0 - self._tolerance:
            return max(math.ceil(replicas * ratio), math.floor(replicas / self._rate))
        return replicas
