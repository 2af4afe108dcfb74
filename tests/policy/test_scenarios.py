"""The composed decision, step by step through time: what a person would see happen to a service."""

from __future__ import annotations

import itertools

import pytest

from holdfast.domain.decision import Action
from holdfast.domain.signals import SignalState
from holdfast.policy.settings import PolicySettings
from tests.builders import accelerator, condition, node, service
from tests.policy.fluid import FluidCluster, steps

CHAT = service("chat").with_replicas_between(1, 20)
ONE = {"h100": 4.0}
TWO = {"h100": 4.0, "l40s": 2.0}


def test_a_step_of_three_times_the_load_is_followed_within_one_tick_of_the_first_window_that_shows_it() -> None:
    cluster = FluidCluster(CHAT, steps((0, 8.0), (300, 24.0)), ONE).run(300)
    before = cluster.replicas()
    cluster.run(10)  # the tick at 300 s sees nothing yet, the one at 305 s half a window, the one at 310 s all of it
    cluster.run(5)
    assert before in (2, 3, 4)
    assert cluster.replicas() >= 24.0 / 4.0
    cluster.run(285)
    assert cluster.attainment(345, 600) >= 0.99


def test_after_the_load_has_fallen_replicas_go_within_about_a_drain_and_a_lead_time() -> None:
    cluster = FluidCluster(CHAT, steps((0, 24.0), (300, 8.0)), ONE, plugin=True).run(300)
    high = cluster.replicas()
    hold = 30.0 + 45.0
    cluster.run(hold)
    assert cluster.replicas() == high  # not before capacity could have been had back
    cluster.run(75)
    assert cluster.replicas() <= (high + 1) // 2
    assert cluster.attainment(60, 450) >= 0.99


def test_without_the_plugin_they_stay_for_eight_times_as_long_for_the_load_may_return() -> None:
    cluster = FluidCluster(CHAT, steps((0, 24.0), (300, 8.0), (700, 24.0), (900, 8.0)), ONE).run(690)
    assert cluster.replicas() >= 6
    told = cluster.last().verdict
    assert told.reason == "DownHold"
    assert "if they come back" in told.message
    cluster.run(190)
    assert cluster.attainment(690, 880) >= 0.99
    cluster.run(900)
    assert cluster.replicas() <= 3


def test_a_ramp_is_followed_ahead_of_time() -> None:
    cluster = FluidCluster(CHAT, lambda second: min(40.0, 4.0 + second * 0.05), ONE).run(720)
    assert cluster.attainment(60, 720) >= 0.97
    assert cluster.replicas() >= 10
    assert all(action in ("Create", "ScaleUp") for _, action, _ in cluster.changes())


def test_a_short_burst_goes_by_without_a_second_wave_of_replicas() -> None:
    cluster = FluidCluster(CHAT, steps((0, 8.0), (300, 40.0), (320, 8.0)), ONE).run(900)
    assert len([change for change in cluster.changes(300) if change[1] == "ScaleUp"]) <= 4
    assert cluster.replicas() <= 5


@pytest.mark.parametrize("slack", [1.0, 1.25, 1.5], ids=["as believed", "a quarter more", "half more"])
def test_replicas_that_carry_more_than_is_believed_are_found_out_within_the_objective(slack: float) -> None:
    """Sizes never let them show it: only where nothing is missed for long is a little more tried."""
    cluster = FluidCluster(CHAT, steps((0, 40.0)), ONE, slack=slack).run(6 * 3600)
    assert cluster.attainment(3600, 6 * 3600) >= 0.99
    mean = sum(decision.verdict.replicas for at, decision in cluster.decisions if at > 3600) / (5 * 3600 / cluster.tick)
    assert mean <= 1.25 * 40.0 / 4.0 / slack
    capacity = cluster.last().capacity
    assert capacity is not None
    assert capacity.per_replica_rps == pytest.approx(4.0 * capacity.learned_gain)


def test_prometheus_gone_holds_the_size_says_so_and_recovers() -> None:
    gone = range(300, 420)
    sight = lambda second: SignalState.UNREACHABLE if int(second) in gone else SignalState.FRESH  # noqa: E731
    cluster = FluidCluster(CHAT, steps((0, 16.0), (300, 4.0)), ONE, sight=sight).run(300)
    size = cluster.replicas()
    cluster.run(120)
    assert cluster.changes(300) == []
    assert condition(cluster.last(), "MetricsAvailable") == (False, "PrometheusUnreachable")
    assert condition(cluster.last(), "ScalingActive") == (False, "MetricsHold")
    cluster.run(60)
    assert cluster.replicas() == size  # the hold time begins anew with what can be seen again
    cluster.run(120)
    assert cluster.replicas() < size
    assert condition(cluster.last(), "MetricsAvailable") == (True, "MetricsFresh")


def test_partial_sight_raises_and_never_lowers() -> None:
    sight = lambda second: SignalState.PARTIAL if second >= 300 else SignalState.FRESH  # noqa: E731
    rising = FluidCluster(CHAT, steps((0, 8.0), (300, 24.0)), ONE, sight=sight).run(330)
    assert rising.replicas() >= 6
    falling = FluidCluster(CHAT, steps((0, 24.0), (300, 4.0)), ONE, sight=sight).run(900)
    assert falling.changes(300) == []


def test_an_operator_restarted_in_the_middle_of_a_scale_up_neither_doubles_it_nor_takes_it_back() -> None:
    undisturbed = FluidCluster(CHAT, steps((0, 8.0), (300, 24.0)), ONE, seed=3).run(700)
    restarted = FluidCluster(CHAT, steps((0, 8.0), (300, 24.0)), ONE, seed=3).run(315)
    ordered = restarted.replicas()
    restarted.restart_operator()
    restarted.run(75)
    assert restarted.replicas() >= ordered
    assert restarted.replicas() <= undisturbed.replicas() + 1


def test_a_new_service_starts_at_its_minimum_and_is_not_touched_while_it_starts() -> None:
    cluster = FluidCluster(CHAT.with_replicas_between(2, 20), steps((0, 0.0)), ONE, cold_start=60.0).run(60)
    assert cluster.changes() == [(0.0, "Create", 2)]
    assert condition(cluster.last(), "Ready") == (False, "NoReplicas")
    assert condition(cluster.last(), "Reconciling") == (True, "ReplicasStarting")
    cluster.run(60)
    assert condition(cluster.last(), "Ready") == (True, "Serving")
    assert condition(cluster.last(), "Reconciling")[0] is False


def test_an_accelerator_whose_pods_never_become_ready_gives_way_to_the_next_one() -> None:
    chat = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s"))
    cluster = FluidCluster(chat, steps((0, 3.0)), TWO, broken=frozenset({"h100"})).run(180)
    assert (cluster.replicas("h100"), cluster.replicas("l40s")) == (0, cluster.replicas())
    assert condition(cluster.last(), "CapacityAvailable") == (False, "AcceleratorUnavailable")
    assert condition(cluster.last(), "Ready") == (True, "Serving")
    switch = next(d for _, d in cluster.decisions if d.verdict.action is Action.SWITCH)
    assert switch.verdict.reason == "AcceleratorUnavailable"
    assert "CrashLoopBackOff" in str(cluster.last().explanation.candidates)


def test_a_broken_accelerator_is_tried_again_after_a_pause_that_doubles() -> None:
    chat = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s"))
    settings = PolicySettings(retry_seconds=200.0)
    cluster = FluidCluster(chat, steps((0, 3.0)), TWO, broken=frozenset({"h100"}), settings=settings).run(3000)
    tries = [at for at, d in cluster.decisions if _begins(d, "h100")]
    pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert len(tries) >= 3
    assert all(later > 1.4 * earlier for earlier, later in itertools.pairwise(pauses))
    assert cluster.attainment(200, 3000) >= 0.99  # the one that works stays until the other does


def _begins(decision: object, name: str) -> bool:
    targets = decision.verdict.targets  # type: ignore[attr-defined]
    return any(t.accelerator == name and t.replicas > 0 and not t.observed_replicas for t in targets)


def test_pods_without_a_node_are_not_waited_for_longer_than_nodes_take_to_come() -> None:
    chat = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s"))
    settings = PolicySettings(provisioning_seconds=60.0)
    cluster = FluidCluster(chat, steps((0, 3.0), (200, 15.0)), TWO, gpus={"h100": 2}, settings=settings)
    cluster.run(250)
    assert cluster.replicas("l40s") == 0
    assert condition(cluster.last(), "CapacityAvailable") == (False, "InsufficientGPUs")
    cluster.run(350)
    assert cluster.replicas("l40s") >= 8
    assert cluster.replicas("h100") == 0
    assert cluster.attainment(400, 600) >= 0.99


def test_the_only_accelerator_short_of_gpus_is_said_so_and_asked_for_no_further() -> None:
    settings = PolicySettings(provisioning_seconds=60.0)
    cluster = FluidCluster(CHAT, steps((0, 3.0), (200, 15.0)), ONE, gpus={"h100": 2}, settings=settings).run(400)
    size = cluster.replicas()
    cluster.rate = steps((0, 60.0))
    cluster.run(60)
    assert cluster.replicas() == size
    assert cluster.last().verdict.reason == "CapacityLimited"
    assert condition(cluster.last(), "SLOMet") == (False, "CapacityLimited")


def test_nodes_that_do_match_but_are_full_are_passed_over_at_once() -> None:
    chat = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s", resource="example.com/l40s"))
    nodes = (node("a", 2), node("b", 16, resource="example.com/l40s"))
    cluster = FluidCluster(chat, steps((0, 3.0), (200, 15.0)), TWO, gpus={"h100": 2}, nodes=nodes).run(240)
    assert cluster.replicas("l40s") >= 7


def test_the_cheaper_accelerator_takes_over_only_after_running_both_has_paid() -> None:
    costly = accelerator("h100", cost_per_gpu_hour=4.0)
    chat = CHAT.with_accelerators(costly)
    cluster = FluidCluster(chat, steps((0, 14.0)), TWO).run(300)
    cluster.with_spec(CHAT.with_accelerators(costly, accelerator("l40s", cost_per_gpu_hour=0.8)))
    cluster.run(30)
    assert cluster.replicas("l40s") == 0
    cluster.run(400)
    assert cluster.replicas("h100") == 0
    assert cluster.replicas("l40s") >= 7
    assert cluster.attainment(300, 730) >= 0.99
    moved = [change for change in cluster.changes(300) if change[1] == "Switch"]
    assert len(moved) <= 3
    cluster.run(900)
    assert [change for change in cluster.changes(800) if change[1] == "Switch"] == []


def test_during_a_switch_the_old_replicas_stay_until_the_new_ones_carry_the_load() -> None:
    chat = CHAT.with_accelerators(accelerator("h100", max_replicas=3), accelerator("l40s"))
    cluster = FluidCluster(chat, steps((0, 8.0), (300, 16.0)), TWO).run(300)
    assert cluster.replicas("l40s") == 0
    cluster.run(60)
    for at, decision in cluster.decisions:
        if at > 300 and decision.verdict.action is Action.SWITCH:
            kept = {t.accelerator: t.replicas for t in decision.verdict.targets}
            assert kept["h100"] > 0 or at >= 330
    cluster.run(120)
    assert cluster.replicas("h100") == 0


def test_the_budget_bounds_the_spend_and_the_condition_says_so() -> None:
    chat = CHAT.with_accelerators(accelerator("h100", cost_per_gpu_hour=2.95)).costing_at_most(9.0)
    cluster = FluidCluster(chat, steps((0, 30.0)), ONE).run(400)
    assert cluster.replicas() == 3
    assert cluster.last().verdict.reason == "BudgetLimited"
    assert condition(cluster.last(), "SLOMet") == (False, "BudgetLimited")


def test_a_pinned_service_has_exactly_that_size_and_shows_what_would_have_been_done() -> None:
    cluster = FluidCluster(CHAT, steps((0, 16.0)), ONE).run(200)
    cluster.with_spec(CHAT.pinned_to(2))
    cluster.run(100)
    assert cluster.replicas() == 2
    assert condition(cluster.last(), "ScalingActive") == (False, "Pinned")
    assert cluster.last().recommendation is not None
    assert cluster.last().recommendation.replicas > 2
    cluster.with_spec(CHAT)
    cluster.run(30)
    assert cluster.replicas() > 2


def test_recommend_moves_nothing_and_publishes_the_decision() -> None:
    cluster = FluidCluster(CHAT.recommending(), steps((0, 16.0)), ONE).run(200)
    assert cluster.replicas() == 1
    assert [action for _, action, _ in cluster.changes()] == ["Create"]
    recommendation = cluster.last().recommendation
    assert recommendation is not None
    assert (recommendation.action, recommendation.reason) == (Action.SCALE_UP, "ForecastAboveCapacity")


@pytest.mark.parametrize(("maximum", "switched"), [(4, False), (8, True)])
def test_a_switch_for_money_needs_room_for_both_within_scaling_max(maximum: int, switched: bool) -> None:
    chat = service().with_replicas_between(1, maximum)
    first, second = accelerator("h100", cost_per_gpu_hour=9.0), accelerator("l40s", cost_per_gpu_hour=0.1)
    cluster = FluidCluster(chat.with_accelerators(first), steps((0, 4.0)), TWO).run(200)
    cluster.with_spec(chat.with_accelerators(first, second))
    cluster.run(900)
    assert (cluster.replicas("h100") == 0) is switched
    assert all(decision.verdict.replicas <= maximum for _, decision in cluster.decisions)


def moved_off(maximum: int) -> FluidCluster:
    """Six replicas serve when their accelerator leaves the list."""
    chat = service().with_replicas_between(1, maximum)
    first, second = accelerator("h100"), accelerator("l40s")
    rates = {"h100": 4.0, "l40s": 4.0}
    cluster = FluidCluster(chat.with_accelerators(first, second), steps((0, 18.0)), rates, cold_start=60.0).run(300)
    assert cluster.replicas("h100") == 6
    cluster.with_spec(chat.with_accelerators(second))
    return cluster.run(450)


@pytest.mark.parametrize("maximum", [6, 7, 8])
def test_where_little_room_is_left_old_replicas_go_no_faster_than_the_new_ones_serve(maximum: int) -> None:
    cluster = moved_off(maximum)
    assert cluster.replicas("h100") == 0
    assert cluster.attainment(300, 750) >= 0.99
    assert all(decision.verdict.replicas <= maximum for _, decision in cluster.decisions)


def test_a_switch_that_has_to_be_goes_in_waves_where_scaling_max_leaves_no_room_for_both() -> None:
    chat = service().with_replicas_between(1, 8)
    chat = chat.with_accelerators(accelerator("h100", max_replicas=3), accelerator("l40s"))
    cluster = FluidCluster(chat, steps((0, 6.0), (300, 12.0)), {"h100": 3.0, "l40s": 2.5}).run(900)
    assert cluster.replicas("h100") == 0
    assert all(decision.verdict.replicas <= 8 for _, decision in cluster.decisions)
