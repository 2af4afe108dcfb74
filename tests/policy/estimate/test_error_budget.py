"""Who was judged good or bad, what is left of the budget, and how fast it burns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.burn_rate import FAST, SLOW
from holdfast.domain.signals import History, RateSample
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.class_budgets import ClassState
from holdfast.policy.estimate.headroom import HIGHEST, LOWEST, Headroom, follow
from holdfast.policy.estimate.slo_budget import Budget, account, budget_from_history, judge_requests, recent, slo_state
from tests.builders import NOW, service, traffic

SLO = service().spec.slo  # 99 % over one hour


def lived(
    good_share: float, seconds: float, *, memory: Budget | None = None, at: float = NOW, rate: float = 10.0
) -> Budget:
    """Account for that many seconds of steady traffic."""
    memory = memory or Budget(window_seconds=SLO.window_seconds)
    for index in range(int(seconds / 5.0)):
        memory = account(memory, judge(traffic(rate, good=good_share)), SLO, at + 5.0 * (index + 1))
    return memory


def test_good_is_what_finished_less_each_miss() -> None:
    seen = judge(traffic(10.0, ttft_within=95.0, tpot_within=97.0, e2e_within=99.0, failed=2.0, rejected=3.0))
    verdicts, _ = judge_requests(seen, 1.0, 0.0)
    assert (verdicts.good, verdicts.bad) == (91.0, 9.0 + 2.0 + 3.0)


@given(st.floats(0, 500), st.floats(0, 500), st.floats(0, 500), st.floats(0, 100))
def test_good_never_exceeds_what_finished_nor_falls_below_zero(
    late: float, slow: float, owed: float, waiting: float
) -> None:
    seen = judge(traffic(10.0, ttft_count=late, ttft_within=0.0, tpot_count=slow, tpot_within=0.0, waiting=waiting))
    verdicts, still = judge_requests(seen, 1.0, owed)
    assert 0.0 <= verdicts.good <= 100.0
    assert verdicts.bad >= 0.0
    assert 0.0 <= still <= waiting


def test_a_request_with_a_late_first_token_is_bad_at_once_and_not_again_when_it_finishes() -> None:
    started = judge(traffic(0.0, ttft_count=50.0, ttft_within=0.0, running=50.0))
    ended = judge(traffic(5.0, ttft_count=0.0, ttft_within=0.0, running=0.0))
    first, owed = judge_requests(started, 1.0, 0.0)
    second, still = judge_requests(ended, 1.0, owed)
    assert (first.good, first.bad, owed) == (0.0, 50.0, 50.0)
    assert (second.good, second.bad, still) == (0.0, 0.0, 0.0)


def test_verdicts_are_counted_once_however_often_one_looks() -> None:
    memory = lived(1.0, 600.0)
    assert memory.total.judged == pytest.approx(10.0 * 600.0, rel=0.02)


def test_attainment_and_budget_follow_the_bad_share() -> None:
    state = slo_state(lived(0.995, 600.0), SLO, NOW + 600.0)
    assert state.attainment == pytest.approx(0.995)
    assert state.budget_remaining == pytest.approx(0.5)
    assert not state.burning


def test_below_a_hundred_requests_nothing_is_said_of_99_percent() -> None:
    state = slo_state(lived(0.0, 5.0, rate=5.0), SLO, NOW + 5.0)
    assert (state.attainment, state.budget_remaining, state.burning) == (None, None, False)


def test_what_left_the_window_is_forgotten() -> None:
    bad = lived(0.0, 300.0)
    later = lived(1.0, 3600.0, memory=bad, at=NOW + 300.0)
    assert slo_state(later, SLO, NOW + 3900.0).attainment == pytest.approx(1.0, abs=0.01)


def test_burn_thresholds_are_those_of_the_window() -> None:
    month = replace(SLO, objective=0.999, window_seconds=30 * 86_400.0)
    assert FAST.threshold(SLO) == pytest.approx(0.05 * 60.0)
    assert SLOW.threshold(SLO) == pytest.approx(0.10 * 12.0)
    assert FAST.threshold(replace(month, objective=0.6)) == pytest.approx(0.8 / 0.4)


def test_an_alert_ends_soon_after_the_burning_does() -> None:
    calm = lived(1.0, 3000.0)
    burning = lived(0.5, 120.0, memory=calm, at=NOW + 3000.0)
    assert slo_state(burning, SLO, NOW + 3120.0).burning
    after = lived(1.0, 90.0, memory=burning, at=NOW + 3120.0)
    assert not slo_state(after, SLO, NOW + 3210.0).burning


def test_history_is_the_budget_of_before_the_restart() -> None:
    samples = tuple(RateSample(NOW - 60.0 * index, 60.0, 600.0, 594.0, 6.0) for index in range(50))
    assert slo_state(budget_from_history(History(samples), SLO, NOW), SLO, NOW).attainment == pytest.approx(0.99)


def test_an_edited_window_starts_the_account_anew() -> None:
    memory, shorter = lived(0.5, 60.0), replace(SLO, window_seconds=600.0)
    again = account(memory, judge(traffic(10.0)), shorter, NOW + 65.0)
    assert again.total.bad == 0.0


def test_metrics_that_cannot_be_read_judge_nobody() -> None:
    memory = lived(1.0, 60.0)
    nothing = account(memory, judge(replace(traffic(10.0), interval_seconds=0.0)), SLO, NOW + 65.0)
    assert nothing.total == memory.total
    assert nothing.latest.judged == 0.0


def test_recent_verdicts_are_those_of_the_last_seconds() -> None:
    memory = lived(0.0, 60.0, memory=lived(1.0, 600.0), at=NOW + 600.0)
    assert recent(memory, NOW + 660.0, 60.0).bad_share > 0.8


def judged_by(budget: Budget) -> ClassState:
    return ClassState(SLO, budget, slo_state(budget, SLO, NOW + 300.0))


def q_after(good_share: float, *, frozen: bool = False, left: float = 0.5, **bounds: bool) -> float:
    budget = lived(good_share, 300.0)
    state = replace(slo_state(budget, SLO, NOW + 300.0), budget_remaining=left)
    return follow(Headroom(0.5, 0.5), (ClassState(SLO, budget, state),), 10.0, frozen, **bounds).quantile


def test_bad_requests_raise_the_quantile_and_a_budget_left_over_lowers_it() -> None:
    assert q_after(0.9) > 0.5
    assert q_after(1.0, left=1.0) < 0.5
    assert q_after(1.0, left=0.0) == 0.5  # nothing to spend
    assert q_after(0.99, left=0.5) == pytest.approx(0.5, abs=1e-9)  # on course


def test_headroom_does_not_wind_up_where_it_cannot_help() -> None:
    assert q_after(0.0, frozen=True) == 0.5


def test_a_service_short_of_replicas_learns_that_less_would_do_and_never_that_more_would() -> None:
    assert q_after(0.9, short=True) == 0.5 < q_after(0.9)
    assert q_after(1.0, short=True) == q_after(1.0) < 0.5


def test_a_service_with_more_for_batch_learns_that_more_is_needed_and_never_that_less_would_do() -> None:
    assert q_after(0.9, ample=True) == q_after(0.9) > 0.5
    assert q_after(1.0, ample=True) == 0.5
    assert q_after(0.9, ample=True, short=True) == q_after(1.0, ample=True, short=True) == 0.5


def test_the_quantile_stays_within_its_bounds() -> None:
    headroom, lost, kept = Headroom(), judged_by(lived(0.0, 300.0)), judged_by(lived(1.0, 300.0))
    for _ in range(200):
        headroom = follow(headroom, (lost,), 10.0, False)
    assert headroom.quantile == HIGHEST
    for _ in range(5000):
        headroom = follow(headroom, (kept,), 10.0, False)
    assert headroom.quantile == LOWEST


def test_a_rise_waits_for_the_replicas_that_are_starting_and_a_fall_does_not() -> None:
    def sizing(quantile: float, starting: bool) -> float:
        return follow(Headroom(quantile, 0.6), (judged_by(lived(1.0, 300.0)),), 10.0, True, starting).sizing

    assert sizing(0.99, starting=True) == 0.6
    assert sizing(0.99, starting=False) == 0.99
    assert sizing(0.3, starting=True) == 0.3
