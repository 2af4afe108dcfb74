"""Thresholds of a whole run, as `p99 E2E <= 500 ms` or `mean TPOT <= 20 ms`: each of them passes or fails.

Bounds of a good request (`--slo`) count requests; a threshold holds one statistic of a latency against one bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import Floats
from holdfast.tools.bench.load.records import RequestRecord

MEAN = "mean"
FIGURES = {
    "TTFT": definitions.ttft_seconds,
    "TPOT": definitions.tpot_seconds,
    "E2E": definitions.e2e_seconds,
}
REMEDY = "give a statistic, a latency and a bound above 0, such as 'p99 E2E <= 500 ms' or 'mean TPOT <= 20 ms'"
_FORM = re.compile(
    r"(?P<statistic>mean|p\d{1,2}(?:\.\d{1,3})?|p100)\s+(?P<latency>ttft|itl|tpot|e2e)\s*(?:<=|≤)\s*"
    r"(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>ms|s)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A statistic (`mean`, `p99`) of a latency (TTFT, ITL, TPOT, E2E), and the seconds that it may be at most."""

    statistic: str
    latency: str
    bound_seconds: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """From `p99 E2E <= 500 ms`. ValueError with the remedy."""
        found = _FORM.fullmatch(text.strip())
        seconds = 0.0 if found is None else float(found["number"]) / (1000.0 if found["unit"].lower() == "ms" else 1.0)
        if found is None or seconds <= 0.0:
            raise ValueError(f"{text!r}: {REMEDY}")
        return cls(found["statistic"].lower(), found["latency"].upper(), seconds)

    def __str__(self) -> str:
        return f"{self.statistic} {self.latency} ≤ {1000.0 * self.bound_seconds:g} ms"


@dataclass(frozen=True, slots=True)
class Judged:
    """A threshold and what was measured: infinite where too many requests have no answer, NaN where nothing is known.

    `unanswered` of the `requests` did not finish.
    """

    threshold: Threshold
    seconds: float
    unanswered: int
    requests: int

    @property
    def passed(self) -> bool:
        """Only what is known can pass."""
        return self.seconds <= self.threshold.bound_seconds


def judged(threshold: Threshold, records: Sequence[RequestRecord]) -> Judged:
    """Hold the requests that count against a threshold.

    A percentile is over ALL of them. Requests without an answer count as later than any bound, or refusing requests
    would be a way to pass. A mean is over finished requests, for a mean with infinities says nothing. Gaps (ITL) come
    from finished answers, and answers of one token have no TPOT.
    """
    timed = definitions.timed(records)
    unanswered = len(records) - len(timed)
    if threshold.latency == "ITL":
        values = np.concatenate([np.zeros(0), *map(definitions.itl_seconds, timed)])
        later = 0
    else:
        values = np.array([FIGURES[threshold.latency](record) for record in timed], np.float64)
        later = unanswered
    seconds = _statistic(threshold.statistic, values[np.isfinite(values)], later)
    return Judged(threshold, seconds, unanswered, len(records))


def _statistic(name: str, values: Floats, later: int) -> float:
    """Of the values and, for a percentile, of so many that are later than any; seconds."""
    if name == MEAN:
        return float(values.mean()) if len(values) else math.nan
    share, total = float(name[1:]) / 100.0, len(values) + later
    if not total:
        return math.nan
    # Interpolated between neighbours, as all percentiles here: infinite once the upper one is.
    if math.ceil(share * (total - 1) - 1e-9) >= len(values):
        return math.inf
    return definitions.percentile(np.concatenate([values, np.full(later, values.max())]), share)
