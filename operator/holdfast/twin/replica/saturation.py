"""Where a replica saturates, whatever its objectives, and how long a trial must be to tell a rate beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from holdfast.domain.service import Slo
from holdfast.twin.arrays.fleet import EngineSpec, Workload
from holdfast.twin.replica.capacity import REQUESTS, WARM_UP, Horizon, LengthPairs, played, sample_of

STAYS = 20.0
"""A trial takes so many times what a request stays: sequences gather for a few of these before a queue can grow."""

SPREAD_STAYS = 50.0
"""Several replicas take longer, since chance gives some of them too much for a while; but not over an hour: there are
many of them."""

LONG_SECONDS = 3600.0
"""And at least so long: a rate 1 % beyond saturation, as exact as rates are looked for, leaves a queue of 36 s."""

MOST_REQUESTS = 40_000
"""But not more requests: more than `STAYS` times vLLM's 1,024 sequences, with a mean work that is known to 1 %."""

NO_SLO = Slo(math.inf, math.inf, 0.5, LONG_SECONDS)


@dataclass(frozen=True, slots=True)
class Saturation:
    """Requests per second that leave an endless queue, and how long each of them is then in the engine."""

    rate_rps: float
    stay_seconds: float

    @property
    def horizon(self) -> Horizon:
        """Of trials in which a queue that grows is seen."""
        stay = self.stay_seconds
        return Horizon(max(LONG_SECONDS, STAYS * stay), MOST_REQUESTS, min(LONG_SECONDS, SPREAD_STAYS * stay))


def saturation(kind: EngineSpec, lengths: LengthPairs) -> Saturation:
    """Measured while an endless queue waits, so that no objective has to do with it, for as long as trials take."""
    count = REQUESTS
    found, seconds = _endless(kind, sample_of(lengths, 0, count))
    while seconds < found.horizon.seconds and 2 * count <= MOST_REQUESTS:
        doublings = max(1, math.ceil(math.log2(found.horizon.seconds / seconds)))
        count *= 2 ** min(doublings, math.floor(math.log2(MOST_REQUESTS / count)))
        found, seconds = _endless(kind, sample_of(lengths, 0, count))
    return found


def _endless(kind: EngineSpec, sample: Workload) -> tuple[Saturation, float]:
    """Between the warm-up and the end of the queue, and how many seconds that was."""
    requests = played(kind, NO_SLO, replace(sample, at=np.zeros(len(sample))))
    last = float(requests["first_at"].max())
    first = WARM_UP * last
    left = np.count_nonzero((requests["last_at"] > first) & (requests["last_at"] <= last))
    stay = float((requests["last_at"] - requests["first_at"]).mean())
    return Saturation(float(left) / (last - first), stay), last - first
