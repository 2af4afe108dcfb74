"""Estimate which share of refused requests is retried: retries make the load look larger than it is."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value

REFUSING, ENDED = 0.05, 0.01
"""Shares of arrivals refused: above the first an episode runs, below the second it has ended."""

MOST = 0.9
"""Largest believed share of retries: sizes must still grow while requests are refused."""

WEIGHT = 0.5
"""Weight of one episode in the moving average."""


@value
class Retries:
    """The share learned so far, and the current episode of refusals.

    An episode that ends because replicas were added is an experiment: the arrivals that stop with it were retries. The
    load must not have changed at the same time. So an episode that ends without additional replicas teaches nothing.
    """

    share: float = 0.0
    looks: int = 0
    arrived_rps: float = 0.0
    refused_rps: float = 0.0
    serving: int = 0
    settles_at: float | None = None


def learn_retries(memory: Retries, seen: Seen, serving: int, now: float) -> Retries:
    """Follow an episode of refusals, and learn from its end; `serving` replicas are ready."""
    if not (seen.fresh and seen.visible):
        return memory
    interval = seen.interval_seconds
    refused = seen.refused / interval
    arrived = max(refused, seen.arrived / interval)
    if refused > REFUSING * arrived:
        looks = memory.looks + 1  # rates are averaged over the ticks of the episode
        return Retries(
            memory.share,
            looks,
            memory.arrived_rps + (arrived - memory.arrived_rps) / looks,
            memory.refused_rps + (refused - memory.refused_rps) / looks,
            serving if looks == 1 else min(memory.serving, serving),
        )
    if memory.looks == 0 or refused > ENDED * arrived:
        return memory
    if serving <= memory.serving:
        return Retries(memory.share)
    if memory.settles_at is None:
        return replace(memory, settles_at=now + interval)
    if now < memory.settles_at:
        return memory
    came_back = min(MOST, max(0.0, (memory.arrived_rps - arrived) / memory.refused_rps))
    return Retries(memory.share + WEIGHT * (came_back - memory.share))
