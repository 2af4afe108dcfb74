"""Whether more replicas help: where they do not, the size returns to the cheapest with the same share of good requests.

Only sizes count at which a replica should carry its load by the engine model, at the step times that were measured. So
a service grows as far as its engines are known to need, however late requests are on the way there.
"""

from __future__ import annotations

from holdfast.domain.value import value
from holdfast.policy.estimate.capacity_evidence import LEAST_REQUESTS
from holdfast.policy.estimate.evidence_window import EvidenceWindow

BETTER = 0.05
"""Share of requests by which a larger size must serve more of them well."""

MOST_STEPS = 2
"""Larger sizes that are tried without a better share."""

OTHER_LOAD = 1.25
"""A load that differs by this factor is another one: what helps is not known there."""


@value
class Growth:
    """The cheapest `size` with the best `share` of good requests, and the larger sizes that were no better.

    `size` is 0 while objectives are met, or misses have an explanation. `rate_rps` is the load at that size.
    """

    accelerator: str = ""
    size: int = 0
    share: float = 0.0
    rate_rps: float = 0.0
    largest: int = 0
    steps: int = 0

    @property
    def useless(self) -> bool:
        """Return whether more replicas have not helped."""
        return self.steps >= MOST_STEPS


NONE = Growth()


def watch_growth(
    memory: Growth, accelerator: str, size: int, evidence: EvidenceWindow, carried_rps: float, missed: bool
) -> Growth:
    """Return what one more evidence window of `size` replicas shows.

    `carried_rps` is what one replica carries by the engine model. `missed`: too many requests were late.
    """
    if evidence.verdicts.judged < LEAST_REQUESTS:
        return memory
    if not missed or evidence.highest_rps >= carried_rps:
        return NONE
    share, rate = 1.0 - evidence.verdicts.bad_share, evidence.rate_rps * size
    found = Growth(accelerator, size, share, rate, largest=size)
    other_load = not 1.0 / OTHER_LOAD < rate / max(memory.rate_rps, 1e-9) < OTHER_LOAD
    if memory.size == 0 or memory.accelerator != accelerator or other_load or share > memory.share + BETTER:
        return found
    if size > memory.largest:
        return Growth(accelerator, memory.size, memory.share, memory.rate_rps, size, memory.steps + 1)
    if share < memory.share - BETTER:
        return memory if size < memory.size else found
    return Growth(accelerator, min(size, memory.size), memory.share, memory.rate_rps, memory.largest, memory.steps)
