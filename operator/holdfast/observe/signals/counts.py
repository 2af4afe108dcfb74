"""Counts of one service on one accelerator, with every reason to doubt them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from holdfast.observe.series.histograms import Histogram, within
from holdfast.observe.series.queries import BEGUN, MOST_BEGUN, TYPICAL
from holdfast.observe.signals.plugins import PluginCounts


@dataclass(slots=True)
class Counts:
    """Counts and findings of one service on one accelerator."""

    counts: dict[str, float] = field(default_factory=dict)
    within: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    sampled_at: dict[str, float] = field(default_factory=dict)  # pod -> newest sample
    copies: dict[str, float] = field(default_factory=dict)  # pod -> how many times it is scraped, if more than once
    incomplete: set[str] = field(default_factory=set)  # pods whose counts are incomplete
    hung: set[str] = field(default_factory=set)  # pods that hold requests and make no progress
    failing: dict[str, float] = field(default_factory=dict)  # pod -> failed requests, if most fail
    late: dict[str, float] = field(default_factory=dict)  # pod -> late or failed requests, if these are a share
    in_time: dict[str, float] = field(default_factory=dict)  # pod -> its good requests
    slow: dict[tuple[str, str, float], float] = field(default_factory=dict)  # pod, family, edge -> requests begun
    unusable: set[str] = field(default_factory=set)
    natives: dict[str, list[Histogram]] = field(default_factory=lambda: defaultdict(list))
    of_natives: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # their counts and sums
    plugins: PluginCounts = field(default_factory=PluginCounts)

    def add(self, name: str, value: float, may_be_negative: bool = False) -> None:
        """Add to a count; an invalid value or sum is recorded by name and not counted."""
        total = self.counts.get(name, 0.0) + value
        if math.isfinite(total) and (may_be_negative or value >= 0.0):
            self.counts[name] = total
        else:
            self.unusable.add(name)

    def add_within(self, family: str, edge_text: str, count: float) -> None:
        """Add to the observations at or below an edge."""
        edge = number(edge_text)
        total = self.within[family].get(edge, 0.0) + count
        if math.isnan(edge) or not math.isfinite(total):
            self.unusable.add(f"{family}_bucket")
        else:
            self.within[family][edge] = total

    def add_histogram(self, family: str, histogram: Histogram) -> None:
        """Add a native histogram, of engines without the classic series."""
        if not histogram.finite:
            self.unusable.add(family)
            return
        self.natives[family].append(histogram)
        self.of_natives[f"{family}_count"] += histogram.count
        self.of_natives[f"{family}_sum"] += histogram.sum

    def add_begun(self, requests: float) -> None:
        """Add the requests that one replica started, as its native histogram counts them."""
        if math.isfinite(requests):
            self.counts[BEGUN] = self.counts.get(BEGUN, 0.0) + requests
            self.counts[MOST_BEGUN] = max(self.counts.get(MOST_BEGUN, 0.0), requests)

    def get(self, *names: str) -> float:
        """Value of the first of these names that exists: metrics were renamed between vLLM versions."""
        for name in names:
            if name in self.counts or name in self.of_natives:
                return self.counts.get(name, 0.0) + self.of_natives.get(name, 0.0)
        return 0.0

    def typical_seconds(self, *families: str) -> float:
        """Mean of the median engine; that of all engines where only native histograms are stored."""
        family = self._counted(families)
        natives = self.of_natives.get(f"{family}_count", 0.0)
        mean = self.of_natives[f"{family}_sum"] / natives if natives > 0.0 else 0.0
        return max(0.0, self.counts.get(f"{family}_{TYPICAL}", mean))

    def _counted(self, families: tuple[str, ...]) -> str:
        """The first of these histograms that exists: they were renamed between vLLM versions."""
        return next((name for name in families if self._has(f"{name}_count")), families[0])

    def _has(self, name: str) -> bool:
        return name in self.counts or name in self.of_natives

    def mean_copies(self) -> float:
        """How often an engine is counted on average."""
        surplus = sum(max(0.0, copies - 1.0) for copies in self.copies.values() if math.isfinite(copies))
        return 1.0 + surplus / max(1, len(self.sampled_at))

    def within_objective(self, objective_seconds: float, *families: str) -> float:
        """Return a lower bound on the observations within the objective.

        Each edge at or below it is one; pods of an older revision may lack the exact edge, so the largest is taken.
        Buckets without a count are those of engines whose native histogram was read.
        """
        family = self._counted(families)
        natives = self.natives.get(family, [])
        classic = self.within.get(family, {}) if f"{family}_count" in self.counts or not natives else {}
        native = math.fsum(histogram.within(objective_seconds) for histogram in natives)
        return within(classic.items(), objective_seconds) + native


def number(text: str) -> float:
    """The number in a label; NaN if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
