"""Answers of Prometheus' HTTP API as typed rows; any other shape raises QueryError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from holdfast.domain.service import ServiceKey, key_of
from holdfast.observe.series.histograms import Histogram, read_histogram


class QueryError(Exception):
    """A query failed, or its answer cannot be parsed; the message says what and contains no secret."""


class Sample(NamedTuple):
    """One series at one instant; the value may be NaN or infinite: the reader must check it.

    The value of a histogram is the number of its observations.
    """

    labels: Mapping[str, str]
    value: float
    histogram: Histogram | None = None

    def label(self, name: str) -> str:
        return self.labels.get(name, "")


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a range query: (seconds since the epoch, value), oldest first; or histograms in place of values."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    histograms: tuple[tuple[float, Histogram], ...] = ()

    def label(self, name: str) -> str:
        return self.labels.get(name, "")


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What one query returned, and the warnings that make it partial."""

    samples: tuple[Sample, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_vector(result: object) -> tuple[Sample, ...]:
    """Read `data.result` of an instant query."""
    items = _items(result)
    labels = _labels(items)
    return tuple(
        [
            _native(item, of) if "histogram" in item else Sample(of, _point(item.get("value"))[1])
            for item, of in zip(items, labels, strict=True)
        ]
    )


def parse_matrix(result: object) -> tuple[Series, ...]:
    """Read `data.result` of a range query."""
    items = _items(result)
    return tuple(
        Series(
            labels,
            tuple(map(_point, _items_of(item.get("values", [] if "histograms" in item else None)))),
            tuple(map(_histogram, _items_of(item.get("histograms", [])))),
        )
        for item, labels in zip(items, _labels(items), strict=True)
    )


def partial_warnings(warnings: object) -> tuple[str, ...]:
    """Keep the warnings that mean missing data; PromQL's hints on style and buckets are dropped."""
    texts = [str(text) for text in warnings] if isinstance(warnings, list) else []
    return tuple(text for text in texts if not text.startswith("PromQL "))


def _items(result: object) -> list[dict[str, Any]]:
    items = _items_of(result)
    if not _all_of(dict, items):
        raise QueryError("the answer of Prometheus is not a list of series")
    return items


def _items_of(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise QueryError("the answer of Prometheus is not a list of series")
    return value


def _labels(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, str]]:
    """The labels of all rows, checked together: there are ten thousand rows per tick."""
    found = [item.get("metric") for item in items]
    if not _all_of(dict, found):
        raise QueryError("the answer of Prometheus has a series without labels")
    labels: list[Mapping[str, str]] = found  # type: ignore[assignment]  # checked in the line above
    if not _all_of(str, chain.from_iterable([each.values() for each in labels])):
        raise QueryError("the answer of Prometheus has a label that is not text")
    return labels


def _all_of(kind: type, values: Iterable[object]) -> bool:
    """Whether all values have exactly this JSON type."""
    return set(map(type, values)) <= {kind}


def _point(pair: Sequence[Any] | None) -> tuple[float, float]:
    try:
        at, value = pair  # type: ignore[misc]  # any shape may arrive: the except clause is the check
        return float(at), float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise QueryError(f"the answer of Prometheus has a sample that is not a number: {str(pair)[:80]}") from error


def _native(item: Mapping[str, Any], labels: Mapping[str, str]) -> Sample:
    histogram = _histogram(item["histogram"])[1]
    return Sample(labels, histogram.count, histogram)


def _histogram(pair: Sequence[Any] | None) -> tuple[float, Histogram]:
    try:
        at, told = pair  # type: ignore[misc]  # any shape may arrive: the except clause is the check
        return float(at), read_histogram(told)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise QueryError(f"the answer of Prometheus has a histogram that cannot be read: {str(pair)[:80]}") from error


def usable(value: float) -> bool:
    """Return whether a count, a gauge or an age is valid."""
    return math.isfinite(value) and value >= 0.0


def service_key(row: Sample | Series) -> ServiceKey:
    """Return the pool that a row is about."""
    return key_of(row.label("namespace"), row.label("holdfast_service"))
