"""The comparison of forecasts: what is forecast, what is known by then, and what a miss costs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.forecast_experts import (
    CELL_SECONDS,
    LEAD_CELLS,
    QUANTILES,
    compared,
    mixed,
    pinball,
    quantiles,
    targets,
)


def test_the_target_is_the_highest_smoothed_rate_within_the_lead_time_after_a_look() -> None:
    counts = np.array([900.0, 0.0, 0.0, 60.0, 90.0, 0.0, 0.0, 0.0, 0.0])
    assert targets(counts) * CELL_SECONDS == pytest.approx([75.0, 75.0, 75.0, 45.0, 0.0])


def test_a_miss_below_costs_the_quantile_and_one_above_the_rest() -> None:
    told = np.full((2, 3), 10.0)
    assert pinball(told, np.array([11.0, 9.0])) == pytest.approx(np.array([QUANTILES, 1.0 - np.array(QUANTILES)]))


def test_no_forecast_knows_what_comes_later() -> None:
    draw = np.random.default_rng(0)
    point, wanted = draw.uniform(1.0, 9.0, 60), draw.uniform(1.0, 9.0, 60)
    other = np.concatenate([wanted[:30], 5.0 * wanted[30:]])
    known = 30 + LEAD_CELLS
    one, two = quantiles(point, wanted), quantiles(point, other)
    assert (one[:known] == two[:known]).all()
    told = {"one": one, "two": one + draw.uniform(0.0, 1.0, one.shape)}
    assert (mixed(told, wanted)[:known] == mixed(told, other)[:known]).all()


def test_constant_load_costs_hardly_anything_with_anybody() -> None:
    losses = compared(np.full(120, 300.0), 60)
    assert set(losses) == {"built", "last", "holt", "mixed", "mixed with built"}
    assert max(each.max() for each in losses.values()) < 10.0
    assert losses["last"].max() == pytest.approx(0.0)
