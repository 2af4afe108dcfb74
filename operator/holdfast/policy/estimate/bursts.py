"""Recurring bursts: abrupt rises of the arrival rate that return, and the headroom they need.

Between two bursts the level contains no sign of them, and noise is learned from gradual deviations only. So the rises
themselves are remembered, with the highest rate of each. The level follows a single rise and growth in steps. Only
rises that return after a fall are expected again.

Source: docs/designs/0013-bursts.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.domain.value import value

KEPT_SECONDS = 900.0
"""How long arrivals are retained; rises are retained while no gap between two of them is longer."""

MOST_RISES = 16
"""Most rises that are retained."""


@value
class Rise:
    """Time of an abrupt rise, the rate before it, and the highest rate it led to."""

    at: float
    from_rps: float
    rate_rps: float


@value
class Bursts:
    """How many rises are known, and the rate they require within one lead time; 0 where they require none."""

    rises: int
    rate_rps: float


NONE = Bursts(0, 0.0)


def with_rise(rises: Sequence[Rise], new: Rise, lead_seconds: float) -> tuple[Rise, ...]:
    """Return the rises with a new one, or with the last one extended to the new rate.

    A rise is new only if the last one was at least half undone, and is at least one lead time ago. No capacity could be
    added between two rises within one lead time.
    """
    retained = _lasting(rises, new.at)
    if not retained:
        return (new,)
    last = retained[-1]
    undone = new.from_rps <= 0.5 * (last.from_rps + last.rate_rps)
    if undone and new.at - last.at >= lead_seconds:
        return (*retained, new)[-MOST_RISES:]
    return (*retained[:-1], Rise(last.at, last.from_rps, max(last.rate_rps, new.rate_rps)))


def expected_bursts(rises: Sequence[Rise], now: float, quantile: float, lead_seconds: float) -> Bursts:
    """Return the rate to provision, so that a lead time exceeds it with a chance of at most 1 - `quantile`.

    A lead time contains a burst with the chance p = (n - 1) lead / (time since the first of n bursts). A single burst
    is no evidence of recurrence, hence n - 1. The chance that a lead time exceeds x is p times the share of bursts
    above x. So x is their quantile 1 - (1 - quantile) / p. Where p is below 1 - quantile, no burst needs to be covered.
    """
    retained = _lasting(rises, now)
    rates = _repeated(retained)
    chance = min(1.0, (len(rates) - 1) * lead_seconds / max(now - retained[0].at, lead_seconds, 1.0)) if rates else 0.0
    if not chance > 1.0 - quantile:
        return NONE
    share = 1.0 - (1.0 - quantile) / chance
    return Bursts(len(rates), rates[max(0, math.ceil(share * len(rates)) - 1)])


def _lasting(rises: Sequence[Rise], now: float) -> tuple[Rise, ...]:
    """Return the past rises; none where the last one is so long ago that no further one is expected."""
    past = tuple([rise for rise in rises if rise.at <= now])
    return past if past and now - past[-1].at <= KEPT_SECONDS else ()


def _repeated(rises: Sequence[Rise]) -> list[float]:
    """Return the rates of the rises, lowest first, without outliers more than twice as high as any other rise."""
    rates = sorted(rise.rate_rps for rise in rises)
    while len(rates) > 1 and rates[-2] < 0.5 * rates[-1]:
        rates.pop()
    return rates
