"""Rows about the plugin inside the engines -> its counts, and the limits in force in each engine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.domain.engine import EngineState, ExactCounts, PluginMode
from holdfast.domain.service import ServiceKey, Slo
from holdfast.observe.series import queries
from holdfast.observe.series.samples import Sample, service_key, usable

_CAUSES = frozenset({"ttft", "tpot", "e2e", "rejected", "killed"})
_LIMITS = {
    "version": "limits_version",
    "active_sequences": "active_sequences",
    "tokens_per_step": "tokens_per_step",
}
_MODES = {mode.value: mode for mode in PluginMode}


@dataclass(slots=True)
class PluginCounts:
    """Counts of the plugins of one service on one accelerator.

    `covered`: the plugin was active in all engines, at every scrape of the interval. `client_times`: all of them judged
    by the times at which bytes were written. `objectives` are the ones in force, as (name, seconds).
    """

    covered: bool = False
    client_times: bool = False
    objectives: set[tuple[str, float]] = field(default_factory=set)
    counts: dict[str, float] = field(default_factory=dict)
    by_class: dict[tuple[str, str], float] = field(default_factory=dict)  # by metric and class
    nonsense: bool = False

    def add(self, sample: Sample, may_be_negative: bool = False) -> None:
        """Add a count; one invalid count discards all of them."""
        column = _column(sample)
        total = self.counts.get(column, 0.0) + sample.value
        if math.isfinite(total) and (may_be_negative or sample.value >= 0.0):
            self.counts[column] = total
            if name := sample.label("class"):
                key = sample.label("metric"), name
                self.by_class[key] = self.by_class.get(key, 0.0) + sample.value
        else:
            self.nonsense = True

    def exact(self, slo: Slo, engines: int, copies: float) -> ExactCounts | None:
        """The counts, if they cover all requests; every engine was scraped `copies` times on average.

        What was handed over did not arrive here: the engine that goes on with it counts it.
        """
        if not self.judge(slo):
            return None
        counts = {name: max(0.0, value) / copies for name, value in self.counts.items()}
        if handed_over := counts.pop("handed_over", 0.0):
            counts["arrived"] = counts.get("arrived", 0.0) - handed_over
        return ExactCounts(engines=engines, engine_timed=0.0 if self.client_times else engines, **counts)

    def judge(self, slo: Slo) -> bool:
        """Whether the counts cover all requests, by these objectives."""
        return self.covered and not self.nonsense and self._judged_by(slo)

    def _judged_by(self, slo: Slo) -> bool:
        """Whether every engine has exactly these objectives; false for a moment after an edit."""
        declared = {"ttft_seconds": slo.ttft_seconds, "tpot_seconds": slo.tpot_seconds, "e2e_seconds": slo.e2e_seconds}
        wanted = {(name, seconds) for name, seconds in declared.items() if seconds is not None}
        return self.objectives == wanted


def counted(metric: str) -> bool:
    """Whether rows of this name are counts of the plugin."""
    return metric in queries.JUDGED


def _column(sample: Sample) -> str:
    """Name the field of ExactCounts; an unknown cause still counts as a bad request."""
    metric = sample.label("metric")
    if metric != queries.BAD:
        return metric.removesuffix("_total").removeprefix("requests_")
    cause = sample.label("cause")
    return f"bad_{cause}" if cause in _CAUSES else "bad_error"


def engine_states(samples: Iterable[Sample]) -> dict[ServiceKey, tuple[EngineState, ...]]:
    """Return the plugin of every engine that has one, in order of the pods' names."""
    seen: dict[ServiceKey, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        if sample.label("metric") in ("limit", "mode") and sample.label("pod"):
            _read(seen[service_key(sample)][sample.label("pod")], sample)
    return {key: _states(pods) for key, pods in seen.items()}


def _read(facts: dict[str, Any], sample: Sample) -> None:
    limit, mode = _LIMITS.get(sample.label("name")), _MODES.get(sample.label("mode"))
    if limit is not None and usable(sample.value):
        facts[limit] = sample.value
    elif mode is not None and facts.get("mode") is not PluginMode.OFF:
        facts["mode"] = mode


def _states(pods: Mapping[str, Mapping[str, Any]]) -> tuple[EngineState, ...]:
    return tuple(
        EngineState(
            pod=pod,
            mode=facts.get("mode", PluginMode.ACTIVE),
            limits_version=None if "limits_version" not in facts else int(facts["limits_version"]),
            active_sequences=facts.get("active_sequences"),
            tokens_per_step=facts.get("tokens_per_step"),
        )
        for pod, facts in sorted(pods.items())
        if facts
    )
