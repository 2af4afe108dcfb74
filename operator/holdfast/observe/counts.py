"""Counts of one service on one accelerator, with every reason to doubt them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from holdfast.observe.plugins import PluginCounts


@dataclass(slots=True)
class Counts:
    """Counts and findings of one service on one accelerator."""

    counts: dict[str, float] = field(default_factory=dict)
    within: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    sampled_at: dict[str, float] = field(default_factory=dict)  # pod -> newest sample
    copies: dict[str, float] = field(default_factory=dict)  # pod -> how many times it is scraped, if more than once
    incomplete: set[str] = field(default_factory=set)  # pods whose counts are incomplete
    hung: set[str] = field(default_factory=set)  # pods that hold requests and make no progress
    late: dict[str, float] = field(default_factory=dict)  # pod -> late requests, if almost none is in time
    unusable: set[str] = field(default_factory=set)
    series: set[str] = field(default_factory=set)  # names of the counted series that exist, whatever they count
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

    def get(self, *names: str) -> float:
        """Value of the first of these names that exists: metrics were renamed between vLLM versions."""
        return next((self.counts[name] for name in names if name in self.counts), 0.0)

    def mean_copies(self) -> float:
        """How often an engine is counted on average."""
        surplus = sum(max(0.0, copies - 1.0) for copies in self.copies.values() if math.isfinite(copies))
        return 1.0 + surplus / max(1, len(self.sampled_at))

    def within_objective(self, objective_seconds: float, *families: str) -> float:
        """Return a lower bound on the observations within the objective.

        Each edge at or below it is one; pods of an older revision may lack the exact edge, so the largest is taken.
        """
        family = next((name for name in families if f"{name}_count" in self.counts), families[0])
        limit = objective_seconds * (1.0 + 1e-9)
        return max((0.0, *(count for edge, count in self.within.get(family, {}).items() if edge <= limit)))


def number(text: str) -> float:
    """The number in a label; NaN if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
