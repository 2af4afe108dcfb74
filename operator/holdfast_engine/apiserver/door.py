"""When requests go on that wait at the API server's door, because it is behind and they cannot be good any more.

Reading a request costs the API server's one thread milliseconds. While it is behind, what it spends on a request that
is late in any case makes the next one late as well. Requests at the door have been counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast_engine.queue.order import LATE_SHARE

OPEN_SECONDS = 0.05


class Door:
    """One request goes on per `OPEN_SECONDS` where the engine and the API server keep up; else `LATE_SHARE` of the
    passing requests."""

    def __init__(self) -> None:
        self._is_behind = False
        self._credit = 0.0
        self._next_at = -math.inf

    def passed(self, is_behind: bool) -> None:
        """A request passed the door; `is_behind` is whether it had waited long to be read."""
        self._is_behind = is_behind
        self._credit = min(1.0, self._credit + LATE_SHARE)

    def opens(self, now: float, is_overloaded: Callable[[], bool]) -> bool:
        """Whether the request that waits longest goes on now."""
        if self._credit >= 1.0:
            self._credit = 0.0
            return True
        if 0.0 < self._next_at - now <= OPEN_SECONDS:
            return False
        self._next_at = now + OPEN_SECONDS
        return not (self._is_behind or is_overloaded())
