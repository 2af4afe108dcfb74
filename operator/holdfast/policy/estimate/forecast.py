"""Forecast the arrivals within the lead time: level and trend, plus a quantile of the noise.

Source: docs/designs/0009-one-forecast.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.signals import History
from holdfast.domain.value import value
from holdfast.maths.normal import normal_quantile, quantile_variance
from holdfast.maths.trend import highest_rps
from holdfast.policy.estimate.arrivals import Arrivals, from_history, threshold
from holdfast.policy.estimate.bursts import NONE, Bursts, expected_bursts

REMEMBERED = 256
"""Residuals retained."""

PRIOR_WEIGHT = 16.0
"""Weight of the parametric quantile, in lead times of residuals."""

LEAST_ABOVE = 5
"""Fewest residuals above a quantile for the quantile to be read from the residuals."""

SMOOTHED_SHARE = 0.5
"""Share of the lead time over which a rate is averaged.

Shorter fluctuations must not be provisioned for twice: a replica's capacity is the rate at which the objective holds
for random arrivals.
"""

RELAPSE = 1e-3
"""Chance that noise of the estimate alone reverses a scale-down."""


@value
class Residuals:
    """Deviations of the highest smoothed rate of a lead time from its prediction, in standard deviations."""

    values: tuple[float, ...] = ()
    ranked: tuple[float, ...] = ()
    learned_at: float = 0.0


@value
class Forecast:
    """Requests per second; `wanted_rps` is the quantile of the maximum within `lead_seconds`, which sizes must carry.

    `releasable_rps` adds the estimation error: replicas are only removed if the remaining ones carry that much.
    `bursts` has rises where recurring bursts raise `wanted_rps` above what steady arrivals need.
    """

    level_rps: float
    wanted_rps: float
    releasable_rps: float
    quantile: float
    lead_seconds: float
    bursts: Bursts = NONE

    @property
    def foreseen_rps(self) -> float:
        """The level, or the burst that is due."""
        return self.wanted_rps if self.bursts.rises and self.bursts.highest_rps > 0.0 else self.level_rps


def recall(history: History, now: float, lead_seconds: float) -> tuple[Arrivals, Residuals]:
    """Learn arrivals and residuals from the history of Prometheus, as observation would have done."""
    memory, residuals = Arrivals(), Residuals()
    for memory in from_history(history, now, lead_seconds):
        residuals = learn_residuals(residuals, memory, lead_seconds)
    return memory, residuals


def learn_residuals(memory: Residuals, demand: Arrivals, lead_seconds: float) -> Residuals:
    """Add the residual of the prediction made one lead time before the newest whole cell, once per cell."""
    cells = demand.cells
    newest = next((cell for cell in reversed(cells[-2:]) if cell.predicted_rps is not None), None)
    if newest is None or newest.ends_at <= memory.learned_at:
        return memory
    since = newest.ends_at - lead_seconds
    start = next((cell for cell in reversed(cells) if cell.ends_at <= since), None)
    if start is None or start.predicted_rps is None or since - start.ends_at > 2.0 * newest.seconds:
        return Residuals(memory.values, memory.ranked, newest.ends_at)
    seconds = smoothed_seconds(newest.seconds, lead_seconds)
    highest = highest_rps([cell for cell in cells if start.ends_at < cell.ends_at <= newest.ends_at], seconds)
    deviation = _deviation_rps(start.predicted_rps, demand.noise, seconds)
    limit = threshold(seconds)
    value = max(-limit, min(limit, (highest - start.predicted_rps) / deviation))
    values = (*memory.values, value)[-REMEMBERED:]
    return Residuals(values, tuple(sorted(values)), newest.ends_at)


def forecast(
    demand: Arrivals,
    residuals: Residuals,
    quantile: float,
    lead_seconds: float,
    interval: float,
    spare_requests: float = math.inf,
) -> Forecast | None:
    """Return the forecast, None where no arrival rate was ever observed; `spare_requests` may still be late."""
    line = demand.line
    if line is None:
        return None
    expected = max(line.level_rps, line.ahead(lead_seconds))
    seconds = smoothed_seconds(interval, lead_seconds)
    deviation = _deviation_rps(expected, demand.noise, seconds)
    leads = len(residuals.values) * interval / max(lead_seconds, interval)
    wanted = max(0.0, expected + residual_quantile(residuals, quantile, lead_seconds / seconds, leads) * deviation)
    uncertainty = deviation * _uncertainty(residuals, quantile, seconds, line.seconds, lead_seconds)
    releasable = wanted + normal_quantile(1.0 - RELAPSE) * uncertainty
    bursts = expected_bursts(demand.rises, demand.seen_at or 0.0, quantile, lead_seconds, spare_requests)
    return Forecast(
        level_rps=line.level_rps,
        wanted_rps=max(wanted, bursts.rate_rps),
        releasable_rps=max(releasable, bursts.rate_rps),
        quantile=quantile,
        lead_seconds=lead_seconds,
        bursts=bursts if bursts.rate_rps > wanted else replace(bursts, rises=0, rate_rps=0.0),
    )


def smoothed_seconds(interval: float, lead_seconds: float) -> float:
    """Return the averaging time of a rate, at least one counting interval."""
    return max(interval, SMOOTHED_SHARE * lead_seconds, 1.0)


def _uncertainty(
    residuals: Residuals, quantile: float, seconds: float, regime_seconds: float, lead_seconds: float
) -> float:
    """Return the standard error of the wanted rate, in standard deviations of one smoothed rate.

    It combines the error of the level and that of the quantile of the residuals. The level's variance is multiplied by
    four, because the slope's error adds to it. Only one residual per lead time is independent.
    """
    level = 4.0 * seconds / max(regime_seconds, seconds)
    independent = len(residuals.values) * seconds / max(lead_seconds, seconds) + PRIOR_WEIGHT
    known = _best_known(quantile, len(residuals.values))
    return math.sqrt(level + quantile_variance(round(known, 3)) / independent)


def residual_quantile(residuals: Residuals, quantile: float, cells: float, leads: float) -> float:
    """Return the quantile of the maximum over `cells` cells in standard deviations, from residuals and theory.

    Residuals within one lead time observe the same events. So the observed quantile gets the weight of the `leads` lead
    times that the residuals span.

    Theory: the maximum of m independent normal cells stays below the q^(1/m) quantile of one cell. Beyond the highest
    quantile that the residuals can show, the theoretical curve continues from there.
    """
    count = len(residuals.values)
    theory = _theory(quantile, cells)
    if count < LEAST_ABOVE:
        return theory
    known = _best_known(quantile, count)
    observed = residuals.ranked[max(0, math.ceil(known * count) - 1)]
    share = leads / (leads + PRIOR_WEIGHT)
    return theory + share * (observed - _theory(known, cells))


def _best_known(quantile: float, count: int) -> float:
    """Return the quantile, or the highest one that `LEAST_ABOVE` residuals still exceed."""
    return min(quantile, max(0.5, 1.0 - LEAST_ABOVE / max(count, 1)))


def _theory(quantile: float, cells: float) -> float:
    """Return the quantile of the maximum of so many independent normal cells."""
    return normal_quantile(round(quantile ** (1.0 / max(1.0, round(cells))), 6))


def _deviation_rps(rate_rps: float, noise: float, seconds: float) -> float:
    """Return the standard deviation of a rate counted over `seconds`; the noise is at least that of one request."""
    return math.sqrt(noise * max(rate_rps, 1.0 / seconds) / seconds)
