"""C: the best goodput that stock vLLM reaches at any offered rate with its best fixed limits.

The search asks for one run after the other and decides by their results alone: with the same results it asks the same
questions, which is how it goes on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.engine_overload.cells import DEFAULT_LIMITS, FixedLimits

TOKENS = (2048, 1024, 512, 256, 128)
SEQUENCES = (128, 64, 32, 16)
# Of the runs that choose limits, the best and those this near to it go on.
_NEAR = 0.97
# Below this share of the offered rate the engine has collapsed: a lower rate tells more.
_COLLAPSED = 0.75
_FIRST_SHARE = 0.8
_LOWER, _HIGHER = 0.85, 1.1
# A cliff is narrow: too low a C would flatter whatever is measured in units of it.
_COARSE, _FINE = 1.07, 1.03
_MOST_ROUNDS = 6
CONFIRMED = 3


class NoCapacityError(Exception):
    """Not a single request was good, at any rate."""


@dataclass(frozen=True, slots=True)
class Point:
    """Limits and an offered rate."""

    limits: FixedLimits
    rate_rps: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """C, and the point where it was found."""

    goodput_rps: float
    point: Point


@dataclass(frozen=True, slots=True)
class Questions:
    """The runs a search may ask for.

    `saturate` gives requests served per second of everything that comes at the given rate; `glance` the goodput of a
    short run, `confirm` that of a full one with the seed of the given number.
    """

    saturate: Callable[[float], float]
    glance: Callable[[Point], float]
    confirm: Callable[[Point, int], float]


def find_capacity(ask: Questions, first_rate_rps: float) -> Capacity:
    """Choose tokens per step, then sequences, then the rate; the median of full runs at the two best points decides."""
    rate = _FIRST_SHARE * _most_served(ask, first_rate_rps)
    tokens = _choose(ask, [replace(DEFAULT_LIMITS, tokens=tokens) for tokens in TOKENS], rate)
    both = _choose(ask, [replace(tokens.limits, sequences=count) for count in SEQUENCES], tokens.rate_rps)
    glances = _climb(ask, both)
    best = sorted(glances, key=lambda point: -glances[point])[:2]
    medians = {point: median(ask.confirm(point, number) for number in range(CONFIRMED)) for point in best}
    winner = max(medians, key=lambda point: medians[point])
    if medians[winner] <= 0.0:
        raise NoCapacityError(f"nothing is good around {winner}")
    return Capacity(medians[winner], winner)


def _most_served(ask: Questions, rate: float) -> float:
    for _ in range(_MOST_ROUNDS):
        served = ask.saturate(rate)
        if served < 0.6 * rate:
            return served
        rate *= 2.0
    return served


def _choose(ask: Questions, candidates: Sequence[FixedLimits], rate: float) -> Point:
    """The limits that are best at the highest rate at which they still tell apart; the first of equals."""
    best = candidates[0]
    for _ in range(_MOST_ROUNDS):
        found = {limits: ask.glance(_point(limits, rate)) for limits in candidates}
        best = max(candidates, key=lambda limits: found[limits])
        if found[best] < _COLLAPSED * rate:
            rate *= _LOWER
            continue
        candidates = [limits for limits in candidates if found[limits] >= _NEAR * found[best]]
        if len(candidates) == 1 or found[best] < _NEAR * rate:
            break
        rate *= _HIGHER
    return _point(best, rate)


def _climb(ask: Questions, start: Point) -> dict[Point, float]:
    """Goodput around the rate that is best with the given limits."""
    found = {start: ask.glance(start)}
    for factor in (_COARSE, 1.0 / _COARSE, _FINE, 1.0 / _FINE):
        best = max(found, key=lambda point: found[point])
        known, rate = found[best], best.rate_rps
        for _ in range(_MOST_ROUNDS):
            rate *= factor
            point = _point(start.limits, rate)
            found[point] = ask.glance(point)
            if found[point] <= known:
                break
            known = found[point]
    return found


def _point(limits: FixedLimits, rate: float) -> Point:
    return Point(limits, round(rate, 3))
