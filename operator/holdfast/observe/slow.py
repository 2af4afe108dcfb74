"""Answers of the once-a-minute queries, and how long they may be believed: quantiles and length histograms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import LatencyQuantiles, LengthHistogram
from holdfast.observe.samples import Sample, usable


@dataclass(frozen=True, slots=True)
class SlowSignals:
    """What the slow queries showed, by service; empty until their first answers arrive."""

    ttft: Mapping[ServiceKey, LatencyQuantiles] = field(default_factory=dict)
    tpot: Mapping[ServiceKey, LatencyQuantiles] = field(default_factory=dict)
    prompt_lengths: Mapping[ServiceKey, LengthHistogram] = field(default_factory=dict)
    output_lengths: Mapping[ServiceKey, LengthHistogram] = field(default_factory=dict)


class SlowCache:
    """Remembers when each slow query was last asked and what it said.

    The queries take turns: after the first round one falls due every `period / number of queries` seconds, so that
    no tick carries them all. A failed query is asked again at its next turn.
    """

    def __init__(self, names: Sequence[str], period_seconds: float, trust_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._trust_seconds = trust_seconds
        self._due_at = dict.fromkeys(names, -math.inf)
        self._stagger = {name: period_seconds * turn / len(names) for turn, name in enumerate(names)}
        self._read: dict[str, tuple[float, Mapping[ServiceKey, Any]]] = {}

    def due(self, now: float) -> tuple[str, ...]:
        """Return the queries to ask now, and count them as asked."""
        names = tuple(name for name, due_at in self._due_at.items() if due_at <= now)
        for name in names:
            first = self._due_at[name] == -math.inf
            self._due_at[name] = now + self._period_seconds + (self._stagger[name] if first else 0.0)
        return names

    def store(self, name: str, samples: Sequence[Sample], at: float) -> None:
        """Keep the answer of query `name`, evaluated at `at`."""
        self._read[name] = (at, READERS[name](samples))

    def signals(self, now: float) -> SlowSignals:
        """Return all answers that are not too old."""
        return SlowSignals(
            ttft=self._trusted("ttft_quantiles", now),
            tpot=self._trusted("tpot_quantiles", now),
            prompt_lengths=self._trusted("prompt_lengths", now),
            output_lengths=self._trusted("output_lengths", now),
        )

    def _trusted(self, name: str, now: float) -> Mapping[ServiceKey, Any]:
        at, answer = self._read.get(name, (-math.inf, {}))
        return answer if now - at <= self._trust_seconds else {}


def service_key(sample: Sample) -> ServiceKey:
    return ServiceKey(sample.label("namespace"), sample.label("holdfast_service"))


def quantiles(samples: Sequence[Sample]) -> dict[ServiceKey, LatencyQuantiles]:
    """Read p50, p95 and p99; NaN (nothing was observed) and nonsense become None."""
    seen: dict[ServiceKey, dict[str, float | None]] = defaultdict(dict)
    for sample in samples:
        seen[service_key(sample)][sample.label("quantile")] = sample.value if usable(sample.value) else None
    return {key: LatencyQuantiles(q.get("0.5"), q.get("0.95"), q.get("0.99")) for key, q in seen.items()}


def lengths(samples: Sequence[Sample]) -> dict[ServiceKey, LengthHistogram]:
    """Read cumulative histograms; services that saw no request, or whose buckets make no sense, are left out."""
    seen: dict[ServiceKey, dict[float, float]] = defaultdict(dict)
    for sample in samples:
        seen[service_key(sample)][_edge(sample.label("le"))] = sample.value
    histograms = {key: _histogram(buckets) for key, buckets in seen.items()}
    return {key: histogram for key, histogram in histograms.items() if histogram}


def _histogram(buckets: Mapping[float, float]) -> LengthHistogram | None:
    edges = sorted(buckets)
    if any(math.isnan(edge) for edge in edges) or not all(map(usable, buckets.values())):
        return None
    cumulative: list[float] = []
    for edge in edges:  # pods with other edges, and increase()'s extrapolation, leave small dents
        cumulative.append(max(buckets[edge], cumulative[-1] if cumulative else 0.0))
    return LengthHistogram(tuple(edges), tuple(cumulative)) if cumulative and cumulative[-1] > 0.0 else None


def _edge(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


READERS: Mapping[str, Callable[[Sequence[Sample]], Mapping[ServiceKey, Any]]] = {
    "ttft_quantiles": quantiles,
    "tpot_quantiles": quantiles,
    "prompt_lengths": lengths,
    "output_lengths": lengths,
}
