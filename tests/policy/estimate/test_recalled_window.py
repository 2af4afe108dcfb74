"""What an operator that has just started says of a window that Prometheus does not remember all of."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.decision import Decision
from holdfast.domain.signals import History, RateSample, SignalState
from holdfast.domain.valid_traffic import judge
from holdfast.policy.decide import decide
from holdfast.policy.estimate.slo_budget import Budget, Gap, account, budget_from_history
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, no_traffic, replicas, service, traffic
from tests.policy.fluid import FixedRates

HOUR, DAY = 3600.0, 86_400.0
CHAT = service()
MONTH = replace(CHAT.spec.slo, window_seconds=30 * DAY)
BY_THE_MONTH = replace(CHAT, spec=replace(CHAT.spec, slo=MONTH))
MODEL = FixedRates({"h100": 8.9})
RECALLED = tuple(RateSample(NOW - 3 * HOUR * index, 3 * HOUR, 900.0, 899.0, 1.0) for index in range(16))
TWO_DAYS = History(RECALLED, since=NOW - 2 * DAY)


def started(
    history: History | None, *, age: float = 90 * DAY, memory: Memory | None = None, at: float = NOW
) -> tuple[Decision, Memory]:
    """A look at a service that is so old, with this history."""
    view = ServiceView(BY_THE_MONTH, traffic(5.0), replicas(2), history=history, born_at=NOW - age)
    (decision,), after = decide(a_snapshot(view, now=at), memory or Memory(), model=MODEL)
    return decision, after


def said(decision: Decision) -> str:
    return next(condition.message for condition in decision.conditions if condition.type == "SLOMet")


def test_a_retention_shorter_than_the_window_is_told_with_the_remedy() -> None:
    decision, _ = started(TWO_DAYS)
    told = "requests before 2027-01-13 08:00 UTC are not counted: Prometheus had no data for them when the operator"
    assert told in said(decision)
    assert said(decision).endswith("set its retention to 30d or more")


def test_what_is_missing_changes_no_decision_and_no_status() -> None:
    short, _ = started(TWO_DAYS)
    whole, _ = started(replace(TWO_DAYS, since=NOW - 30 * DAY))
    assert "not counted" not in said(whole)
    assert said(short).startswith(said(whole))
    assert (short.verdict, short.slo) == (whole.verdict, whole.slo)
    assert [(c.type, c.status, c.reason) for c in short.conditions] == [
        (c.type, c.status, c.reason) for c in whole.conditions
    ]


@pytest.mark.parametrize("age", [0.0, 600.0, DAY, 2 * DAY + HOUR])
def test_of_a_service_younger_than_the_history_nothing_is_missing(age: float) -> None:
    assert "not counted" not in said(started(TWO_DAYS, age=age)[0])


def test_of_a_service_of_unknown_age_nothing_is_told() -> None:
    assert not Budget(window_seconds=30 * DAY, since=NOW).incomplete(None, NOW)


def test_a_prometheus_that_remembers_nothing_of_an_old_service_is_told_too() -> None:
    assert "requests before 2027-01-15 08:00 UTC" in said(started(History())[0])
    assert "not counted" not in said(started(History(), age=60.0)[0])


def test_a_question_that_was_not_answered_is_no_matter_of_retention() -> None:
    told = said(started(replace(TWO_DAYS, whole=False))[0])
    assert "Prometheus did not return them" in told
    assert "retention" not in told


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_samples_that_make_no_sense_leave_the_rest_of_what_is_told(nonsense: float) -> None:
    broken = tuple(replace(sample, good=nonsense, bad=nonsense) for sample in RECALLED)
    told = said(started(replace(TWO_DAYS, samples=broken))[0])
    assert told.startswith("too few requests to judge: fewer than 100 in the last 30d")
    assert "requests before 2027-01-13 08:00 UTC are not counted" in told


def test_the_words_stay_the_same_until_the_window_is_whole_and_do_not_come_back() -> None:
    _, memory = started(TWO_DAYS)
    words = []
    for day in range(1, 32):
        decision, memory = started(None, memory=memory, at=NOW + day * DAY)
        words.append(said(decision).partition("; ")[2])
    missing = [bool(word) for word in words]
    assert missing == sorted(missing, reverse=True)
    assert len(set(words)) == 2


@given(
    since=st.floats(NOW - 40 * DAY, NOW),
    age=st.floats(0.0, 400 * DAY),
    window=st.floats(300.0, 30 * DAY),
    looks=st.lists(st.floats(0.0, 60 * DAY), max_size=8),
)
def test_what_is_missing_is_never_more_later_on(since: float, age: float, window: float, looks: list[float]) -> None:
    known = Budget(window_seconds=window, since=since)
    told = [known.incomplete(NOW - age, NOW + look) for look in sorted(looks)]
    assert told == sorted(told, reverse=True)
    assert not known.incomplete(since, NOW)
    assert not known.incomplete(NOW - age, since + window)


def test_a_prometheus_that_comes_later_than_the_operator_is_read_back_all_the_same() -> None:
    away = ServiceView(BY_THE_MONTH, no_traffic(SignalState.UNREACHABLE), replicas(2), born_at=NOW - 90 * DAY)
    memory = Memory()
    for tick in range(3):
        (decision,), memory = decide(a_snapshot(away, now=NOW + 5.0 * tick), memory, model=MODEL)
    assert decision.slo.attainment is None
    after, memory = started(TWO_DAYS, memory=memory, at=NOW + 15.0)
    assert after.slo.attainment == pytest.approx(899 / 900, abs=1e-3)
    again, _ = started(None, memory=memory, at=NOW + 60.0)
    assert again.slo.attainment == pytest.approx(899 / 900, abs=1e-3)


def test_a_history_that_comes_with_nothing_else_new_is_not_passed_over() -> None:
    _, memory = started(None)
    after, _ = started(TWO_DAYS, memory=memory, at=NOW + 1.0)
    assert after.slo.attainment == pytest.approx(899 / 900, abs=1e-3)


class Occupied(FixedRates):
    """An engine model that has answered enough for this tick."""

    def rate(self, *_: object) -> None:  # type: ignore[override]
        return None


def test_a_service_that_waits_for_the_engine_model_keeps_its_history() -> None:
    view = ServiceView(BY_THE_MONTH, traffic(5.0), replicas(2), history=TWO_DAYS, born_at=NOW - 90 * DAY)
    decisions, memory = decide(a_snapshot(view), Memory(), model=Occupied({}))
    assert decisions == ()
    assert started(None, memory=memory, at=NOW + 5.0)[0].slo.attainment == pytest.approx(899 / 900, abs=1e-3)


def test_an_edited_window_says_since_when_it_is_counted() -> None:
    known = budget_from_history(TWO_DAYS, MONTH, NOW)
    edited = account(known, judge(traffic(5.0)), replace(MONTH, window_seconds=10 * DAY), NOW + 5.0)
    assert (edited.since, edited.gap) == (NOW + 5.0, Gap.EDITED)
    assert edited.incomplete(NOW - 90 * DAY, NOW + 5.0)
    assert account(Budget(), judge(traffic(5.0)), MONTH, NOW).since is None, "a new service has no past"
