"""Where an endpoint saturates, and what it carries at the objective: trials at rates that bracket both."""

from __future__ import annotations

import bisect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import Floats
from holdfast.tools.bench.figures.engine import Reported
from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.load.load_generator import ClientTooSlow, LatencyBounds, Planned
from holdfast.tools.bench.load.records import RequestRecord

KEEPS_UP = 0.95
"""Of the arrivals' rate: an endpoint that finishes less is saturated (BLIS' rate deficit of 5 %)."""

RANGE = (0.5, 0.7)
"""Of saturation, where an endpoint is best run."""

REFUSALS = 2
"""Of a rate, before it counts as beyond the client: one may be a neighbour's moment on the same cores."""

LEAST_SECONDS, LEAST_ENDED = 8.0, 40
LOOK_SECONDS = 1.0
"""How often a trial under way is looked at."""

CONFIDENT = 3.0
"""Standard errors by which a slope must be above 0: of hundreds of looks at steady loads hardly one is."""


@dataclass(frozen=True, slots=True)
class RateTrial:
    """One rate. `saturated` says why it is beyond what the endpoint carries, empty where it is not."""

    rate_rps: float
    results: Results
    saturated: str
    engine: Reported | None = None


@dataclass(frozen=True, slots=True)
class SweepLoad:
    """What is sent at every rate: to which `model` and `url`, how arrivals and lengths are spread, for how long.

    `lengths_from` names the trace that lengths are drawn from, None where they were given; a CV is deviation / mean.
    A trial lasts longer than `trial_seconds` where fewer than `least_requests` would arrive.
    """

    model: str
    url: str
    api: str
    gaps_cv: float
    prompt_tokens_mean: float
    prompt_tokens_cv: float
    output_tokens_mean: float
    output_tokens_cv: float
    lengths_from: str | None
    trial_seconds: float
    least_requests: int


@dataclass(frozen=True, slots=True)
class RefusedRate:
    """A rate that the client itself was too slow for, so that nothing is known of it, and why."""

    rate_rps: float
    why: str


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All trials, lowest rate first, and what they bracket; `saturates_rps` is None where none saturated.

    `refused` is the lowest rate that the client was too slow for: the search went no higher.
    """

    trials: tuple[RateTrial, ...]
    objective: float
    carried_rps: float
    saturates_rps: float | None
    at_objective_rps: float
    refused: RefusedRate | None = None

    @property
    def slo(self) -> LatencyBounds:
        """What a good request is, the same in every trial."""
        return self.trials[0].results.slo

    @property
    def operating_range_rps(self) -> tuple[float, float]:
        """50 to 70 % of what is carried."""
        return RANGE[0] * self.carried_rps, RANGE[1] * self.carried_rps

    @property
    def front(self) -> tuple[RateTrial, ...]:
        """Trials that none beats both in output tokens/s and in tokens/s of a user (median)."""
        known = [trial for trial in self.trials if math.isfinite(trial.results.user_tokens_per_second.p50)]
        return tuple(trial for trial in known if not any(_beats(other.results, trial.results) for other in known))


def _beats(one: Results, other: Results) -> bool:
    first = one.output_tokens_per_second, one.user_tokens_per_second.p50
    second = other.output_tokens_per_second, other.user_tokens_per_second.p50
    return first != second and all(mine >= theirs for mine, theirs in zip(first, second, strict=True))


Run = Callable[[float], Awaitable[RateTrial]]


@dataclass(slots=True)
class SaturationSearch:
    """Finds both borders with few trials: doubles until saturated, then halves the brackets (geometrically)."""

    run: Run
    objective: float
    resolution: float = 1.1
    most_trials: int = 16
    lowest_rps: float = 0.1
    _trials: dict[float, RateTrial] = field(default_factory=dict)
    _refused: RefusedRate | None = None

    async def sweep(self, start_rps: float) -> SweepResult:
        """Begin at a rate that is thought to be low. ClientTooSlow where the client is so at the first one."""
        carried, saturates = await self._border(start_rps, lambda trial: not trial.saturated)
        attains, _ = await self._border(start_rps, self._attains)
        tried = tuple(self._trials[rate] for rate in sorted(self._trials))
        return SweepResult(tried, self.objective, carried, saturates, attains, self._refused)

    def _attains(self, trial: RateTrial) -> bool:
        return not trial.saturated and trial.results.attains(self.objective)

    async def _border(self, start: float, holds: Callable[[RateTrial], bool]) -> tuple[float, float | None]:
        """The highest rate found that holds (0: none), and the lowest found that does not (None: none)."""
        while True:
            failing = [rate for rate, trial in self._trials.items() if not holds(trial)]
            high = min(failing, default=None)
            low = max((rate for rate in self._trials if high is None or rate < high), default=0.0)
            following = self._next(start, low, high)
            if following is None or len(self._trials) >= self.most_trials or not await self._measured(following):
                return low, high

    async def _measured(self, rate: float) -> bool:
        """Try a rate; False where the client is too slow for it, or was for a lower one."""
        if self._refused is not None and rate >= self._refused.rate_rps:
            return False
        for refusals in range(1, REFUSALS + 1):
            try:
                self._trials[rate] = await self.run(rate)
                return True
            except ClientTooSlow as problem:
                if refusals == REFUSALS and not self._trials:
                    raise
                why = str(problem)
        self._refused = RefusedRate(rate, why)
        return False

    def _next(self, start: float, low: float, high: float | None) -> float | None:
        """The rate to try between, above or below; None where that is close enough."""
        if high is None:
            return low * 2.0 if low else start
        if low:
            return math.sqrt(low * high) if high / low > self.resolution else None
        return high / 2.0 if high / 2.0 >= self.lowest_rps else None


class OverSaturation:
    """Detects while a trial runs that its rate is above what the endpoint carries, so that the trial can end early.

    As in GuideLLM: both the requests under way and the TTFT rise, each by a slope that is clearly above 0.
    """

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._due = [each.at_seconds for each in planned]
        self._ended: list[tuple[float, float, float]] = []
        self._begin = math.nan
        self._next_look = LEAST_SECONDS
        self.found = False

    def ended(self, record: RequestRecord) -> None:
        """One more request ended."""
        if math.isnan(self._begin):
            self._begin = record.scheduled_at - self._due[min(record.index, len(self._due) - 1)]
        at = record.ended_at - self._begin
        under_way = bisect.bisect_right(self._due, at) - len(self._ended) - 1
        self._ended.append((at, float(under_way), definitions.ttft_seconds(record)))

    def stopped(self) -> bool:
        """Whether to send no more."""
        if not self.found and len(self._ended) >= LEAST_ENDED and self._ended[-1][0] >= self._next_look:
            self._next_look = self._ended[-1][0] + LOOK_SECONDS
            at, under_way, ttft = np.array(self._ended).T
            known = np.isfinite(ttft)
            self.found = rises(at, under_way) and rises(at[known], ttft[known])
        return self.found


def rises(at: Floats, values: Floats) -> bool:
    """Whether batch means over ten parts of the time rise: the t value of their slope is above `CONFIDENT`."""
    if len(at) < LEAST_ENDED:
        return False
    means = np.array([part.mean() for part in np.array_split(values[np.argsort(at, kind="stable")], 10)])
    places = np.arange(10.0) - 4.5
    slope = float(places @ means / (places @ places))
    if slope <= 0.0 or means[-1] < 2.0 * means[0]:
        return False
    rest = means - means.mean() - slope * places
    error = math.sqrt(float(rest @ rest) / 8.0 / float(places @ places))
    return error == 0.0 or slope / error > CONFIDENT


def saturation(results: Results, records: Sequence[RequestRecord], stopped: bool) -> str:
    """Why this load is beyond what the endpoint carries; empty where it is not."""
    if stopped:
        return "requests under way and TTFT kept rising"
    refused = sum(count for name, count in results.outcomes.items() if name in ("rate_limited", "overloaded"))
    if refused > (1.0 - KEEPS_UP) * results.requests:
        return f"{refused} of {results.requests} requests refused"
    unfinished = sum(count for name, count in results.outcomes.items() if name in ("unfinished", "timed_out"))
    if unfinished > (1.0 - KEEPS_UP) * results.requests:
        return f"{unfinished} of {results.requests} requests unfinished"
    share = kept_up(records)
    return f"finished {100 * share:.0f} % as fast as requests arrived" if share < KEEPS_UP else ""


def kept_up(records: Sequence[RequestRecord]) -> float:
    """The rate of finishing / the rate of arriving over the last three quarters of the arrivals; 1 where not known.

    What is under way at the beginning of that time is under way at its end too, as long as the endpoint keeps up, but
    for chance: one standard deviation of the difference of two Poisson counts of requests under way is no deficit.
    """
    arrived = sorted(record.scheduled_at for record in records)
    if len(arrived) < LEAST_ENDED:
        return 1.0
    begin, end = arrived[len(arrived) // 4], arrived[-1]
    ended = np.sort([record.ended_at for record in definitions.timed(records)])
    before, after = (bisect.bisect_right(ended, moment) for moment in (begin, end))
    expected = bisect.bisect_right(arrived, end) - bisect.bisect_right(arrived, begin)
    under_way = max(0, bisect.bisect_right(arrived, begin) - before)
    chance = math.sqrt(2.0 * under_way)
    return min(1.0, (after - before + chance) / expected) if expected else 1.0
