"""Which class decides what a replica carries of a mix of classes.

The engine starts waiting requests by priority. So a class waits for requests of its own and of higher priorities only,
and its TTFT bounds their rate. The engine lets no more sequences run than keep the tightest TPOT declared: that pace is
the one of all classes.

Source: docs/designs/0030-classes.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.domain.service import Slo

MATERIAL_SHARE = 0.01
"""Share of the requests below which no size is made for a class."""


def each_class(slo: Slo) -> tuple[Slo, ...]:
    """Return the service's own objectives and those of each class, all at the pace of the steps."""
    tpot_seconds = min(each.tpot_seconds for each in (slo, *slo.classes))
    return tuple(replace(each, tpot_seconds=tpot_seconds, classes=()) for each in (slo, *slo.classes))


def shares_ahead(slo: Slo, shares: Mapping[str, float]) -> dict[str, float]:
    """Return by class the share of the requests that bounds it; classes without a material share are left out.

    Where `shares` are unknown, each class may be all of the traffic.
    """
    each = (slo, *slo.classes)
    if not shares:
        return dict.fromkeys([one.name for one in each], 1.0)
    return {
        one.name: math.fsum(shares.get(other.name, 0.0) for other in each if other.priority >= one.priority)
        for one in each
        if shares.get(one.name, 0.0) >= MATERIAL_SHARE
    }


def mean_ttft_seconds(slo: Slo, shares: Mapping[str, float]) -> float:
    """Return how long the mean request may wait; shares of classes that are no longer declared do not count."""
    known = {each: shares.get(each.name, 0.0) for each in (slo, *slo.classes)}
    whole = math.fsum(known.values())
    if not slo.classes or not whole > 0.0:
        return slo.ttft_seconds
    return math.fsum(each.ttft_seconds * share for each, share in known.items()) / whole
