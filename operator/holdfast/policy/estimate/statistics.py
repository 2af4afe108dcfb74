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
    """Deviation of a count from what was expected, in standard deviations, right far out in the tails too.

    The signed root of the Poisson deviance, 2 (x ln(x / m) - (x - m)), of a count of batches: batches of that size
    have a variance of `dispersion` times the mean. Less than a quarter of a batch is never certain.
    """
    batches, mean = count / dispersion, max(expected / dispersion, 0.25)
    logarithm = batches * (math.log(batches) - math.log(mean)) if batches > 0.0 else 0.0
    return math.copysign(math.sqrt(max(0.0, 2.0 * (logarithm - (batches - mean)))), batches - mean)
