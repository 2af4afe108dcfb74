"""Recurring bursts: abrupt rises of the arrival rate that return, and the headroom they need.

Between two bursts the level contains no sign of them, and noise is learned from gradual deviations only. So the rises
themselves are remembered, with the highest rate of each. The level follows a single rise and growth in steps. Only
rises that return after a fall are expected again: at their time where they have a period, otherwise at any time.

Source: docs/designs/0013-bursts.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, takewhile
from statistics import fmean

from holdfast.domain.value import value

KEPT_SECONDS = 900.0
"""How long arrivals are retained; rises without a period are expected while no gap between two of them is longer."""

MOST_RISES = 16
"""Most rises that are retained."""

ALIKE = 0.5
"""Share of a height from which on another one is of the same kind."""

REGULAR_SHARE, LEAST_GAPS = 0.1, 2
"""Share of a period by which its gaps may differ, and the gaps that make one."""

LEAST_SPREAD_SECONDS = 30.0
"""By so much a rise is noticed sooner or later at least: it is counted by scrapes and ticks."""


@value
class Rise:
    """Time of an abrupt rise, the rate before it, and the highest rate it led to."""

    at: float
    from_rps: float
    rate_rps: float


@value
class Bursts:
    """How many rises require which rate within one lead time, 0 if none do; `highest_rps` of those with a period."""

    rises: int
    rate_rps: float
    period_seconds: float = 0.0
    highest_rps: float = 0.0

    def includes(self, rate_rps: float) -> bool:
        """Return whether such a level is a burst that comes back at a known time."""
        return 0.0 < ALIKE * self.highest_rps <= rate_rps


NONE = Bursts(0, 0.0)


def with_rise(rises: Sequence[Rise], new: Rise, lead_seconds: float) -> tuple[Rise, ...]:
    """Return the rises with a new one, or with the last one extended to the new rate.

    A rise is new only if the last one was at least half undone, and is at least one lead time ago. No capacity could be
    added between two rises within one lead time. Its time is that of the larger step.
    """
    past = tuple([rise for rise in rises if rise.at <= new.at])
    if not past:
        return (new,)
    last, passed = past[-1], new.at - past[-1].at
    undone = new.from_rps <= 0.5 * (last.from_rps + last.rate_rps)
    if passed > KEPT_SECONDS or (undone and passed >= lead_seconds):
        return (*past, new)[-MOST_RISES:]
    larger = new.rate_rps - new.from_rps > last.rate_rps - last.from_rps
    return (*past[:-1], Rise(new.at if larger else last.at, last.from_rps, max(last.rate_rps, new.rate_rps)))


def expected_bursts(
    rises: Sequence[Rise], now: float, quantile: float, lead_seconds: float, spare_requests: float = math.inf
) -> Bursts:
    """Return the rate to provision, so that a lead time exceeds it with a chance of at most 1 - `quantile`.

    A lead time contains a burst with the chance p, and exceeds x with p times the share of bursts above x. So x is
    their quantile 1 - (1 - quantile) / p. Where p is below 1 - quantile, no burst needs to be covered. One that is due
    is covered in any case if it can make more requests late than the `spare_requests` of the error budget.
    """
    past = [rise for rise in rises if rise.at <= now]
    if len(past) < 2:
        return NONE
    found, chance, period = _regular(past, now, lead_seconds) or _irregular(past, now, lead_seconds)
    if period and max(rise.rate_rps - rise.from_rps for rise in found) * lead_seconds > spare_requests:
        quantile = 1.0
    rates = sorted(rise.rate_rps for rise in found)
    highest = rates[-1] if period else 0.0
    if not chance > 1.0 - quantile:
        return Bursts(0, 0.0, period, highest)
    share = 1.0 - (1.0 - quantile) / chance
    return Bursts(len(rates), rates[max(0, math.ceil(share * len(rates)) - 1)], period, highest)


def _regular(rises: Sequence[Rise], now: float, lead_seconds: float) -> tuple[Sequence[Rise], float, float] | None:
    """Return bursts, the chance of one in a lead time, and their period; None without one, or where it has lapsed.

    The next burst is expected within the spread of the gaps, and there
    with the chance of n + 1 in n + 2 after n gaps (Laplace).
    """
    found = _alike(rises)
    gaps = [later.at - earlier.at for earlier, later in pairwise(found)][::-1]
    same = list(takewhile(lambda gap: abs(gap - gaps[0]) <= min(REGULAR_SHARE * gaps[0], lead_seconds), gaps))
    if len(same) < LEAST_GAPS:
        return None
    period = fmean(same)
    spread = max(LEAST_SPREAD_SECONDS, 2.0 * max(abs(gap - period) for gap in same))
    until = found[-1].at + period - now
    chance = (len(same) + 1) / (len(same) + 2) if until - spread <= lead_seconds else 0.0
    return (found[-len(same) - 1 :], chance, period) if until >= -spread else None


def _irregular(rises: Sequence[Rise], now: float, lead_seconds: float) -> tuple[Sequence[Rise], float, float]:
    """Return the same of bursts that come at any time: their period is 0.

    A lead time contains one with the chance p = (n - 1) lead / (time since the first of n bursts). A single burst is no
    evidence of recurrence, hence n - 1. None is expected where the last one is too long ago.
    """
    times = [*(rise.at for rise in rises), now]
    breaks = [place for place, (at, until) in enumerate(pairwise(times), start=1) if until - at > KEPT_SECONDS]
    found = _alike(rises[max(breaks, default=0) :])
    chance = (len(found) - 1) * lead_seconds / max(now - found[0].at, lead_seconds, 1.0) if found else 0.0
    return found, min(1.0, chance), 0.0


def _alike(rises: Sequence[Rise]) -> list[Rise]:
    """Return the rises within a factor of 2 of the highest one that is not alone there."""
    for highest in sorted((rise.rate_rps for rise in rises), reverse=True):
        found = [rise for rise in rises if ALIKE * highest <= rise.rate_rps <= highest]
        if len(found) > 1:
            return found
    return []
