"""One replica with new limits beside the others: a sequential test of which misses more often.

Both sides get their share of the same requests in the same time, so whatever else is wrong with the load is wrong for
both. Under "equally often", each missed request is the canary's with probability p = its share of those judged; under
"WORSE times as often" with WORSE p / (1 + (WORSE - 1) p). The sum of log likelihood ratios decides (Wald 1945).
"""

from __future__ import annotations

import enum
import math

from holdfast.domain.value import value

WORSE = 2.0
"""How many times as often a canary must miss to be sent back."""

DECIDED = math.log(19.0)
"""Log likelihood ratio at which one in twenty verdicts is wrong, either way."""

MOST_PER_LOOK = 1.0
"""Misses come in bursts: no single look decides."""

LEAST_JUDGED = 200.0
"""Requests of the canary after which, with as few misses as the others, the time may decide."""

LEAST_SECONDS, MOST_SECONDS = 300.0, 1500.0
"""The canary's first minutes warm caches up and decide nothing; how long it may take in all."""


class Outcome(enum.Enum):
    """What a trial says so far."""

    OPEN = "open"
    KEEP = "keep"
    RETURN = "return"


@value
class Side:
    """Requests of some replicas over an interval: how many were judged, how many of them missed an objective."""

    judged: float = 0.0
    bad: float = 0.0

    @property
    def usable(self) -> bool:
        return math.isfinite(self.judged) and 0.0 <= self.bad <= self.judged

    def plus(self, other: Side) -> Side:
        return Side(self.judged + other.judged, self.bad + other.bad)


@value
class Evidence:
    """The sum of log likelihood ratios, and the requests of the canary behind it."""

    log_ratio: float = 0.0
    judged: float = 0.0

    def weighed(self, canary: Side, rest: Side) -> Evidence:
        """With what was seen since the last look; sides that make no sense or are empty say nothing."""
        if not (canary.usable and rest.usable and canary.judged > 0.0 and rest.judged > 0.0):
            return self
        share = canary.judged / (canary.judged + rest.judged)
        grown = 1.0 + (WORSE - 1.0) * share
        gained = canary.bad * math.log(WORSE / grown) - rest.bad * math.log(grown)
        step = min(MOST_PER_LOOK, max(-MOST_PER_LOOK, gained))
        return Evidence(self.log_ratio + step, self.judged + canary.judged)

    def outcome(self, seconds: float) -> Outcome:
        """The verdict after that many seconds of the canary's service.

        Where hardly anything is missed on either side, the time ends the trial: a canary that served enough did no
        harm, one that served too little was not tried.
        """
        if self.log_ratio >= DECIDED:
            return Outcome.RETURN
        if seconds < LEAST_SECONDS:
            return Outcome.OPEN
        if self.log_ratio <= -DECIDED and self.judged >= LEAST_JUDGED:
            return Outcome.KEEP
        if seconds < MOST_SECONDS:
            return Outcome.OPEN
        return Outcome.KEEP if self.judged >= LEAST_JUDGED and self.log_ratio <= 0.5 * DECIDED else Outcome.RETURN
