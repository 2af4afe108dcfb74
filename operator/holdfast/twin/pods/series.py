"""Samples of engines' counters and gauges as Prometheus keeps them, and what was gained between them.

All engines are scraped at the same moments, so that what many of them gained is worked out at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.twin.arrays.state_arrays import BATCH_NOW, BATCH_SUMS, COUNTS, EXACT, STEPS, Record, Records
from holdfast.twin.arrays.timers import Floats

GAUGES = ("running", "waiting", "waiting_late", *BATCH_NOW)
COLUMNS = (*COUNTS, *EXACT, *STEPS, *BATCH_SUMS, *GAUGES)
"""The verdicts of declared classes stand behind them, where engines have any."""

IN_FLIGHT = slice(COLUMNS.index(GAUGES[0]), len(COLUMNS))
EVERY = slice(0, len(COLUMNS))

_REJECTED = COLUMNS.index("rejected")
_OUTPUT, _PROMPT = COLUMNS.index("output_tokens"), COLUMNS.index("prompt_tokens")
_IS_COUNTER = np.array([name not in GAUGES for name in COLUMNS])


def rows_of(engines: Records, verdicts: Floats) -> Floats:
    """A sample of each engine: the columns, and the verdicts by class."""
    return np.hstack([np.stack([engines[name] for name in COLUMNS], axis=1, dtype=np.float64), verdicts])


def usage_of(engines: Records) -> Floats:
    """Share of its KV cache that each engine uses."""
    return np.asarray(1.0 - engines["free_blocks"] / engines["blocks"])


@dataclass(slots=True)
class EngineSeries:
    """Samples of one engine, oldest first: when, the columns, and the share of its KV cache in use.

    `record` is what the newest sample was read from, None before the first one.
    """

    accelerator: str
    born_at: float
    times: list[float] = field(default_factory=list)
    rows: list[Floats] = field(default_factory=list)
    usage: list[float] = field(default_factory=list)
    record: Record | None = None
    hangs: bool = False

    def scrape(self, at: float, record: Record, row: Floats, usage: float, hangs: bool) -> None:
        """Take a sample; of an engine that hangs only the API server's own count goes on."""
        hung_before, self.hangs = self.hangs, hangs
        self.times.append(at)
        if hung_before and hangs:
            self.rows.append(self.rows[-1].copy())
            self.rows[-1][_REJECTED] = row[_REJECTED]
            self.usage.append(self.usage[-1])
            return
        self.rows.append(row)
        self.usage.append(usage)
        self.record = record

    def looks_hung(self, since: float, least: int) -> bool:
        """It held requests in every sample since then, there are enough samples, and nothing moved in it."""
        looks, newest = range(bisect_right(self.times, since), len(self.times)), self._progress(-1)
        # The oldest first: it differs from the newest where anything moved at all.
        return len(looks) >= least and all(
            self._progress(look) == newest and self.rows[look][IN_FLIGHT].any() for look in looks
        )

    def _progress(self, look: int) -> tuple[float, float, float]:
        row = self.rows[look]
        return float(row[_OUTPUT]), float(row[_PROMPT]), self.usage[look]

    def forget(self, before: float) -> None:
        """Drop samples that no query reaches, all but the newest of them: it tells that the engine has a past."""
        count = max(0, bisect_right(self.times, before) - 1)
        del self.times[:count], self.rows[:count], self.usage[:count]


def gained(series: Sequence[EngineSeries], start: float, end: float, columns: slice = EVERY) -> Floats:
    """A row for each engine: its gains in (start, end]; all it ever counted where it has no sample from before."""
    found = np.zeros((len(series), columns.stop - columns.start))
    known = []
    for number, each in enumerate(series):
        first, last = bisect_right(each.times, start), bisect_right(each.times, end) - 1
        if first == 0 and last >= 0:
            found[number] = each.rows[last][columns] * min(1.0, (end - start) / max(end - each.born_at, 1e-9))
        elif first < last:
            known.append((number, first, last))
    if known:
        found[[number for number, _, _ in known]] = _extrapolated(series, known, start, end, columns)
    return found


def _extrapolated(
    series: Sequence[EngineSeries], known: Sequence[tuple[int, int, int]], start: float, end: float, columns: slice
) -> Floats:
    """Prometheus's increase(): what lies between the samples, stretched to the interval they were looked for in."""
    earliest = np.array([series[number].times[first] for number, first, _ in known])
    newest = np.array([series[number].times[last] for number, _, last in known])
    before = np.array([series[number].rows[first] for number, first, _ in known])[:, columns]
    after = np.array([series[number].rows[last] for number, _, last in known])[:, columns]
    between = newest - earliest
    spacing = between / np.array([last - first for _, first, last in known])
    head, tail = (
        np.where(gap < 1.1 * spacing, gap, 0.5 * spacing)[:, None] for gap in (earliest - start, end - newest)
    )
    grown, stretch = after - before, between[:, None]
    counted = (grown > 0.0) & (_IS_COUNTER[columns] if columns.start < len(COLUMNS) else True)
    until_zero = np.divide(stretch * before, grown, out=np.full_like(grown, np.inf), where=counted)
    return np.asarray(grown * (stretch + np.minimum(head, until_zero) + tail) / stretch)
