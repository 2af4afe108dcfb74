"""C: the best goodput that stock vLLM reaches at any offered rate with its best fixed limits.

Successive halving over limits and rates. Within a round all candidates run in random order, minutes apart at most, on
one and the same trace; the best limits go on to the next one with rates around their best. Whoever is best of many is
partly lucky: candidates are ranked by what they reached less its standard error, and the two best run again on fresh
traces, which set the offered loads. What C is, each block of the comparison measures once more.

The search asks for runs and decides by their results alone: with the same results it asks the same questions, which is
how it goes on where it was interrupted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.engine_overload.cells import Effort, FixedLimits

# The first round's rate in units of what a flooded engine serves; those of the next rounds in units of the best so far.
_FIRST = 0.8
_ROUNDS = ((0.9, 1.1), (1.0 / 1.06, 1.0, 1.06))
# A rate is too low to be the best where all of it is good; then the next one is tried, so often at most.
_CARRIED, _HIGHER, _MOST_CLIMBS = 0.95, 1.08, 4
# Before, the first limits alone: a flood that ends soon is served slowly, for its longest answers run on alone.
_LEAP, _MOST_LEAPS = 1.25, 6
# Below this share of the offered rate every candidate has collapsed: a lower rate tells more.
_COLLAPSED, _LOWER, _MOST_TRIES = 0.5, 0.75, 3
# A flooded engine serves less than this share of what it is offered.
_FLOODED = 0.6
# Numbers of the opening rounds, the two that follow and the climbing ones: each has a trace of its own.
_MOST_ROUNDS = _MOST_TRIES + len(_ROUNDS)
FINALISTS = 2
# As in the blocks, which measure at the rate that was found and at so much of it.
_STEP_DOWN, _MOST_STEPS_DOWN = 0.9, 10


class NoCapacityError(Exception):
    """Not a single request was good, at any rate."""


@dataclass(frozen=True, slots=True)
class Point:
    """Limits and an offered rate."""

    limits: FixedLimits
    rate_rps: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """The mean of the fresh runs at the point where C was found: the unit of offered loads."""

    goodput_rps: float
    point: Point


@dataclass(frozen=True, slots=True)
class Questions:
    """The runs a search may ask for; goodput is NaN where the machine was never steady enough.

    `saturate` gives requests served per second of everything that comes at the given rate; `glance` the goodput of a
    short run in the given round, whose window lasts `glance_seconds`; `confirm` that of a full one, fresh by number.
    """

    saturate: Callable[[float], float]
    glance: Callable[[Point, int], float]
    confirm: Callable[[Point, int], float]
    glance_seconds: float


def find_capacity(ask: Questions, effort: Effort, first_rate_rps: float, seed: int = 0) -> Capacity:
    """Choose limits and rate, then measure what they carry."""
    search = _Search(ask, random.Random(f"search {seed}"))
    rate = search.scout(effort.limits[0], _FIRST * _most_served(ask, first_rate_rps))
    survivors = search.open(effort.limits, rate)
    for number, (factors, kept) in enumerate(zip(_ROUNDS, effort.kept, strict=True), _MOST_TRIES):
        points = [_point(each.limits, each.rate_rps * factor) for each in survivors[:kept] for factor in factors]
        search.round(points, number)
        survivors = search.survivors()
    search.climb(effort.kept[-1])
    return _confirmed(ask, search.best()[:FINALISTS], effort.confirmations, search.draw)


def glances(effort: Effort) -> int:
    """How many runs the search takes where the first rate is near the best."""
    return len(effort.limits) + sum(kept * len(factors) for factors, kept in zip(_ROUNDS, effort.kept, strict=True))


class _Search:
    """What every candidate has reached so far."""

    def __init__(self, ask: Questions, draw: random.Random) -> None:
        self._ask, self.draw = ask, draw
        self._found: dict[Point, list[float]] = {}
        self._answers: dict[tuple[Point, int], float] = {}

    def open(self, candidates: Sequence[FixedLimits], rate: float) -> list[Point]:
        """The first round, at a rate that somebody carries, and not most: that would tell nothing about limits."""
        for number in range(_MOST_TRIES):
            points = [_point(limits, rate) for limits in candidates]
            self.round(points, number)
            carried = [fmean(self._found[point]) >= _CARRIED * rate for point in points if point in self._found]
            if 2 * sum(carried) > len(carried):
                rate *= _LEAP
            elif self.score(self.best()[0]) < _COLLAPSED * rate:
                rate *= _LOWER
            else:
                break
        return self.survivors()

    def scout(self, limits: FixedLimits, rate: float) -> float:
        """The first of the rates upwards from this one, in large steps, of which these limits do not carry all."""
        for _ in range(_MOST_LEAPS):
            if not self._glance(_point(limits, rate), 0) >= _CARRIED * rate:
                break
            rate *= _LEAP
        return rate

    def climb(self, kept: int) -> None:
        """Go on upwards where the best rate is the highest that was tried and is carried still."""
        for number in range(_MOST_CLIMBS):
            best = self.best()[0]
            highest = max(point.rate_rps for point in self._found if point.limits == best.limits)
            if best.rate_rps < highest or fmean(self._found[best]) < _CARRIED * best.rate_rps:
                break
            survivors = self.survivors()[:kept]
            self.round([_point(each.limits, best.rate_rps * _HIGHER) for each in survivors], _MOST_ROUNDS + number)

    def round(self, points: Sequence[Point], number: int) -> None:
        """Run all of them, in random order."""
        order = list(dict.fromkeys(points))
        self.draw.shuffle(order)
        for point in order:
            goodput = self._glance(point, number)
            if not math.isnan(goodput):
                self._found.setdefault(point, []).append(goodput)

    def _glance(self, point: Point, number: int) -> float:
        """No question is asked twice: what was scouted counts in its round, too."""
        if (point, number) not in self._answers:
            self._answers[point, number] = self._ask.glance(point, number)
        return self._answers[point, number]

    def score(self, point: Point) -> float:
        """The mean less its standard error: one lucky run is not the best.

        The error is that of a share of the window's arrivals, whose number is fixed.
        """
        found = self._found[point]
        arrived = point.rate_rps * self._ask.glance_seconds * len(found)
        share = min((fmean(found) / point.rate_rps * arrived + 1.0) / (arrived + 2.0), 1.0)
        return fmean(found) - point.rate_rps * math.sqrt(share * (1.0 - share) / arrived)

    def best(self) -> list[Point]:
        """All that were measured, the best first."""
        if not self._found:
            raise NoCapacityError("the machine was not steady enough for a single run of the search")
        return sorted(self._found, key=self.score, reverse=True)

    def survivors(self) -> list[Point]:
        """Of all limits the best rate, the best first."""
        found: dict[FixedLimits, Point] = {}
        for point in self.best():
            found.setdefault(point.limits, point)
        return list(found.values())


def _confirmed(ask: Questions, finalists: Sequence[Point], count: int, draw: random.Random) -> Capacity:
    """The better of the finalists by fresh runs, at the rate that gives the most.

    A short run ends before a queue has grown that a full one drowns in: then the rate is lowered, for as long as all of
    a lower one would be more than the best that was seen.
    """
    found = _fresh(ask, finalists, range(count), draw)
    lower = _point(found.point.limits, found.point.rate_rps * _STEP_DOWN)
    for step in range(1, 1 + _MOST_STEPS_DOWN):
        if lower.rate_rps <= found.goodput_rps:
            break
        tried = _fresh(ask, [lower], range(step * count, (step + 1) * count), draw)
        found = max(found, tried, key=lambda each: each.goodput_rps)
        lower = _point(lower.limits, lower.rate_rps * _STEP_DOWN)
    if found.goodput_rps <= 0.0:
        raise NoCapacityError(f"nothing is good around {found.point}")
    return found


def _fresh(ask: Questions, finalists: Sequence[Point], numbers: Sequence[int], draw: random.Random) -> Capacity:
    runs: dict[Point, list[float]] = {point: [] for point in finalists}
    for number in numbers:
        order = list(finalists)
        draw.shuffle(order)
        for point in order:
            runs[point].append(ask.confirm(point, number))
    means = {point: fmean(sound) for point in finalists if (sound := [each for each in runs[point] if each >= 0.0])}
    if not means:
        raise NoCapacityError("the machine was not steady enough for a single fresh run of the finalists")
    winner = max(means, key=lambda point: means[point])
    return Capacity(means[winner], winner)


def _most_served(ask: Questions, rate: float) -> float:
    served = math.nan
    for _ in range(2 * _MOST_TRIES):
        served = ask.saturate(rate)
        if math.isnan(served):
            raise NoCapacityError("the machine was not steady enough to see what a flooded engine serves")
        if served < _FLOODED * rate:
            break
        rate *= 2.0
    return served


def _point(limits: FixedLimits, rate: float) -> Point:
    return Point(limits, round(rate, 3))
