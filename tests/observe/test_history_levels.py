"""History: how closely it looks back, and what it makes of the points."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import HeldSample, History
from holdfast.observe.series.samples import Series
from holdfast.observe.signals import history
from holdfast.observe.signals.history import HistoryLevel
from tests.observe.observe_builders import CHAT, NOW, SLO, request

HOUR = 3600.0
LEVEL = HistoryLevel(60.0, HOUR, 0.0)


def series(*values: float, **labels: str) -> Series:
    points = tuple((NOW - 60.0 * back, value) for back, value in enumerate(reversed(values)))
    return Series({"namespace": "prod", "holdfast_service": "chat"} | labels, points[::-1])


@given(st.floats(min_value=300.0, max_value=30 * 24 * HOUR), st.floats(min_value=1.0, max_value=120.0))
def test_levels_meet_stay_inside_the_window_and_are_few(window: float, scrape: float) -> None:
    levels = history.levels(window, scrape)
    age = 0.0
    for level in levels:
        assert level.newest_age_seconds == age
        age = level.oldest_age_seconds
    assert age <= window
    assert window - age < max(levels[-1].step_seconds, 3 * HOUR)
    assert sum((level.oldest_age_seconds - level.newest_age_seconds) / level.step_seconds for level in levels) <= 400


def test_the_first_point_covers_the_oldest_step_and_the_last_ends_where_the_level_ends() -> None:
    assert HistoryLevel(60.0, 3600.0, 0.0).bounds(NOW) == (NOW - 3540.0, NOW)


def test_outcomes_become_arrivals_good_and_bad() -> None:
    rows = [
        series(80.0, metric="request_success_total", finished_reason="stop"),
        series(20.0, metric="request_success_total", finished_reason="length"),
        series(3.0, metric="request_success_total", finished_reason="error"),
        series(2.0, metric="request_success_total", finished_reason="abort"),
        series(5.0, metric="admission_rejections_total"),
        series(95.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
        series(60.0, metric="time_to_first_token_seconds_bucket", le="0.4"),
        series(100.0, metric="time_to_first_token_seconds_bucket", le="0.6"),
        series(90.0, metric="request_time_per_output_token_seconds_bucket", le="0.03"),
    ]
    (point,) = history.read(rows, LEVEL, [request()])[CHAT]
    assert (point.at, point.interval_seconds) == (NOW, 60.0)
    assert (point.arrivals, point.good, point.bad) == (110.0, 85.0, 23.0)


BOUNDS = [
    series(100.0, 100.0, metric="request_success_total", finished_reason="stop"),
    series(90.0, 90.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
    series(80.0, 80.0, metric="request_time_per_output_token_seconds_bucket", le="0.03"),
]


def test_what_plugins_judged_goes_before_bounds_where_they_were_at_work_in_every_engine() -> None:
    rows = [
        *BOUNDS,
        series(110.0, 110.0, metric="requests_arrived_total"),
        series(85.0, 85.0, metric="requests_good_total"),
        series(20.0, 20.0, metric="requests_bad_total"),
        series(12.0, metric="covered"),  # in the newer of the two
    ]
    older, newer = history.read(rows, LEVEL, [request()])[CHAT]
    assert (older.arrivals, older.good, older.bad) == (100.0, 70.0, 30.0)
    assert (newer.arrivals, newer.good, newer.bad) == (110.0, 85.0, 20.0)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["requests_arrived_total", "requests_good_total", "requests_bad_total"])
def test_verdicts_that_make_no_sense_leave_the_bounds(name: str, nonsense: float) -> None:
    counts = dict.fromkeys(("requests_arrived_total", "requests_good_total", "requests_bad_total"), 9.0)
    rows = [series(value, metric=metric) for metric, value in (counts | {name: nonsense}).items()]
    (point, *_) = history.read([*BOUNDS, *rows, series(12.0, metric="covered")], LEVEL, [request()])[CHAT][::-1]
    assert (point.arrivals, point.good, point.bad) == (100.0, 70.0, 30.0)


def test_a_declared_e2e_bound_counts_too() -> None:
    slo = dataclasses.replace(SLO, e2e_seconds=10.0)
    rows = [
        series(100.0, metric="request_success_total", finished_reason="stop"),
        series(100.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
        series(100.0, metric="request_time_per_output_token_seconds_bucket", le="0.03"),
        series(70.0, metric="e2e_request_latency_seconds_bucket", le="10"),
    ]
    assert history.read(rows, LEVEL, [request(slo=slo)])[CHAT][0].good == 70.0
    assert history.read(rows, LEVEL, [request()])[CHAT][0].good == 100.0


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_points_that_make_no_sense_are_left_out(nonsense: float) -> None:
    rows = [series(10.0, nonsense, 30.0, metric="request_success_total", finished_reason="stop")]
    assert [point.arrivals for point in history.read(rows, LEVEL, [request()])[CHAT]] == [10.0, 30.0]


def test_services_that_were_not_asked_for_are_left_out() -> None:
    rows = [series(10.0, metric="request_success_total", holdfast_service="stranger")]
    assert history.read(rows, LEVEL, [request()]) == {}


def test_levels_are_joined_oldest_first() -> None:
    recent = history.read([series(1.0, 2.0, metric="request_success_total")], LEVEL, [request()])
    joined = history.joined([recent, recent])[CHAT].samples
    assert [point.at for point in joined] == sorted(point.at for point in joined)


def test_prometheus_remembers_back_to_the_oldest_number_of_whatever_series() -> None:
    leader = Series({"metric": "remembered"}, ((NOW - 540.0, math.nan), (NOW - 480.0, 1.0), (NOW, 1.0)))
    rows = [leader, series(0.0, 2.0, metric="request_success_total"), series(math.nan, metric="covered")]
    assert history.oldest(rows, LEVEL) == NOW - 480.0 - 60.0
    assert history.oldest([series(math.nan, math.inf), series()], LEVEL) == math.inf
    assert history.oldest([], LEVEL) == math.inf


def test_a_service_that_prometheus_knows_nothing_of_has_an_empty_history() -> None:
    assert history.joined([], keys=[CHAT]) == {CHAT: History()}
    assert history.joined([], keys=[CHAT], since=NOW - 60.0, whole=False)[CHAT] == History((), None, NOW - 60.0, False)


@given(st.floats(0, 1e6), st.lists(st.floats(0, 1e6), max_size=3))
def test_the_lower_bound_is_one(finished: float, within: list[float]) -> None:
    good = history.good_lower_bound(finished, within)
    assert 0.0 <= good <= finished
    assert good <= min([finished, *within]) + 1e-6


HELD, WAITS = "holdfast_activator_requests_total", "holdfast_activator_wait_seconds_bucket"


def waits(outcome: str, **counts: float) -> list[Series]:
    return [series(value, metric=WAITS, outcome=outcome, le=le) for le, value in counts.items()]


def test_what_an_activator_counted_is_late_or_lost_by_how_long_it_waited() -> None:
    rows = [
        *waits("forwarded", **{"0.25": 1.0, "0.5": 3.0, "1.0": 7.0, "+Inf": 10.0}),
        *waits("gone", **{"0.5": 2.0, "+Inf": 6.0}),
        series(5.0, metric=HELD, outcome="turned_away"),
        series(99.0, metric=HELD, outcome="forwarded"),
    ]
    assert history.read_held(rows, [request()]) == {CHAT: (HeldSample(NOW, 7.0, 4.0 + 5.0),)}
    assert history.read(rows, LEVEL, [request()]) == {}, "engines saw none of them"


def test_an_activator_that_counted_nothing_is_known_and_none_is_unknown() -> None:
    quiet = history.read_held([series(0.0, metric=HELD, outcome="turned_away")], [request()])
    assert history.joined([], [quiet])[CHAT].held == (HeldSample(NOW, 0.0, 0.0),)
    engines = history.read([series(1.0, metric="request_success_total")], LEVEL, [request()])
    assert history.joined([engines], [history.read_held([], [request()])])[CHAT].held is None


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_waits_that_make_no_sense_are_left_out(nonsense: float) -> None:
    rows = [*waits("forwarded", **{"+Inf": nonsense, "0.5": 4.0, "soon": 3.0}), *waits("unheard-of", **{"+Inf": 9.0})]
    assert history.read_held(rows, [request()])[CHAT][-1] == HeldSample(NOW, 0.0, 0.0)


def test_no_request_is_judged_where_prometheus_had_no_buckets() -> None:
    rows = [
        series(80.0, metric="request_success_total", finished_reason="stop"),
        series(75.0, metric="time_to_first_token_seconds_bucket", le="0.5"),
    ]
    (point,) = history.read(rows, LEVEL, [request()])[CHAT]
    assert (point.arrivals, point.good, point.bad) == (80.0, 0.0, 0.0)


def test_aborts_without_a_first_token_are_bad_where_many_wait_and_nothing_where_nobody_does() -> None:
    """Case C12, after a restart of the operator."""
    for waiting, bad in ((200.0, 240.0), (0.0, 0.0)):
        counts = {
            "time_to_first_token_seconds_count": 60.0,
            "num_requests_running": 64.0,
            "num_requests_waiting": waiting,
        }
        rows = [series(*4 * [value], metric=name) for name, value in counts.items()]
        for family, le in (("time_to_first_token", "0.5"), ("request_time_per_output_token", "0.03")):
            rows.append(series(*4 * [60.0], metric=f"{family}_seconds_bucket", le=le))
        for reason, value in (("stop", 60.0), ("abort", 240.0)):
            rows.append(series(*4 * [value], metric="request_success_total", finished_reason=reason))
        points = history.read(rows, LEVEL, [request()])[CHAT]
        assert {point.good for point in points} == {60.0}
        assert points[0].bad == 0.0, "what was in flight before may have been aborted"
        assert points[-1].bad == bad
