"""How sure a ratio of paired runs is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Two-sided 95 % quantiles of Student's t by degrees of freedom; more degrees take the last one, which is wider.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


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
    if not count or not all(0.0 < value < math.inf for pair in pairs for value in pair):
        return Interval(math.nan, 0.0, math.inf, count)
    logs = [math.log(second / first) for first, second in pairs]
    middle = fmean(logs)
    if count == 1:
        return Interval(math.exp(middle), 0.0, math.inf, 1)
    half = _T[min(count - 2, len(_T) - 1)] * stdev(logs) / math.sqrt(count)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)
