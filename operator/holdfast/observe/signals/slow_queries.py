"""Answers of the once-a-minute queries and their validity: quantiles, length histograms, facts of engines."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.engine import EngineFacts, StepSums
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import CONCURRENCY_QUANTILES, Concurrency, LatencyQuantiles, LengthHistogram
from holdfast.observe.series.needed_series import SERIES, Stored, series_query, stored_series
from holdfast.observe.series.queries import CONCURRENCY, E2E_BUCKETS, FACTS, slow_queries
from holdfast.observe.series.samples import Sample, service_key, usable
from holdfast.observe.signals.engine_facts import engine_facts
from holdfast_engine.law.leastsquares import TERMS, UNITS

ALL = (*slow_queries(), series_query())
"""All queries that are sent once a minute."""

QUANTILES = (0.5, 0.95, 0.99)

AT_ONCE = 4
"""Maximum number of due queries sent at once; at the first tick all of them are due."""

RARELY = frozenset({"prompt_lengths", "output_lengths", CONCURRENCY})
"""Sent half as often if there are many services: what looks back over ten minutes is the most expensive."""


@dataclass(frozen=True, slots=True)
class SlowSignals:
    """Results of the slow queries by service; empty until the first answers arrive."""

    ttft: Mapping[ServiceKey, LatencyQuantiles] = field(default_factory=dict)
    tpot: Mapping[ServiceKey, LatencyQuantiles] = field(default_factory=dict)
    e2e: Mapping[ServiceKey, LatencyQuantiles] = field(default_factory=dict)
    concurrency: Mapping[ServiceKey, Concurrency] = field(default_factory=dict)
    prompt_lengths: Mapping[ServiceKey, LengthHistogram] = field(default_factory=dict)
    output_lengths: Mapping[ServiceKey, LengthHistogram] = field(default_factory=dict)
    steps: Mapping[ServiceKey, tuple[tuple[str, StepSums], ...]] = field(default_factory=dict)
    ahead_seconds: Mapping[ServiceKey, float] = field(default_factory=dict)
    facts: Mapping[ServiceKey, tuple[tuple[str, EngineFacts], ...]] = field(default_factory=dict)
    series: Mapping[ServiceKey, Stored] = field(default_factory=dict)


class SlowCache:
    """Remembers when each slow query was last sent, and its answer.

    The queries take turns: after the first round one is due every `period / number of queries` seconds, so that no
    tick carries them all. With many services, each query is split into parts that take turns too, from the first
    round on, and some are sent `RARELY`. A failed query is sent again at its next turn.
    """

    def __init__(self, names: Sequence[str], period_seconds: float, trust_seconds: float) -> None:
        self._names = tuple(names)
        self._period_seconds = period_seconds
        self._trust_seconds = trust_seconds
        self._due_at: dict[tuple[str, int], float] = {}
        self._parts = 0
        self._read: dict[str, dict[ServiceKey, tuple[float, Any]]] = {name: {} for name in names}

    def due(self, now: float, parts: int = 1, most: int = AT_ONCE) -> tuple[tuple[str, slice], ...]:
        """Return the queries to send now, each with its slice of the services, and count them as sent.

        Returns at most `most` queries, the longest overdue first.
        """
        if parts > self._parts:  # never reduced: a service count around the limit must not restart the rounds
            self._plan(now, parts)
        waiting = [turn for turn, due_at in self._due_at.items() if due_at <= now]
        turns = sorted(waiting, key=self._due_at.__getitem__)[: max(0, min(most, AT_ONCE))]
        for turn in turns:
            first = self._due_at[turn] == -math.inf
            self._due_at[turn] = now + self._period(turn) + (self._stagger(turn) if first else 0.0)
        return tuple((name, slice(part, None, self._parts)) for name, part in turns)

    def _plan(self, now: float, parts: int) -> None:
        at_once, self._parts = not self._due_at and parts == 1, parts
        self._due_at = {(name, part): -math.inf for part in range(parts) for name in self._names}
        if not at_once:
            self._due_at = {turn: now + self._stagger(turn) for turn in self._due_at}

    def _stagger(self, turn: tuple[str, int]) -> float:
        return self._period_seconds * list(self._due_at).index(turn) / len(self._due_at)

    def _period(self, turn: tuple[str, int]) -> float:
        return self._period_seconds * (2.0 if self._parts > 1 and turn[0] in RARELY else 1.0)

    def store(
        self, name: str, samples: Sequence[Sample], at: float, others: Callable[[ServiceKey], bool] | None = None
    ) -> None:
        """Store the answer of query `name`, evaluated at `at`; `others` matches the services that it did not cover."""
        retained = {key: seen for key, seen in self._read[name].items() if others and others(key)}
        self._read[name] = retained | {key: (at, answer) for key, answer in READERS[name](samples).items()}

    def without(self, name: str, keys: Iterable[ServiceKey], now: float) -> list[ServiceKey]:
        """Return the services without a valid answer of query `name`, sorted."""
        return sorted(set(keys).difference(self._trusted(name, now)))

    def signals(self, now: float) -> SlowSignals:
        """Return all answers that are not too old."""
        return SlowSignals(
            ttft=self._trusted("ttft_buckets", now),
            tpot=self._trusted("tpot_buckets", now),
            e2e=self._trusted(E2E_BUCKETS, now),
            concurrency=self._trusted(CONCURRENCY, now),
            prompt_lengths=self._trusted("prompt_lengths", now),
            output_lengths=self._trusted("output_lengths", now),
            steps=self._trusted("steps", now),
            ahead_seconds=self._trusted("ahead", now),
            facts=self._trusted(FACTS, now),
            series=self._trusted(SERIES, now),
        )

    def _trusted(self, name: str, now: float) -> Mapping[ServiceKey, Any]:
        return {key: answer for key, (at, answer) in self._read[name].items() if now - at <= self._trust_seconds}


def quantiles(samples: Sequence[Sample]) -> dict[ServiceKey, LatencyQuantiles]:
    """Read p50, p95 and p99 off cumulative histograms; services without observations are omitted."""
    return {
        key: LatencyQuantiles(*(_quantile(*cumulative, share) for share in QUANTILES))
        for key, cumulative in _cumulative(samples).items()
    }


def _quantile(edges: Sequence[float], cumulative: Sequence[float], share: float) -> float | None:
    """As Prometheus's histogram_quantile: linear within a bucket, and the last finite edge where it lies beyond."""
    if len(edges) < 2 or math.isfinite(edges[-1]):
        return None
    rank = share * cumulative[-1]
    bucket = bisect.bisect_left(cumulative, rank)
    if bucket >= len(edges) - 1:
        return edges[-2]
    lower, below = (edges[bucket - 1], cumulative[bucket - 1]) if bucket else (0.0, 0.0)
    return lower + (edges[bucket] - lower) * (rank - below) / (cumulative[bucket] - below)


def lengths(samples: Sequence[Sample]) -> dict[ServiceKey, LengthHistogram]:
    """Read cumulative histograms; services without requests or with invalid buckets are omitted."""
    return {key: LengthHistogram(*cumulative) for key, cumulative in _cumulative(samples).items()}


def concurrency(samples: Sequence[Sample]) -> dict[ServiceKey, Concurrency]:
    """Read how many requests engines hold at once; services without a reporting engine are omitted."""
    seen: dict[ServiceKey, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        if usable(sample.value):
            seen[service_key(sample)][sample.label("metric")] = sample.value
    return {key: Concurrency(*map(found.get, CONCURRENCY_QUANTILES)) for key, found in seen.items()}


def step_sums(samples: Sequence[Sample]) -> dict[ServiceKey, tuple[tuple[str, StepSums], ...]]:
    """Read the plugin's sums over steps by accelerator; one invalid sum discards its accelerator."""
    units = dict(zip(TERMS, UNITS, strict=True))
    seen: dict[ServiceKey, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        if sample.label("term") in units:
            sums = seen[service_key(sample)][sample.label("holdfast_accelerator")]
            sums[sample.label("term")] = sample.value * units[sample.label("term")]
    return {key: _whole_sums(found) for key, found in seen.items()}


def ahead_seconds(samples: Sequence[Sample]) -> dict[ServiceKey, float]:
    """Read how far samples lie in the future by the operator's clock."""
    return {service_key(sample): sample.value for sample in samples if usable(sample.value)}


def _whole_sums(found: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, StepSums], ...]:
    return tuple(
        (accelerator, StepSums(*(sums[term] for term in TERMS)))
        for accelerator, sums in sorted(found.items())
        if accelerator and len(sums) == len(TERMS) and all(map(usable, sums.values()))
    )


Cumulative = tuple[tuple[float, ...], tuple[float, ...]]
"""Upper edges, ascending, and the observations at or below each."""


def _cumulative(samples: Sequence[Sample]) -> dict[ServiceKey, Cumulative]:
    """Where Prometheus begins to store native histograms, the classic ones of minutes ago are left out."""
    seen: dict[ServiceKey, dict[float, float]] = defaultdict(dict)
    natives: dict[ServiceKey, dict[float, float]] = {}
    for sample in samples:
        if (native := sample.histogram) is not None:
            natives[service_key(sample)] = dict(zip(native.edges, native.cumulative, strict=True))
        else:
            seen[service_key(sample)][_edge(sample.label("le"))] = sample.value
    found = ((key, _histogram(buckets)) for key, buckets in (seen | natives).items())
    return {key: histogram for key, histogram in found if histogram}


def _histogram(buckets: Mapping[float, float]) -> Cumulative | None:
    edges = sorted(buckets)
    if any(math.isnan(edge) for edge in edges) or not all(map(usable, buckets.values())):
        return None
    counts: list[float] = []
    for edge in edges:  # pods with other edges, and increase()'s extrapolation, leave small dents
        counts.append(max(buckets[edge], counts[-1] if counts else 0.0))
    return (tuple(edges), tuple(counts)) if counts and counts[-1] > 0.0 else None


def _edge(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


READERS: Mapping[str, Callable[[Sequence[Sample]], Mapping[ServiceKey, Any]]] = {
    "ttft_buckets": quantiles,
    "tpot_buckets": quantiles,
    E2E_BUCKETS: quantiles,
    CONCURRENCY: concurrency,
    "prompt_lengths": lengths,
    "output_lengths": lengths,
    "steps": step_sums,
    "ahead": ahead_seconds,
    FACTS: engine_facts,
    SERIES: stored_series,
}
