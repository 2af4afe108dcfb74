"""The two ports of tuning: trials of an endpoint, live or on the twin's clock, and the model that proposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from holdfast.simulator.twin.capacity import Lengths
from holdfast.simulator.twin.fleet import Workload
from holdfast.simulator.twin.timers import Floats, Integers
from holdfast.tune.race import interval
from holdfast.tune.setting import Setting

WARM_UP = 0.25
"""Requests before those that count, as a share of these."""

LEAST_COUNTED, ALLOWED_BAD = 200, 4.0
"""A trial counts so many requests at least, and so many that the objective lets it have this many bad ones."""

LONE_REQUESTS = 20


@dataclass(frozen=True)
class Requests:
    """The same requests at any rate, so that settings differ by what they are and not by chance.

    `counted` come after a warm-up; `cv` is that of the gaps, 1 for Poisson arrivals.
    """

    lengths: Lengths
    counted: int
    cv: float = 1.0
    seed: int = 1

    @property
    def warm_up(self) -> int:
        """How many come first and do not count."""
        return math.ceil(WARM_UP * self.counted)

    def at(self, rate_rps: float) -> Workload:
        """All of them at a rate."""
        gaps, prompts, outputs = self._drawn
        return Workload(np.cumsum(gaps) / rate_rps, prompts, outputs, np.zeros(len(gaps), np.int64))

    def others(self) -> Requests:
        """As many of the same kind, drawn anew."""
        return Requests(self.lengths, self.counted, self.cv, self.seed + 1_000_003)

    @cached_property
    def _drawn(self) -> tuple[Floats, Integers, Integers]:
        draw = np.random.default_rng([self.seed, 5])
        count = self.warm_up + self.counted
        shape = 1.0 / self.cv**2
        gaps = draw.gamma(shape, 1.0 / shape, count)
        return gaps, *self.lengths.draw(count, draw)


def enough(objective: float) -> int:
    """Requests that tell whether so many of them are good."""
    return max(LEAST_COUNTED, math.ceil(ALLOWED_BAD / max(1.0 - objective, 0.002)))


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of finished requests in seconds, and TTFT, TPOT and E2E that the objective's share of them keeps."""

    ttft_seconds: float = math.nan
    tpot_seconds: float = math.nan
    tail: tuple[float, float, float] = (math.nan, math.nan, math.nan)


def figures(ttft: Floats, tpot: Floats, e2e: Floats, objective: float) -> Figures:
    """Of finished requests, one value of each per request, in seconds; NaN is left out."""
    known = [each[np.isfinite(each)] for each in (ttft, tpot, e2e)]
    medians = [float(np.median(each)) if len(each) else math.nan for each in known]
    tail = [float(np.quantile(each, objective, method="higher")) if len(each) else math.nan for each in known]
    return Figures(medians[0], medians[1], (tail[0], tail[1], tail[2]))


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
    figures: Figures = Figures()
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


class Trials(Protocol):
    """An endpoint, live or on the twin's clock."""

    async def run(self, setting: Setting, rate_rps: float, requests: Requests) -> Tried:
        """Set the limits and send the requests at a rate; ended early where it cannot attain. CannotTry."""

    async def alone(self, setting: Setting, requests: Requests) -> Tried:
        """One request at a time: what an engine keeps that has nothing else to do."""


class Model(Protocol):
    """What is believed of the endpoint."""

    def rate(self, setting: Setting) -> float:
        """Requests per second that it is thought to carry at the objective; 0 where none."""

    def proposals(self, settings: Sequence[Setting]) -> list[Setting]:
        """Those worth a trial, the best first: without what is surely worse, or the same as another."""

    def learn(self, tried: Tried, requests: Requests) -> bool:
        """Correct the model by a trial; whether that changed what it says."""
