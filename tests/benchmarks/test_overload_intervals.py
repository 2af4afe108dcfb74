"""Ratios of paired runs."""

from __future__ import annotations

import math

import pytest

from benchmarks.engine_overload.intervals import Interval, adjusted_interval, median_interval, ratio_interval


def test_the_interval_is_that_of_student_s_t_on_logarithms() -> None:
    pairs = [(1.0, math.exp(value)) for value in (-0.02, 0.0, 0.02)]
    found = ratio_interval(pairs)
    assert found.ratio == pytest.approx(1.0)
    half = 4.303 * 0.02 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((math.exp(-half), math.exp(half)))


def test_equal_ratios_leave_no_doubt() -> None:
    found = ratio_interval([(10.0, 9.0), (20.0, 18.0)])
    assert (found.ratio, found.low, found.high) == pytest.approx((0.9, 0.9, 0.9))


def test_one_pair_bounds_nothing() -> None:
    found = ratio_interval([(10.0, 9.0)])
    assert found.ratio == pytest.approx(0.9)
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 1)


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf])
def test_a_pair_that_has_no_ratio_takes_the_bounds_away(odd: float) -> None:
    found = ratio_interval([(1.0, 1.0), (odd, 1.0), (1.0, 1.0)])
    assert math.isnan(found.ratio)
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 3)


def test_many_pairs_take_the_last_quantile_of_the_table() -> None:
    found = ratio_interval([(1.0, 1.0 + 0.01 * (number % 2)) for number in range(40)])
    assert found.low < 1.005 < found.high
    assert found.pairs == 40


def test_no_pairs_say_nothing() -> None:
    assert ratio_interval([]).pairs == 0


def test_the_adjusted_ratio_is_the_one_at_equal_speed() -> None:
    """A variant that costs 3 %, on a machine whose speed explains everything else."""
    speeds = [(1.0, 1.1), (1.2, 1.0), (1.0, 1.0), (0.9, 1.3), (1.1, 1.05)]
    pairs = [(first**2, 1.03 * second**2) for first, second in speeds]
    found = adjusted_interval(pairs, speeds)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.03, 1.03, 1.03))
    plain = ratio_interval(pairs)
    assert plain.high / plain.low > 1.5


def test_adjusting_costs_what_a_line_through_few_pairs_costs() -> None:
    pairs = [(1.0, 1.0 + 0.01 * number) for number in (1, -1, 2, -2, 0)]
    speeds = [(1.0, 1.0 + 0.001 * number) for number in (3, 1, -2, 2, -1)]
    assert adjusted_interval(pairs, speeds).high > ratio_interval(pairs).high


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_not_known_adjusts_nothing(odd: float) -> None:
    found = adjusted_interval([(1.0, 1.0)] * 5, [(1.0, odd), *[(1.0, 1.1)] * 4])
    assert math.isnan(found.ratio)
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 5)


def test_a_machine_that_never_differs_needs_no_adjusting() -> None:
    pairs = [(1.0, 1.1), (1.0, 1.2), (1.0, 1.0), (1.0, 1.1)]
    assert adjusted_interval(pairs, [(1.0, 1.0)] * 4) == ratio_interval(pairs)


def test_the_interval_of_a_median_lies_within_the_ratios() -> None:
    assert median_interval([1.1, 0.9, 1.0]) == Interval(1.0, 0.9, 1.1, 3)
    many = median_interval([0.9 + 0.01 * number for number in range(21)])
    assert 0.9 < many.low < many.ratio < many.high < 1.1
    assert median_interval([0.7]) == Interval(0.7, 0.7, 0.7, 1)


def test_a_median_of_nothing_bounds_nothing() -> None:
    for ratios in ([], [1.0, math.nan]):
        found = median_interval(ratios)
        assert math.isnan(found.ratio)
        assert (found.low, found.high) == (0.0, math.inf)
