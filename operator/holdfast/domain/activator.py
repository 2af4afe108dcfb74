"""State of a service's activator: requests that arrived while no replica served, and those it holds now."""

from __future__ import annotations

import math

from holdfast.domain.value import value

WAIT_EDGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, math.inf)
"""Upper edges in seconds of the histogram of waits."""

Waits = tuple[int, ...]
"""Requests by waiting time, one number per bucket of `WAIT_EDGES`."""

NO_WAITS: Waits = (0,) * len(WAIT_EDGES)


@value
class Activator:
    """One reading; everything but `leads` is meaningless unless it `answers`.

    `leads`: the LLMService's Service routes to it, by the API server. `waiting` requests are held now, the oldest since
    `oldest_seconds`; the last one arrived `quiet_seconds` ago. The counters start with the process, which `boot`
    identifies: requests `forwarded` to an engine and requests whose client was `gone` before, both by waiting time, and
    requests `turned_away` because the buffer was full or they had waited too long.
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
    """Requests that waited longer; all requests in the bucket that contains the limit count."""
    return sum(count for edge, count in zip(WAIT_EDGES, waits, strict=True) if edge > seconds * (1.0 + 1e-9))
