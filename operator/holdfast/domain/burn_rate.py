"""Burn-rate alerts on the error budget: the policy and Prometheus' alerts use the same windows and thresholds."""

from __future__ import annotations

from holdfast.domain.service import Slo
from holdfast.domain.value import value

SHORTER = 12.0
"""Factor by which the second window of an alert is shorter.

The alert also requires its burn rate over that window, so that it ends soon after the burning does.
"""

REACHABLE = 0.8
"""Largest share of bad requests that an alert waits for, however large the budget is."""


@value
class BurnWindow:
    """A burn-rate alert: this share of the budget was spent within 1/`divisor` of the window."""

    budget_share: float
    divisor: float

    def threshold(self, slo: Slo) -> float:
        """Return the burn rate, capped to a reachable one; 1 spends the budget exactly over the window."""
        return min(self.budget_share * self.divisor, REACHABLE / slo.budget_share)


FAST = BurnWindow(0.05, 60.0)
SLOW = BurnWindow(0.10, 12.0)
