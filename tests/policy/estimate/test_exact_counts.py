"""Decisions on what the plugins count: as fast as on vLLM's own counters, and never lower where the two agree."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.engine import ExactCounts
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate import slo_budget
from holdfast.policy.estimate.slo_budget import Budget
from tests.builders import NOW, counts, service, traffic
from tests.policy.fluid import FluidCluster, steps

CHAT = service("chat").with_replicas_between(1, 20)
ONE = {"h100": 4.0}
EXACT = ExactCounts(arrived=100.0, good=80.0, bad_ttft=11.0, bad_tpot=2.0, bad_rejected=4.0, bad_error=1.0, engines=1)


def overloaded(**how: object) -> FluidCluster:
    """Four minutes of 8 requests/s, then three of twice as much."""
    rate = steps((0, 8.0), (240, 16.0), (420, 8.0))
    return FluidCluster(CHAT, rate, ONE, cold_start=60.0, **how).run(240)  # type: ignore[arg-type]


def orders(cluster: FluidCluster) -> dict[int, float]:
    """When each size was first ordered after the step."""
    cluster.run(180)
    sizes: dict[int, float] = {}
    for at, _, replicas in cluster.changes(240):
        sizes.update({size: at for size in range(1, replicas + 1) if size not in sizes})
    return sizes


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bounds"])
def test_goodput_that_the_fast_loop_keeps_hides_no_overload_from_the_size(exact: bool, seed: int) -> None:
    stock = overloaded(seed=seed)
    kept = overloaded(seed=seed, plugin=True, exact=lambda _: exact)
    without, those = orders(stock), orders(kept)
    assert those[4] <= without[4]
    assert kept.replicas() >= 4
    assert kept.attainment(240, 420) > stock.attainment(240, 420)


def test_late_requests_are_not_sized_for_a_second_time() -> None:
    cluster = overloaded(plugin=True)
    cluster.run(180)
    assert max(second["queue"] for second in cluster.seconds) > 100.0
    assert all(decision.explanation.backlog_requests == 0.0 for _, decision in cluster.decisions)
    assert cluster.replicas() <= 6


def test_bad_first_tokens_burn_the_budget_before_they_come() -> None:
    cluster = overloaded(plugin=True).run(30)
    state = slo_budget.slo_state(cluster.memory.services[CHAT.spec.key].demand.budget, CHAT.spec.slo, NOW + 270.0)
    assert state.attainment is not None
    assert state.attainment < 0.97


def test_the_source_is_told() -> None:
    cluster = FluidCluster(CHAT, steps((0, 8.0)), ONE, plugin=True, exact=lambda second: second >= 200.0).run(200)
    assert cluster.last().slo.source == "bounds"
    cluster.run(60)
    assert cluster.last().slo.source == "exact"


def test_judged_by_the_engine_is_another_source_and_changes_nothing_else() -> None:
    clusters = [
        FluidCluster(CHAT, steps((0, 8.0), (120, 14.0)), ONE, plugin=True, engine_timed=each).run(300)
        for each in (lambda _: False, lambda second: second >= 200.0)
    ]
    assert [cluster.last().slo.source for cluster in clusters] == ["exact", "engine"]
    first, second = ([replicas for _, _, replicas in cluster.changes(0)] for cluster in clusters)
    assert first == second
    assert clusters[0].attainment(0, 300) == clusters[1].attainment(0, 300)


def seen(exact: ExactCounts | None, state: SignalState = SignalState.FRESH) -> AcceleratorTraffic:
    return judge(traffic(10.0, state=state, exact=exact)).total  # type: ignore[arg-type]


def test_a_mixed_fleet_goes_by_the_counters_of_vllm() -> None:
    for other, exact in ((counts(5.0), False), (counts(5.0, exact=EXACT), True), (AcceleratorTraffic(), True)):  # type: ignore[arg-type]
        mixed = Traffic(SignalState.FRESH, "", 10.0, 1.0, (("h100", counts(5.0, exact=EXACT)), ("l40s", other)))  # type: ignore[arg-type]
        assert (judge(mixed).total.exact is not None) is exact


def test_exact_counts_of_two_accelerators_are_added() -> None:
    pair = tuple((name, counts(5.0, exact=EXACT)) for name in ("h100", "l40s"))  # type: ignore[arg-type]
    exact = judge(Traffic(SignalState.FRESH, "", 10.0, 1.0, pair)).total.exact
    assert exact is not None
    assert (exact.arrived, exact.bad, exact.engines) == (200.0, 36.0, 2)


def test_one_engine_that_judges_by_its_own_times_is_one_too_many() -> None:
    other = dataclasses.replace(EXACT, engine_timed=1)
    pair = tuple((name, counts(5.0, exact=exact)) for name, exact in (("h100", EXACT), ("l40s", other)))  # type: ignore[arg-type]
    look = judge(Traffic(SignalState.FRESH, "", 10.0, 1.0, pair))
    memory = slo_budget.account(Budget(window_seconds=3600.0), look, CHAT.spec.slo, NOW)
    assert (memory.exact, memory.engine_timed) == (True, True)


def test_exact_verdicts_are_joint_and_arrivals_hold_the_refused() -> None:
    look = judge(traffic(10.0, exact=EXACT, ttft_within=0.0))  # type: ignore[arg-type]
    memory = slo_budget.account(Budget(window_seconds=3600.0), look, CHAT.spec.slo, NOW)
    assert (memory.latest.good, memory.latest.bad, memory.exact) == (80.0, 18.0, True)
    assert look.arrived == 100.0
    assert (look.refused, look.failed, look.late, look.started) == (4.0, 1.0, 11.0, 94.0)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, -1.0, 1e300])
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(ExactCounts)])
def test_exact_counts_that_make_no_sense_leave_the_bounds_in_force(name: str, nonsense: float) -> None:
    assert seen(dataclasses.replace(EXACT, **{name: nonsense})) == seen(None)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(0, 2**31))
def test_a_source_that_comes_and_goes_changes_no_size_where_the_two_agree(seed: int, chance: int) -> None:
    """Capacity never falls short here, so that bounds and exact counts say the same."""
    flips = random.Random(chance)
    rate = steps((0, 8.0), (200, 16.0), (350, 5.0))
    chat = CHAT.with_replicas_between(8, 20)
    always = FluidCluster(chat, rate, ONE, seed=seed, plugin=True, exact=lambda _: False).run(500)
    flipping = FluidCluster(chat, rate, ONE, seed=seed, plugin=True, exact=lambda _: flips.random() < 0.5).run(500)
    assert flipping.changes() == always.changes()


@settings(max_examples=25)
@given(
    st.sampled_from([SignalState.PARTIAL, SignalState.DUPLICATE, SignalState.INVALID, SignalState.STALE]),
    st.builds(ExactCounts, *[st.floats(0.0, 1e6) for _ in range(9)], engines=st.integers(0, 4)),
)
def test_doubtful_sight_of_exact_counts_lowers_nothing(state: SignalState, exact: ExactCounts) -> None:
    cluster = FluidCluster(CHAT, steps((0, 16.0)), ONE).run(200)
    size = cluster.replicas()
    cluster.sight = lambda _: state
    cluster.distort = lambda counted: dataclasses.replace(counted, exact=exact)
    cluster.run(100)
    assert cluster.replicas() >= size
