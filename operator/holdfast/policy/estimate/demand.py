"""Compute how many replicas a forecast needs, and since when fewer would have sufficed."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.value import value
from holdfast.policy.estimate.forecast import Forecast

MOST_REPLICAS = 1_000_000

RETURN_CYCLES, MOST_RETURN_SECONDS = 8.0, 3600.0
"""For how long a load that went is expected to come back at once: so many times what a removed replica is away."""

SAME_LEVEL = 0.98
"""A level of at least this share of a remembered one is the same one: an hour of ticks then leaves few of them."""


@value
class Peaks:
    """The highest demands within the hold time, as (seconds, requests/s), newest last and strictly decreasing.

    `levels`: likewise the levels of the arrivals that may come back. `since`: start of the current period without a gap
    in the metrics.
    """

    highest: tuple[tuple[float, float], ...] = ()
    since: float | None = None
    levels: tuple[tuple[float, float], ...] = ()

    @property
    def rate_rps(self) -> float:
        """Highest demand within the hold time, requests/s."""
        return self.highest[0][1] if self.highest else 0.0

    @property
    def level_rps(self) -> float:
        """Highest level that may come back, requests/s."""
        return self.levels[0][1] if self.levels else 0.0

    def covered_seconds(self, now: float) -> float:
        """Return for how long the metrics have had no gap."""
        return 0.0 if self.since is None else now - self.since


def remember_peak(
    memory: Peaks, forecast: Forecast | None, demand: float | None, now: float, hold: float, fresh: bool
) -> Peaks:
    """Add the rate that replicas must carry before any is removed, and drop rates older than the hold time.

    Doubtful metrics restart the period without a gap.
    """
    rate = 0.0 if forecast is None or demand is None else max(forecast.releasable_rps, demand)
    retained = tuple(pair for pair in memory.highest if now - hold <= pair[0] <= now and pair[1] > rate)
    unbroken = fresh and forecast is not None and memory.since is not None and memory.since <= now
    return Peaks((*retained, (now, rate)), memory.since if unbroken else now, memory.levels)


def remember_level(memory: Peaks, level_rps: float, now: float, seconds: float) -> Peaks:
    """Add a level that may come back for so long; it is the last one again where it is about the same."""
    same = next((old for _, old in memory.levels if SAME_LEVEL * old <= level_rps <= old), level_rps)
    retained = tuple(pair for pair in memory.levels if now - seconds <= pair[0] <= now and pair[1] > same)
    return replace(memory, levels=(*retained, (now, same)) if seconds > 0.0 else ())


def return_seconds(hold: float, cycle: float, fast_loop: bool) -> float:
    """Return for how long a load that went is expected to come back before a removed replica is.

    The fast loop keeps what can be kept of such a load. Without it, all requests that come until then are late.
    """
    return 0.0 if fast_loop else max(hold, min(RETURN_CYCLES * cycle, MOST_RETURN_SECONDS))


def replicas_for(rate_rps: float, replica_rps: float) -> int:
    """Return the fewest replicas that carry the rate; `MOST_REPLICAS` where no number of them can."""
    if not rate_rps > 0.0:
        return 0
    if math.isinf(rate_rps) or not replica_rps > 0.0:
        return MOST_REPLICAS
    return min(MOST_REPLICAS, math.ceil(min(rate_rps / replica_rps, float(MOST_REPLICAS)) - 1e-9))


def affordable_replicas(dollars_per_hour: float, replica_cost_per_hour: float) -> int:
    """Return the most replicas that the money pays for; at most `MOST_REPLICAS`, which it does where they are free."""
    if not replica_cost_per_hour > 0.0:
        return MOST_REPLICAS
    most = max(0.0, dollars_per_hour) / replica_cost_per_hour
    return math.floor(min(most, float(MOST_REPLICAS)) + 1e-9)


def backlog(waiting: float, forecast: Forecast | None, ttft_seconds: float) -> float:
    """Return the requests that have waited longer than the TTFT objective.

    A queue of requests that are still within TTFT is normal. Of the requests that wait longer, at most one lead time's
    arrivals count: clients of older requests have given up.
    """
    if forecast is None:
        return 0.0
    late = waiting - forecast.level_rps * ttft_seconds
    return min(max(0.0, late), forecast.level_rps * forecast.lead_seconds)


def demand_rps(forecast: Forecast | None, late: float, ttft_seconds: float, starting: bool) -> float | None:
    """Return the rate to size for: the forecast, or the level plus the backlog drained within max(TTFT, lead time).

    While replicas are starting, the backlog does not count: the replicas were ordered for it, and their lead time runs.
    """
    if forecast is None or starting:
        return None if forecast is None else forecast.wanted_rps
    return max(forecast.wanted_rps, forecast.level_rps + late / max(ttft_seconds, forecast.lead_seconds))
