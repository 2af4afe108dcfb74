"""Native histograms: Prometheus may store one series for all buckets, in place of `_count`, `_sum` and `_bucket`.

No function of PromQL lists the buckets of a native histogram, and not every store knows functions that read one of its
numbers. So queries return the summed histogram itself, and its buckets are read from the answer: at every edge the
count is the one that the classic series would have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.observe.series.promql import EngineSelector


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by their upper edges, ascending and cumulative; the last edge is infinite."""

    count: float
    sum: float
    edges: tuple[float, ...]
    cumulative: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether every count is a finite number."""
        return all(map(math.isfinite, (self.count, self.sum, *self.cumulative)))

    def within(self, limit: float) -> float:
        """Return a lower bound on the observations at or below a limit: those up to the largest edge within it."""
        return within(zip(self.edges, self.cumulative, strict=True), limit)


def is_at_most(edge: float, limit: float) -> bool:
    """Return whether an edge is at or below a limit; both are decimal fractions that were rounded."""
    return edge <= limit * (1.0 + 1e-9)


def within(counts: Iterable[tuple[float, float]], limit: float) -> float:
    """Return the largest of these cumulative counts by edge whose edge is at or below the limit, or 0."""
    return max((0.0, *(count for edge, count in counts if is_at_most(edge, limit))))


def read_histogram(told: Any) -> Histogram:
    """Read a histogram of Prometheus' JSON, which leaves out empty buckets.

    Raises: TypeError, ValueError, KeyError or OverflowError for any other shape.
    """
    total, found, running = float(told["count"]), dict[float, float](), 0.0
    for _, lower, upper, count in sorted(told.get("buckets", ()), key=lambda bucket: float(bucket[2])):
        if math.isfinite(float(lower)):
            found.setdefault(float(lower), running)
        running += float(count)
        found[float(upper)] = running
    found[math.inf] = total
    edges = sorted(found)
    return Histogram(total, float(told["sum"]), tuple(edges), tuple(found[edge] for edge in edges))


def without_classic(engines: EngineSelector, family: str, interval: str = "") -> str:
    """Return native histograms of engines that have no classic one; with an interval, what they gained in it.

    Prometheus can store both: then only the classic series count.
    """
    native = engines.increase(f"vllm:{family}", interval) if interval else engines.read(f"vllm:{family}")
    return f"{native} unless {engines.read(f'vllm:{family}_count')}"
