"""Ratios of paired runs."""

from __future__ import annotations

import math

import pytest

from benchmarks.engine_overload.intervals import ratio_interval


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
