"""How C is found."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.engine_overload.cells import BRIEF, SEARCHED_LIMITS, THOROUGH, Effort, FixedLimits
from benchmarks.engine_overload.search import Capacity, NoCapacityError, Point, Questions, find_capacity, glances

BEST = FixedLimits(36, 768)


class Engine:
    """Carries 20 req/s with its best limits, with noise; answers each question once."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.glanced: list[tuple[Point, int]] = []
        self.confirmed: list[tuple[Point, int]] = []
        self._noise, self._draw = noise, random.Random(seed)

    def true(self, point: Point) -> float:
        limits, rate = point.limits, point.rate_rps
        carried = 20.0 - 3.0 * abs(math.log2(limits.tokens / 768)) - 2.0 * abs(math.log2(limits.sequences / 36))
        return rate if rate <= carried else max(0.0, carried - 3.0 * (rate - carried))

    def questions(self) -> Questions:
        def noisy(point: Point) -> float:
            return max(0.0, self.true(point) * (1.0 + self._draw.gauss(0.0, self._noise)))

        def glance(point: Point, number: int) -> float:
            self.glanced.append((point, number))
            return noisy(point)

        def confirm(point: Point, number: int) -> float:
            self.confirmed.append((point, number))
            return noisy(point)

        return Questions(lambda rate: min(rate, 24.0), glance, confirm, 8.0)

    def capacity(self, effort: Effort = THOROUGH) -> Capacity:
        return find_capacity(self.questions(), effort, 40.0)


@pytest.mark.parametrize("effort", [THOROUGH, BRIEF])
def test_the_search_finds_the_best_fixed_limits_and_a_rate_that_they_carry(effort: Effort) -> None:
    found = Engine().capacity(effort)
    assert found.point.limits == BEST
    assert found.goodput_rps > 18.5


@pytest.mark.parametrize("effort", [THOROUGH, BRIEF])
def test_the_search_takes_the_runs_it_is_planned_for(effort: Effort) -> None:
    engine = Engine()
    engine.capacity(effort)
    assert len(engine.glanced) == glances(effort)
    assert len(engine.confirmed) == 2 * effort.confirmations


def test_every_round_is_in_another_order_on_one_trace() -> None:
    engine = Engine()
    engine.capacity()
    first = [point.limits for point, number in engine.glanced if number == 0]
    assert sorted(first, key=SEARCHED_LIMITS.index) == list(SEARCHED_LIMITS)
    assert first != list(SEARCHED_LIMITS)
    assert len({number for _, number in engine.glanced}) == 3


def test_what_c_is_comes_from_fresh_runs_and_not_from_the_luck_of_the_search() -> None:
    """The best of many noisy runs lies above the truth; the fresh ones lie around it."""
    excess = []
    for seed in range(40):
        engine = Engine(noise=0.1, seed=seed)
        found = engine.capacity()
        excess.append(found.goodput_rps / engine.true(found.point) - 1.0)
    assert sum(excess) / len(excess) < 0.06


def test_with_noise_the_search_still_finds_nearly_all_that_there_is() -> None:
    reached = []
    for seed in range(40):
        engine = Engine(noise=0.05, seed=seed)
        reached.append(engine.true(engine.capacity().point) / 20.0)
    assert sum(reached) / len(reached) > 0.9


def test_a_rate_at_which_all_collapse_is_lowered() -> None:
    def goodput(point: Point, number: int) -> float:
        return point.rate_rps if point.rate_rps < 12.0 else 0.0

    found = find_capacity(Questions(lambda rate: 24.0, goodput, goodput, 8.0), THOROUGH, 60.0)
    assert 10.0 < found.goodput_rps < 12.0


@pytest.mark.parametrize("effort", [THOROUGH, BRIEF])
def test_a_rate_that_only_short_runs_carry_is_lowered_until_fresh_ones_carry_it(effort: Effort) -> None:
    """A queue that grows for longer than a short run lasts."""
    confirmed: list[tuple[float, int]] = []

    def glance(point: Point, number: int) -> float:
        return min(point.rate_rps, 60.0 - 2.0 * point.rate_rps)

    def confirm(point: Point, number: int) -> float:
        confirmed.append((point.rate_rps, number))
        return point.rate_rps if point.rate_rps < 15.0 else 1.0

    found = find_capacity(Questions(lambda rate: 24.0, glance, confirm, 8.0), effort, 40.0)
    assert 13.5 < found.goodput_rps == found.point.rate_rps < 15.0
    # Every lower rate has traces of its own, and none is tried that cannot give more.
    lowered = [number for rate, number in confirmed if rate < max(confirmed)[0]]
    assert len(set(lowered)) == len(lowered)
    assert min(lowered) == effort.confirmations
    assert min(rate for rate, _ in confirmed) == found.point.rate_rps


def test_a_fast_engine_is_offered_more_until_it_is_flooded() -> None:
    offered: list[float] = []

    def saturate(rate: float) -> float:
        offered.append(rate)
        return min(rate, 100.0)

    def goodput(point: Point, number: int) -> float:
        return min(point.rate_rps, 90.0)

    found = find_capacity(Questions(saturate, goodput, goodput, 8.0), BRIEF, 40.0)
    assert offered == [40.0, 80.0, 160.0, 320.0]
    assert found.goodput_rps > 80.0


def test_a_first_rate_that_is_too_low_is_climbed_from() -> None:
    """A flooded engine may serve less than it carries when it is not flooded."""

    def goodput(point: Point, number: int) -> float:
        return min(point.rate_rps, max(0.0, 60.0 - 2.0 * point.rate_rps)) if point.limits == BEST else 0.0

    found = find_capacity(Questions(lambda rate: 17.0, goodput, goodput, 8.0), BRIEF, 40.0)
    assert found.goodput_rps > 18.0


def test_a_first_rate_far_below_what_is_carried_is_left_in_large_steps() -> None:
    """A short flood of an engine with long answers is served at a fraction of what the engine carries."""
    engine = Engine()
    ask = engine.questions()
    found = find_capacity(Questions(lambda rate: 8.0, ask.glance, ask.confirm, ask.glance_seconds), THOROUGH, 40.0)
    assert found.point.limits == BEST
    assert found.goodput_rps > 18.5
    assert len(engine.glanced) <= 2 * glances(THOROUGH)


def test_runs_for_which_the_machine_was_too_unsteady_are_left_out() -> None:
    engine = Engine()
    ask = engine.questions()

    def glance(point: Point, number: int) -> float:
        return math.nan if point.limits.sequences == 128 else ask.glance(point, number)

    some = Questions(ask.saturate, glance, ask.confirm, ask.glance_seconds)
    assert find_capacity(some, THOROUGH, 40.0).point.limits == BEST


def test_nothing_good_and_nothing_steady_are_no_capacity() -> None:
    for value in (0.0, math.nan):
        nothing = Questions(lambda rate: 3.0, lambda point, number: value, lambda point, number: value, 8.0)  # noqa: B023
        with pytest.raises(NoCapacityError):
            find_capacity(nothing, THOROUGH, 40.0)
    blind = Questions(lambda rate: math.nan, lambda point, number: 1.0, lambda point, number: 1.0, 8.0)
    with pytest.raises(NoCapacityError, match="flooded"):
        find_capacity(blind, THOROUGH, 40.0)
