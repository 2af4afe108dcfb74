"""What one replica carries, by simulation: the rate at which as many requests are good as the objective asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from holdfast.domain.service import Slo
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.arrays.timers import Floats, Integers

WARM_UP = 0.2
"""Share of the requests that come before the counted ones."""

FIRST_STRIDE, MOST_STRIDE, RESOLUTION = 1.12, 3.0, 0.01
"""How far from the guess is looked first and later, and how exact a rate is looked for: below the statistical error."""

LEAST_SHARE = 0.01
"""A rate so far below the guess is none."""

REQUESTS, DRAWS = 2000, 5

ALONE = Routing("round-robin")

MOST_SPREAD = 20_000
"""Most requests of a trial of several replicas; more where the trial's seconds ask for them."""

MEANS_MADE = 12
"""How often drawn lengths are stretched until their mean is the one asked for."""

LEAST_MISSES = 1e-4
"""Fewer misses than this count as so many, as does a smaller budget: there is a logarithm of them."""

MOST_STEP = math.log(MOST_STRIDE)

GLANCE = 6000
"""Requests of the trials that find where to look with long ones."""

STEEPNESS = 12.0
"""Power of the rate with which misses are taken to grow while fewer than two rates are known."""

ALIKE, NEAR, NEARER, FEW = 2.0, 0.05, 0.03, 0.01
"""Misses within this factor of the budget, and rates so near, say by a line through two of them where the budget is;
rates nearer still where the budget is below `FEW`: a share of few misses is less certain."""

STRAIGHT = 4.0
"""Factor between the misses of two rates up to which a line through them is taken for the curve."""


@dataclass(frozen=True, slots=True)
class LengthPairs:
    """Pairs of prompt and output tokens to draw from."""

    prompt_tokens: Integers
    output_tokens: Integers

    def draw(self, count: int, draw: np.random.Generator) -> tuple[Integers, Integers]:
        """Pairs with replacement."""
        rows = draw.integers(0, len(self.prompt_tokens), count)
        return self.prompt_tokens[rows], self.output_tokens[rows]


@dataclass(frozen=True, slots=True)
class SimulatedRate:
    """Requests per second and the standard error of that; 0 where even a trickle misses the objective."""

    rate_rps: float
    error_rps: float


@dataclass(frozen=True, slots=True)
class Horizon:
    """How long a trial is: so many seconds, with at least `REQUESTS` and at most `most` requests.

    A trial of several replicas takes `spread_seconds`, or longer where these are few requests.
    """

    seconds: float
    most: int
    spread_seconds: float

    def requests(self, rate_rps: float) -> int:
        """Of a trial at this rate."""
        return round(min(max(self.seconds * rate_rps, REQUESTS), self.most))

    def spread_requests(self, rate_rps: float, replicas: int) -> int:
        """Of a trial of replicas that get this rate together."""
        return max(min(REQUESTS * replicas, MOST_SPREAD), round(self.spread_seconds * rate_rps))


SHORT = Horizon(0.0, REQUESTS, 0.0)
"""The same requests at every rate: quick, but over before a queue shows that grows slowly."""


class Bench:
    """The same requests at any rate of a replica: Poisson moments at one per second, stretched.

    Each of the replica's `engines` has its share of them.
    """

    def __init__(
        self,
        kind: EngineSpec,
        slo: Slo,
        lengths: LengthPairs,
        draws: int = DRAWS,
        horizon: Horizon = SHORT,
        engines: int = 1,
    ) -> None:
        self._kind = kind
        self._engines = engines
        self._slo = slo
        self._lengths = lengths
        self._horizon = horizon
        self._samples = [sample_of(lengths, seed, horizon.most) for seed in range(draws)]

    def attainment(self, rate_rps: float, draws: int | None = None) -> float:
        """Good share of the counted requests, over so many draws or all."""
        return float(np.mean([self._attained(sample, rate_rps) for sample in self._samples[:draws]]))

    def spread_attainment(self, rate_rps: float, replicas: int) -> float:
        """Good share where a plain Service spreads the requests: each connection meets a replica at random."""
        engines = self._engines * replicas
        count = self._horizon.spread_requests(rate_rps, engines)
        samples = (sample_of(self._lengths, seed, count) for seed in range(len(self._samples)))
        runs = (_counted(self._kind, self._slo, sample, rate_rps, engines, Routing()) for sample in samples)
        return float(np.mean([good(run, self._slo).mean() for run in runs]))

    def rate(self, guess_rps: float) -> SimulatedRate:
        """The largest rate that attains the objective, looked for around a guess in each draw."""
        return _mean([self._largest(sample, guess_rps) for sample in self._samples])

    def rate_below(self, most_rps: float, guess_rps: float) -> SimulatedRate:
        """The rate below another one at which misses reach the budget, by long trials.

        A short one tells the first draw where to look, and that one the others: most of them then need one trial.
        """
        near, steepness = crossing(
            partial(self._missed, _first(self._samples[0], GLANCE)), self._budget, guess_rps, most_rps
        )
        found: list[float] = []
        for sample in self._samples:
            rate, steepness = crossing(partial(self._missed, sample), self._budget, near, most_rps, steepness)
            found, near = [*found, rate], rate or near
        return _mean(found)

    def user_tokens_per_second(self, rate_rps: float) -> float:
        """Median of output tokens / E2E of the requests that finish, in the first draw; NaN where none does."""
        requests = self._run(self._samples[0], rate_rps)
        ended = requests[requests["state"] == state_arrays.FINISHED]
        return float(np.median(ended["output"] / (ended["last_at"] - ended["at"]))) if len(ended) else math.nan

    def feasible(self, rate_rps: float) -> tuple[float, float, float]:
        """TTFT, TPOT and E2E in seconds that the objective's share of requests keeps together at this rate, or more."""
        requests = np.concatenate([self._run(sample, rate_rps) for sample in self._samples])
        ended = requests[requests["state"] == state_arrays.FINISHED]
        # Refused requests have used some of the budget.
        left = max(0.0, 1.0 - self._slo.objective * len(requests) / len(ended))
        share = 1.0 - left / (2.0 if self._slo.e2e_seconds is None else 3.0)
        ttft, tpot, e2e = (float(np.quantile(seconds, share, method="higher")) for seconds in latencies(ended))
        return ttft, tpot, e2e

    def _largest(self, sample: Workload, guess: float) -> float:
        return bisected(lambda rate: self._attained(sample, rate) >= self._slo.objective, guess)

    @property
    def _budget(self) -> float:
        return 1.0 - self._slo.objective

    def _missed(self, sample: Workload, rate: float) -> float:
        return 1.0 - self._attained(sample, rate)

    def _attained(self, sample: Workload, rate: float) -> float:
        return float(good(self._run(sample, rate), self._slo).mean())

    def _run(self, sample: Workload, rate: float) -> state_arrays.Records:
        """The counted requests of one engine's trial."""
        rate /= self._engines
        return _counted(self._kind, self._slo, _first(sample, self._horizon.requests(rate)), rate)


def _counted(
    kind: EngineSpec, slo: Slo, sample: Workload, rate: float, replicas: int = 1, routing: Routing = ALONE
) -> state_arrays.Records:
    """The requests after the warm-up."""
    requests = played(kind, slo, replace(sample, at=sample.at / rate), replicas, routing)
    return requests[round(WARM_UP * len(sample)) :]


def played(
    kind: EngineSpec, slo: Slo, load: Workload, replicas: int = 1, routing: Routing = ALONE
) -> state_arrays.Records:
    """All requests of a load, after so many replicas are through with it."""
    fleet = EngineFleet(load, [kind], slo, routing)
    for _ in range(replicas):
        fleet.add()
    fleet.advance(math.inf)
    return fleet.requests


def _first(sample: Workload, count: int) -> Workload:
    tokens = sample.prompt_tokens[:count], sample.output_tokens[:count], sample.cached_tokens[:count]
    return Workload(sample.at[:count], *tokens)


def _mean(rates: Sequence[float]) -> SimulatedRate:
    error = float(np.std(rates, ddof=1)) / math.sqrt(len(rates)) if len(rates) > 1 else math.inf
    return SimulatedRate(float(np.mean(rates)), error)


def good(requests: state_arrays.Records, slo: Slo) -> Floats:
    """1 for each request that is, 0 for the others."""
    ttft, tpot, e2e = latencies(requests)
    met = (ttft <= slo.ttft_seconds) & (tpot <= slo.tpot_seconds) & (e2e <= (slo.e2e_seconds or math.inf))
    return np.asarray(met & (requests["state"] == state_arrays.FINISHED), np.float64)


def latencies(requests: state_arrays.Records) -> tuple[Floats, Floats, Floats]:
    """TTFT, TPOT and E2E in seconds."""
    decoding = requests["last_at"] - requests["first_at"]
    tpot = np.where(requests["output"] > 1, decoding / np.maximum(requests["output"] - 1, 1), 0.0)
    return requests["first_at"] - requests["at"], tpot, requests["last_at"] - requests["at"]


def bisected(holds: Callable[[float], bool], guess: float, stride: float = FIRST_STRIDE) -> float:
    """The largest rate that holds: from the guess outwards in growing strides, then between the last two."""
    low, high = 0.0, math.inf
    rate = guess
    while LEAST_SHARE * guess < rate < guess / LEAST_SHARE:
        if holds(rate):
            low, rate = rate, rate * stride
        else:
            high, rate = rate, rate / stride
        if low > 0.0 and high < math.inf:
            break
        stride = min(stride * stride, MOST_STRIDE)
    if low == 0.0:
        return 0.0
    while high < math.inf and high - low > RESOLUTION * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def crossing(
    misses: Callable[[float], float], budget: float, guess: float, most: float, steepness: float | None = None
) -> tuple[float, float | None]:
    """The rate below `most` at which a share of misses reaches the budget, and with what power of the rate it grows.

    Logarithms of both are followed along lines (secant method), since each share is a long trial. A trial without a
    miss is on no line. Where misses jump, the largest rate that was seen to hold, as exact as `bisected`. 0 where even
    a trickle misses.
    """
    low, high, rate, before = 0.0, most, guess, (math.nan, math.nan)
    near = NEAR if budget >= FEW else NEARER
    while LEAST_SHARE * guess < rate < guess / LEAST_SHARE:
        share = misses(rate)
        low, high = (rate, high) if share <= budget else (low, rate)
        seen = math.log(rate), math.log(max(share, LEAST_MISSES) / max(budget, LEAST_MISSES))
        steepness = _steepness(before, seen, steepness)
        step = math.exp(min(max(-seen[1] / (steepness or STEEPNESS), -MOST_STEP), MOST_STEP))
        is_far = abs(seen[1] - before[1]) > math.log(STRAIGHT)
        if share > 0.0 and steepness and not is_far and abs(seen[1]) <= math.log(ALIKE) and abs(step - 1.0) <= near:
            return min(max(rate * step, low), high), steepness
        if high - low <= RESOLUTION * high:
            return low, steepness
        before, rate = seen, _inside(rate * step, low, high)
    return low, steepness


def _steepness(before: tuple[float, float], seen: tuple[float, float], steepness: float | None) -> float | None:
    """Of a line through two points; half of what was believed where misses do not grow with the rate."""
    run, rise = seen[0] - before[0], seen[1] - before[1]
    if math.isnan(run) or run == 0.0:
        return steepness
    return rise / run if rise * run > 0.0 else 0.5 * (steepness or STEEPNESS)


def _inside(rate: float, low: float, high: float) -> float:
    """A rate between the largest that holds and the least that does not; just below the latter before their middle."""
    if low < rate < high:
        return rate
    beneath = (1.0 - RESOLUTION) * high
    return beneath if rate >= high and low < beneath else 0.5 * (low + high)


def sample_of(lengths: LengthPairs, seed: int, count: int) -> Workload:
    """So many Poisson requests, one per second on average."""
    draw = np.random.default_rng([seed, 3])
    prompts, outputs = lengths.draw(count, draw)
    return Workload(np.cumsum(draw.exponential(1.0, count)), prompts, outputs, np.zeros(count, np.int64))


def lognormal_lengths(prompt_tokens: float, output_tokens: float, cv: float, most_tokens: int) -> LengthPairs:
    """Independent lognormal lengths with these means, where no trace is known; at least 1 and at most `most_tokens`."""
    draw = np.random.default_rng(4)
    sigma = math.sqrt(math.log1p(cv * cv))

    def column(mean: float) -> Integers:
        shape = np.exp(sigma * draw.standard_normal(20_000))
        scale, found = mean / shape.mean(), np.zeros(0)
        # So few draws of a wide spread miss the mean by chance, and what is cut off is missing: both are made good.
        for _ in range(MEANS_MADE):
            found = np.clip(np.rint(scale * shape), 1, most_tokens)
            scale *= mean / found.mean()
        return found.astype(np.int64)

    return LengthPairs(column(prompt_tokens), column(output_tokens))


def fitting(lengths: LengthPairs, most_tokens: int) -> LengthPairs:
    """The requests that an engine can hold at all."""
    inside = lengths.prompt_tokens + lengths.output_tokens <= most_tokens
    return LengthPairs(lengths.prompt_tokens[inside], lengths.output_tokens[inside])


def pairs(lengths: LengthPairs) -> Sequence[tuple[float, float]]:
    """As numbers, for the engine model's length mix."""
    return list(zip(lengths.prompt_tokens.tolist(), lengths.output_tokens.tolist(), strict=True))
