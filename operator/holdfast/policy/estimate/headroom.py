"""How much headroom: the error budget moves the quantile that sizes are made for (control law, section 5)."""

from __future__ import annotations

from holdfast.domain.service import Slo
from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Budget, SloState

LOWEST, HIGHEST = 0.05, 0.9995
FIRST = 0.9
"""The quantile of a new service: cheap in the fluid study, and safe until verdicts are known."""


@value
class Headroom:
    """`quantile` is the law's, `sizing` the one in force: it does not rise while ordered replicas are starting."""

    quantile: float = FIRST
    sizing: float = FIRST

    @property
    def is_least(self) -> bool:
        """Requests have been good for so long that there is nothing left to give up."""
        return self.quantile <= LOWEST


def recalled(quantile: float | None) -> Headroom:
    """Where the law was before a restart; at its beginning where nobody knows."""
    if quantile is None:
        return Headroom()
    bounded = min(HIGHEST, max(LOWEST, quantile))
    return Headroom(bounded, bounded)


def adapt(
    memory: Headroom, budget: Budget, state: SloState, slo: Slo, expected: float, frozen: bool, short: bool = False
) -> Headroom:
    """One step of q <- q + eta (bad share - (1 - objective) pace), weighted by the requests judged in it.

    `expected` requests are judged per window; eta is 1 / (1 - objective), so that a window without a bad request
    lowers q by its pace and bad requests worth the whole budget raise it by one. `frozen` is the anti-windup: headroom
    does not rule at the moment, or cannot help. Where a service is `short` of replicas that headroom asked for, only a
    rise cannot help: requests that are good without them say that less would do. While too few were judged only
    capacity decides.
    """
    judged, left = budget.latest.judged, state.budget_remaining
    if frozen or judged <= 0.0 or left is None:
        return memory
    pace = 2.0 * min(1.0, max(0.0, left))
    weight = judged / max(expected, judged, 1.0 / slo.budget_share)
    step = weight * (budget.latest.bad_share / slo.budget_share - pace)
    step = min(step, 0.0) if short else step
    return Headroom(min(HIGHEST, max(LOWEST, memory.quantile + step)), memory.sizing)


def in_force(memory: Headroom, starting: bool) -> Headroom:
    """Let the new quantile rule; a rise waits while replicas are starting, for they are its answer already."""
    sizing = min(memory.sizing, memory.quantile) if starting else memory.quantile
    return Headroom(memory.quantile, sizing)
