from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_engine.clients.clientlag import LagEstimate
from holdfast_engine.queue.frontendpace import ADJUST_SECONDS, HOLD_SECONDS, SLOWER, FrontEndPace

TTFT = 0.5


def run(pace: FrontEndPace, begin: int, seconds: int, lag: float, tps: float = 20_000.0) -> float:
    """One adjustment per second while so many tokens are computed, or as many as are allowed; returns the limit."""
    for second in range(begin, begin + seconds):
        pace.computed(min(tps, pace.tps))
        pace.adjust(float(second), lag, TTFT)
    return pace.tps


def test_a_front_end_that_keeps_up_limits_nothing() -> None:
    pace = FrontEndPace()
    assert run(pace, 0, 60, lag=0.05) == math.inf
    assert pace.tokens(60.0) == math.inf


def test_a_lag_that_is_too_long_takes_a_fifth_and_waits_for_the_effect() -> None:
    pace = FrontEndPace()
    run(pace, 0, 10, lag=0.02)
    assert run(pace, 10, 1, lag=0.4) == pytest.approx(SLOWER * 20_000)
    assert run(pace, 11, int(HOLD_SECONDS) - 1, lag=0.45) == pytest.approx(SLOWER * 20_000)
    assert run(pace, 10 + int(HOLD_SECONDS), 1, lag=0.45) == pytest.approx(SLOWER**2 * 20_000)


def test_with_room_the_limit_rises_until_it_is_none() -> None:
    pace = FrontEndPace()
    run(pace, 0, 2, lag=0.02)
    slow = run(pace, 2, 1, lag=0.4)
    assert run(pace, 3, 5, lag=0.2) == slow  # neither too long nor short
    assert slow < run(pace, 8, 5, lag=0.01) < 2.0 * slow
    assert run(pace, 13, 120, lag=0.01, tps=5000.0) == math.inf


def test_a_step_may_compute_what_has_come_together_since_the_last_one() -> None:
    pace = FrontEndPace()
    run(pace, 0, 2, lag=0.02)
    tps = run(pace, 2, 1, lag=0.4)
    pace.tokens(3.0)
    assert pace.tokens(3.02) == pytest.approx(0.02 * tps)
    assert pace.tokens(90.0) == pytest.approx(ADJUST_SECONDS * tps)
    assert pace.tokens(80.0) == 0.0  # a clock that went backwards


def test_the_recent_lag_is_that_of_two_seconds_and_none_without_tokens() -> None:
    lag = LagEstimate()
    assert lag.recent(0.0) == 0.0
    for tenth in range(50):
        lag.add(tenth / 10, 0.4 if tenth < 25 else 0.1)
    assert lag.recent(4.9) == 0.1
    assert lag.recent(60.0) == 0.0


@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats(0, 1e9)), max_size=40))
def test_no_clock_and_no_lag_makes_a_limit_that_cannot_be(calls: list[tuple[float, float, float]]) -> None:
    pace = FrontEndPace()
    for now, lag, tokens in calls:
        pace.computed(tokens)
        if pace.is_due(now):
            pace.adjust(now, lag, TTFT)
        assert pace.tps >= 0.0
        assert pace.tokens(now) >= 0.0
