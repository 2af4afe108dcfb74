"""What may arrive within the lead time: monotone in the quantile, learned from what came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.maths.trend import Line
from holdfast.policy.estimate.arrivals import Arrivals
from holdfast.policy.estimate.forecast import Residuals, forecast, learn_residuals, residual_quantile
from tests.policy.estimate.test_arrivals import INTERVAL, LEAD, watched

quantiles = st.floats(0.05, 0.9995)


def known(level: float, slope: float = 0.0, seconds: float = 300.0) -> Arrivals:
    return Arrivals(dispersion=1.0, line=Line(level, slope, seconds))


@given(st.floats(0.0, 1e4), quantiles, quantiles)
def test_a_higher_quantile_never_wants_less(level: float, one: float, other: float) -> None:
    low, high = (forecast(known(level), Residuals(), q, LEAD, INTERVAL) for q in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low.wanted_rps <= high.wanted_rps


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), quantiles)
def test_more_load_never_wants_less(one: float, other: float, quantile: float) -> None:
    low, high = (forecast(known(level), Residuals(), quantile, LEAD, INTERVAL) for level in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low.wanted_rps <= high.wanted_rps


def test_a_trend_is_carried_to_the_end_of_the_lead_time_and_a_fall_is_not() -> None:
    def wanted(level: float, slope: float = 0.0) -> float:
        found = forecast(known(level, slope), Residuals(), 0.5, LEAD, INTERVAL)
        assert found is not None
        return found.wanted_rps

    assert wanted(10.0, 0.1) == pytest.approx(wanted(14.5))
    assert wanted(10.0, -0.1) == wanted(10.0)


def test_letting_go_asks_for_more_than_what_is_wanted_the_more_the_less_is_known() -> None:
    young, old = (forecast(known(10.0, seconds=s), Residuals(), 0.9, LEAD, INTERVAL) for s in (20.0, 900.0))
    assert young is not None
    assert old is not None
    assert old.wanted_rps < old.releasable_rps < young.releasable_rps


def test_nothing_seen_is_no_forecast() -> None:
    assert forecast(Arrivals(), Residuals(), 0.9, LEAD, INTERVAL) is None


def test_residuals_are_learned_once_per_cell_and_stay_within_the_test_for_changes() -> None:
    residuals, demand = Residuals(), Arrivals()
    for rates in ([10.0] * 40, [60.0] * 10, [10.0] * 40):
        for rate in rates:
            demand = watched([rate], memory=demand)
            residuals = learn_residuals(residuals, demand, LEAD)
            assert learn_residuals(residuals, demand, LEAD) == residuals
    assert 20 <= len(residuals.values) <= 45
    assert max(map(abs, residuals.values)) < 6.0


def test_what_was_seen_replaces_theory_as_it_grows() -> None:
    theory = residual_quantile(Residuals(), 0.9, 4.0, 0.0)
    calm = tuple(0.01 * index for index in range(200))
    seen = Residuals(calm, tuple(sorted(calm)))
    few, some, many = (residual_quantile(seen, 0.9, 4.0, leads) for leads in (1.0, 20.0, 2000.0))
    assert few == pytest.approx(theory, abs=0.1)
    assert theory > some > many or theory < some < many
    assert many == pytest.approx(1.8, abs=0.1)


def test_one_extreme_moves_no_quantile_beyond_what_is_known() -> None:
    calm = tuple(0.001 * index for index in range(200))
    wild = (*calm[:-1], 6.0)
    one, other = (residual_quantile(Residuals(v, tuple(sorted(v))), 0.9995, 4.0, 50.0) for v in (calm, wild))
    assert other == pytest.approx(one, abs=0.01)


def test_one_step_in_a_short_life_is_one_event_and_no_pattern() -> None:
    stepped = (0.0, 0.0, 4.0, 4.0, 4.0, 4.0, 4.0)  # every residual of the lead time before the step shows the step
    theory = residual_quantile(Residuals(), 0.9, 2.0, 0.0)
    assert residual_quantile(Residuals(stepped, tuple(sorted(stepped))), 0.9, 2.0, 1.3) < theory + 0.3


def test_dispersion_widens_the_headroom() -> None:
    plain = forecast(known(10.0), Residuals(), 0.9, LEAD, INTERVAL)
    noisy = forecast(replace(known(10.0), dispersion=9.0), Residuals(), 0.9, LEAD, INTERVAL)
    assert plain is not None
    assert noisy is not None
    assert noisy.wanted_rps - 10.0 == pytest.approx(3.0 * (plain.wanted_rps - 10.0))
