"""Counts of requests -> how many arrive per second now, how that moves, and how noisy it is.

Arrivals are kept as cells of about one counting interval each. The trailing cells since the last abrupt change are the
regime: its regression line gives level and trend. A change is found by a test and not by smoothing, so that a step is
followed within one interval and noise is averaged over all of the regime.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from holdfast.domain.signals import History
from holdfast.domain.value import value
from holdfast.policy.estimate.bursts import KEPT_SECONDS, Rise, with_rise
from holdfast.policy.estimate.statistics import normal_quantile, surprise
from holdfast.policy.estimate.traffic import Seen

FALSE_ALARMS_PER_DAY = 4.0
"""How often noise alone may be taken for a change: each costs a replica for some minutes, waiting for more certainty
costs goodput at every true step."""

CHANGE_CELLS = (1, 2, 4, 8, 16)
"""Over this many whole cells changes are looked for; steep rises already in the newest interval."""

SLOPE_CELLS = 4
"""Fewest cells that a slope is read from."""

OUTLIER = 2.5
"""Standard deviations beyond which a cell is not taken for noise alone."""

PRIOR_DISPERSION, PRIOR_CELLS, REMEMBERED_CELLS = 2.0, 8, 128
"""Noise assumed before any was seen, the cells it weighs as much as, and those over which the rest is averaged."""


@value
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


@value
class Line:
    """Regression of a regime: rate at its newest end, slope per second, and the seconds of data behind them.

    `slope` is what is left of the least-squares one after shrinking by its uncertainty.
    """

    level_rps: float
    slope: float
    seconds: float

    def ahead(self, seconds: float) -> float:
        """Rate that many seconds after the end; growth beyond double is not believed."""
        return min(max(0.0, self.level_rps + self.slope * seconds), 2.0 * self.level_rps)


@value
class Arrivals:
    """What is remembered of arrivals; `regime` counts the trailing cells since the last abrupt change.

    `dispersion` is the variance of counts relative to Poisson noise, learned from `judged` cells. Until `settles_at`
    the newest interval still holds some of what was before a rise. `seen_at` is the time of the newest count. `rises`
    are the abrupt ones.
    """

    cells: tuple[Cell, ...] = ()
    regime: int = 0
    dispersion: float = PRIOR_DISPERSION
    judged: int = PRIOR_CELLS
    settles_at: float = 0.0
    seen_at: float | None = None
    line: Line | None = None
    rises: tuple[Rise, ...] = ()

    @property
    def steady_since(self) -> float:
        """When the regime began."""
        return self.cells[-self.regime].ends_at - self.cells[-self.regime].seconds if self.regime else 0.0

    @property
    def noise(self) -> float:
        """Dispersion, never below that of Poisson arrivals."""
        return max(1.0, self.dispersion)


def arrived_requests(seen: Seen, retry_share: float) -> float:
    """Requests that arrived during the interval, less the refused ones that only came back."""
    return max(0.0, seen.arrived - seen.refused * retry_share)


def from_history(history: History, now: float, lead_seconds: float) -> Iterator[Arrivals]:
    """What was remembered after each count that Prometheus still has, as if it had been looked at when it was new.

    Samples that make no sense are left out.
    """
    usable = [
        sample
        for sample in history.samples
        if now - KEPT_SECONDS <= sample.at <= now
        and 0.0 < sample.interval_seconds <= KEPT_SECONDS
        and 0.0 <= sample.arrivals < 1e12
    ]
    memory = Arrivals()
    for sample in sorted(usable, key=lambda sample: sample.at):
        memory = _observe(memory, sample.interval_seconds, sample.arrivals, sample.at, lead_seconds)
        yield memory


def observe_arrivals(
    memory: Arrivals, seen: Seen, count: float, now: float, lead_seconds: float, strained: bool = False
) -> Arrivals:
    """Add one look at the counters, of which only what is new since the last look is counted.

    Degraded sight can only report a rise. `strained`: requests are refused or late, which speaks for a rise by itself.
    """
    if not seen.visible:
        return memory
    return _observe(memory, seen.interval_seconds, count, now, lead_seconds, strained, seen.fresh)


def _observe(
    memory: Arrivals,
    interval: float,
    count: float,
    now: float,
    lead_seconds: float,
    strained: bool = False,
    fresh: bool = True,
) -> Arrivals:
    """Add the count of the interval that ends now."""
    line = memory.line
    if memory.seen_at is not None and now <= memory.seen_at:
        return memory
    if line is not None and _deviation(memory.noise, line, count, interval) > threshold(interval, strained):
        return _restart(memory, Cell(now, interval, count), now + interval, lead_seconds)
    if not fresh:
        return memory
    if now < memory.settles_at:
        return _restart(memory, Cell(now, interval, count), memory.settles_at, lead_seconds)
    passed = interval if memory.seen_at is None else min(now - memory.seen_at, interval)
    grown, whole = _extend(memory, Cell(now, passed, count * passed / interval), interval)
    if whole or line is None:
        return _close(grown, lead_seconds)
    return grown


@lru_cache(maxsize=4096)
def threshold(seconds: float, corroborated: bool = False) -> float:
    """Deviation that noise alone exceeds `FALSE_ALARMS_PER_DAY` times a day, over all tests of that many seconds.

    Where another sign says the same, each of the two need only be as unlikely as the root of that.
    """
    tests_per_day = 86_400.0 / round(max(seconds, 0.1), 1) * (1 + len(CHANGE_CELLS))
    chance = min(0.16, FALSE_ALARMS_PER_DAY / tests_per_day)
    return normal_quantile(1.0 - (math.sqrt(chance) if corroborated else chance))


@value
class Sums:
    """Moments of cells with times counted from `origin`: enough for a regression, and they add and subtract."""

    origin: float
    cells: int = 0
    seconds: float = 0.0
    times: float = 0.0  # seconds x middle
    squares: float = 0.0  # seconds x middle²
    arrivals: float = 0.0
    products: float = 0.0  # arrivals x middle

    def less(self, other: Sums) -> Sums:
        """What is left without the cells of the other."""
        return Sums(
            self.origin,
            self.cells - other.cells,
            self.seconds - other.seconds,
            self.times - other.times,
            self.squares - other.squares,
            self.arrivals - other.arrivals,
            self.products - other.products,
        )

    @property
    def slope(self) -> float:
        """Weighted least squares of the rate over time."""
        spread = self.squares - self.times**2 / self.seconds
        return (self.products - self.times * self.arrivals / self.seconds) / max(spread, 1e-9)

    def rate_at(self, time: float, slope: float) -> float:
        """Rate on the line of that slope through the mean."""
        mean, centre = self.arrivals / self.seconds, self.times / self.seconds
        return max(0.0, mean + slope * (time - self.origin - centre))

    def line(self, noise: float, ended_ago: float = 0.0) -> Line:
        """The line at the origin, or so long before it, its slope shrunk by the positive part of 1 - 4 / t².

        (James and Stein at two standard errors: noise alone shows no trend, a clear trend is kept almost whole.)
        """
        if self.cells < SLOPE_CELLS:
            return Line(self.arrivals / self.seconds, 0.0, self.seconds)
        slope = self.slope
        spread = self.squares - self.times**2 / self.seconds
        significance = slope * slope * spread * self.seconds / max(noise * self.arrivals, 1e-12)
        shrunk = slope * max(0.0, 1.0 - 4.0 / max(significance, 1e-12))
        return Line(self.rate_at(self.origin - ended_ago, shrunk), shrunk, self.seconds)


def sum_up(cells: Sequence[Cell], counts: Collection[int] = ()) -> dict[int, Sums]:
    """Sums of the newest 1, 2, ... cells for each of the counts wanted, and of all; the newest end is the origin."""
    origin, wanted, sums = cells[-1].ends_at, {*counts, len(cells)}, {}
    seconds = times = squares = arrivals = products = 0.0
    for number, cell in enumerate(reversed(cells), start=1):
        middle = cell.ends_at - 0.5 * cell.seconds - origin
        seconds += cell.seconds
        times += cell.seconds * middle
        squares += cell.seconds * middle * middle
        arrivals += cell.arrivals
        products += cell.arrivals * middle
        if number in wanted:
            sums[number] = Sums(origin, number, seconds, times, squares, arrivals, products)
    return sums


def _deviation(noise: float, line: Line, count: float, seconds: float) -> float:
    """Standard deviations between a count and the line carried on to the middle of its interval."""
    expected = line.ahead(0.5 * seconds) * seconds
    return surprise(count, expected, noise) / math.sqrt(1.0 + seconds / line.seconds)


def _restart(memory: Arrivals, cell: Cell, settles_at: float, lead_seconds: float) -> Arrivals:
    """Begin a new regime with the newest interval alone, after a rise."""
    began = cell.ends_at - cell.seconds
    kept = tuple(old for old in memory.cells if cell.ends_at - KEPT_SECONDS < old.ends_at <= began)
    cells = (*kept, replace(cell, predicted_rps=cell.rate_rps))
    line = Line(cell.rate_rps, 0.0, cell.seconds)
    rises = _risen(memory, line, cell.ends_at, lead_seconds)
    return replace(memory, cells=cells, regime=1, settles_at=settles_at, seen_at=cell.ends_at, line=line, rises=rises)


def _risen(memory: Arrivals, line: Line, now: float, lead_seconds: float) -> tuple[Rise, ...]:
    """The abrupt rises, with that to a new line."""
    if memory.line is None:
        return memory.rises
    return with_rise(memory.rises, Rise(now, memory.line.level_rps, line.level_rps), lead_seconds)


def _extend(memory: Arrivals, new: Cell, interval: float) -> tuple[Arrivals, bool]:
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


def _close(memory: Arrivals, lead_seconds: float) -> Arrivals:
    """Learn from a whole cell: how noisy arrivals are, whether a new regime has begun, and the regime's line."""
    cell, regime = memory.cells[-1], memory.regime
    sums = sum_up(memory.cells[-regime:], CHANGE_CELLS)
    changed = _changed(sums, regime, memory.noise)
    if regime > 1 and not changed:
        memory = _with_dispersion(memory, sums[regime].less(sums[1]).line(memory.noise, cell.seconds), cell)
    regime = changed or regime
    line = sums[regime].line(memory.noise)
    cells = (*memory.cells[:-1], Cell(cell.ends_at, cell.seconds, cell.arrivals, line.ahead(lead_seconds)))
    rose = changed and memory.line is not None and line.level_rps > memory.line.level_rps
    rises = _risen(memory, line, cell.ends_at, lead_seconds) if rose else memory.rises
    return replace(memory, cells=cells, regime=regime, line=line, rises=rises)


def _with_dispersion(memory: Arrivals, before: Line, cell: Cell) -> Arrivals:
    """Moving mean of squared deviations, each bounded to `OUTLIER` (Huber): a step is a change and not noise.

    Traffic that jumps all the time raises the bound with the mean. Where less than one request was expected, a cell
    says that much less about noise.
    """
    squared = _deviation(1.0, before, cell.arrivals, cell.seconds) ** 2
    bounded = min(squared, memory.noise * OUTLIER**2)
    judged = min(memory.judged + 1, REMEMBERED_CELLS)
    weight = min(1.0, before.ahead(0.5 * cell.seconds) * cell.seconds) / judged
    return replace(memory, dispersion=memory.dispersion + weight * (bounded - memory.dispersion), judged=judged)


def _changed(sums: Mapping[int, Sums], regime: int, noise: float) -> int:
    """How many cells ago a new regime began: where the newest lie farthest off the line before them; 0 if none do."""
    whole, farthest, began = sums[regime], 1.0, 0
    for cells in CHANGE_CELLS:
        if cells >= regime:
            break
        recent = sums[cells]
        count, seconds = recent.arrivals, recent.seconds
        limit = threshold(seconds)
        deviation = abs(_deviation(noise, whole.less(recent).line(noise, seconds), count, seconds)) / limit
        if deviation > farthest and not _trend(whole, count, seconds, noise, limit):
            farthest, began = deviation, cells
    return began


def _trend(whole: Sums, count: float, seconds: float, noise: float, limit: float) -> bool:
    """One straight line through everything explains the newest cells: no change, but a slope."""
    if whole.cells < SLOPE_CELLS:
        return False
    explained = whole.rate_at(whole.origin - 0.5 * seconds, whole.slope) * seconds
    return abs(surprise(count, explained, noise)) <= 0.5 * limit
