"""Which share of refused requests comes back: clients that retry make the load look larger than it is."""

from __future__ import annotations

from holdfast.domain.value import value
from holdfast.policy.estimate.traffic import Seen

REFUSING, ENDED = 0.05, 0.01
"""Shares of arrivals refused: above the first an episode runs, below the second it has ended."""

MOST = 0.9
"""Never believe that nearly everything refused was a retry: sizes must still grow while requests are refused."""

WEIGHT = 0.5
"""Of one episode."""


@value
class Retries:
    """The share learned so far, and the episode of refusals under way.

    An episode that more replicas end is an experiment: what then no longer arrives had only come back. The load must
    not have changed at the same time, so an episode that ends without more replicas teaches nothing.
    """

    share: float = 0.0
    looks: int = 0
    arrived_rps: float = 0.0
    refused_rps: float = 0.0
    serving: int = 0
    settles_at: float | None = None


def learn_retries(memory: Retries, seen: Seen, serving: int, now: float) -> Retries:
    """Follow an episode of refusals, and learn from how it ends; `serving` replicas are ready."""
    if not (seen.fresh and seen.visible):
        return memory
    interval = seen.interval_seconds
    refused = seen.refused / interval
    arrived = max(refused, seen.arrived / interval)
    if refused > REFUSING * arrived:
        return _refusing(memory, arrived, refused, serving)
    if memory.looks == 0 or refused > ENDED * arrived:
        return memory
    if serving <= memory.serving:
        return Retries(memory.share)
    if memory.settles_at is None:
        at = now + interval
        return Retries(memory.share, memory.looks, memory.arrived_rps, memory.refused_rps, memory.serving, at)
    if now < memory.settles_at:
        return memory
    came_back = min(MOST, max(0.0, (memory.arrived_rps - arrived) / memory.refused_rps))
    return Retries(memory.share + WEIGHT * (came_back - memory.share))


def _refusing(memory: Retries, arrived: float, refused: float, serving: int) -> Retries:
    """Average over the looks of the episode."""
    looks = memory.looks + 1
    return Retries(
        memory.share,
        looks,
        memory.arrived_rps + (arrived - memory.arrived_rps) / looks,
        memory.refused_rps + (refused - memory.refused_rps) / looks,
        serving if looks == 1 else min(memory.serving, serving),
    )
