"""Statistics for decisions: normal quantiles, and counts with over-dispersed Poisson noise."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

NORMAL = NormalDist()


@lru_cache(maxsize=4096)
def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution, 0 < probability < 1."""
    return NORMAL.inv_cdf(probability)


@lru_cache(maxsize=4096)
def quantile_variance(probability: float) -> float:
    """Return the asymptotic variance of a sample quantile of the standard normal distribution.

    It is that for one sample: divide it by the number of samples.
    """
    density = NORMAL.pdf(normal_quantile(probability))
    return probability * (1.0 - probability) / density**2


def surprise(count: float, expected: float, dispersion: float) -> float:
    """Return the deviation of a count from its expectation, in standard deviations, accurate far into the tails.

    It is the signed root of the Poisson deviance, 2 (x ln(x / m) - (x - m)), of a count of batches. Batches of size
    `dispersion` give a variance of `dispersion` times the mean. The expectation is at least a quarter of a batch, so
    that rare events are never certain.
    """
    batches, mean = count / dispersion, max(expected / dispersion, 0.25)
    logarithm = batches * (math.log(batches) - math.log(mean)) if batches > 0.0 else 0.0
    return math.copysign(math.sqrt(max(0.0, 2.0 * (logarithm - (batches - mean)))), batches - mean)
