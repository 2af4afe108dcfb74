"""Adapt the headroom: the error budget moves the quantile that sizes are made for (control law, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.value import value
from holdfast.policy.estimate.class_budgets import ClassState, hardest

LOWEST, HIGHEST = 0.05, 0.9995
FIRST = 0.9
"""Quantile of a new service: cheap in the fluid study, and safe until verdicts exist."""


@value
class Headroom:
    """The adapted quantile, and the quantile in force.

    `sizing` is in force; it does not rise while ordered replicas are starting.
    """

    quantile: float = FIRST
    sizing: float = FIRST


def recalled(quantile: float | None) -> Headroom:
    """Return the headroom from before a restart; the initial one where it is unknown."""
    if quantile is None:
        return Headroom()
    bounded = min(HIGHEST, max(LOWEST, quantile))
    return Headroom(bounded, bounded)


def follow(
    memory: Headroom,
    classes: Sequence[ClassState],
    level_rps: float,
    frozen: bool,
    starting: bool = False,
    short: bool = False,
    ample: bool = False,
) -> Headroom:
    """Take the step of the class that is hardest to keep, or a higher one of another class that burns its budget.

    `frozen` is the anti-windup: headroom does not determine the size at the moment, or cannot help. While a service is
    `short` of replicas that headroom requires, q may only fall: a higher q cannot help, and good requests show that
    less would suffice. While it has more for batch (`ample`), q may only rise. A rise comes into force when no replicas
    are `starting`, because they may already suffice.
    """

    def after(of: ClassState) -> float:
        step = 0.0 if frozen else _step(of, level_rps)
        step = min(step, 0.0) if short else step
        step = max(step, 0.0) if ample else step
        return min(HIGHEST, max(LOWEST, memory.quantile + step))

    risen = (quantile for each in classes if (quantile := after(each)) > memory.quantile)
    quantile = max((after(hardest(classes)), *risen))
    return Headroom(quantile, min(memory.sizing, quantile) if starting else quantile)


def _step(of: ClassState, level_rps: float) -> float:
    """Return one step of q <- q + eta (bad share - (1 - objective) pace), weighted by the requests judged in it.

    The level tells how many are judged per window. eta is 1 / (1 - objective). So a window without a bad request lowers
    q by its pace. Bad requests worth the whole budget raise q by one. While too few were judged, q stays.
    """
    latest, remaining = of.budget.latest, of.state.budget_remaining
    if latest.judged <= 0.0 or remaining is None:
        return 0.0
    pace, expected = 2.0 * min(1.0, max(0.0, remaining)), level_rps * of.slo.window_seconds * of.state.share
    weight = latest.judged / max(expected, latest.judged, 1.0 / of.slo.budget_share)
    return weight * (latest.bad_share / of.slo.budget_share - pace)
