"""A line through counts over time: weighted least squares, with a slope that noise alone does not show."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.domain.value import value

SLOPE_CELLS = 4
"""Fewest cells for which a slope is computed."""


@value
class Cell:
    """Arrivals during the `seconds` before `ends_at`.

    `predicted_rps` is the rate that was predicted at that time for one lead time later.
    """

    ends_at: float
    seconds: float
    arrivals: float
    predicted_rps: float | None = None

    @property
    def rate_rps(self) -> float:
        """Requests per second during the cell."""
        return self.arrivals / self.seconds

    @property
    def middle(self) -> float:
        """Middle of the cell, in seconds since the epoch."""
        return self.ends_at - 0.5 * self.seconds


@value
class Line:
    """Regression line of a regime: the rate at its newest end, the slope per second, and its seconds of data.

    `slope` is the least-squares slope, shrunk by its uncertainty.
    """

    level_rps: float
    slope: float
    seconds: float

    def ahead(self, seconds: float) -> float:
        """Return the rate so many seconds after the end; growth beyond twice the level is not extrapolated."""
        return min(max(0.0, self.level_rps + self.slope * seconds), 2.0 * self.level_rps)


class Sums(NamedTuple):
    """Moments of cells, with times relative to `origin`; they suffice for a regression, and can be subtracted."""

    origin: float
    cells: int = 0
    seconds: float = 0.0
    times: float = 0.0  # seconds x middle
    squares: float = 0.0  # seconds x middle²
    arrivals: float = 0.0
    products: float = 0.0  # arrivals x middle

    def less(self, other: Sums) -> Sums:
        """Return the sums without the cells of `other`."""
        return Sums._make([self.origin, *map(operator.sub, self[1:], other[1:])])

    @property
    def spread(self) -> float:
        """Weighted sum of the squared distances of the cells from their centre, seconds³."""
        return self.squares - self.times**2 / self.seconds

    @property
    def slope(self) -> float:
        """Weighted least-squares slope of the rate over time."""
        return (self.products - self.times * self.arrivals / self.seconds) / max(self.spread, 1e-9)

    def rate_at(self, time: float, slope: float) -> float:
        """Return the rate at a time on the line with this slope through the mean."""
        mean, centre = self.arrivals / self.seconds, self.times / self.seconds
        return max(0.0, mean + slope * (time - self.origin - centre))

    def line(self, noise: float, ended_ago: float = 0.0) -> Line:
        """Return the line at the origin, or at `ended_ago` seconds before it, with a shrunk slope.

        The slope is multiplied by the positive part of 1 - 4 / t² (James and Stein, at two standard errors). So noise
        alone shows no trend, and a clear trend is retained almost entirely.
        """
        if self.cells < SLOPE_CELLS:
            return Line(self.arrivals / self.seconds, 0.0, self.seconds)
        slope = self.slope
        significance = slope * slope * self.spread * self.seconds / max(noise * self.arrivals, 1e-12)
        shrunk = slope * max(0.0, 1.0 - 4.0 / max(significance, 1e-12))
        return Line(self.rate_at(self.origin - ended_ago, shrunk), shrunk, self.seconds)


def sum_up(cells: Sequence[Cell], counts: Collection[int] = ()) -> dict[int, Sums]:
    """Return the sums of the newest n cells for each requested n, and of all cells; the newest end is the origin."""
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


def highest_rps(cells: Sequence[Cell], seconds: float) -> float:
    """Return the highest rate over consecutive cells that span `seconds`, or over all cells if they span less."""
    highest, first, span, arrivals = 0.0, 0, 0.0, 0.0
    for cell in cells:
        span, arrivals = span + cell.seconds, arrivals + cell.arrivals
        while span - cells[first].seconds >= seconds:
            span, arrivals, first = span - cells[first].seconds, arrivals - cells[first].arrivals, first + 1
        if span >= seconds:
            highest = max(highest, arrivals / span)
    return highest or (arrivals / span if span > 0.0 else 0.0)
