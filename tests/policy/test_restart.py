"""A restart of the operator moves no size: what was learned is read back from Prometheus and from status."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import History, MissingHistory, RateSample
from holdfast.domain.snapshot import Recalled
from holdfast.domain.valid_traffic import judge
from holdfast.policy.decide import decide
from holdfast.policy.estimate.headroom import FIRST, HIGHEST, LOWEST, recalled
from holdfast.policy.estimate.slo_budget import account, budget_from_history
from holdfast.policy.memory import Memory
from tests.builders import NOW, service, traffic
from tests.policy.fluid import FluidCluster

BURSTS = dict(rate=lambda second: 30.0 if second % 240 < 25 else 2.0, rates={"h100": 4.0})


@cache
def _learned(slack: float, hours: int) -> FluidCluster:
    chat = service("chat").with_replicas_between(1, 40)
    return FluidCluster(chat, lambda second: 40.0, {"h100": 4.0}, slack=slack).run(hours * 3600)


def after_four_hours() -> FluidCluster:
    """Replicas carry more than the engine model says, and it was learned: there are fewer than the model asks for."""
    return _learned(1.9, 4).fork()


def test_what_was_learned_of_replicas_survives_so_that_no_size_moves() -> None:
    cluster = after_four_hours()
    before, capacity = cluster.replicas(), cluster.last().capacity
    assert before <= 7
    cluster.restart_operator(remembered=True)
    cluster.run(900)
    again = cluster.last()
    assert not cluster.changes(since=4 * 3600)
    assert again.capacity is not None
    assert capacity is not None
    assert again.capacity.learned_gain == pytest.approx(capacity.learned_gain, rel=0.05)
    assert again.explanation.quantile == pytest.approx(LOWEST)


def test_where_nothing_is_remembered_the_model_alone_rules_again() -> None:
    cluster = after_four_hours()
    before = cluster.replicas()
    cluster.restart_operator()
    assert cluster.run(10).replicas() > before + 2


def test_what_status_tells_of_another_spec_is_not_relied_on() -> None:
    cluster = after_four_hours()
    cluster.restart_operator(remembered=True)
    cluster.recalled = Recalled(cluster.recalled.cold_start_seconds, cluster.recalled.quantile)
    assert cluster.run(10).last().capacity.learned_gain == 1.0  # type: ignore[union-attr]  # it serves


@pytest.mark.parametrize("seconds", [1290, 1350, 1410])
def test_bursts_that_come_back_find_replicas_after_a_restart(seconds: int) -> None:
    kept = FluidCluster(service("chat").with_replicas_between(1, 20), **BURSTS).run(seconds)
    lost = kept.fork()
    kept.restart_operator(remembered=True)
    lost.restart_operator()
    assert kept.run(600).attainment(seconds, seconds + 600) >= 0.99
    assert lost.run(600).attainment(seconds, seconds + 600) < 0.9


@given(st.none() | st.floats(0.0, 1.0))
def test_the_headroom_goes_on_within_its_bounds(quantile: float | None) -> None:
    memory = recalled(quantile)
    assert LOWEST <= memory.quantile == memory.sizing <= HIGHEST
    assert quantile is not None or memory.quantile == FIRST


@pytest.mark.parametrize("ticks", [1, 4, 12])
@pytest.mark.parametrize("slack", [1.9, 1.0])
def test_a_history_that_comes_late_moves_no_size_and_then_decides_as_if_it_had_been_there(
    slack: float, ticks: int
) -> None:
    """Two operators look at one fleet: one has the history in its first tick, the other one some ticks later."""
    fleet = _learned(slack, 2).fork()
    fleet.restart_operator(remembered=True)
    memory = Memory()
    for tick in range(40):
        early, before = fleet.snapshot(), fleet.replicas()
        late = replace(
            early.services[0],
            history=fleet.remembered() if tick == ticks else None,
            missing_history=MissingHistory() if tick < ticks else None,
        )
        (decided,), memory = decide(replace(early, services=(late,)), memory, fleet.settings, fleet.model())
        fleet.run(fleet.tick)
        assert decided.verdict.replicas == (before if tick < ticks else fleet.last().verdict.replicas)
    assert decided.slo.attainment == pytest.approx(fleet.last().slo.attainment, abs=1e-3)


def test_a_budget_from_a_late_history_lacks_no_request_since_its_newest_sample() -> None:
    """Each second 10 requests are judged; the history ends 20 s before the tick that learns from it."""
    slo = service("chat").spec.slo
    samples = tuple(RateSample(NOW - 20.0 - 30.0 * index, 30.0, 300.0, 300.0, 0.0) for index in range(60))
    budget = budget_from_history(History(samples, since=NOW - 1820.0), slo, NOW)
    after = account(budget, judge(traffic(10.0, seconds=30.0)), slo, NOW)
    assert after.total.judged == pytest.approx(60 * 300.0 + 20 * 10.0, rel=1e-6)
