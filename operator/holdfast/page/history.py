"""What the last two hours looked like, in few bytes: one column of half floats for every figure that is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

SPAN_SECONDS = 30.0
POINTS = 240
"""Spans that are kept: two hours. 25 figures of 2 bytes in each make 12 KiB a service, 11.4 MiB for a thousand."""

COLUMNS = (
    "arrival_rps",
    "good_rps",
    "forecast_rps",
    "capacity_rps",
    "missed_share",
    "budget_remaining",
    "ttft_p50_seconds",
    "ttft_p95_seconds",
    "ttft_p99_seconds",
    "tpot_p50_seconds",
    "tpot_p95_seconds",
    "tpot_p99_seconds",
    "e2e_p50_seconds",
    "e2e_p95_seconds",
    "e2e_p99_seconds",
    "bad_ttft_rps",
    "bad_tpot_rps",
    "bad_e2e_rps",
    "bad_rejected_rps",
    "bad_error_rps",
    "desired_replicas",
    "ready_replicas",
    "starting_replicas",
    "draining_replicas",
    "dollars_per_hour",
)
"""Of attainment its distance to 1 is kept: three digits of it tell 99.95 % from 99.99 %."""

_LARGEST = 65_504.0  # of a half float
_FUZZ_SPANS = 2  # a clock that is set back by more starts the history anew

Halves = NDArray[np.float16]


class Track:
    """One service's figures by span, newest last; a span that no tick fell into, or a figure not known, is NaN."""

    __slots__ = ("_newest", "_values")

    def __init__(self) -> None:
        self._values: Halves = np.full((len(COLUMNS), POINTS), np.nan, np.float16)
        self._newest: int | None = None

    @property
    def size_bytes(self) -> int:
        return int(self._values.nbytes)

    def record(self, at: float, figures: Mapping[str, float | None]) -> None:
        """Put figures into the span of `at` (seconds since the epoch); the last tick of a span speaks for it."""
        span = span_of(at)
        if self._newest is None or span < self._newest - _FUZZ_SPANS:
            self._values.fill(np.nan)
            self._newest = span
        span = max(span, self._newest)
        for passed in range(self._newest + 1, min(span, self._newest + POINTS) + 1):
            self._values[:, passed % POINTS] = np.nan
        self._newest = span
        self._values[:, span % POINTS] = _kept([figures.get(name) for name in COLUMNS])

    def recall(self, at: float, figures: Mapping[str, float | None]) -> bool:
        """Put figures into a span before the newest one that no tick fell into; whether they were."""
        span = span_of(at)
        if self._newest is None or not self._newest - POINTS < span < self._newest:
            return False
        column = self._values[:, span % POINTS]
        if not np.isnan(column).all():
            return False
        column[:] = _kept([figures.get(name) for name in COLUMNS])
        return True

    def until(self, at: float) -> Halves:
        """Return (COLUMNS, POINTS), oldest first, up to the span of `at`; NaN where nothing is known."""
        found: Halves = np.full((len(COLUMNS), POINTS), np.nan, np.float16)
        if self._newest is not None:
            spans = np.arange(span_of(at) - POINTS + 1, span_of(at) + 1)
            kept = (spans > self._newest - POINTS) & (spans <= self._newest)
            found[:, kept] = self._values[:, spans[kept] % POINTS]
        return found


def span_of(at: float) -> int:
    """Return how many spans after the epoch this is."""
    return math.floor(at / SPAN_SECONDS)


def worst_of(values: Halves, size: int) -> Halves:
    """Return the largest of every `size` values; NaN where all are."""
    worst: Halves = np.fmax.reduce(values.reshape(-1, size), axis=1)
    return worst


def plain(values: Sequence[float] | Halves, digits: int = 4) -> list[float | None]:
    """Return numbers of so many significant digits for JSON; None where there is none."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in map(float, values)]


def _kept(values: list[float | None]) -> NDArray[np.float64]:
    found = np.array(values, np.float64)  # None becomes NaN
    found[np.isinf(found)] = np.nan
    return np.clip(found, -_LARGEST, _LARGEST)
