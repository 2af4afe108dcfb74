"""Counts of requests -> how many arrive per second now, how that moves, and how noisy it is.

Arrivals are kept as cells of about one counting interval each. The trailing cells since the last abrupt change are the
regime: its regression line gives level and trend. A change is found by a test and not by smoothing, so that a step is
followed within one interval and noise is averaged over all of the regime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.domain.signals import History
from holdfast.policy.statistics import normal_quantile, surprise
from holdfast.policy.traffic import Seen

KEPT_SECONDS = 900.0
"""How far back cells are kept: the residuals of the forecast are learned from them."""

FALSE_ALARMS_PER_DAY = 1.0
"""How often noise alone may be taken for a change."""

CHANGE_CELLS = 2
"""A fall, and a rise too small for one cell, is judged over this many cells."""

SLOPE_CELLS = 4
"""Fewest cells that a slope is read from."""

REACH_LEADS = 4.0
"""How far back the line looks, in lead times: extrapolated by one, its error is then that of its level twice."""

FORGETTING = 1.0 / 64.0
"""Weight of one cell in the dispersion."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Arrivals during the `seconds` before `ends_at`, and the rate that was then predicted for one lead time later."""

    ends_at: float
    seconds: float
    arrivals: float
    predicted_rps: float | None = None

    @property
    def rate_rps(self) -> float:
        return self.arrivals / self.seconds

    @property
    def middle(self) -> float:
        return self.ends_at - 0.5 * self.seconds


@dataclass(frozen=True, slots=True)
class Line:
    """Regression of a regime: rate at its newest end, slope per second, and the seconds of data behind them.

    `fitted_slope` is the plain least-squares one, `slope` what is left of it after shrinking by its uncertainty.
    """

    level_rps: float
    slope: float
    seconds: float
    mean_rps: float
    centre: float
    fitted_slope: float

    def ahead(self, seconds: float) -> float:
        """Rate that many seconds after the end; growth beyond double is not believed."""
        return min(max(0.0, self.level_rps + self.slope * seconds), 2.0 * self.level_rps)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is remembered of arrivals; `regime` counts the trailing cells since the last abrupt change.

    `dispersion` is the variance of counts relative to Poisson noise, `settles_at` the time until which the newest
    interval still holds some of what was before a rise, `seen_at` the time of the newest count.
    """

    cells: tuple[Cell, ...] = ()
    regime: int = 0
    dispersion: float = 1.0
    settles_at: float = 0.0
    seen_at: float | None = None
    line: Line | None = None

    @property
    def noise(self) -> float:
        """Dispersion, never below that of Poisson arrivals."""
        return max(1.0, self.dispersion)


def arrivals(seen: Seen, retry_share: float) -> float:
    """Requests that arrived during the interval.

    Without a counter of arrivals: what ended, plus what was refused less those that only came back, plus the growth
    of what is in flight.
    """
    total = seen.total
    ended = total.finished + total.failed + total.aborted
    return max(0.0, ended + total.rejected * (1.0 - retry_share) + total.in_flight_growth)


def from_history(history: History, now: float, lead_seconds: float) -> Demand:
    """Rebuild from what Prometheus remembers; samples that make no sense are left out."""
    cells = tuple(
        Cell(sample.at, sample.interval_seconds, sample.arrivals)
        for sample in sorted(history.samples, key=lambda sample: sample.at)
        if now - KEPT_SECONDS <= sample.at <= now
        and 0.0 < sample.interval_seconds <= KEPT_SECONDS
        and 0.0 <= sample.arrivals < 1e12
    )
    memory = Demand(cells=cells, regime=len(cells))
    return replace(memory, line=_line(memory, lead_seconds))


def observe_arrivals(memory: Demand, seen: Seen, count: float, now: float, lead_seconds: float) -> Demand:
    """Add one look at the counters, of which only what is new since the last look is counted.

    Degraded sight can only report a rise.
    """
    interval, line = seen.interval_seconds, memory.line
    if not seen.visible or (memory.seen_at is not None and now <= memory.seen_at):
        return memory
    if line is not None and _deviation(memory, line, count, interval) > threshold(interval):
        return _restart(memory, Cell(now, interval, count), now + interval)
    if not seen.fresh:
        return memory
    if now < memory.settles_at:
        return _restart(memory, Cell(now, interval, count), memory.settles_at)
    passed = interval if memory.seen_at is None else min(now - memory.seen_at, interval)
    grown, closed = _extend(memory, Cell(now, passed, count * passed / interval), interval)
    if closed:
        grown = _close(grown, lead_seconds)
    return replace(grown, line=_line(grown, lead_seconds))


def threshold(seconds: float) -> float:
    """Deviation that noise alone exceeds `FALSE_ALARMS_PER_DAY` times a day when asked every `seconds`."""
    return normal_quantile(1.0 - min(0.4, FALSE_ALARMS_PER_DAY * round(seconds, 1) / 86_400.0))


def fit(cells: Sequence[Cell], noise: float) -> Line | None:
    """Weighted least squares of the rate over time; None without cells.

    The slope is shrunk by the positive part of 1 - 4 / t² (James and Stein at two standard errors): noise alone shows
    no trend, a clear trend is kept almost whole.
    """
    seconds = sum(cell.seconds for cell in cells)
    if seconds <= 0.0:
        return None
    mean = sum(cell.arrivals for cell in cells) / seconds
    centre = sum(cell.seconds * cell.middle for cell in cells) / seconds
    if len(cells) < SLOPE_CELLS:
        return Line(mean, 0.0, seconds, mean, centre, 0.0)
    spread = covered = 0.0
    for cell in cells:
        offset = cell.middle - centre
        spread += cell.seconds * offset * offset
        covered += cell.arrivals * offset
    slope = covered / spread
    significance = slope * slope * spread / max(noise * mean, 1e-12)
    shrunk = slope * max(0.0, 1.0 - 4.0 / max(significance, 1e-12))
    return Line(max(0.0, mean + shrunk * (cells[-1].ends_at - centre)), shrunk, seconds, mean, centre, slope)


def _line(memory: Demand, lead_seconds: float, skipped: int = 0) -> Line | None:
    """The line of the regime, without the newest `skipped` cells."""
    stop = len(memory.cells) - skipped
    cells = memory.cells[max(0, len(memory.cells) - memory.regime) : stop]
    if not cells:
        return None
    since = cells[-1].ends_at - REACH_LEADS * lead_seconds
    return fit([cell for cell in cells if cell.ends_at > since], memory.noise)


def _deviation(memory: Demand, line: Line, count: float, seconds: float) -> float:
    """Standard deviations between a count and the line carried on to the middle of its interval."""
    expected = line.ahead(0.5 * seconds) * seconds
    return surprise(count, expected) / math.sqrt(memory.noise * (1.0 + seconds / line.seconds))


def _restart(memory: Demand, cell: Cell, settles_at: float) -> Demand:
    """Begin a new regime with the newest interval alone."""
    began = cell.ends_at - cell.seconds
    kept = tuple(old for old in memory.cells if cell.ends_at - KEPT_SECONDS < old.ends_at <= began)
    cells = (*kept, replace(cell, predicted_rps=cell.rate_rps))
    return replace(
        memory,
        cells=cells,
        regime=1,
        settles_at=settles_at,
        seen_at=cell.ends_at,
        line=fit((cell,), memory.noise),
    )


def _extend(memory: Demand, new: Cell, interval: float) -> tuple[Demand, bool]:
    """Grow the newest cell, or begin one; also says whether it now holds a whole interval."""
    cells, regime = memory.cells, memory.regime
    newest = cells[-1] if cells else None
    if newest is not None and newest.predicted_rps is None and newest.seconds < interval and memory.seen_at is not None:
        new = Cell(new.ends_at, newest.seconds + new.seconds, newest.arrivals + new.arrivals)
        cells = cells[:-1]
    else:
        regime += 1
    if cells and cells[0].ends_at < new.ends_at - KEPT_SECONDS:
        cells = cells[1:]
    grown = replace(memory, cells=(*cells, new), seen_at=new.ends_at, regime=min(regime, len(cells) + 1))
    return grown, new.seconds >= 0.999 * interval


def _close(memory: Demand, lead_seconds: float) -> Demand:
    """Learn from a whole cell: how noisy arrivals are, and whether a new regime has begun."""
    cell = memory.cells[-1]
    before = _line(memory, lead_seconds, 1)
    if before is not None:
        memory = replace(memory, dispersion=_dispersion(memory, before, cell))
    if _changed(memory, lead_seconds):
        memory = replace(memory, regime=CHANGE_CELLS)
    line = _line(memory, lead_seconds)
    predicted = None if line is None else line.ahead(lead_seconds)
    return replace(memory, cells=(*memory.cells[:-1], replace(cell, predicted_rps=predicted)))


def _dispersion(memory: Demand, before: Line, cell: Cell) -> float:
    """Moving mean of squared deviations; what counts as a change weighs no more than the test's threshold.

    So one step does not look like noise for long, while traffic that jumps all the time does.
    """
    squared = _deviation(replace(memory, dispersion=1.0), before, cell.arrivals, cell.seconds) ** 2
    bounded = min(squared, memory.noise * threshold(cell.seconds) ** 2)
    return memory.dispersion + FORGETTING * (bounded - memory.dispersion)


def _changed(memory: Demand, lead_seconds: float) -> bool:
    """The newest cells together lie off the line of those before them, and no trend explains it."""
    recent = memory.cells[-CHANGE_CELLS:]
    before = _line(memory, lead_seconds, CHANGE_CELLS)
    if memory.regime <= CHANGE_CELLS or before is None:
        return False
    seconds = sum(cell.seconds for cell in recent)
    count = sum(cell.arrivals for cell in recent)
    limit = threshold(seconds)
    if abs(_deviation(memory, before, count, seconds)) <= limit:
        return False
    whole = _line(memory, lead_seconds)
    if whole is None:
        return True
    explained = max(0.0, whole.mean_rps + whole.fitted_slope * (recent[-1].ends_at - 0.5 * seconds - whole.centre))
    return abs(surprise(count, explained * seconds)) / math.sqrt(memory.noise) > 0.5 * limit
