"""A normal belief about the logarithm of a factor, which evidence of any size can overrule.

Source: docs/designs/0021-refutable-belief.md.
"""

from __future__ import annotations

import math

from holdfast.domain.value import value
from holdfast.maths.normal import NORMAL

REFUTED = 2.58
"""Deviations between evidence and prediction beyond which the belief starts anew: 99 % lie within."""

WIDEST = 2.0
"""Deviation of a belief that starts anew: a factor of 7 either way is nothing unusual."""

DRIFT = 0.03
"""Deviation that a minute adds, because engines change. It bounds how much old evidence counts."""

FARTHEST = 12.0
"""Logarithm of the largest factor that is believed, 160,000: numbers stay finite whatever is reported."""


@value
class NormalBelief:
    """Mean and standard deviation of the logarithm of a factor."""

    mean: float = 0.0
    deviation: float = WIDEST

    @property
    def factor(self) -> float:
        """Return the factor at the mean."""
        return math.exp(self.mean)

    def refuted_by(self, seen: float, deviation: float) -> bool:
        """Return whether a measurement is so far off that the belief starts anew."""
        return abs(seen - self.mean) > REFUTED * math.hypot(self._aged().deviation, deviation)

    def measured(self, seen: float, deviation: float) -> NormalBelief:
        """Return the belief after a measurement of the logarithm; evidence that is no number changes nothing."""
        if not math.isfinite(seen):
            return self
        before, seen = self._aged(), max(-FARTHEST, min(FARTHEST, seen))
        if self.refuted_by(seen, deviation):
            before = NormalBelief(before.mean, WIDEST)
        share = before.deviation**2 / (before.deviation**2 + deviation**2)
        return NormalBelief(before.mean + share * (seen - before.mean), before.deviation * math.sqrt(1.0 - share))

    def at_least(self, bound: float, deviation: float) -> NormalBelief:
        """Return the belief after evidence that the logarithm is not below a bound (a censored measurement)."""
        return self._censored(1.0, bound, deviation)

    def at_most(self, bound: float, deviation: float) -> NormalBelief:
        """Return the belief after evidence that the logarithm is not above a bound."""
        return self._censored(-1.0, bound, deviation)

    def _censored(self, sign: float, bound: float, deviation: float) -> NormalBelief:
        """The moments of the normal belief times a normal distribution function: the update of a probit model.

        A belief that is refuted starts anew at the bound: how far beyond it the truth is, nobody has seen.
        """
        if not math.isfinite(bound):
            return self
        before, bound = self._aged(), max(-FARTHEST, min(FARTHEST, bound))
        spread = math.hypot(before.deviation, deviation)
        z = sign * (before.mean - bound) / spread
        if z < -REFUTED:
            return NormalBelief(bound, deviation)
        hazard = NORMAL.pdf(z) / NORMAL.cdf(z)
        variance = before.deviation**2
        mean = before.mean + sign * variance / spread * hazard
        left = variance * (1.0 - variance / spread**2 * hazard * (hazard + z))
        return NormalBelief(mean, math.sqrt(max(left, 0.0)))

    def _aged(self) -> NormalBelief:
        return NormalBelief(self.mean, min(WIDEST, math.hypot(self.deviation, DRIFT)))
