"""llm-d's Workload Variant Autoscaler, saturation v2, through an HPA with Kubernetes' defaults.

Source: llm-d/llm-d-workload-variant-autoscaler at 2976e4ee, internal/engines/analyzers/saturation_v2/analyzer.go and
engine_v2.go (applyUniversalThreshold); thresholds of internal/config/saturation_scaling.go; max_over_time[1m] of
internal/collector/registration/saturation.go. It loops every 15 s.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from statistics import fmean, median

from holdfast.domain.service import ServiceKey
from holdfast.twin.peers.behavior import average_value
from holdfast.twin.peers.peer import Peer, positive
from holdfast.twin.pods.peer_metrics import EngineGauges, Sight

PEAK_SECONDS = 60.0
"""KV usage and queues are the highest of so long."""


class WvaSaturation(Peer):
    """Demand in KV tokens, in use and queued, against what engines hold at saturation; bounds 0.85 up and 0.70 down.

    The HPA reads the size as an AverageValue of 1, so that it leaves one of ten as it is. The knob is the 0.85, the
    0.70 goes along.
    """

    name = "wva"
    _kv_threshold, _queue_threshold, _samples = 0.80, 5.0, 10
    _up, _down = 0.85, 0.70

    def __init__(self, up: float = _up) -> None:
        super().__init__()
        self._bound = positive(self.name, "up", up)
        self._saturated: dict[tuple[ServiceKey, int], deque[float]] = {}
        self._looks: dict[ServiceKey, deque[tuple[float, tuple[EngineGauges, ...]]]] = {}

    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""
        peaks = replace(seen, engines=self._peaks(key, seen, now))
        per_request = seen.prompt_tokens + seen.output_tokens
        demand = sum(engine.kv_tokens + engine.waiting * per_request for engine in peaks.engines)
        return average_value(self.law(demand, self.capacity(key, peaks), seen.size, seen.ready), 1.0, seen.size)

    def _peaks(self, key: ServiceKey, seen: Sight, now: float) -> tuple[EngineGauges, ...]:
        looks = self._looks.setdefault(key, deque())
        looks.append((now, seen.engines))
        while looks[0][0] <= now - PEAK_SECONDS:
            looks.popleft()
        return tuple(
            _peak([each for _, look in looks for each in look if each.name == one.name]) for one in seen.engines
        )

    def capacity(self, key: ServiceKey, seen: Sight) -> float:
        """KV tokens that an engine is taken to hold at saturation, the median: with a queue as seen, else as before."""
        full = self._kv_threshold * seen.shape.kv_tokens
        observed = self._saturated.setdefault((key, _bucket(seen.output_tokens)), deque(maxlen=self._samples))
        held = [each.kv_tokens for each in seen.engines if each.waiting >= self._queue_threshold and each.kv_tokens]
        observed.extend(held)
        past = fmean(observed) if observed else derived_tokens(seen)
        return min(full, median([*held, *[past] * (max(1, len(seen.engines)) - len(held))]))

    def law(self, demand: float, capacity: float, replicas: int, ready: int) -> int:
        """Replicas by demand and capacity in KV tokens; starting ones count where more are needed, not as spare."""
        required = demand / self._bound - replicas * capacity
        spare = ready * capacity - demand / (self._bound * self._down / self._up)
        if required > 0.0:
            return replicas + math.ceil(required / capacity)
        if spare > 0.0:
            return max(1, replicas - math.floor(spare / capacity))
        return replicas


def _peak(looks: list[EngineGauges]) -> EngineGauges:
    kv_tokens, waiting = max(each.kv_tokens for each in looks), max(each.waiting for each in looks)
    return replace(looks[-1], kv_tokens=kv_tokens, waiting=waiting)


def derived_tokens(seen: Sight) -> float:
    """k2 before any queue was seen: N (I + O/2) of N = min(B O / (I + O), S) sequences; infinite without lengths."""
    prompt, output = seen.prompt_tokens, seen.output_tokens
    if output <= 0.0:
        return math.inf
    sequences = min(seen.shape.max_num_batched_tokens * output / (prompt + output), seen.shape.max_num_seqs)
    return sequences * (prompt + 0.5 * output)


def _bucket(output_tokens: float) -> int:
    return (output_tokens >= 100.0) + (output_tokens >= 500.0)
