"""Answers of Prometheus that contradict each other, such as those of two replicas that scrape at different times.

Then the difference of two counts is no number of late requests: it is not judged for as long as it may happen again.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.signals import AcceleratorTraffic, SignalState
from holdfast.domain.valid_traffic import Seen

DOUBTED_SECONDS = 120.0
"""How long answers are doubted after the last contradiction: most of them do not show that they are mixed."""

ROUNDING = 1e-6
"""Share by which sums of the same counters may differ."""

DETAIL = (
    "answers of Prometheus contradict each other: more requests were in time than there were, so it is unknown how "
    "many are late; keep clients on one replica (sessionAffinity: ClientIP of its Service) or ask a querier that merges"
)


def last_contradiction(before: float | None, seen: Seen, now: float) -> float | None:
    """Return when answers last contradicted each other; None where they did not lately."""
    if seen.visible and any(contradicts(counts) for _, counts in seen.by_accelerator):
        return now
    return before if before is not None and 0.0 <= now - before < DOUBTED_SECONDS else None


def contradicts(counts: AcceleratorTraffic) -> bool:
    """Return whether more requests were in time than there were; what plugins count is one series of each engine."""
    pairs = (
        (counts.ttft_within, counts.ttft_count),
        (counts.tpot_within, counts.tpot_count),
        (counts.e2e_within, counts.e2e_count),
    )
    return counts.exact is None and any(within > (1.0 + ROUNDING) * count + ROUNDING for within, count in pairs)


def believed(seen: Seen, contradiction: float | None) -> Seen:
    """Return the observation with its requests unjudged while answers are doubted."""
    doubted = contradiction is not None and seen.countable
    return replace(seen, state=SignalState.INCOMPLETE, detail=DETAIL) if doubted else seen
