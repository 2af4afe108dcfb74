"""The front-end lag that decisions use: fast to rise, slow to fall, and no more than half of the bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.clients.clientlag import HALF_LIFE_SECONDS, LAG_BUCKETS, WINDOW_SECONDS, LagEstimate, LagHistogram


def estimate(*lags: float, now: float = 100.0) -> LagEstimate:
    found = LagEstimate()
    for lag in lags:
        found.add(now, lag)
    found.update(now)
    return found


def test_it_is_the_95th_percentile() -> None:
    assert estimate(*[0.02] * 95, *[0.9] * 5).seconds == 0.02
    assert estimate(*[0.02] * 94, *[0.9] * 6).seconds == 0.9
    assert LagEstimate().seconds == 0.0


def test_it_rises_at_once_and_falls_by_half_in_ten_seconds() -> None:
    lag = estimate(0.1)
    lag.add(100.6, 0.4)
    lag.update(100.6)
    assert lag.seconds == 0.4
    for step in range(1, 21):
        lag.update(100.6 + WINDOW_SECONDS + 0.5 * step)
    assert lag.seconds == pytest.approx(0.4 * 0.5 ** ((WINDOW_SECONDS + 10.0) / HALF_LIFE_SECONDS), rel=0.2)


def test_it_is_worked_out_twice_per_second_at_most() -> None:
    lag = estimate(0.1)
    lag.add(100.1, 0.4)
    lag.update(100.1)
    assert lag.seconds == 0.1


def test_decisions_use_half_of_the_bound_at_most() -> None:
    assert estimate(3.0).within(0.5) == 0.25
    assert estimate(0.1).within(0.5) == 0.1


def test_a_clock_that_goes_backwards_is_forgotten() -> None:
    lag = estimate(5.0, now=1e6)
    for now in (10.0, 20.0, 40.0, 100.0, 300.0):
        lag.update(now)
    lag.add(300.5, 0.01)
    lag.update(300.5)
    assert lag.seconds < 0.02


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0.0, 1e9)), max_size=60))
def test_it_is_a_number_whatever_comes(samples: list[tuple[float, float]]) -> None:
    lag = LagEstimate()
    for now, seconds in samples:
        lag.add(now, seconds)
        lag.update(now)
        assert 0.0 <= lag.seconds < math.inf
        assert 0.0 <= lag.within(0.5) <= 0.25


def test_a_histogram_counts_every_lag_once() -> None:
    found = LagHistogram()
    lags = [0.0, 0.001, 0.0011, 4.9, 5.0, 6.0, 1e9]
    for lag in lags:
        found.add(lag)
    *counts, total = found.numbers
    assert len(counts) == len(LAG_BUCKETS)
    assert (counts[0], counts[1], counts[-2], counts[-1], sum(counts)) == (2, 1, 2, 2, 7)
    assert total == pytest.approx(sum(lags))
