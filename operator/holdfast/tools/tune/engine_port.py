"""The two ports of tuning: trials of an endpoint, live or on the twin's clock, and the model that proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from holdfast.tools.tune.race import interval
from holdfast.tools.tune.setting import Setting
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.replica.capacity import LengthPairs

LEAST_COUNTED, ALLOWED_BAD = 200, 4.0
"""A trial counts so many requests at least, and so many that the objective lets it have this many bad ones."""

WARM_UP, COUNTED = 0.5, 2.5
"""Requests of the warm-up, and requests that count, as multiples of the requests in an engine at a time."""

MOST_RESIDENT, RESIDENT_PROMPT, DRAWS_PER_REQUEST = 2000, 2, 64
LONE_REQUESTS, LONE_RPS = 20, 1e-6

LEAST_SECONDS = 1e-4
"""Shorter times tell of a client that read several tokens at once, and not of a step."""


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """What a trial sends; requests from number `first` on count."""

    requests: Workload
    first: int

    @property
    def counted(self) -> int:
        """How many do."""
        return len(self.requests) - self.first


@dataclass(frozen=True)
class TrialRequests:
    """The same requests at any rate, so that settings differ by what they are and not by chance.

    `counted` of them count, after a warm-up; `cv` is that of the gaps, 1 for Poisson arrivals. They are drawn by
    quantiles: few requests drawn at random would be a tenth more work, or less, than the load they stand for.
    """

    lengths: LengthPairs
    counted: int
    warm_up: int = 0
    cv: float = 1.0
    seed: int = 1

    def lasting(self, in_engine: float) -> TrialRequests:
        """As many as an engine needs to show its steady state that has so many requests in it at a time."""
        counted, warm_up = (math.ceil(share * in_engine) for share in (COUNTED, WARM_UP))
        return replace(self, counted=max(self.counted, counted), warm_up=max(self.warm_up, warm_up))

    def at(self, rate_rps: float, residence_seconds: float) -> TrialLoad:
        """A load that begins as if it had been going on for long: with the requests that would be in the engine.

        Without them an engine that is beyond what it carries looks well for as long as it takes to fill up.
        """
        resident = min(round(rate_rps * residence_seconds), MOST_RESIDENT)
        gaps, prompts, outputs = self._drawn
        first_prompts, first_outputs = self._under_way(resident)
        load = Workload(
            np.concatenate([np.zeros(resident), np.cumsum(gaps) / rate_rps]),
            np.concatenate([first_prompts, prompts]),
            np.concatenate([first_outputs, outputs]),
            np.zeros(resident + len(gaps), np.int64),
        )
        return TrialLoad(load, resident + self.warm_up)

    def alone(self) -> TrialLoad:
        """Few that meet nobody else."""
        gaps, prompts, outputs = self._drawn
        at, none = np.cumsum(gaps[:LONE_REQUESTS]) / LONE_RPS, np.zeros(LONE_REQUESTS, np.int64)
        return TrialLoad(Workload(at, prompts[:LONE_REQUESTS], outputs[:LONE_REQUESTS], none[: len(at)]), 0)

    def others(self) -> TrialRequests:
        """As many of the same kind, drawn anew."""
        return replace(self, seed=self.seed + 1_000_003)

    @cached_property
    def _drawn(self) -> tuple[Floats, Integers, Integers]:
        """Gaps of one second on average, and lengths."""
        count, draw = self.warm_up + self.counted, np.random.default_rng([self.seed, 5])
        shape = 1.0 / self.cv**2
        gaps = np.sort(draw.gamma(shape, 1.0 / shape, DRAWS_PER_REQUEST * count))[
            _spaced(count, draw, DRAWS_PER_REQUEST)
        ]
        rows = _by_both(self.lengths, count)[_spaced(count, draw, len(self.lengths.prompt_tokens) / count)]
        draw.shuffle(gaps)
        draw.shuffle(rows)
        return gaps / gaps.mean(), self.lengths.prompt_tokens[rows], self.lengths.output_tokens[rows]

    def _under_way(self, count: int) -> tuple[Integers, Integers]:
        """Requests in the midst of their answers, among which long ones are found more often.

        Their prompts are short, for all of them come at once: what they compute would hold up the counted requests.
        """
        draw = np.random.default_rng([self.seed, 7])
        order = np.argsort(self.lengths.output_tokens, kind="stable")
        weights = np.cumsum(self.lengths.output_tokens[order].astype(np.float64))
        rows = order[np.searchsorted(weights, (np.arange(count) + draw.random(count)) / max(count, 1) * weights[-1])]
        left = np.ceil(draw.permutation((np.arange(count) + 0.5) / max(count, 1)) * self.lengths.output_tokens[rows])
        return np.maximum(1, self.lengths.prompt_tokens[rows] // RESIDENT_PROMPT), np.maximum(1, left.astype(np.int64))


def _spaced(count: int, draw: np.random.Generator, stride: float) -> Integers:
    """One place in each of `count` parts of that length."""
    return ((np.arange(count) + draw.random(count)) * stride).astype(np.int64)


def _by_both(lengths: LengthPairs, count: int) -> Integers:
    """The pairs in an order whose parts are alike in both lengths: by prompt in parts, in each of them by answer."""
    by_prompt = np.argsort(lengths.prompt_tokens, kind="stable")
    parts = np.empty(len(by_prompt), np.int64)
    parts[by_prompt] = np.arange(len(by_prompt)) * math.ceil(math.sqrt(count)) // len(by_prompt)
    return np.lexsort((lengths.output_tokens, parts))


def enough(objective: float) -> int:
    """Requests that tell whether so many of them are good."""
    return max(LEAST_COUNTED, math.ceil(ALLOWED_BAD / max(1.0 - objective, 0.002)))


@dataclass(frozen=True, slots=True)
class TrialFigures:
    """Medians of finished requests in seconds, and TTFT, TPOT and E2E that the objective's share of them keeps.

    `thirds` are geometric means of the lowest, middle and highest third of TTFT, then of TPOT.
    """

    ttft_seconds: float = math.nan
    tpot_seconds: float = math.nan
    tail: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    thirds: tuple[float, ...] = ()


def figures(ttft: Floats, tpot: Floats, e2e: Floats, objective: float) -> TrialFigures:
    """Of finished requests, one value of each per request, in seconds; NaN is left out."""
    known = [each[np.isfinite(each)] for each in (ttft, tpot, e2e)]
    medians = [float(np.median(each)) if len(each) else math.nan for each in known]
    tail = [float(np.quantile(each, objective, method="higher")) if len(each) else math.nan for each in known]
    thirds = tuple(_mean(third) for each in known[:2] for third in np.array_split(np.sort(each), 3))
    return TrialFigures(medians[0], medians[1], (tail[0], tail[1], tail[2]), thirds)


def _mean(seconds: Floats) -> float:
    """Geometric."""
    return float(np.exp(np.log(np.maximum(seconds, LEAST_SECONDS)).mean())) if len(seconds) else math.nan


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial: what it was, and what came of it.

    `seconds` are all that it took, a restart included, `load_seconds` those of the load. `bad` of the first `judged`
    arrivals that count were bad; a trial that was `ended` early judged fewer than all. `memory_full`: the KV cache was
    what requests waited for. `causes` of bad requests, the commonest first.
    """

    setting: Setting
    rate_rps: float
    held: bool
    judged: int
    bad: int
    seconds: float
    load_seconds: float = math.nan
    ended: bool = False
    restarted: bool = False
    figures: TrialFigures = TrialFigures()
    memory_full: bool = False
    causes: Sequence[tuple[str, int]] = ()

    @property
    def attainment(self) -> float:
        """Good requests of those judged, NaN of none."""
        return 1.0 - self.bad / self.judged if self.judged else math.nan

    @property
    def attainment_interval(self) -> tuple[float, float]:
        """95 % interval of it, as if requests were independent."""
        low, high = interval(self.bad, self.judged)
        return 1.0 - high, 1.0 - low


class CannotTry(Exception):
    """An endpoint on which no trial can be made; the message names the remedy."""


class CannotStart(CannotTry):
    """An engine that does not start with a setting; others it may start with."""


class UnusableTrial(CannotTry):
    """The client itself was so late that its figures say nothing."""


class TrialEndpoint(Protocol):
    """An endpoint, live or on the twin's clock."""

    async def run(self, setting: Setting, rate_rps: float, load: TrialLoad) -> Tried:
        """Set the limits and send a load of this rate; ended early where it cannot attain. CannotTry."""

    async def alone(self, setting: Setting, load: TrialLoad) -> Tried:
        """One request at a time: what an engine keeps that has nothing else to do."""


class EndpointModel(Protocol):
    """What is believed of the endpoint."""

    @property
    def doubt(self) -> float:
        """Share by which the corrected model is off what the trials have shown."""

    def rate(self, setting: Setting) -> float:
        """Requests per second that it is thought to carry at the objective; 0 where none."""

    def proposals(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those worth a trial, the best first: without what is surely worse, or the same as another."""

    def residence_seconds(self, setting: Setting, rate_rps: float) -> float:
        """How long a request is in the engine at a rate, on average; as long as a good one may at most."""

    def sustained(self, setting: Setting) -> float:
        """Share of what a trial carries that lasts: trials are short, and their requests come evenly."""

    def learn(self, tried: Tried, load: TrialLoad) -> bool:
        """Correct the model by a trial; whether that changed what it says."""
