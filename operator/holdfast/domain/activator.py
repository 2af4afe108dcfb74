"""What the activator of a service tells: the requests that came while no replica served, and that it holds."""

from __future__ import annotations

import math

from holdfast.domain.value import value

WAIT_EDGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, math.inf)
"""Upper edges in seconds of the classes in which waits are counted."""

Waits = tuple[int, ...]
"""Requests by how long they waited, one number per class of `WAIT_EDGES`."""

NO_WAITS: Waits = (0,) * len(WAIT_EDGES)


@value
class Activator:
    """One look at it; everything but `leads` is meaningless unless it `answers`.

    `leads`: the Service of the LLMService leads to it, as the API server has shown. `waiting` requests are held now,
    the oldest since `oldest_seconds`; `quiet_seconds` ago the last one came. The rest counts from the start of the
    process, which `boot` names: requests that were `forwarded` to an engine, those whose client was `gone` before, by
    how long each had waited, and those `turned_away` because there was no room or they had waited for too long.
    """

    answers: bool = False
    leads: bool = False
    boot: str = ""
    waiting: int = 0
    oldest_seconds: float = 0.0
    quiet_seconds: float = math.inf
    forwarded: Waits = NO_WAITS
    gone: Waits = NO_WAITS
    turned_away: int = 0


SILENT = Activator()


def longer_than(waits: Waits, seconds: float) -> int:
    """Requests that waited for longer; those of the class in which the limit lies count as if all had."""
    return sum(count for edge, count in zip(WAIT_EDGES, waits, strict=True) if edge > seconds * (1.0 + 1e-9))
