"""Which requests count: the arrivals while the endpoint was in a steady state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import Floats
from holdfast.tools.bench.load.records import RequestRecord

BATCH = 5
"""Requests whose mean is one value of the search for a steady state (MSER-5: White, Cobb and Spratt 2000)."""

MOST_CUT = 0.5
"""Share of the run that a search may cut; where it would cut more, no steady state was reached."""

LEAST_REQUESTS = 50
"""With fewer requests a search sees noise alone: all of them count."""


@dataclass(frozen=True, slots=True)
class MeasurementWindow:
    """Arrivals in [begin, end) of the records' clock count. `whole`: nothing is cut, drain included."""

    begin: float
    end: float
    whole: bool
    steady: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def of(self, records: Sequence[RequestRecord]) -> list[RequestRecord]:
        """The requests that count; those whose arrival is no number count too, as what they are."""
        if self.whole:
            return list(records)
        return [
            record for record in records if not (record.scheduled_at < self.begin or record.scheduled_at >= self.end)
        ]


def choose(records: Sequence[RequestRecord], warm_up: float | None, cool_down: float | None) -> MeasurementWindow:
    """Cut `warm_up` seconds of arrivals at the beginning and `cool_down` at the end; None looks for them.

    The beginning is found where the E2E latency becomes stationary, by arrival (MSER-5). The end is one median E2E
    before the last arrival: what arrives later is served, in part, by an engine that empties.
    """
    arrivals = np.sort([record.scheduled_at for record in records if math.isfinite(record.scheduled_at)])
    if not len(arrivals):
        return MeasurementWindow(math.nan, math.nan, True, False)
    steady = True
    if warm_up is None:
        warm_up, steady = _warm_up(records, float(arrivals[0]))
    if cool_down is None:
        cool_down = _cool_down(records, float(arrivals[-1] - arrivals[0]))
    if warm_up <= 0.0 and cool_down <= 0.0:
        begin = min((record.sent_at for record in records if math.isfinite(record.sent_at)), default=math.nan)
        return MeasurementWindow(begin, begin + definitions.span_seconds(records), True, steady)
    return MeasurementWindow(float(arrivals[0]) + warm_up, float(arrivals[-1]) - cool_down + 1e-9, False, steady)


def _warm_up(records: Sequence[RequestRecord], first: float) -> tuple[float, bool]:
    timed = sorted(definitions.timed(records), key=lambda record: record.scheduled_at)
    if len(timed) < LEAST_REQUESTS:
        return 0.0, len(timed) > 0
    batches = len(timed) // BATCH
    latencies = np.array([definitions.e2e_seconds(record) for record in timed[: batches * BATCH]])
    cut = stationary_from(latencies.reshape(batches, BATCH).mean(axis=1))
    # The whole batches before the cut are left out: counting begins with the first request after them.
    return timed[cut * BATCH].scheduled_at - first if cut else 0.0, cut < int(MOST_CUT * batches)


def stationary_from(values: Floats) -> int:
    """How many values to cut so that the mean of the rest is known best: least variance / (values left)^2.

    At most `MOST_CUT` of them.
    """
    count = len(values)
    most = int(MOST_CUT * count)
    if count < 2:
        return 0
    left = count - np.arange(most + 1)
    # Sums from each place to the end, of values around their mean so that squares keep their digits.
    centred = values - values.mean()
    sums = np.cumsum(centred[::-1])[::-1][: most + 1]
    squares = np.cumsum((centred**2)[::-1])[::-1][: most + 1]
    spread = squares - sums**2 / left
    # What is left of equal values is rounding, and the first place of it is as good as any.
    spread[spread <= 1e-9 * squares[0]] = 0.0
    return int(np.argmin(spread / left**2))


def _cool_down(records: Sequence[RequestRecord], arrivals_seconds: float) -> float:
    timed = definitions.timed(records)
    if len(timed) < LEAST_REQUESTS:
        return 0.0
    median = definitions.percentile(np.array([definitions.e2e_seconds(record) for record in timed]), 0.5)
    return min(median, 0.25 * arrivals_seconds)
