"""What each verdict needs, declared once and compared with the stored series: a missing series is not zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey, Slo
from holdfast.observe.series import queries
from holdfast.observe.series.promql import any_of
from holdfast.observe.series.queries import (
    E2E,
    GROUP,
    OUTPUT_LENGTH,
    PROMPT_LENGTH,
    TPOT,
    TPOT_BEFORE_0_11,
    TTFT,
    Query,
)
from holdfast.observe.series.samples import Sample, service_key, usable

SERIES = "series"
_SCRAPED = "num_requests_running"

Stored = Mapping[str, Mapping[str, float]]
"""Engines by accelerator and name of a series, without the prefix `vllm:`."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Series that judge requests, or that give their lengths: one of these names, as vLLM and Prometheus have them."""

    names: tuple[str, ...]
    judges: bool = True
    only_with_e2e: bool = False


def _histogram(
    *families: str, parts: Sequence[str] = ("count", "bucket"), judges: bool = True, only_with_e2e: bool = False
) -> tuple[Needed, ...]:
    """Classic histograms have series for their parts, native ones a single series."""
    names = ((*(f"{family}_{part}" for family in families), *families) for part in parts)
    return tuple(Needed(each, judges, only_with_e2e) for each in names)


NEEDED = (
    Needed((queries.SUCCESS,)),
    *_histogram(TTFT),
    *_histogram(TPOT, TPOT_BEFORE_0_11),
    *_histogram(E2E, only_with_e2e=True),
    *_histogram(PROMPT_LENGTH, parts=("count", "sum"), judges=False),
    *_histogram(OUTPUT_LENGTH, parts=("sum",), judges=False),
)
"""The table. Where the plugins judge, only the lengths are needed."""


def series_query() -> Query:
    """Return how many engines have each series now, whatever it counts: a counter that stands still is no gap.

    A counter by outcome and buckets exist once an engine by one of their labels.
    """
    names = any_of(f"vllm:{name}" for name in (_SCRAPED, *(name for each in NEEDED for name in each.names)))
    matchers = f'__name__=~"{names}"', 'le=~"|[+]Inf"', 'finished_reason=~"|stop"'
    by = f"count by ({GROUP}, __name__) (group by ({GROUP}, pod, instance, __name__)"
    return Query(SERIES, lambda engines: f"{by} ({engines.read('', *matchers)}))")


def stored_series(samples: Sequence[Sample]) -> dict[ServiceKey, Stored]:
    """Read the answer by service."""
    found: dict[ServiceKey, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for sample in samples:
        if usable(sample.value):
            name = sample.label("__name__").removeprefix("vllm:")
            found[service_key(sample)][sample.label("holdfast_accelerator")][name] = sample.value
    return dict(found)


def missing(stored: Stored, slo: Slo, exact: bool) -> tuple[Needed, ...]:
    """Return what some scraped engine lacks; `exact`: the plugins judge all requests."""
    asked = (each for each in NEEDED if slo.e2e_seconds is not None or not each.only_with_e2e)
    wanted = [each for each in asked if not (exact and each.judges)]
    return tuple(each for each in wanted if any(_lack(series, each) for series in stored.values()))


def _lack(series: Mapping[str, float], needed: Needed) -> bool:
    """Some engines have series under other names than the rest, as in a rollout to another version of vLLM."""
    return sum(series.get(name, 0.0) for name in needed.names) < series.get(_SCRAPED, 0.0)
