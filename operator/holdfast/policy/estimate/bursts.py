"""Bursts: abrupt rises of the arrival rate that come back, and the headroom that they ask for.

Between two bursts the level says nothing of them, and noise is learned from what is no abrupt change. So the rises
themselves are remembered, as high as they went. One is news, which the level follows, and so is growth in steps; those
that come back after a fall are a habit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.domain.value import value

KEPT_SECONDS = 900.0
"""How far back arrivals are kept; rises, as long as no more than this lies between two of them."""

MOST_RISES = 16
"""Rises kept."""


@value
class Rise:
    """When an abrupt rise was seen, the rate before it, and the highest one it led to."""

    at: float
    from_rps: float
    rate_rps: float


@value
class Bursts:
    """How many rises are known, and what they ask for within one lead time; 0 where that is nothing."""

    rises: int
    rate_rps: float


NONE = Bursts(0, 0.0)


def with_rise(rises: Sequence[Rise], new: Rise, lead_seconds: float) -> tuple[Rise, ...]:
    """Add a rise, or let the last one reach as high: where that is not half undone, or not a lead time ago.

    Nothing could be had between those of one lead time.
    """
    kept = _lasting(rises, new.at)
    if not kept:
        return (new,)
    last = kept[-1]
    undone = new.from_rps <= 0.5 * (last.from_rps + last.rate_rps)
    if undone and new.at - last.at >= lead_seconds:
        return (*kept, new)[-MOST_RISES:]
    return (*kept[:-1], Rise(last.at, last.from_rps, max(last.rate_rps, new.rate_rps)))


def expected_bursts(rises: Sequence[Rise], now: float, quantile: float, lead_seconds: float) -> Bursts:
    """Return what has to be carried so that a lead time needs more with a chance of 1 - `quantile` at most.

    A lead time holds a burst with the chance p = (n - 1) lead / (time since the first of n), for one alone shows no
    habit. More than x comes in a lead time with p times the share of bursts that were higher, so x is their quantile
    1 - (1 - quantile) / p; where p is below 1 - quantile, bursts may be missed.
    """
    kept = _lasting(rises, now)
    rates = _repeated(kept)
    chance = min(1.0, (len(rates) - 1) * lead_seconds / max(now - kept[0].at, lead_seconds, 1.0)) if rates else 0.0
    if not chance > 1.0 - quantile:
        return NONE
    share = 1.0 - (1.0 - quantile) / chance
    return Bursts(len(rates), rates[max(0, math.ceil(share * len(rates)) - 1)])


def _lasting(rises: Sequence[Rise], now: float) -> tuple[Rise, ...]:
    """Those of the past, until none has come for so long that the habit is taken for gone."""
    past = tuple([rise for rise in rises if rise.at <= now])
    return past if past and now - past[-1].at <= KEPT_SECONDS else ()


def _repeated(rises: Sequence[Rise]) -> list[float]:
    """The rates they led to, the lowest first, without those of which no other reached half."""
    rates = sorted(rise.rate_rps for rise in rises)
    while len(rates) > 1 and rates[-2] < 0.5 * rates[-1]:
        rates.pop()
    return rates
