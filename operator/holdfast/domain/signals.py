"""What Prometheus showed of one service, with the state of every signal beside its value.

A missing number is a state and never a zero: `value` is None unless `state` is usable.
"""

from __future__ import annotations

import enum
import math
from dataclasses import field

from holdfast.domain.engine import EngineState, ExactCounts, StepSums
from holdfast.domain.value import value


class SignalState(enum.Enum):
    """Why a signal can or cannot be believed; only FRESH may ever lower anything."""

    FRESH = "fresh"
    UNREACHABLE = "unreachable"  # Prometheus down, slow, or answering 4xx, 5xx or garbage
    ABSENT = "absent"  # no series at all
    STALE = "stale"  # the newest sample is older than three scrape intervals
    SKEWED = "skewed"  # samples carry times in the future
    PARTIAL = "partial"  # fewer engines report than replicas are ready
    FOREIGN = "mixed"  # engines that are no pods of this cluster are counted with it
    DUPLICATE = "duplicate"  # one engine reports more than once: sums would count it twice
    INVALID = "invalid"  # NaN, infinite or negative where that makes no sense


@value
class LatencyQuantiles:
    """Seconds; None where too little was observed to say."""

    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None


LEAST_LOOK_SECONDS = 30.0
"""Capacity is not judged by less. Who is busiest is told over that and an interval: over what one judgement sees."""

LEAST_STILL_SECONDS = 60.0
"""An engine that holds requests and makes nothing of them may be slow, or compile a kernel, for less than that."""


def still_seconds(interval_seconds: float) -> float:
    """How long an engine that holds requests must have made nothing of them to be hung: no less than one look."""
    return max(LEAST_STILL_SECONDS, interval_seconds + LEAST_LOOK_SECONDS)


def fewest_looks(seconds: float, scrape_seconds: float) -> int:
    """Samples in so many seconds that tell of an engine standing still; a few may be lost."""
    return max(3, int(0.7 * seconds / scrape_seconds) + 1)


LEAST_LATE, LATE_PER_GOOD = 8.0, 4.0
"""An engine that lags has at least so many late requests, and more than so many for each one in time."""

MOST_LATE_SHARE, MOST_LOAD = 0.1, 2.0
"""Of what others judge at most this share is late, and the engine had at most so many times their mean load."""


def lags(late: float, late_of_all: float, good_of_all: float, engines: int) -> bool:
    """Whether an engine that makes next to nothing in time, with so many `late`, is alone with that among `engines`.

    What it made in time all the same is not known but for its bound, which is reckoned as its own load and left out of
    what others judged. Late because of too many requests is another matter: the more work is no fault of its own.
    """
    own = (1.0 + 1.0 / LATE_PER_GOOD) * late
    by_others = late_of_all + good_of_all - own
    alone = min(late, by_others) >= LEAST_LATE and late_of_all - late <= MOST_LATE_SHARE * by_others
    return alone and own * (engines - 1) <= MOST_LOAD * by_others


UNKNOWN_QUANTILES = LatencyQuantiles()


@value
class LengthHistogram:
    """Cumulative request counts by upper edge in tokens (the last edge may be infinite)."""

    edges_tokens: tuple[float, ...] = ()
    cumulative: tuple[float, ...] = ()


@value
class AcceleratorTraffic:
    """Counts of one service on one accelerator during the last `Traffic.interval_seconds`.

    Counts are requests, tokens or seconds gained over the interval, counter resets and new engines included
    (the first value of a new engine counts whole). Gauges are sums over engines at the evaluation time.
    """

    finished: float = 0.0  # ended by stop, length or repetition
    failed: float = 0.0  # ended by an engine error
    aborted: float = 0.0  # given up by the client
    rejected: float = 0.0  # refused by admission
    prompt_tokens: float = 0.0
    cached_prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    length_samples: float = 0.0  # requests behind prompt_length_sum and output_length_sum
    prompt_length_sum: float = 0.0
    output_length_sum: float = 0.0
    preemptions: float = 0.0
    ttft_count: float = 0.0
    ttft_within: float = 0.0  # TTFT <= objective
    tpot_count: float = 0.0
    tpot_within: float = 0.0  # TPOT <= objective
    tpot_sum_seconds: float = 0.0
    e2e_count: float = 0.0
    e2e_within: float = 0.0  # equals e2e_count where no e2e objective is set
    running: float = 0.0
    waiting: float = 0.0
    waiting_late: float = 0.0  # of those waiting, the ones that plugins know to be late: they start after all others
    in_flight_growth: float = 0.0  # running + waiting, now less then
    kv_usage: float = 0.0  # mean over engines, 0..1
    engines: int = 0  # engines that reported
    busiest: float = 0.0  # load of the busiest replica relative to the mean one's, beyond chance; 0 if unknown
    exact: ExactCounts | None = None  # None unless every engine that reported has the plugin at work


def busiest_share(begun: float, most: float, engines: int) -> float:
    """Load of the busiest of several engines relative to the mean: `most` of the requests `begun`; 0 where unknown.

    Where n engines have m requests each but for chance, the busiest has up to sqrt(2 m ln n) more: that counts as even.
    """
    if begun <= 0.0 or most <= 0.0 or engines < 1:
        return 0.0
    mean = begun / engines
    chance = math.sqrt(2.0 * mean * math.log(engines))
    return min(float(engines), most / mean) if most > mean + chance else 1.0


@value
class RevisionTraffic:
    """Requests of one revision of a service's pods, gained over the interval of the traffic they are part of."""

    accelerator: str
    revision: str
    rejected: float = 0.0
    ttft_count: float = 0.0
    ttft_within: float = 0.0
    tpot_count: float = 0.0
    tpot_within: float = 0.0


@value
class Traffic:
    """Everything observed of one service at one evaluation time.

    Even in a degraded state `by_accelerator` carries what is still visible: it may raise a size, never lower one.
    `detail` says in words what is missing, for the condition.
    """

    state: SignalState
    detail: str = ""
    interval_seconds: float = 0.0
    sample_age_seconds: float | None = None
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...] = ()
    ttft: LatencyQuantiles = UNKNOWN_QUANTILES
    tpot: LatencyQuantiles = UNKNOWN_QUANTILES
    e2e: LatencyQuantiles = UNKNOWN_QUANTILES
    prompt_lengths: LengthHistogram = LengthHistogram()
    output_lengths: LengthHistogram = LengthHistogram()
    plugins: tuple[EngineState, ...] = ()
    steps: tuple[tuple[str, StepSums], ...] = ()  # by accelerator, where plugins report them
    revisions: tuple[RevisionTraffic, ...] = ()  # only where one revision is on trial beside another
    hung: tuple[str, ...] = ()  # pods that held requests at every look and made nothing of them, in order of names
    lagging: tuple[str, ...] = ()  # pods that make nearly nothing in time while their peers do, in order of names

    @property
    def fresh(self) -> bool:
        return self.state is SignalState.FRESH


@value
class RateSample:
    """One point of history as read back from Prometheus: counts over `interval_seconds` that ended at `at`."""

    at: float
    interval_seconds: float
    arrivals: float
    good: float
    bad: float


@value
class HeldSample:
    """What an activator counted in the step that ended at `at`: requests passed on late, and those lost."""

    at: float
    late: float
    lost: float


@value
class History:
    """Read back once after a start, oldest first; empty where Prometheus has none.

    `held` is None where it has no series of an activator: nobody knows what was held. Prometheus remembers back to
    `since`, whatever was scraped then; None where it remembers nothing. Not `whole`: it was not answered for all of the
    window.
    """

    samples: tuple[RateSample, ...] = field(default=())
    held: tuple[HeldSample, ...] | None = None
    since: float | None = None
    whole: bool = True
