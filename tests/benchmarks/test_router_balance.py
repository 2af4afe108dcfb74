"""What is printed of the load behind a router: the most uneven minute of all."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.router_balance import WINDOW_SECONDS, uneven


def test_the_worst_minute_is_found_wherever_it_begins() -> None:
    each_second = np.ones((4 * WINDOW_SECONDS, 2))
    each_second[90 : 90 + WINDOW_SECONDS] = (1.5, 0.5)
    worst, middle, whole = uneven(np.cumsum(each_second, axis=0))
    assert worst == pytest.approx(1.5)
    assert 1.0 <= middle < worst
    assert whole == pytest.approx((239 + 30) / 239)


def test_an_even_load_is_even() -> None:
    assert uneven(np.cumsum(np.ones((90, 3)), axis=0)) == (1.0, 1.0, 1.0)
