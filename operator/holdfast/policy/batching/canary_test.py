"""Canary test: one replica with new limits next to replicas with the old ones; which side misses more often?

Both sides serve their share of the same requests at the same time. So any other problem of the load affects both. Under
"equally often", a missed request is the canary's with probability p, its share of the judged requests. Under "WORSE
times as often" the probability is WORSE p / (1 + (WORSE - 1) p). The sum of log likelihood ratios decides.

Source: sequential probability ratio test (Wald 1945); docs/designs/0002-batching.md.
"""

from __future__ import annotations

import enum
import math

from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Verdicts

WORSE = 2.0
"""Factor on the miss rate at which the canary is to be rejected."""

DECIDED = math.log(19.0)
"""Log likelihood ratio at which one in twenty verdicts is wrong, in either direction."""

MOST_PER_LOOK = 1.0
"""Bound of the evidence from one tick: misses come in bursts, so no single tick may decide."""

LEAST_JUDGED = 200.0
"""Requests of the canary after which the time limit may decide, if it missed as few as the other replicas."""

LEAST_SECONDS, MOST_SECONDS = 300.0, 1500.0
"""Warm-up time of the canary's caches, in which it is not accepted; and the time limit of a trial."""


class Outcome(enum.Enum):
    """Verdict of a trial so far."""

    OPEN = "open"
    KEEP = "keep"
    RETURN = "return"


@value
class Evidence:
    """Sum of log likelihood ratios, and the canary's requests behind it."""

    log_ratio: float = 0.0
    judged: float = 0.0

    def weighed(self, canary: Verdicts, rest: Verdicts) -> Evidence:
        """Return the evidence with the requests since the last tick added; impossible or empty sides add nothing."""
        possible = all(math.isfinite(each.judged) and min(each.good, each.bad) >= 0.0 for each in (canary, rest))
        if not possible or min(canary.judged, rest.judged) <= 0.0:
            return self
        share = canary.judged / (canary.judged + rest.judged)
        grown = 1.0 + (WORSE - 1.0) * share
        gained = canary.bad * math.log(WORSE / grown) - rest.bad * math.log(grown)
        step = min(MOST_PER_LOOK, max(-MOST_PER_LOOK, gained))
        return Evidence(self.log_ratio + step, self.judged + canary.judged)

    def outcome(self, seconds: float) -> Outcome:
        """Return the verdict after so many seconds of the canary's service.

        Where hardly any request is missed on either side, the time limit ends the trial. A canary that served enough
        requests is then accepted, because it did no harm. A canary that served too few is rejected, because it was not
        tested.
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
