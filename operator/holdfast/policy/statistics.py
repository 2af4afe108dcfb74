"""The little statistics that decisions need: normal quantiles, and counts with over-dispersed Poisson noise."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_STANDARD = NormalDist()


@lru_cache(maxsize=4096)
def normal_quantile(probability: float) -> float:
    """Value that a standard normal stays below with this probability, 0 < probability < 1."""
    return _STANDARD.inv_cdf(probability)


@lru_cache(maxsize=4096)
def quantile_variance(probability: float) -> float:
    """Variance of a quantile read off one observation each of a standard normal, to be divided by their number."""
    density = _STANDARD.pdf(normal_quantile(probability))
    return probability * (1.0 - probability) / density**2


def surprise(count: float, expected: float, dispersion: float) -> float:
    """Deviation of a count from what was expected, in standard deviations, right for small counts too.

    Anscombe's transform (2 sqrt(x + 3/8) of a Poisson count has variance 1) of a count of batches: variance of
    `dispersion` times the mean is what batches of that size have.
    """
    return 2.0 * (math.sqrt(count / dispersion + 0.375) - math.sqrt(expected / dispersion + 0.375))
