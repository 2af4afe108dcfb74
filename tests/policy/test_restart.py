"""A restart of the operator moves no size: what was learned is read back from Prometheus and from status."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.snapshot import Recalled
from holdfast.policy.estimate.headroom import FIRST, HIGHEST, LOWEST, recalled
from tests.builders import service
from tests.policy.fluid import FluidCluster

EVER_GOOD = dict(rate=lambda second: 40.0, rates={"h100": 4.0}, slack=1.9)
BURSTS = dict(rate=lambda second: 30.0 if second % 240 < 25 else 2.0, rates={"h100": 4.0})


def after_four_hours() -> FluidCluster:
    """Replicas carry more than the engine model says, and it was learned: there are fewer than the model asks for."""
    return FluidCluster(service("chat").with_replicas_between(1, 40), **EVER_GOOD).run(4 * 3600)


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
    kept, lost = (FluidCluster(service("chat").with_replicas_between(1, 20), **BURSTS).run(seconds) for _ in range(2))
    kept.restart_operator(remembered=True)
    lost.restart_operator()
    assert kept.run(600).attainment(seconds, seconds + 600) >= 0.99
    assert lost.run(600).attainment(seconds, seconds + 600) < 0.9


@given(st.none() | st.floats(0.0, 1.0))
def test_the_headroom_goes_on_within_its_bounds(quantile: float | None) -> None:
    memory = recalled(quantile)
    assert LOWEST <= memory.quantile == memory.sizing <= HIGHEST
    assert quantile is not None or memory.quantile == FIRST
