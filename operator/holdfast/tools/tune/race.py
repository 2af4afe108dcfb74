"""When a trial has said enough: it is ended once it cannot attain the objective any more."""

from __future__ import annotations

import math

CONFIDENCE = 3.5
"""Standard errors (Wilson) by which the share of bad requests must be beyond what the objective allows.

More than usual, for bad requests come in crowds: those of one crowd are hardly more evidence than one of them.
"""
LEAST_BAD = 5


class Race:
    """Judges the requests of one trial while it runs; those under way count as good."""

    def __init__(self, requests: int, objective: float) -> None:
        self.requests = requests
        self.allowed = math.floor((1.0 - objective) * requests + 1e-9)
        self.bad = 0
        self.lost_after: int | None = None
        self._share = 1.0 - objective

    def missed(self, arrived: int) -> bool:
        """One more is bad, of so many that have arrived; whether the objective cannot be attained any more."""
        self.bad += 1
        surely = self.bad >= LEAST_BAD and interval(self.bad, max(arrived, self.bad), CONFIDENCE)[0] > self._share
        if surely or self.bad > self.allowed:
            self.lost_after = max(arrived, self.bad)
        return self.lost_after is not None

    @property
    def held(self) -> bool:
        """Whether it attains the objective, once all of it was judged."""
        return self.lost_after is None and self.bad <= self.allowed


def interval(count: int, total: int, errors: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share; (0, 1) of nothing."""
    if total <= 0:
        return 0.0, 1.0
    share, square = count / total, errors**2 / total
    middle = (share + 0.5 * square) / (1.0 + square)
    half = errors / (1.0 + square) * math.sqrt(share * (1.0 - share) / total + 0.25 * square / total)
    return max(0.0, middle - half), min(1.0, middle + half)
