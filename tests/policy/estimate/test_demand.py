"""From a rate to replicas, the hold time, cold starts, and what nodes have room for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.snapshot import Timing
from holdfast.policy.estimate.cold_start import ColdStarts, lead_seconds, watch_cold_starts
from holdfast.policy.estimate.demand import (
    SAME_LEVEL,
    Peaks,
    affordable_replicas,
    backlog,
    demand_rps,
    remember_level,
    remember_peak,
    replicas_for,
    return_seconds,
)
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.health.replicas import Group, group_replicas
from holdfast.policy.settings import PolicySettings
from holdfast.policy.transition.sizes import removal_order
from tests.builders import NOW, ServiceView, accelerator, node, replicas, service

SETTINGS = PolicySettings()


def expecting(rate: float, releasable: float | None = None) -> Forecast:
    return Forecast(rate, rate, releasable or rate, 0.9, 45.0)


@pytest.mark.parametrize(
    ("rate", "replica", "wanted"), [(0, 4, 0), (0.1, 4, 1), (4, 4, 1), (4.01, 4, 2), (41.2, 8.9, 5)]
)
def test_replicas_for_a_rate(rate: float, replica: float, wanted: int) -> None:
    assert replicas_for(rate, replica) == wanted


@given(st.floats(), st.floats())
@example(math.inf, math.inf)
def test_replicas_for_anything_is_a_sensible_number(rate: float, replica: float) -> None:
    assert 0 <= replicas_for(rate, replica) <= 1_000_000


def test_only_what_waits_longer_than_ttft_is_a_backlog_and_clients_leave_after_a_lead_time() -> None:
    assert backlog(5.0, expecting(10.0), 0.5) == 0.0
    assert backlog(25.0, expecting(10.0), 0.5) == 20.0
    assert backlog(1e6, expecting(10.0), 0.5) == 450.0
    assert backlog(100.0, None, 0.5) == 0.0


def test_a_backlog_asks_for_more_unless_replicas_are_starting_already() -> None:
    assert demand_rps(expecting(10.0), 90.0, 0.5, starting=False) == 12.0
    assert demand_rps(expecting(10.0), 90.0, 0.5, starting=True) == 10.0
    assert demand_rps(expecting(10.0), 90.0, 90.0, starting=False) == 11.0  # a long TTFT leaves more time
    assert demand_rps(None, 90.0, 0.5, starting=False) is None


def test_the_highest_demand_of_the_hold_time_is_remembered_and_no_longer() -> None:
    peaks = Peaks()
    for index, rate in enumerate((10.0, 30.0, 20.0, 5.0, 5.0, 5.0)):
        peaks = remember_peak(peaks, expecting(rate), rate, NOW + 10.0 * index, 30.0, True)
        assert len(peaks.highest) <= 3
    assert peaks.rate_rps == 20.0
    assert peaks.covered_seconds(NOW + 50.0) == 50.0


def test_doubtful_metrics_begin_the_hold_time_anew_and_forget_no_peak() -> None:
    peaks = remember_peak(Peaks(), expecting(30.0), 30.0, NOW, 60.0, True)
    peaks = remember_peak(peaks, expecting(5.0), 5.0, NOW + 20.0, 60.0, False)
    assert peaks.covered_seconds(NOW + 20.0) == 0.0
    assert peaks.rate_rps == 30.0


def test_a_level_that_went_is_remembered_until_it_is_not_expected_back() -> None:
    peaks = Peaks()
    for index, rate in enumerate((10.0, 30.0, 29.7, 20.0, 5.0, 5.0)):
        at = NOW + 10.0 * index
        peaks = remember_level(peaks, rate, at, 40.0)
        assert len(peaks.levels) <= 3
    assert peaks.level_rps == 30.0  # of 20 s ago too: 29.7 is about the same
    assert remember_level(peaks, 5.0, NOW + 70.0, 40.0).level_rps == 20.0
    assert remember_level(peaks, 5.0, NOW + 70.0, 0.0).level_rps == 0.0


@given(st.lists(st.floats(0.0, 1e6), max_size=80))
def test_few_levels_are_remembered_and_none_is_lower_than_what_came(rates: list[float]) -> None:
    peaks = Peaks()
    for index, rate in enumerate(rates):
        peaks = remember_level(peaks, rate, NOW + index, 1e6)
    levels = [level for _, level in peaks.levels]
    assert levels == sorted(set(levels), reverse=True)
    assert all(low < SAME_LEVEL * high for high, low in itertools.pairwise(levels))
    assert peaks.level_rps == max(rates, default=0.0)


def test_a_load_is_expected_back_for_eight_times_what_a_removed_replica_is_away_and_an_hour_at_most() -> None:
    assert return_seconds(hold=100.0, cycle=100.0, fast_loop=False) == 800.0
    assert return_seconds(hold=1600.0, cycle=100.0, fast_loop=False) == 1600.0
    assert return_seconds(hold=900.0, cycle=900.0, fast_loop=False) == 3600.0
    assert return_seconds(hold=100.0, cycle=100.0, fast_loop=True) == 0.0


def test_the_lead_time_is_seeing_deciding_and_starting() -> None:
    assert lead_seconds(ColdStarts((20.0, 30.0, 40.0)), Timing(5.0, 15.0), 30.0, SETTINGS) == 40.0 + 5.0 + 15.0 + 15.0
    assert lead_seconds(ColdStarts(), Timing(5.0, 15.0), 30.0, SETTINGS) == 90.0 + 35.0


def test_cold_starts_are_learned_once_per_replica_without_the_wait_for_a_gpu() -> None:
    first = watch_cold_starts(ColdStarts(), replicas(1, cold_start=40.0), None)
    assert first.seconds == (40.0,)
    assert watch_cold_starts(first, replicas(1, cold_start=4000.0), None) is first
    assert watch_cold_starts(first, replicas(3, cold_start=60.0), None).seconds == (40.0, 60.0, 60.0)


def test_after_a_restart_status_is_believed_rather_than_replicas_whose_readiness_may_have_flapped() -> None:
    assert watch_cold_starts(ColdStarts(), replicas(3, cold_start=500.0), 35.0).seconds == (35.0,)
    assert watch_cold_starts(ColdStarts(), replicas(3, cold_start=500.0), math.nan).p90_seconds == 500.0


def test_replicas_that_waited_too_long_are_no_capacity_to_come() -> None:
    pods = (
        *replicas(1, ReplicaPhase.UNSCHEDULABLE, age=10.0),
        *replicas(2, ReplicaPhase.STARTING, age=10.0),
        *replicas(1, ReplicaPhase.READY),
        *replicas(1, ReplicaPhase.DRAINING),
    )
    (young,) = group_replicas(ServiceView(service(), replicas=pods).snapshot(), NOW, SETTINGS)
    assert (len(young.coming), len(young.useless), young.draining, young.size) == (3, 0, 1, 4)
    (old,) = group_replicas(ServiceView(service(), replicas=pods).snapshot(), NOW + 4000.0, SETTINGS)
    assert (len(old.coming), len(old.short), len(old.stuck)) == (0, 1, 2)


def test_what_serves_nothing_is_removed_first_and_then_the_newest() -> None:
    pods = (
        *replicas(2, ReplicaPhase.READY, age=100.0),
        *replicas(1, ReplicaPhase.FAILING, age=300.0),
        *replicas(1, ReplicaPhase.STARTING, age=5.0),
    )
    (group,) = group_replicas(ServiceView(service(), replicas=pods).snapshot(), NOW, SETTINGS)
    assert [name.split("-")[1] for name in removal_order(group)] == ["failing", "starting", "ready", "ready"]


def test_what_a_rollout_runs_beside_the_wanted_ones_counts_against_none_that_serves() -> None:
    failing = replicas(1, ReplicaPhase.FAILING)
    assert Group("h100", size=2, exists=True, ready=replicas(2), failing=failing).useful == 2
    assert Group("h100", size=2, exists=True, ready=replicas(1), failing=failing).useful == 1
    assert Group("h100", size=1, exists=True, ready=replicas(2)).useful == 1


def test_of_those_that_serve_the_ones_go_first_whose_places_others_can_have() -> None:
    names = ("n-1", "n-2", "n-1")
    pods = tuple(replace(pod, node=name) for pod, name in zip(replicas(3), names, strict=True))
    group = Group("h100", size=3, exists=True, ready=pods)
    assert removal_order(group, ("n-2",))[0] == pods[1].name
    assert removal_order(group, ("n-3",)) == removal_order(group)


def test_room_is_what_matching_nodes_have_free_in_whole_replicas() -> None:
    nodes = (
        node("a", 8, used=3, pool="big"),
        node("b", 8, pool="small"),
        node("c", 4, resource="amd.com/gpu", pool="big"),
    )
    inventory = Inventory(nodes)
    pair = accelerator("h100", gpus_per_replica=2, node_selector=(("pool", "big"),))
    assert inventory.room(pair).free_replicas == 2
    assert inventory.room(pair).most_replicas(placed=1) == 3
    nowhere = accelerator("h100", node_selector=(("pool", "huge"),))
    assert (inventory.room(nowhere).nodes, inventory.room(nowhere).offering) == (0, 2)
    assert inventory.room(accelerator("tpu", resource="google.com/tpu")).most_replicas(placed=0) is None


@pytest.mark.parametrize(
    ("dollars", "cost", "most"),
    [(3.0, 1.0, 3), (0.3, 0.1, 3), (2.99, 1.0, 2), (-5.0, 1.0, 0), (3.0, 1e-308, 1_000_000), (1e9, 5e-324, 1_000_000)],
)
def test_what_a_budget_pays_for_is_a_number_however_little_a_replica_costs(
    dollars: float, cost: float, most: int
) -> None:
    assert affordable_replicas(dollars, cost) == most
