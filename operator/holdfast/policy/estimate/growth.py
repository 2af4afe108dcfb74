"""Whether more replicas help: where they do not, the size returns to the cheapest that serves as much as well.

A larger size helps where it serves a larger share of the requests well, or where more requests are served per second,
in time or late: behind a queue, wherever it is, nothing is in time before the last replica that it needs is there. Only
sizes count at which a replica should carry its load by the engine model, at the step times that were measured. So
a service grows as far as its engines are known to need, however late requests are on the way there.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.value import value
from holdfast.policy.estimate.evidence_window import LEAST_REQUESTS, EvidenceWindow

BETTER = 0.05
"""Share of requests by which a larger size must serve more of them well."""

PROPORTION = 0.5
"""Share of a size's growth by which what it serves must rise: a queue is served as many times faster as there are
replicas, and what the load itself gains in between is less.
"""

MOST_STEPS = 2
"""Larger sizes that are tried without helping."""

OTHER_LOAD = 1.25
"""A load that differs by this factor is another one: what helps is not known there."""


@value
class Growth:
    """The cheapest `size` with the best `share` of good requests, and the larger sizes that were no better.

    `size` is 0 while objectives are met, or misses have an explanation. At that size `rate_rps` requests arrived per
    second, and `served_rps` got their first token.
    """

    accelerator: str = ""
    size: int = 0
    share: float = 0.0
    rate_rps: float = 0.0
    served_rps: float = 0.0
    largest: int = 0
    steps: int = 0

    @property
    def useless(self) -> bool:
        """Return whether more replicas have not helped."""
        return self.steps >= MOST_STEPS


def watch_growth(
    memory: Growth, accelerator: str, size: int, evidence: EvidenceWindow, carried_rps: float, missed: bool
) -> Growth:
    """Return what one more evidence window of `size` replicas shows.

    `carried_rps` is what one replica carries by the engine model. `missed`: too many requests were late.
    """
    if evidence.verdicts.judged < LEAST_REQUESTS:
        return memory
    if not missed or evidence.highest_rps >= carried_rps:
        return Growth()
    good, served = 1.0 - evidence.verdicts.bad_share, evidence.begun / evidence.replica_seconds
    found = Growth(accelerator, size, good, evidence.rate_rps * size, served * size, largest=size)
    same_load = 1.0 / OTHER_LOAD < found.rate_rps / max(memory.rate_rps, 1e-9) < OTHER_LOAD
    if memory.size == 0 or not same_load or memory.accelerator != accelerator:
        return found
    in_proportion = memory.served_rps * (1.0 + PROPORTION * (size / memory.size - 1.0))
    serves_more = size > memory.size and found.served_rps > in_proportion
    if serves_more or found.share > memory.share + BETTER:
        return found
    if size > memory.largest:
        return replace(memory, largest=size, steps=memory.steps + 1)
    if found.share < memory.share - BETTER:
        return memory if size < memory.size else found
    serves_less = size < memory.size and found.served_rps < in_proportion
    return memory if serves_less else replace(memory, size=min(size, memory.size))
