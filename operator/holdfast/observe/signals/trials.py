"""Rows by revision -> results of each revision of a service, while one is on trial on a single replica."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import RevisionTraffic
from holdfast.observe.series import queries
from holdfast.observe.series.histograms import Histogram, within
from holdfast.observe.series.samples import Sample, service_key, usable

_OLDER = {queries.TPOT_BEFORE_0_11: queries.TPOT}


@dataclass(slots=True)
class _Counts:
    """Counts of one revision, and cumulative counts by edge and metric family."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    within: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    natives: dict[str, list[Histogram]] = field(default_factory=lambda: defaultdict(list))

    def traffic(self, accelerator: str, revision: str, slo: Slo) -> RevisionTraffic:
        """A request counts as within the objective by the largest edge at or below the objective."""
        return RevisionTraffic(
            accelerator,
            revision,
            rejected=self.counts[queries.REJECTIONS],
            ttft_count=self.counts[f"{queries.TTFT}_count"],
            ttft_within=self._within(queries.TTFT, slo.ttft_seconds),
            tpot_count=self.counts[f"{queries.TPOT}_count"],
            tpot_within=self._within(queries.TPOT, slo.tpot_seconds),
        )

    def _within(self, family: str, objective_seconds: float) -> float:
        classic = within(self.within[family].items(), objective_seconds)
        return classic + sum(native.within(objective_seconds) for native in self.natives[family])


def read_trials(
    samples: Iterable[Sample], objectives: Mapping[ServiceKey, Slo]
) -> dict[ServiceKey, tuple[RevisionTraffic, ...]]:
    """Return the gained counts by service; series without a revision and invalid values are omitted."""
    found: dict[tuple[ServiceKey, str, str], _Counts] = defaultdict(_Counts)
    for sample in samples:
        key, revision = service_key(sample), sample.label("holdfast_revision")
        if key in objectives and revision and usable(sample.value) and sample.value >= 0.0:
            _add(found[key, sample.label("holdfast_accelerator"), revision], sample)
    by_service: dict[ServiceKey, list[RevisionTraffic]] = defaultdict(list)
    for (key, accelerator, revision), counts in sorted(found.items()):
        by_service[key].append(counts.traffic(accelerator, revision, objectives[key]))
    return {key: tuple(revisions) for key, revisions in by_service.items()}


def _add(counts: _Counts, sample: Sample) -> None:
    metric, edge = sample.label("metric"), sample.label("le")
    for old, new in _OLDER.items():
        metric = metric.replace(old, new) if metric.startswith(old) else metric
    if (native := sample.histogram) is not None:
        if native.finite:
            counts.natives[metric].append(native)
            counts.counts[f"{metric}_count"] += native.count
        return
    if not edge:
        counts.counts[metric] += sample.value
        return
    seconds = _number(edge)
    if not math.isnan(seconds):
        counts.within[metric.removesuffix("_bucket")][seconds] += sample.value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
