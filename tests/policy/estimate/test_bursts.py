"""Abrupt rises that come back: one is news, more of them are sized for as far as the error budget asks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.estimate.bursts import KEPT_SECONDS, MOST_RISES, NONE, Bursts, Rise, expected_bursts, with_rise
from holdfast.policy.estimate.forecast import Residuals, forecast
from tests.builders import NOW, service
from tests.policy.estimate.test_arrivals import INTERVAL, LEAD, watched
from tests.policy.fluid import FluidCluster

ages, rates = st.floats(0.0, KEPT_SECONDS), st.floats(0.0, 1e6)
seen = st.lists(st.tuples(ages, rates), max_size=12).map(
    lambda pairs: tuple(Rise(NOW - age, 0.0, rate) for age, rate in sorted(pairs, reverse=True))
)
quantiles = st.floats(0.05, 0.9995)


def every(seconds: float, *rates: float) -> tuple[Rise, ...]:
    """Rises to those rates, the last of them just now."""
    count = len(rates)
    return tuple(Rise(NOW - (count - index) * seconds, 0.0, rate) for index, rate in enumerate(rates, start=1))


def ago(*pairs: tuple[float, float]) -> tuple[Rise, ...]:
    """Rises so many seconds ago, to those rates."""
    return tuple(Rise(NOW - age, 0.0, rate) for age, rate in pairs)


def after(*steps: tuple[float, float, float]) -> tuple[Rise, ...]:
    """What is remembered after rises at those seconds, from one rate to another."""
    rises: tuple[Rise, ...] = ()
    for seconds, before, rate in steps:
        rises = with_rise(rises, Rise(NOW + seconds, before, rate), LEAD)
    return rises


def test_one_rise_is_news_and_no_habit() -> None:
    assert expected_bursts(every(0.0, 40.0), NOW, 0.9995, LEAD) == NONE
    assert expected_bursts((), NOW, 0.9995, LEAD) == NONE


def test_rises_that_come_back_are_sized_for_once_the_budget_burns() -> None:
    rises = ago((600, 20.0), (350, 40.0), (0, 30.0))  # a lead time of 45 s holds one with a chance of 2 x 45 / 600
    assert expected_bursts(rises, NOW, 0.9995, LEAD) == Bursts(3, 40.0)
    assert expected_bursts(rises, NOW, 0.92, LEAD) == Bursts(3, 30.0)  # 0.08 of 0.15: half of them may be higher
    assert expected_bursts(rises, NOW, 0.84, LEAD) == NONE  # more than 0.15 may be missed anyway


def test_the_rarer_they_get_the_less_they_ask_for() -> None:
    rises = every(100.0, 40.0, 40.0)
    assert expected_bursts(rises, NOW, 0.9, LEAD).rate_rps == 40.0
    assert expected_bursts(rises, NOW + 400.0, 0.9, LEAD) == NONE


def test_rises_within_one_lead_time_are_one_as_high_as_the_highest() -> None:
    assert after((0, 2.0, 8.0), (15, 2.0, 12.0), (30, 2.0, 9.0)) == (Rise(NOW + 15.0, 2.0, 12.0),)
    assert len(after((0, 2.0, 8.0), (LEAD, 2.0, 9.0))) == 2


def test_growth_in_steps_is_one_rise_and_only_what_has_fallen_can_come_back() -> None:
    assert after((0, 0.0, 4.0), (200, 4.0, 14.0), (400, 14.0, 20.0)) == (Rise(NOW + 200.0, 0.0, 20.0),)
    assert len(after((0, 4.0, 14.0), (200, 10.0, 14.0))) == 1  # less than half of it was undone
    assert len(after((0, 4.0, 14.0), (200, 8.0, 14.0))) == 2


def test_what_no_other_rise_reached_half_of_is_news_whatever_small_ones_there_were() -> None:
    assert expected_bursts(every(200.0, 5.0, 40.0), NOW, 0.9995, LEAD) == NONE
    assert expected_bursts(every(200.0, 5.0, 6.0, 40.0), NOW, 0.9995, LEAD) == Bursts(2, 6.0)
    assert expected_bursts(every(200.0, 5.0, 40.0, 20.0), NOW, 0.9995, LEAD) == Bursts(2, 40.0)


def test_a_habit_lasts_as_long_as_its_rises_keep_coming() -> None:
    rises = after(*((600.0 * index, 2.0, 20.0) for index in range(40)))
    assert len(rises) == MOST_RISES
    assert expected_bursts(rises, NOW + 39 * 600.0 + 599.0, 0.9995, LEAD) == Bursts(MOST_RISES, 20.0, 600.0, 20.0)
    random = after(*((600.0 * index + 100.0 * (index % 3), 2.0, 20.0) for index in range(40)))
    assert expected_bursts(random, NOW + 39 * 600.0 + 599.0, 0.9995, LEAD) == Bursts(MOST_RISES, 20.0)


def test_rises_are_forgotten_once_none_comes_and_a_clock_that_goes_back_has_none_ahead() -> None:
    rises = every(60.0, 20.0, 20.0, 20.0)
    assert expected_bursts(rises, NOW + KEPT_SECONDS + 1.0, 0.9995, LEAD) == NONE
    assert expected_bursts(rises, NOW - 3600.0, 0.9995, LEAD) == NONE
    much_later = Rise(NOW + 2.0 * KEPT_SECONDS, 1.0, 5.0)
    grown = with_rise(rises, much_later, LEAD)
    assert grown == (*rises, much_later)
    assert expected_bursts(grown, much_later.at, 0.9995, LEAD) == NONE


@pytest.mark.parametrize("period", [1000.0, 3600.0, 86_400.0])
def test_rises_with_a_period_are_sized_for_when_the_next_one_is_due_and_at_no_other_time(period: float) -> None:
    rises, due = every(period, 20.0, 20.0, 20.0), NOW + period
    covered, not_yet = Bursts(3, 20.0, period, 20.0), Bursts(0, 0.0, period, 20.0)
    for at, expected in (
        (NOW + 300.0, not_yet),
        (due - LEAD - 31.0, not_yet),
        (due - LEAD - 29.0, covered),
        (due + 29.0, covered),
        (due + 31.0, NONE),
    ):
        assert expected_bursts(rises, at, 0.9995, LEAD) == expected, at - due


def test_small_rises_between_them_and_times_that_spread_hide_no_period() -> None:
    spread = ago((3050, 20.0), (2500, 7.0), (2030, 19.0), (1600, 6.0), (1030, 21.0), (300, 8.0), (0, 20.0))
    assert expected_bursts(spread, NOW + 1000.0, 0.9995, LEAD).period_seconds == pytest.approx(3050 / 3)
    apart = ago((3400, 20.0), (2000, 20.0), (1000, 20.0), (0, 20.0))
    assert expected_bursts(apart, NOW + 1000.0, 0.9995, LEAD) == Bursts(3, 20.0, 1000.0, 20.0)  # the last ones count
    late = ago((2200, 20.0), (1000, 20.0), (0, 20.0))
    assert expected_bursts(late, NOW + 1000.0, 0.9995, LEAD) == NONE


def test_a_burst_that_is_due_is_missed_only_as_long_as_the_error_budget_bears_it() -> None:
    rises, due = every(1000.0, 20.0, 20.0, 20.0), NOW + 1000.0  # a chance of 3 / 4, and 20 req/s for a lead time
    assert expected_bursts(rises, due, 0.2, LEAD).rate_rps == 0.0
    assert expected_bursts(rises, due, 0.3, LEAD).rate_rps == 20.0
    assert expected_bursts(rises, due, 0.2, LEAD, 20.0 * LEAD + 1.0).rate_rps == 0.0
    assert expected_bursts(rises, due, 0.2, LEAD, 20.0 * LEAD - 1.0).rate_rps == 20.0
    assert expected_bursts(rises, NOW + 300.0, 0.2, LEAD, 0.0).rate_rps == 0.0  # nothing is due


@pytest.mark.parametrize("seed", range(3))
def test_rises_at_random_times_cost_next_to_nothing(seed: int) -> None:
    draw, at, rises, covered = Random(seed), NOW, (), 0
    for _ in range(150):
        gap = KEPT_SECONDS + draw.expovariate(1.0 / 1500.0)
        rises = with_rise(rises, Rise(at, 2.0, 20.0), LEAD)
        asked = [expected_bursts(rises, at + passed, 0.9995, LEAD).rate_rps for passed in range(30, int(gap), 30)]
        covered += sum(rate > 2.0 for rate in asked)
        at += gap
    assert 0 < 30.0 * covered < 0.02 * (at - NOW)


@given(seen, quantiles, quantiles, st.floats(0.0, 1e4))
def test_a_higher_quantile_never_asks_for_less(
    rises: tuple[Rise, ...], one: float, other: float, lead_seconds: float
) -> None:
    low, high = (expected_bursts(rises, NOW, q, lead_seconds) for q in sorted((one, other)))
    assert low.rate_rps <= high.rate_rps
    assert high.rate_rps <= max((rise.rate_rps for rise in rises), default=0.0)


@pytest.mark.parametrize("lead_seconds", [0.0, 1e9])
def test_no_lead_time_is_too_short_or_too_long(lead_seconds: float) -> None:
    rises = (Rise(NOW, 0.0, 1.0), Rise(NOW, 0.0, 2.0))
    assert expected_bursts(rises, NOW, 0.9, lead_seconds).rate_rps in (0.0, 2.0)


def test_what_is_wanted_between_bursts_is_what_they_take_and_calm_arrivals_are_as_before() -> None:
    burst, calm = [40.0] * 4, watched([2.0] * 200)
    bursts = watched([2.0] * 40 + burst + [2.0] * 60 + burst + [2.0] * 30 + burst + [2.0] * 40)
    assert len(bursts.rises) >= 2
    known = replace(bursts, rises=())
    high, low, without = (
        forecast(demand, Residuals(), quantile, LEAD, INTERVAL)
        for demand, quantile in ((bursts, 0.9995), (bursts, 0.5), (known, 0.5))
    )
    assert high is not None
    assert high.wanted_rps == high.releasable_rps == pytest.approx(40.0)
    assert high.bursts.rises == len(bursts.rises)
    assert low == without
    assert not calm.rises or len(calm.rises) == 1  # what came first


def test_bursts_that_return_find_replicas_and_nobody_pays_for_them_once_they_stay_away() -> None:
    ends = 2400
    rate = lambda second: 30.0 if second % 240 < 25 and second < ends else 2.0  # noqa: E731
    cluster = FluidCluster(service("chat").with_replicas_between(1, 20), rate, {"h100": 4.0}).run(ends)
    assert cluster.attainment(1200, ends) >= 0.99 > 0.6 > cluster.attainment(0, 600)
    assert cluster.replicas() >= 7  # three minutes after the last burst
    assert "(quantile 1.00: covers bursts like the last 9, every 4 min)" in cluster.last().verdict.message
    cluster.run(1500)
    assert cluster.replicas() <= 2
    assert "bursts" not in cluster.last().verdict.message


def test_bursts_with_a_period_find_replicas_that_are_gone_in_between() -> None:
    period, ends = 500, 4000
    rate = lambda second: 30.0 if period - 100 <= second % period else 2.0  # noqa: E731
    cluster = FluidCluster(service("chat").with_replicas_between(1, 20), rate, {"h100": 4.0}).run(ends - period)
    assert cluster.attainment(4 * period, ends - period) >= 0.99 > 0.95 > cluster.attainment(0, 3 * period)
    cluster.run(period - 200)
    assert cluster.replicas() <= 2  # a load that may return at any time would be kept for 416 s
    cluster.run(80)
    assert cluster.replicas() >= 7
    assert "covers bursts like the last 7, every 8 min)" in cluster.last().verdict.message
