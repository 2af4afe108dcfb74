"""llm-d's Workload Variant Autoscaler, saturation v2, through an HPA with Kubernetes' defaults.

Source: llm-d/llm-d-workload-variant-autoscaler at 2976e4ee, internal/engines/analyzers/saturation_v2/analyzer.go and
engine_v2.go (applyUniversalThreshold); thresholds of internal/config/saturation_scaling.go. It loops every 15 s.
"""

from __future__ import annotations

import math
from collections import deque

from holdfast.domain.service import ServiceKey
from holdfast.simulator.peers.peer import Peer, positive
from holdfast.simulator.twin.sight import Sight


class WvaSaturation(Peer):
    """Demand in KV tokens, in use and queued, against what engines hold at saturation; bounds 0.85 up and 0.70 down.

    The knob is the 0.85, the 0.70 goes along.
    """

    name = "wva"
    _kv_threshold, _queue_threshold, _samples = 0.80, 5.0, 10
    _up, _down = 0.85, 0.70

    def __init__(self, up: float = _up) -> None:
        super().__init__()
        self._bound = positive(self.name, "up", up)
        self._saturated: dict[tuple[ServiceKey, int], deque[float]] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        capacity = self.capacity(key, seen)
        per_request = seen.prompt_tokens + seen.output_tokens
        demand = sum(engine.kv_tokens + engine.waiting * per_request for engine in seen.engines)
        return self.law(demand, capacity, seen.size)

    def capacity(self, key: ServiceKey, seen: Sight) -> float:
        """KV tokens that an engine is taken to hold at saturation: as seen with a queue, else derived."""
        full = self._kv_threshold * seen.shape.kv_tokens
        observed = self._saturated.setdefault((key, _bucket(seen.output_tokens)), deque(maxlen=self._samples))
        observed.extend(each.kv_tokens for each in seen.engines if each.waiting >= self._queue_threshold)
        if observed:
            return min(full, sum(observed) / len(observed))
        return min(full, derived_tokens(seen))

    def law(self, demand: float, capacity: float, replicas: int) -> int:
        """Replicas by demand and capacity in KV tokens; starting ones count as supply."""
        required = demand / self._bound - replicas * capacity
        spare = replicas * capacity - demand / (self._bound * self._down / self._up)
        if required > 0.0:
            return replicas + math.ceil(required / capacity)
        if spare > 0.0:
            return max(1, replicas - math.floor(spare / capacity))
        return replicas


def derived_tokens(seen: Sight) -> float:
    """k2 before any queue was seen: N (I + O/2) of N = min(B O / (I + O), S) sequences; infinite without lengths."""
    prompt, output = seen.prompt_tokens, seen.output_tokens
    if output <= 0.0:
        return math.inf
    sequences = min(seen.shape.max_num_batched_tokens * output / (prompt + output), seen.shape.max_num_seqs)
    return sequences * (prompt + 0.5 * output)


def _bucket(output_tokens: float) -> int:
    return (output_tokens >= 100.0) + (output_tokens >= 500.0)
