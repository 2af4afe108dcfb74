"""Requests that no series of vLLM shows: their clients left the queue, and vLLM forgot them at once.

Source: vllm-project/vllm#31503. What remains is the queue itself. A client that leaves a queue that is served
in order has waited no longer than a client that is served meanwhile. So Little's law gives a lower bound of how many
leave the queue, served or not.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.signals import AcceleratorTraffic, most_waiting
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value

MOST_HIDDEN = 3.0
"""Hidden requests for each one that is served: more are not believed before more are served."""

CHANCE = 3.0
"""Standard deviations of a Poisson count that chance explains."""

GHOST_SECONDS = 300.0
"""How long a store may show what a replica that is gone showed last."""

STILL = 1.25
"""Most by fewest that wait in a queue which neither grows nor is worked off."""


@value
class Queue:
    """Fewest and most requests that waited in the present span of one counting interval, which began at `since`.

    `before` are those of the span before; (0, infinite) where they are unknown. Before `from_at` requests of replicas
    that are gone may be among them; so many were `ready` at the last look.
    """

    since: float | None = None
    least: float = math.inf
    most: float = 0.0
    before: tuple[float, float] = (0.0, math.inf)
    from_at: float = -math.inf
    ready: int = 0

    @property
    def standing(self) -> float:
        """Requests that waited at every look of the last one or two intervals."""
        return min(self.least, self.before[0])


def watch_queue(memory: Queue, seen: Seen, ready: int, undisturbed: bool, now: float) -> Queue:
    """Add one look at the queue; where metrics have gaps, or replicas are sick or just left, nothing is known of it."""
    from_at = now + GHOST_SECONDS if ready < memory.ready else memory.from_at
    unknown = Queue(from_at=from_at, ready=ready)
    if not seen.fresh or not undisturbed or now < from_at <= now + GHOST_SECONDS:
        return unknown
    waiting = seen.total.waiting
    if memory.since is None:
        return replace(unknown, since=now, least=waiting, most=waiting)
    if not 0.0 <= now - memory.since < seen.interval_seconds:
        return replace(unknown, since=now, least=waiting, most=waiting, before=(memory.least, memory.most))
    return replace(memory, least=min(memory.least, waiting), most=max(memory.most, waiting), ready=ready)


def hidden_requests(queue: Queue, total: AcceleratorTraffic, ttft_seconds: float, interval_seconds: float) -> float:
    """Return the requests that left the queue in this interval and that no series shows, at least.

    Only a queue counts that stands: more wait all the time than `most_waiting`. More must leave it than counters and
    the queue show, by more than chance. Where the mean TTFT is unknown and no abort is counted, those in a queue that
    neither grows nor shrinks waited at most as long as the objective allows.
    """
    if total.exact is not None or not queue.standing > most_waiting(total, ttft_seconds, interval_seconds):
        return 0.0
    still = max(queue.most, queue.before[1]) <= STILL * queue.standing
    unknown = queue.standing * interval_seconds / ttft_seconds if still and not total.aborted else 0.0
    flow = total.queue_flow or unknown
    shown = total.ttft_count + total.aborted + max(0.0, total.in_flight_growth)
    return min(flow - shown, MOST_HIDDEN * total.ttft_count) if flow > shown + CHANCE * math.sqrt(shown) else 0.0
