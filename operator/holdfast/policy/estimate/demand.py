"""How many replicas carry a forecast, and since when fewer would have done."""

from __future__ import annotations

import math

from holdfast.domain.value import value
from holdfast.policy.estimate.forecast import Forecast

MOST_REPLICAS = 1_000_000


@value
class Peaks:
    """The highest demands of the hold time, newest last and each below the one before it, as (seconds, requests/s).

    `since`: from when on there is no gap in what was seen.
    """

    highest: tuple[tuple[float, float], ...] = ()
    since: float | None = None

    @property
    def rate_rps(self) -> float:
        return self.highest[0][1] if self.highest else 0.0

    def covered_seconds(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since


def hold_seconds(lead_seconds: float, drain_seconds: float) -> float:
    """Time in which capacity that is let go could not be had back: it drains, and a new replica starts."""
    return drain_seconds + lead_seconds


def remember_peak(
    memory: Peaks, forecast: Forecast | None, demand: float | None, now: float, hold: float, fresh: bool
) -> Peaks:
    """Add what replicas must carry before others go, and forget what is older than the hold time.

    Doubtful metrics begin the time anew.
    """
    rate = 0.0 if forecast is None or demand is None else max(forecast.releasable_rps, demand)
    kept = tuple(pair for pair in memory.highest if now - hold <= pair[0] <= now and pair[1] > rate)
    unbroken = fresh and forecast is not None and memory.since is not None and memory.since <= now
    return Peaks((*kept, (now, rate)), memory.since if unbroken else now)


def replicas_for(rate_rps: float, replica_rps: float) -> int:
    """Fewest replicas that carry the rate; what no number of them carries counts as very many."""
    if not rate_rps > 0.0:
        return 0
    if math.isinf(rate_rps) or not replica_rps > 0.0:
        return MOST_REPLICAS
    return min(MOST_REPLICAS, math.ceil(min(rate_rps / replica_rps, float(MOST_REPLICAS)) - 1e-9))


def affordable_replicas(dollars_per_hour: float, replica_cost_per_hour: float) -> int:
    """Most replicas that a positive cost leaves money for; next to nothing pays for very many."""
    most = max(0.0, dollars_per_hour) / replica_cost_per_hour
    return math.floor(min(most, float(MOST_REPLICAS)) + 1e-9)


def backlog(waiting: float, forecast: Forecast | None, ttft_seconds: float) -> float:
    """Requests waiting beyond those that arrived within the TTFT objective, which a queue in time may hold.

    Of those that wait longer no more than one lead time's arrivals count: the clients of others have gone.
    """
    if forecast is None:
        return 0.0
    late = waiting - forecast.level_rps * ttft_seconds
    return min(max(0.0, late), forecast.level_rps * forecast.lead_seconds)


def demand_rps(forecast: Forecast | None, late: float, ttft_seconds: float, starting: bool) -> float | None:
    """Rate to size for: the forecast, or the level with the backlog drained within max(TTFT, lead time).

    While replicas are starting their lead time runs already: what queues up meanwhile asks for no more of them.
    """
    if forecast is None or starting:
        return None if forecast is None else forecast.wanted_rps
    return max(forecast.wanted_rps, forecast.level_rps + late / max(ttft_seconds, forecast.lead_seconds))
