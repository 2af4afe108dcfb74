"""Signals of one service from Prometheus: each value comes with its state.

A missing number is a state and never a zero: `value` is None unless `state` is usable.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import field

from holdfast.domain.engine import EngineFacts, EngineState, ExactCounts, StepSums
from holdfast.domain.value import value


class SignalState(enum.Enum):
    """Whether a signal can be trusted, and why not; only FRESH may ever lower a size."""

    FRESH = "fresh"
    UNREACHABLE = "unreachable"  # Prometheus down, slow, or answering 4xx, 5xx or garbage
    ABSENT = "absent"  # no series at all
    STALE = "stale"  # the newest sample is older than three scrape intervals
    SKEWED = "skewed"  # samples have timestamps in the future
    PARTIAL = "partial"  # fewer engines report than replicas are ready
    FOREIGN = "mixed"  # the counts include engines that are no pods of this cluster
    DUPLICATE = "duplicate"  # one engine reports more than once: sums would count it twice
    INCOMPLETE = "incomplete"  # series that judge requests are missing: their share is unknown
    INVALID = "invalid"  # NaN, infinite or negative where that makes no sense


@value
class LatencyQuantiles:
    """Seconds; None with too few observations."""

    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None


LEAST_LOOK_SECONDS = 30.0
"""Shortest interval for judging capacity. The busiest replica is determined over this plus one counting interval."""

LEAST_STILL_SECONDS = 60.0
"""An engine that holds requests without progress for less than this may be slow or compiling a kernel."""


def still_seconds(interval_seconds: float) -> float:
    """How long an engine with requests must make no progress to count as stalled: at least one evidence window."""
    return max(LEAST_STILL_SECONDS, interval_seconds + LEAST_LOOK_SECONDS)


def fewest_looks(seconds: float, scrape_seconds: float) -> int:
    """Minimum samples in this interval that prove an engine stalled; a few may be lost."""
    return max(3, int(0.7 * seconds / scrape_seconds) + 1)


LEAST_LATE, LATE_SHARE = 8.0, 0.1
"""A straggler has at least LEAST_LATE late or failed requests, and at least this share of its own.

Its peers have at most this share of its share.
"""

MOST_LATE_SHARE = 0.1
"""Share of their requests that the peers of engines that fail may end with an error."""

SURELY_LATE_SHARE = 0.8
"""A straggler without the plugin has more than this share beyond an edge of vLLM's histograms."""

SLOW_STEPS = 1.5
"""Mean duration of an engine's steps, relative to the median engine's, above which they are no evidence of the rest."""


def lags(late: float, good: float, late_of_all: float, good_of_all: float, engines: int) -> bool:
    """Whether an engine with so many late or failed requests, and good ones, is a straggler among `engines`.

    An engine that is late because it received too many requests is no straggler: beyond chance, its load is no more
    than that of its peers. Without the plugin such an engine begins all requests late, and as many as it can.
    """
    load, by_others = late + good, late_of_all + good_of_all - late - good
    if not (min(late, by_others) >= LEAST_LATE and engines > 1):
        return False
    alone = (late_of_all - late) * load <= LATE_SHARE * late * by_others
    mean = by_others / (engines - 1)
    return late >= LATE_SHARE * load and alone and load <= mean + math.sqrt(mean)


def failing(errors: Mapping[str, float], errors_of_all: float, served_by_all: float) -> frozenset[str]:
    """Return the engines that fail: they end more requests with an error than they serve, and their peers do not.

    `errors` are those of the engines that end at least LEAST_LATE requests, and most of theirs, with one. Load does not
    explain errors: an engine that fails at once is the fastest, and draws requests that its peers would serve.
    """
    by_others = max(0.0, errors_of_all - sum(errors.values()))
    return frozenset(errors if by_others <= MOST_LATE_SHARE * (by_others + served_by_all) else ())


def most_waiting(counts: AcceleratorTraffic, ttft_seconds: float, interval_seconds: float) -> float:
    """Return how many requests may wait by chance if all that leave the queue waited as long as the objective allows.

    By Little's law, with three standard deviations of a Poisson count; infinite without an interval.
    """
    if not interval_seconds > 0.0:
        return math.inf
    allowed = ttft_seconds * (counts.ttft_count + counts.aborted) / interval_seconds
    return allowed + 3.0 * math.sqrt(allowed) + 3.0


def abandoned(
    counts: AcceleratorTraffic, ttft_seconds: float, interval_seconds: float, share: float, begun: float | None
) -> tuple[float, float]:
    """Return requests whose clients gave up too late before the first token, in this share of the interval.

    vLLM counts every abort; later releases than 0.33 record no TTFT of an abort before the first token. It is proven by
    the counters alone: a request that ended and had a first token either had it since then, which is counted, or was
    among the `begun` ones before. Ends beyond both had none. How long these waited is not recorded. They count only
    while more requests wait than `most_waiting`: clients of an engine without a queue changed their mind.

    The second number is the greatest number of requests that now have their first token and go on: the next `begun`.
    None: unknown, as after a gap; nothing is proven then.
    """
    in_flight, started = counts.running + counts.waiting, counts.ttft_count * share
    if begun is None:
        return 0.0, in_flight
    ended = (counts.finished + counts.aborted) * share
    without_token = min(max(0.0, ended - begun - started), counts.aborted * share)
    queued = counts.waiting > most_waiting(counts, ttft_seconds, interval_seconds)
    return without_token if queued else 0.0, min(max(0.0, begun + started - ended), in_flight)


UNKNOWN_QUANTILES = LatencyQuantiles()

CONCURRENCY_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@value
class Concurrency:
    """Requests that a service's engines hold at once, running or waiting, over ten minutes; None where unknown."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


UNKNOWN_CONCURRENCY = Concurrency()


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

    finished: float = 0.0  # finished by stop, length or repetition
    failed: float = 0.0  # ended by an engine error
    aborted: float = 0.0  # aborted by the client
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
    tpot_typical_seconds: float = 0.0  # mean TPOT of the median engine: one straggler does not change it
    e2e_count: float = 0.0
    e2e_within: float = 0.0  # equals e2e_count without an e2e objective
    running: float = 0.0
    waiting: float = 0.0
    waiting_late: float = 0.0  # waiting requests that plugins know to be late: they start after all others
    batch: float = 0.0  # batch requests that run, wait, began or ended: in no other number, and no demand
    queue_flow: float = 0.0  # requests that left the queues, served or not, by Little's law; 0 where unknown
    in_flight_growth: float = 0.0  # running + waiting, now less then
    kv_usage: float = 0.0  # mean over engines, 0..1
    engines: int = 0  # engines that reported
    busiest: float = 0.0  # load of the busiest replica relative to the mean, beyond chance; 0 if unknown
    exact: ExactCounts | None = None  # None unless the plugin is active in every engine that reported


def late_and_good(counts: AcceleratorTraffic) -> tuple[float, float]:
    """Return the requests that missed TTFT or TPOT, whichever more missed, and the rest.

    vLLM's histograms count each objective by itself, so that nobody knows how many missed both.
    """
    late = max(counts.ttft_count - counts.ttft_within, counts.tpot_count - counts.tpot_within)
    return late, min(counts.ttft_within, counts.tpot_within)


def busiest_share(begun: float, most: float, engines: int) -> float:
    """Load of the busiest of several engines relative to the mean: `most` of the requests `begun`; 0 where unknown.

    With n engines and m requests each on average, chance gives the busiest up to sqrt(2 m ln n) more: that is balanced.
    """
    if begun <= 0.0 or most <= 0.0 or engines < 1:
        return 0.0
    mean = begun / engines
    chance = math.sqrt(2.0 * mean * math.log(engines))
    return min(float(engines), most / mean) if most > mean + chance else 1.0


@value
class RevisionTraffic:
    """Requests of one revision of a service's pods, gained over the interval of the Traffic that contains them."""

    accelerator: str
    revision: str
    rejected: float = 0.0
    ttft_count: float = 0.0
    ttft_within: float = 0.0
    tpot_count: float = 0.0
    tpot_within: float = 0.0


@value
class ClassTraffic:
    """Requests of one class that were judged within some time, by the bounds of the class."""

    name: str
    good: float = 0.0
    bad: float = 0.0


@value
class BatchClassTraffic:
    """Batch requests of one class: `unfinished` ones wait or run now, `done` ones ended within some time."""

    name: str
    unfinished: float = 0.0
    done: float = 0.0


@value
class BatchTraffic:
    """Batch requests of all classes, and sums over them within some time; no classes where engines say nothing."""

    classes: tuple[BatchClassTraffic, ...] = ()
    done: float = 0.0
    prompt_tokens: float = 0.0  # those of done requests, as the next
    output_tokens: float = 0.0
    started_tokens: float = 0.0  # those of requests that had their first token
    cached_tokens: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of them."""
        own = (self.done, self.prompt_tokens, self.output_tokens, self.started_tokens, self.cached_tokens)
        return *own, *(number for each in self.classes for number in (each.unfinished, each.done))


NO_BATCH = BatchTraffic()


@value
class Traffic:
    """Everything observed of one service at one evaluation time.

    Even in a degraded state `by_accelerator` has the visible part: it may raise a size, never lower one.
    `detail` is the text for the condition: what is missing. The evaluation time is `late_seconds` ago where samples are
    steadily late.
    """

    state: SignalState
    detail: str = ""
    interval_seconds: float = 0.0
    sample_age_seconds: float | None = None
    by_accelerator: tuple[tuple[str, AcceleratorTraffic], ...] = ()
    ttft: LatencyQuantiles = UNKNOWN_QUANTILES
    tpot: LatencyQuantiles = UNKNOWN_QUANTILES
    e2e: LatencyQuantiles = UNKNOWN_QUANTILES
    concurrency: Concurrency = UNKNOWN_CONCURRENCY
    prompt_lengths: LengthHistogram = LengthHistogram()
    output_lengths: LengthHistogram = LengthHistogram()
    plugins: tuple[EngineState, ...] = ()
    steps: tuple[tuple[str, StepSums], ...] = ()  # by accelerator, where plugins report them
    revisions: tuple[RevisionTraffic, ...] = ()  # only while a revision is on trial
    hung: tuple[str, ...] = ()  # stalled pods: they held requests at every sample without progress; sorted
    silent: tuple[str, ...] = ()  # pods that look stalled by their metrics alone: nothing else proves it; sorted
    failing: tuple[str, ...] = ()  # pods that end most of their requests with an error, and their peers do not; sorted
    lagging: tuple[str, ...] = ()  # stragglers: pods that are late while their peers are in time; sorted
    facts: tuple[tuple[str, EngineFacts], ...] = ()  # by accelerator, sorted; may be a minute old
    classes: tuple[ClassTraffic, ...] = ()  # the declared ones, where plugins judge all requests
    batch: BatchTraffic = NO_BATCH
    late_seconds: float = 0.0

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
    classes: tuple[ClassTraffic, ...] = ()  # part of these; empty where engines did not judge all requests


@value
class HeldSample:
    """Counts of an activator in the step that ended at `at`: requests forwarded late, and requests lost."""

    at: float
    late: float
    lost: float


@value
class History:
    """Read back once after a start, oldest first; empty if Prometheus has none.

    `held` is None without series of an activator: held requests are unknown. Prometheus has data since `since`,
    whatever was scraped then; None if it has none. Not `whole`: queries for a part of the window failed.
    """

    samples: tuple[RateSample, ...] = field(default=())
    held: tuple[HeldSample, ...] | None = None
    since: float | None = None
    whole: bool = True


@value
class MissingHistory:
    """History from before the start of the operator that is not known yet; `failure` is why the last read failed."""

    failure: str = ""

    @property
    def sentence(self) -> str:
        """Why the size does not shrink, for the service's messages."""
        if not self.failure:
            return "the size does not shrink until the service's history has been read from Prometheus"
        return (
            f"the size does not shrink, because reading the service's history failed: {self.failure}. "
            "The read is repeated every 5 min or more often; check that Prometheus answers range queries"
        )
