"""How the mixture of forecasts weighs its experts, and what each of them expects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast_gpu_hours import Expert, Holt, Last, Season, Weights
from holdfast.maths.trend import Cell
from holdfast.policy.estimate.arrivals import Arrivals

LOSSES = st.lists(st.tuples(*[st.floats(0.0, 100.0)] * 3), min_size=1, max_size=40)


def seen(expert: Expert, rates: list[float], seconds: float = 15.0) -> Arrivals:
    cells = tuple(Cell(seconds * (n + 1), seconds, seconds * rate, rate) for n, rate in enumerate(rates))
    for cell in cells:
        expert.see(cell, seconds)
    return Arrivals(cells=cells)


@given(LOSSES)
def test_weights_are_shares(losses: list[tuple[float, float, float]]) -> None:
    weights = Weights(3, 1.0)
    for each in losses:
        weights.add(np.array(each), 1.0, 15.0)
    assert weights.now.sum() == pytest.approx(1.0)
    assert (weights.now >= 0.0).all()


def test_who_loses_less_weighs_more_and_what_was_long_ago_is_forgotten() -> None:
    weights = Weights(2, 1.0)
    assert weights.now.tolist() == [1.0, 0.0]
    for _ in range(50):
        weights.add(np.array([2.0, 1.0]), 1.0, 15.0)
    assert weights.now[1] > 0.6
    for _ in range(500):
        weights.add(np.array([1.0, 2.0]), 1.0, 15.0)
    assert weights.now[0] > 0.6


def test_each_expert_expects_what_its_name_says() -> None:
    rates = [5.0 + 0.1 * n for n in range(60)]
    last, holt, season = Last(), Holt(), Season(300.0)
    assert last.point(seen(last, rates), 90.0, 15.0) == pytest.approx(rates[-1])
    assert holt.point(seen(holt, rates), 90.0, 15.0) > rates[-1]
    assert season.point(seen(season, rates), 90.0, 15.0) == pytest.approx(rates[-1] - 20 * 0.1 + 0.5, abs=0.4)
    long = Season(1e6)
    assert np.isnan(long.point(seen(long, rates), 90.0, 15.0))
