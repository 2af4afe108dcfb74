"""Adapt the headroom: the error budget moves the quantile that sizes are made for (control law, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.service import Slo
from holdfast.domain.value import value
from holdfast.policy.estimate.class_budgets import ClassState, hardest
from holdfast.policy.estimate.slo_budget import Budget, SloState

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

    @property
    def is_least(self) -> bool:
        """Whether the quantile is at its lower bound: requests have been good, and headroom cannot shrink further."""
        return self.quantile <= LOWEST


def recalled(quantile: float | None) -> Headroom:
    """Return the headroom from before a restart; the initial one where it is unknown."""
    if quantile is None:
        return Headroom()
    bounded = min(HIGHEST, max(LOWEST, quantile))
    return Headroom(bounded, bounded)


def adapt(
    memory: Headroom,
    budget: Budget,
    state: SloState,
    slo: Slo,
    expected: float,
    frozen: bool,
    short: bool = False,
    ample: bool = False,
) -> Headroom:
    """Take one step of q <- q + eta (bad share - (1 - objective) pace), weighted by the requests judged in it.

    `expected` requests are judged per window. eta is 1 / (1 - objective). So a window without a bad request lowers q
    by its pace. Bad requests worth the whole budget raise q by one.

    `frozen` is the anti-windup: headroom does not determine the size at the moment, or cannot help. While a service is
    `short` of replicas that headroom requires, q may only fall: a higher q cannot help, and good requests show that
    less would suffice. While it has more for batch (`ample`), q may only rise. While too few were judged, q stays.
    """
    judged, remaining = budget.latest.judged, state.budget_remaining
    if frozen or judged <= 0.0 or remaining is None:
        return memory
    pace = 2.0 * min(1.0, max(0.0, remaining))
    weight = judged / max(expected, judged, 1.0 / slo.budget_share)
    step = weight * (budget.latest.bad_share / slo.budget_share - pace)
    step = min(step, 0.0) if short else step
    step = max(step, 0.0) if ample else step
    return Headroom(min(HIGHEST, max(LOWEST, memory.quantile + step)), memory.sizing)


def follow(
    memory: Headroom,
    classes: Sequence[ClassState],
    level_rps: float,
    frozen: bool,
    short: bool = False,
    ample: bool = False,
) -> Headroom:
    """Take the step of the class that is hardest to keep, or a higher one of another class that burns its budget."""

    def step(of: ClassState) -> Headroom:
        expected = level_rps * of.slo.window_seconds * of.state.share
        return adapt(memory, of.budget, of.state, of.slo, expected, frozen, short, ample)

    risen = (after for each in classes if (after := step(each)).quantile > memory.quantile)
    return max((step(hardest(classes)), *risen), key=lambda each: each.quantile)


def in_force(memory: Headroom, starting: bool) -> Headroom:
    """Apply the new quantile; a rise waits while replicas are starting, because they may already suffice."""
    sizing = min(memory.sizing, memory.quantile) if starting else memory.quantile
    return Headroom(memory.quantile, sizing)
