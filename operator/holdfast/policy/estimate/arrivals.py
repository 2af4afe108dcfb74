"""Estimate the arrival rate, its trend and its noise from counts of requests.

Arrivals are stored in cells of about one counting interval each. The trailing cells since the last abrupt change form
the regime. A regression line over the regime gives level and trend. A statistical test finds changes; exponential
smoothing was rejected. So a step is followed within one interval, and noise is averaged over the whole regime.

Source: docs/designs/0017-control-law.md, docs/designs/0009-one-forecast.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from holdfast.domain.signals import History
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.maths.normal import normal_quantile, surprise
from holdfast.maths.trend import SLOPE_CELLS, Cell, Line, Sums, sum_up
from holdfast.policy.estimate.bursts import KEPT_SECONDS, Rise, with_rise

FALSE_ALARMS_PER_DAY = 4.0
"""How often per day noise alone may be taken for a change.

Each false alarm costs a replica for some minutes. More certainty would cost goodput at every true step.
"""

CHANGE_CELLS = (1, 2, 4, 8, 16)
"""Numbers of whole cells over which changes are tested; steep rises are tested in the newest interval already."""

OUTLIER = 2.5
"""Standard deviations beyond which a deviation is not attributed to noise alone."""

PRIOR_DISPERSION, PRIOR_CELLS, REMEMBERED_CELLS = 2.0, 8, 128
"""Noise assumed at the start, its weight in cells, and the cells over which the noise is averaged."""


@value
class Arrivals:
    """State of the arrival estimate; `regime` counts the trailing cells since the last abrupt change.

    `dispersion` is the variance of counts relative to Poisson noise, learned from `judged` cells. Until `settles_at`
    the newest interval still contains arrivals from before a rise. `seen_at` is the time of the newest count. `rises`
    are the abrupt rises.
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
        """Start of the regime, in seconds since the epoch."""
        return self.cells[-self.regime].ends_at - self.cells[-self.regime].seconds if self.regime else 0.0

    @property
    def level_rps(self) -> float:
        """Present rate; 0 where none was ever observed."""
        return 0.0 if self.line is None else self.line.level_rps

    @property
    def noise(self) -> float:
        """Dispersion, never below that of Poisson arrivals."""
        return max(1.0, self.dispersion)


def from_history(history: History, now: float, lead_seconds: float) -> Iterator[Arrivals]:
    """Replay the counts of Prometheus, and yield the state after each of them.

    Samples with impossible numbers are skipped.
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
    """Add one observation of the counters; only the time since the last observation is counted.

    Degraded metrics can only report a rise. `strained`: requests are refused or late, which is further evidence of a
    rise.
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
    """Add the count of the interval that ends at `now`."""
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
    return _close(grown, lead_seconds) if whole or line is None else grown


@lru_cache(maxsize=4096)
def threshold(seconds: float, corroborated: bool = False) -> float:
    """Return the deviation that noise alone exceeds `FALSE_ALARMS_PER_DAY` times a day, in standard deviations.

    The rate is that of all tests over intervals of so many seconds together. Where a second sign corroborates the
    change, each of the two signs only needs the square root of that chance.
    """
    tests_per_day = 86_400.0 / round(max(seconds, 0.1), 1) * (1 + len(CHANGE_CELLS))
    chance = min(0.16, FALSE_ALARMS_PER_DAY / tests_per_day)
    return normal_quantile(1.0 - (math.sqrt(chance) if corroborated else chance))


def _deviation(noise: float, line: Line, count: float, seconds: float) -> float:
    """Return the deviation of a count from the line at the middle of its interval, in standard deviations."""
    expected = line.ahead(0.5 * seconds) * seconds
    return surprise(count, expected, noise) / math.sqrt(1.0 + seconds / line.seconds)


def _restart(memory: Arrivals, cell: Cell, settles_at: float, lead_seconds: float) -> Arrivals:
    """Begin a new regime after a rise, with the newest interval as its only cell."""
    began = cell.ends_at - cell.seconds
    retained = tuple(old for old in memory.cells if cell.ends_at - KEPT_SECONDS < old.ends_at <= began)
    cells = (*retained, replace(cell, predicted_rps=cell.rate_rps))
    line = Line(cell.rate_rps, 0.0, cell.seconds)
    rises = _risen(memory, line, cell.ends_at, lead_seconds)
    return replace(memory, cells=cells, regime=1, settles_at=settles_at, seen_at=cell.ends_at, line=line, rises=rises)


def _risen(memory: Arrivals, line: Line, now: float, lead_seconds: float) -> tuple[Rise, ...]:
    """Return the abrupt rises, with the rise to the new line added."""
    if memory.line is None:
        return memory.rises
    return with_rise(memory.rises, Rise(now, memory.line.level_rps, line.level_rps), lead_seconds)


def _extend(memory: Arrivals, new: Cell, interval: float) -> tuple[Arrivals, bool]:
    """Extend the newest cell or begin a new one; also return whether it now holds a whole interval."""
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
    """Learn from a whole cell: the noise, whether a new regime has begun, and the regime's line."""
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
    """Update the moving mean of squared deviations, with each deviation bounded to `OUTLIER` (Huber).

    The bound makes a step count as a change and not as noise. Traffic that jumps all the time raises the bound with the
    mean. A cell with less than one expected request gets proportionally less weight.
    """
    squared = _deviation(1.0, before, cell.arrivals, cell.seconds) ** 2
    bounded = min(squared, memory.noise * OUTLIER**2)
    judged = min(memory.judged + 1, REMEMBERED_CELLS)
    weight = min(1.0, before.ahead(0.5 * cell.seconds) * cell.seconds) / judged
    return replace(memory, dispersion=memory.dispersion + weight * (bounded - memory.dispersion), judged=judged)


def _changed(sums: Mapping[int, Sums], regime: int, noise: float) -> int:
    """Return how many cells ago a new regime began; 0 where no test finds a change.

    The regime begins where the newest cells deviate most from the line through the cells before them.
    """
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
    """Return whether one straight line through all cells explains the newest ones: a slope is not a change."""
    if whole.cells < SLOPE_CELLS:
        return False
    explained = whole.rate_at(whole.origin - 0.5 * seconds, whole.slope) * seconds
    return abs(surprise(count, explained, noise)) <= 0.5 * limit
