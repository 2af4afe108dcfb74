"""How sure a ratio of paired runs is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

# Two-sided 95 % quantiles of Student's t by degrees of freedom; more degrees take the last one, which is wider.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
# A line takes two.
_LEAST_ADJUSTED = 4
_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and its 95 % interval, of `pairs` pairs; without bounds where there are too few."""

    ratio: float
    low: float
    high: float
    pairs: int


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> Interval:
    """The geometric mean of second / first, by Student's t on the logarithms.

    Pairs in which a value is not positive and finite say nothing sure: with one of them the interval has no bounds.
    """
    count = len(pairs)
    if not count or not all(_sound(pair) for pair in pairs):
        return Interval(math.nan, 0.0, math.inf, count)
    logs = [math.log(second / first) for first, second in pairs]
    middle = fmean(logs)
    if count == 1:
        return Interval(math.exp(middle), 0.0, math.inf, 1)
    half = _T[min(count - 2, len(_T) - 1)] * stdev(logs) / math.sqrt(count)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def adjusted_interval(pairs: Sequence[tuple[float, float]], covariate: Sequence[tuple[float, float]]) -> Interval:
    """The ratio where the covariate of both is the same: a straight line through the logarithms of both ratios.

    What the machine's speed explains is taken away, at the price of one degree of freedom. Too few pairs leave the
    ratio without bounds; a covariate that never differs explains nothing.
    """
    count = len(pairs)
    if count < _LEAST_ADJUSTED or not all(_sound(pair) for pair in (*pairs, *covariate)):
        return Interval(math.nan, 0.0, math.inf, count)
    ys, xs = ([math.log(second / first) for first, second in both] for both in (pairs, covariate))
    mean_x, mean_y = fmean(xs), fmean(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    if spread <= 0.0:
        return ratio_interval(pairs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    middle = mean_y - slope * mean_x
    rest = math.fsum((y - middle - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)) / (count - 2)
    half = _T[min(count - 3, len(_T) - 1)] * math.sqrt(rest * (1.0 / count + mean_x**2 / spread))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def median_interval(ratios: Sequence[float]) -> Interval:
    """The median and its 95 % bootstrap interval; of few ratios that is their whole range."""
    count = len(ratios)
    if not count or any(math.isnan(ratio) for ratio in ratios):
        return Interval(math.nan, 0.0, math.inf, count)
    draw = random.Random(count)
    found = sorted(median(draw.choices(ratios, k=count)) for _ in range(_DRAWS))
    return Interval(median(ratios), found[round(0.025 * _DRAWS)], found[round(0.975 * _DRAWS) - 1], count)


def _sound(pair: tuple[float, float]) -> bool:
    return all(0.0 < value < math.inf for value in pair)
