"""How much may arrive within the lead time: level and trend, and a quantile of what noise adds to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.domain.signals import History
from holdfast.domain.value import value
from holdfast.policy.estimate.arrivals import Arrivals, Cell, from_history, threshold
from holdfast.policy.estimate.bursts import NONE, Bursts, expected_bursts
from holdfast.policy.estimate.statistics import normal_quantile, quantile_variance

REMEMBERED = 256
"""Residuals kept."""

PRIOR_WEIGHT = 16.0
"""Lead times of residuals that weigh as much as the parametric quantile."""

LEAST_ABOVE = 5
"""Residuals above a quantile below which it is not read off them."""

SMOOTHED_SHARE = 0.5
"""Of the lead time: what a rate is averaged over. Shorter fluctuations are not sized for twice: a replica's capacity is
the rate at which the objective holds although arrivals are random."""

RELAPSE = 1e-3
"""Chance at which noise of the estimate alone would call back a replica that was let go."""


@value
class Residuals:
    """What the highest smoothed rate of a lead time had above its prediction, in standard deviations of such a rate."""

    values: tuple[float, ...] = ()
    ranked: tuple[float, ...] = ()
    learned_at: float = 0.0


@value
class Forecast:
    """Requests per second; `wanted_rps` is the quantile of the maximum within `lead_seconds` that sizes are made for.

    `releasable_rps` adds what the estimate itself may be wrong by: only what carries that much lets others go. `bursts`
    are what these are made for where calm arrivals ask for less.
    """

    level_rps: float
    wanted_rps: float
    releasable_rps: float
    quantile: float
    lead_seconds: float
    bursts: Bursts = NONE


def recall(history: History, now: float, lead_seconds: float) -> tuple[Arrivals, Residuals]:
    """Learn from what Prometheus remembers of arrivals what looking at them would have taught."""
    memory, residuals = Arrivals(), Residuals()
    for memory in from_history(history, now, lead_seconds):
        residuals = learn_residuals(residuals, memory, lead_seconds)
    return memory, residuals


def learn_residuals(memory: Residuals, demand: Arrivals, lead_seconds: float) -> Residuals:
    """Judge the prediction made one lead time before the newest whole cell, once per cell."""
    cells = demand.cells
    newest = next((cell for cell in reversed(cells[-2:]) if cell.predicted_rps is not None), None)
    if newest is None or newest.ends_at <= memory.learned_at:
        return memory
    since = newest.ends_at - lead_seconds
    start = next((cell for cell in reversed(cells) if cell.ends_at <= since), None)
    if start is None or start.predicted_rps is None or since - start.ends_at > 2.0 * newest.seconds:
        return Residuals(memory.values, memory.ranked, newest.ends_at)
    seconds = smoothed_seconds(newest.seconds, lead_seconds)
    highest = _highest_rps([cell for cell in cells if start.ends_at < cell.ends_at <= newest.ends_at], seconds)
    deviation = _deviation_rps(start.predicted_rps, demand.noise, seconds)
    limit = threshold(seconds)
    value = max(-limit, min(limit, (highest - start.predicted_rps) / deviation))
    values = (*memory.values, value)[-REMEMBERED:]
    return Residuals(values, tuple(sorted(values)), newest.ends_at)


def forecast(
    demand: Arrivals, residuals: Residuals, quantile: float, lead_seconds: float, interval: float
) -> Forecast | None:
    """Return the forecast; None where no arrival rate was ever seen."""
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
    bursts = expected_bursts(demand.rises, demand.seen_at or 0.0, quantile, lead_seconds)
    return Forecast(
        level_rps=line.level_rps,
        wanted_rps=max(wanted, bursts.rate_rps),
        releasable_rps=max(releasable, bursts.rate_rps),
        quantile=quantile,
        lead_seconds=lead_seconds,
        bursts=bursts if bursts.rate_rps > wanted else NONE,
    )


def smoothed_seconds(interval: float, lead_seconds: float) -> float:
    """Return over how long a rate is averaged, at least one counting interval."""
    return max(interval, SMOOTHED_SHARE * lead_seconds, 1.0)


def _highest_rps(cells: Sequence[Cell], seconds: float) -> float:
    """Highest rate over any consecutive cells that span `seconds`; over all of them where they do not."""
    highest, first, span, arrivals = 0.0, 0, 0.0, 0.0
    for cell in cells:
        span, arrivals = span + cell.seconds, arrivals + cell.arrivals
        while span - cells[first].seconds >= seconds:
            span, arrivals, first = span - cells[first].seconds, arrivals - cells[first].arrivals, first + 1
        if span >= seconds:
            highest = max(highest, arrivals / span)
    return highest or (arrivals / span if span > 0.0 else 0.0)


def _uncertainty(
    residuals: Residuals, quantile: float, seconds: float, regime_seconds: float, lead_seconds: float
) -> float:
    """Standard error of what is wanted, in standard deviations of one cell.

    That of the level, doubled for the slope that comes and goes with it, and that of a quantile of so many residuals,
    of which one per lead time is independent.
    """
    level = 4.0 * seconds / max(regime_seconds, seconds)
    independent = len(residuals.values) * seconds / max(lead_seconds, seconds) + PRIOR_WEIGHT
    known = _best_known(quantile, len(residuals.values))
    return math.sqrt(level + quantile_variance(round(known, 3)) / independent)


def residual_quantile(residuals: Residuals, quantile: float, cells: float, leads: float) -> float:
    """Quantile of the maximum over `cells` cells in standard deviations: what was seen, and what theory says.

    Residuals of one lead time see the same events: what was seen weighs as the `leads` lead times it spans.

    Theory: the maximum of m independent normal cells stays below the q^(1/m) quantile of one. Beyond the quantiles
    that so many residuals show, it continues from the last of them.
    """
    count = len(residuals.values)
    theory = _theory(quantile, cells)
    if count < LEAST_ABOVE:
        return theory
    known = _best_known(quantile, count)
    seen = residuals.ranked[max(0, math.ceil(known * count) - 1)]
    share = leads / (leads + PRIOR_WEIGHT)
    return theory + share * (seen - _theory(known, cells))


def _best_known(quantile: float, count: int) -> float:
    """The quantile itself, or the highest one that a few residuals still lie above."""
    return min(quantile, max(0.5, 1.0 - LEAST_ABOVE / max(count, 1)))


def _theory(quantile: float, cells: float) -> float:
    return normal_quantile(round(quantile ** (1.0 / max(1.0, round(cells))), 6))


def _deviation_rps(rate_rps: float, noise: float, seconds: float) -> float:
    """Standard deviation of a rate counted over `seconds`; one request is the least that noise may be."""
    return math.sqrt(noise * max(rate_rps, 1.0 / seconds) / seconds)
