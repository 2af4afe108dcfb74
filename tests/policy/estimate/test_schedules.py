"""Floors at certain hours: when they hold, what they do to sizes, and who is told what."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.domain.decision import Action
from holdfast.domain.schedules import unknown_timezone, windows
from holdfast.domain.service import Schedule
from holdfast.domain.signals import SignalState
from holdfast.policy.decide import decide
from holdfast.policy.estimate.scheduled_minimum import ScheduledMinimum, scheduled_minimums
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, accelerator, condition, no_traffic, replicas, service, traffic
from tests.policy.fluid import FixedRates, FluidCluster, steps

BERLIN, UTC = "Europe/Berlin", "UTC"
EVERY_DAY = frozenset(range(7))
DAY = 86_400.0
MODEL = FixedRates({"h100": 4.0})


def a_schedule(
    start: str = "08:00", end: str = "18:00", least: int = 5, *, zone: str = BERLIN, days: Sequence[int] = range(7),
    name: str = "office",
) -> Schedule:  # fmt: skip
    begins, ends = minutes(start), minutes(end)
    return Schedule(name, zone, ZoneInfo(zone), begins, ends if ends > begins else ends + 1440, frozenset(days), least)


def minutes(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    """Seconds since the epoch of a time on the wall."""
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def least(schedules: Sequence[Schedule], now: float, lead: float = 0.0) -> int | None:
    found = scheduled_minimums(schedules, now, lead, 0.0).now
    return None if found is None else found.replicas


# -- which floor holds


@pytest.mark.parametrize(
    ("time", "holds"),
    [
        ("2026-06-15T07:59:59", False),
        ("2026-06-15T08:00:00", True),
        ("2026-06-15T17:59:59", True),
        ("2026-06-15T18:00:00", False),
        ("2026-12-15T08:00:00", True),
    ],
)
def test_a_floor_holds_from_start_until_just_before_end_by_the_clock_on_the_wall(time: str, holds: bool) -> None:
    assert (least([a_schedule()], at(time)) == 5) is holds


def test_a_floor_is_asked_for_a_lead_time_before_it_starts() -> None:
    opens = at("2026-06-15T08:00:00")
    assert least([a_schedule()], opens - 120.5, 120.0) is None
    assert least([a_schedule()], opens - 120.0, 120.0) == 5
    assert least([a_schedule()], opens + 10 * 3600.0 - 1.0, 120.0) == 5
    assert least([a_schedule()], opens + 10 * 3600.0, 120.0) is None


def test_a_window_over_midnight_belongs_to_the_day_that_begins_it() -> None:
    friday = [a_schedule("22:00", "06:00", days=[4])]
    assert least(friday, at("2026-06-19T22:00:00")) == 5  # a Friday
    assert least(friday, at("2026-06-20T05:59:00")) == 5
    assert least(friday, at("2026-06-20T06:00:00")) is None
    assert least(friday, at("2026-06-20T22:30:00")) is None
    assert least(friday, at("2026-06-19T05:00:00")) is None


def test_days_are_those_of_the_time_zone() -> None:
    monday = [a_schedule("00:00", "24:00", zone="Pacific/Auckland", days=[0])]
    assert least(monday, at("2026-06-14T12:00:00", UTC)) == 5  # Monday has begun there
    assert least(monday, at("2026-06-14T11:59:59", UTC)) is None
    assert least(monday, at("2026-06-15T12:00:00", UTC)) is None


def test_whole_days_in_a_row_leave_no_gap() -> None:
    always = [a_schedule("00:00", "24:00")]
    assert all(least(always, at("2026-03-28T00:00:00") + hour * 1800.0) == 5 for hour in range(150))


def test_the_highest_of_several_floors_holds() -> None:
    both = [a_schedule(least=3, name="day"), a_schedule("12:00", "13:00", 7, name="lunch")]
    assert [least(both, at(f"2026-06-15T{hour}:30:00")) for hour in (11, 12, 13)] == [3, 7, 3]
    assert least(both[::-1], at("2026-06-15T12:30:00")) == 7


def test_a_floor_in_a_skipped_hour_begins_early_and_ends_late_rather_than_not_at_all() -> None:
    # In the night of 2026-03-29 Berlin's clocks go from 02:00 to 03:00, which is 01:00 UTC.
    skipped = [a_schedule("02:15", "02:45")]
    readings = at("2026-03-29T00:15:00", UTC), at("2026-03-29T01:45:00", UTC)
    assert least(skipped, readings[0]) == least(skipped, readings[1] - 1.0) == 5
    assert least(skipped, readings[0] - 1.0) is least(skipped, readings[1]) is None
    assert least([a_schedule("02:30", "04:00")], at("2026-03-29T03:00:00")) == 5


def test_a_floor_in_a_repeated_hour_holds_from_the_first_start_to_the_last_end() -> None:
    # In the night of 2026-10-25 the hour from 02:00 to 03:00 comes twice.
    repeated = [a_schedule("02:15", "02:45")]
    first, last = at("2026-10-25T02:15:00"), at("2026-10-25T02:45:00", fold=1)
    assert last - first == 90 * 60.0
    assert all(least(repeated, first + minute * 60.0) == 5 for minute in range(90))
    assert least(repeated, first - 1.0) is least(repeated, last) is None


def test_a_window_across_a_change_of_the_clock_keeps_its_times_on_the_wall() -> None:
    nights = [a_schedule("22:00", "06:00")]
    for day, hours in (("2026-03-28", 7.0), ("2026-10-24", 9.0), ("2026-06-15", 8.0)):
        begins = at(f"{day}T22:00:00")
        assert least(nights, begins - 1.0) is None
        assert least(nights, begins + hours * 3600.0 - 1.0) == 5
        assert least(nights, begins + hours * 3600.0) is None


def test_a_start_at_a_midnight_that_is_skipped_is_not_missed() -> None:
    # Beirut's clocks go from 00:00 to 01:00 in the night of 2026-03-29.
    beirut = [a_schedule("00:00", "02:00", zone="Asia/Beirut", days=[6])]
    assert least(beirut, at("2026-03-29T01:00:00", "Asia/Beirut")) == 5
    assert least(beirut, at("2026-03-29T01:59:00", "Asia/Beirut")) == 5


ZONES = [BERLIN, UTC, "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Beirut"]
times = st.integers(0, 1439)


@given(st.floats(1.0e9, 2.2e9), st.sampled_from(ZONES), times, times, st.frozensets(st.integers(0, 6), min_size=1))
@settings(max_examples=200)
def test_whatever_the_clock_on_the_wall_shows_within_the_hours_is_within_a_window(
    now: float, zone: str, start: int, end: int, days: frozenset[int]
) -> None:
    length = (end - start) % 1440 or 1440
    schedule = Schedule("s", zone, ZoneInfo(zone), start, start + length, days, 2)
    wall = datetime.datetime.fromtimestamp(now, ZoneInfo(zone)).replace(tzinfo=None)
    opened = wall - datetime.timedelta(minutes=start)
    shown = opened.weekday() in days and (opened - opened.replace(hour=0, minute=0, second=0, microsecond=0)) < (
        datetime.timedelta(minutes=length)
    )
    if shown:
        assert least([schedule], now) == 2
    for window in windows(schedule, now, now + DAY):
        assert 0.0 < window.closes_at - window.opens_at <= 60.0 * length + DAY  # Apia once skipped a whole day


@given(st.floats(1.0e9, 2.2e9), st.sampled_from(ZONES), times, times, st.floats(0.0, 7200.0), st.floats(30.0, 7200.0))
@settings(max_examples=200)
def test_nothing_changes_before_the_moment_that_is_foretold(
    now: float, zone: str, start: int, end: int, lead: float, hold: float
) -> None:
    schedule = Schedule("s", zone, ZoneInfo(zone), start, start + ((end - start) % 1440 or 1440), EVERY_DAY, 2)
    found = scheduled_minimums([schedule], now, lead, hold)
    assert found.change_at > now
    for share in (0.0, 0.5, 0.999):
        later = now + share * min(found.change_at - now, hold)
        if later < found.change_at:
            assert scheduled_minimums([schedule], later, lead, hold).now == found.now


@pytest.mark.parametrize("seconds", [0.0, -5.0, 1e12, math.inf])
def test_absurd_lead_times_are_bounded(seconds: float) -> None:
    found = scheduled_minimums([a_schedule()], at("2026-06-15T12:00:00"), seconds, seconds)
    assert found.now == ScheduledMinimum(5, "schedule office requires at least 5 replicas until 18:00 Europe/Berlin")


def test_a_time_zone_that_nobody_knows_silences_its_own_floor_only() -> None:
    lost = replace(a_schedule(least=9, name="lost"), timezone="Europe/Atlantis", zone=None)
    noon = at("2026-06-15T12:00:00")
    assert least([lost, a_schedule()], noon) == 5
    assert scheduled_minimums([lost], noon, 60.0, 60.0).now is None
    assert "scaling.schedules[lost].timezone: Europe/Atlantis" in unknown_timezone([a_schedule(), lost])
    assert unknown_timezone([a_schedule()]) == ""


@pytest.mark.parametrize(
    ("time", "sentence"),
    [
        ("07:59:00", "schedule office requires at least 5 replicas from 08:00 Europe/Berlin"),
        ("12:00:00", "schedule office requires at least 5 replicas until 18:00 Europe/Berlin"),
    ],
)
def test_a_floor_says_who_asks_for_it_and_until_when(time: str, sentence: str) -> None:
    assert scheduled_minimums([a_schedule()], at(f"2026-06-15T{time}"), 120.0, 60.0).now == ScheduledMinimum(
        5, sentence
    )


# -- what floors do to sizes; NOW is Friday 2027-01-15 08:00 UTC

CHAT = service().with_replicas_between(1, 10)
OFFICE = a_schedule("08:10", "08:25", 5, zone=UTC)
OPENS, CLOSES = 600.0, 1500.0  # many times the lead time before, and many times the hold time long


def a_run(schedule: Schedule = OFFICE, rate: float = 2.0, cold_start: float = 60.0, **more: object) -> FluidCluster:
    builder = CHAT.with_schedules(schedule)
    return FluidCluster(builder, steps((0, rate)), {"h100": 4.0}, cold_start=cold_start, **more)  # type: ignore[arg-type]


def ready(cluster: FluidCluster) -> int:
    return sum(replica.ready_at is not None for replica in cluster.snapshot().services[0].replicas)


def test_the_floor_serves_when_the_window_opens_and_not_long_before() -> None:
    cluster = a_run().run(OPENS)
    assert ready(cluster) == 5
    (grown,) = (at for at, action, _ in cluster.changes(since=60.0) if action == "ScaleUp")
    assert OPENS - 2 * 60.0 <= grown <= OPENS - 60.0


@pytest.mark.parametrize("rate", [0.0, 2.0])
def test_the_floor_goes_when_the_window_closes_and_the_load_needs_none_of_it(rate: float) -> None:
    cluster = a_run(rate=rate).run(CLOSES)
    assert ready(cluster) == 5
    cluster.run(400.0)
    assert cluster.replicas() == 1
    assert [(action, size) for _, action, size in cluster.changes(since=60.0)] == [("ScaleUp", 5), ("ScaleDown", 1)]


def test_load_above_the_floor_adds_replicas() -> None:
    cluster = a_run(rate=26.0).run(OPENS + 300.0)
    assert cluster.replicas() > 5


def test_a_window_that_opens_soon_keeps_what_the_last_one_had() -> None:
    both = CHAT.with_schedules(OFFICE, a_schedule("08:26", "08:40", 5, zone=UTC, name="next"))
    cluster = FluidCluster(both, steps((0, 2.0)), {"h100": 4.0}, cold_start=60.0).run(CLOSES + 840.0)
    assert [(action, size) for _, action, size in cluster.changes(since=60.0)] == [("ScaleUp", 5)]


def test_a_restart_of_the_operator_inside_the_window_keeps_the_floor() -> None:
    cluster = a_run().run(OPENS + 300.0)
    cluster.restart_operator()
    cluster.run(CLOSES - OPENS - 300.0)
    assert not cluster.changes(since=OPENS + 300.0)


def test_a_quiet_service_is_decided_anew_when_a_window_comes_or_goes() -> None:
    seen = ServiceView(CHAT.with_schedules(OFFICE), traffic(2.0), replicas(2))
    memory, asked = Memory(), []
    for second in range(400, 600):
        (decision,), memory = decide(a_snapshot(seen, now=NOW + second, scrape=60.0), memory, model=MODEL)
        asked.append(decision.verdict.action)
    assert asked.index(Action.SCALE_UP) == 600 - 400 - round(decision.explanation.lead_time_seconds)


@pytest.mark.slow
@given(
    st.integers(1, 10), st.sampled_from([0.0, 1.5, 6.0, 9.5]), st.integers(4, 10), st.integers(6, 12),
    st.integers(0, 99), st.sampled_from([5.0, 10.0]),
)  # fmt: skip
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
def test_a_floor_is_kept_throughout_and_nothing_flaps_at_its_boundaries(
    floor: int, rate: float, opens: int, length: int, seed: int, scrape: float
) -> None:
    schedule = Schedule("s", UTC, ZoneInfo(UTC), 480 + opens, 480 + opens + length, EVERY_DAY, floor)
    builder = CHAT.with_schedules(schedule)
    cluster = FluidCluster(builder, steps((0, rate)), {"h100": 4.0}, seed=seed, cold_start=30.0, scrape=scrape)
    cluster.run(opens * 60.0)
    for _ in range(length * 2):
        assert ready(cluster) >= floor
        cluster.run(30.0)
    cluster.run(480.0)  # several times the hold time
    moves = [action for second, action, _ in cluster.changes(since=120.0)]
    assert sum(one != other for one, other in itertools.pairwise(moves)) <= 3


@pytest.mark.parametrize("pods", [0, 1, 5])
def test_maximum_and_budget_bound_a_floor_as_they_bound_the_minimum(pods: int) -> None:
    dear = CHAT.with_accelerators(accelerator("h100", cost_per_gpu_hour=2.0)).costing_at_most(6.5)
    whole_day = a_schedule("00:00", "24:00", 5)
    for builder, most in ((dear, 3), (CHAT.with_replicas_between(1, 4), 4)):
        by_floor = decided(ServiceView(builder.with_schedules(whole_day), traffic(2.0), replicas(pods)))
        minimum = ServiceView(builder.with_replicas_between(5, builder.spec.max_replicas), traffic(2.0), replicas(pods))
        assert by_floor.verdict.replicas == decided(minimum).verdict.replicas == most


def decided(seen: ServiceView, looks: int = 1):  # type: ignore[no-untyped-def]
    memory = Memory()
    for look in range(looks):
        (decision,), memory = decide(a_snapshot(seen, now=NOW + 5.0 * look), memory, model=MODEL)
    return decision


WHOLE_DAY = a_schedule("00:00", "24:00", 5)


def test_a_pinned_size_stays_and_the_floor_is_recommended() -> None:
    decision = decided(ServiceView(CHAT.with_schedules(WHOLE_DAY).pinned_to(2), traffic(2.0), replicas(2)))
    assert decision.verdict.replicas == 2
    assert decision.recommendation is not None
    assert decision.recommendation.replicas == 5


def test_recommend_moves_nothing_and_begins_at_the_floor() -> None:
    asking = CHAT.with_schedules(WHOLE_DAY).recommending()
    decision = decided(ServiceView(asking, traffic(2.0), replicas(2)))
    assert (decision.verdict.replicas, decision.recommendation.replicas) == (2, 5)
    assert decided(ServiceView(asking)).verdict.replicas == 5


def test_without_metrics_the_floor_is_reached_all_the_same() -> None:
    blind = no_traffic(SignalState.UNREACHABLE, "no answer")
    assert decided(ServiceView(CHAT.with_schedules(WHOLE_DAY), blind, replicas(2))).verdict.replicas == 5


def test_reason_message_guards_and_condition_name_the_schedule() -> None:
    sentence = "schedule office requires at least 5 replicas until 24:00 Europe/Berlin"
    up = decided(ServiceView(CHAT.with_schedules(WHOLE_DAY), traffic(2.0), replicas(2)))
    held = decided(ServiceView(CHAT.with_schedules(WHOLE_DAY), traffic(2.0), replicas(5)), looks=3)
    for decision in (up, held):
        assert decision.verdict.reason == "ScheduledFloor"
        assert sentence in decision.verdict.message
        assert f"ScheduledFloor: {sentence}" in decision.explanation.guards
        scaling = next(c for c in decision.conditions if c.type == "ScalingActive")
        assert sentence in scaling.message


def test_an_unknown_time_zone_is_told_and_nothing_else_suffers() -> None:
    lost = replace(WHOLE_DAY, timezone="Europe/Atlantis", zone=None, name="lost")
    decision = decided(ServiceView(CHAT.with_schedules(lost, WHOLE_DAY), traffic(2.0), replicas(5)))
    assert condition(decision, "Stalled") == (True, "TimezoneUnknown")
    assert condition(decision, "Ready") == (True, "Serving")
    assert condition(decision, "ScalingActive")[0]
    assert decision.verdict.replicas == 5
