"""The front-end lag: how long a token takes from the engine core to the moment its bytes are written.

The API server is one process. With many running streams it takes tens to hundreds of milliseconds for it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import deque

WINDOW_SECONDS = 10.0
QUANTILE = 0.95
# After an overload the estimate halves in this time: requests that come in its last moments still meet the old lag.
HALF_LIFE_SECONDS = 10.0
# A front end that takes more of the bound than this cannot be helped by starting requests earlier.
LARGEST_SHARE = 0.5
LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, math.inf)
# Sorting a thousand samples costs as much as the rest of three steps.
_ESTIMATE_SECONDS = 0.5
_MOST_SAMPLES = 512
_RECENT_SECONDS = 2.0


class LagEstimate:
    """The 95th percentile of the last 10 s. It rises at once and falls slowly, so that it does not swing with the load
    that it governs; 0 before the first sample."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._seen_at: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self._lags: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self._estimated_at = -math.inf

    def add(self, now: float, seconds: float) -> None:
        """One more lag, seen now."""
        self._seen_at.append(now)
        self._lags.append(seconds)

    def update(self, now: float) -> None:
        """Estimate anew; twice per second at most, however often it is called."""
        passed = now - self._estimated_at
        if 0.0 <= passed < _ESTIMATE_SECONDS:
            return
        self._estimated_at = now
        seen_at, lags = self._seen_at, self._lags
        # A sample of the future is one from before the clock went backwards.
        while seen_at and not now - WINDOW_SECONDS <= seen_at[0] <= now:
            seen_at.popleft()
            lags.popleft()
        if self.seconds > 0.0:
            self.seconds *= 0.5 ** (max(0.0, passed) / HALF_LIFE_SECONDS)
        if lags:
            self.seconds = max(self.seconds, sorted(lags)[math.ceil(QUANTILE * len(lags)) - 1])

    def recent(self, now: float) -> float:
        """The median of the last two seconds; 0 where no token was written."""
        newest_first = zip(reversed(self._seen_at), reversed(self._lags), strict=True)
        recent = itertools.takewhile(lambda seen: now - seen[0] <= _RECENT_SECONDS, newest_first)
        lags = [lag for at, lag in recent if at <= now]
        return statistics.median_high(lags) if lags else 0.0

    def within(self, bound_seconds: float) -> float:
        """The part of a bound that decisions set aside for the front end."""
        return min(self.seconds, LARGEST_SHARE * bound_seconds)


class LagHistogram:
    """Counts of lags by bucket, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * len(LAG_BUCKETS)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """One more lag."""
        self._counts[bisect.bisect_left(LAG_BUCKETS, seconds)] += 1
        self._seconds += seconds

    @property
    def numbers(self) -> list[float]:
        """The count of each bucket alone, then the sum."""
        return [*self._counts, self._seconds]
