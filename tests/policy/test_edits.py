"""Edits of a spec: what was learned of engines that go on as they are is kept, and nothing is let go at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import Decision
from holdfast.policy.decide import decide
from holdfast.policy.estimate.headroom import FIRST, HIGHEST
from holdfast.policy.memory import Memory
from tests.builders import ServiceBuilder, ServiceView, a_snapshot, condition, replicas, service
from tests.policy.fluid import FixedRates, FluidCluster

HOURS = 2 * 3600
STALLED, CAPACITY = ConditionType.STALLED, ConditionType.CAPACITY_AVAILABLE
MANY = service("chat").with_replicas_between(1, 100)


def run(slack: float, builder: ServiceBuilder) -> FluidCluster:
    """A service whose replicas carry `slack` / 1.25 times what the engine model says; it has learned that."""
    return FluidCluster(builder, lambda second: 120.0, {"h100": 4.0}, slack=slack).run(HOURS)


@cache
def _learned(slack: float) -> FluidCluster:
    return run(slack, MANY)


def loaded(slack: float) -> FluidCluster:
    """The same for each test, to go on from."""
    return _learned(slack).fork()


def reconciling(decision: Decision) -> tuple[bool | None, str]:
    found = next(each for each in decision.conditions if each.type == "Reconciling")
    return found.status, str(found.reason)


@pytest.mark.parametrize("slack", [0.8, 1.9])
def test_who_raises_the_maximum_loses_and_gains_no_replica(slack: float) -> None:
    cluster, untouched = loaded(slack), loaded(slack)
    cluster.with_spec(cluster.builder.with_replicas_between(1, 101))
    assert cluster.run(600).changes(since=HOURS) == untouched.run(600).changes(since=HOURS)
    assert cluster.attainment(HOURS, HOURS + 600) == untouched.attainment(HOURS, HOURS + 600)


def test_other_engines_are_not_let_go_before_they_could_be_had_back() -> None:
    cluster = loaded(0.8)
    (option,) = cluster.builder.spec.accelerators
    cluster.with_spec(cluster.builder.with_accelerators(replace(option, revision="another")))
    cluster.run(60)
    assert not [change for change in cluster.changes(since=HOURS) if change[1] == "ScaleDown"]


def test_an_edit_forgets_that_an_accelerator_is_out_only_with_its_pods() -> None:
    waiting = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=400.0)
    _, memory = decide(a_snapshot(ServiceView(MANY, replicas=waiting)), Memory(), model=FixedRates({"h100": 4.0}))
    (option,) = MANY.spec.accelerators
    wider = MANY.with_replicas_between(0, 101).at_generation(2)
    for edited, out in ((wider, ["h100"]), (wider.with_accelerators(replace(option, pods="another")), [])):
        _, after = decide(a_snapshot(ServiceView(edited)), memory, model=FixedRates({"h100": 4.0}))
        assert [each.accelerator for each in after.services[MANY.spec.key].supply.backoffs.past] == out


def test_who_stops_a_service_that_found_no_gpu_is_not_told_that_it_is_stuck() -> None:
    waiting = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=400.0)
    stopped = MANY.with_replicas_between(0, 100).pinned_to(0).at_generation(2)
    model = FixedRates({"h100": 4.0})
    (before,), memory = decide(a_snapshot(ServiceView(MANY, replicas=waiting)), Memory(), model=model)
    (after,), _ = decide(a_snapshot(ServiceView(stopped)), memory, model=model)
    told = [[condition(each, kind) for kind in (STALLED, CAPACITY)] for each in (before, after)]
    assert told[0] == [(True, "InsufficientGPUs"), (False, "InsufficientGPUs")]
    assert told[1] == [(False, "Steady"), (True, "AllPlaced")]


def test_an_edit_is_told_as_under_way_until_the_next_look_and_no_longer() -> None:
    cluster = loaded(1.25)
    assert reconciling(cluster.last())[0] is False
    cluster.with_spec(cluster.builder.with_replicas_between(1, 101))
    assert reconciling(cluster.run(5).last()) == (True, "SpecNotObserved")
    assert reconciling(cluster.run(5).last())[0] is False


def test_another_object_of_the_same_name_has_learned_nothing() -> None:
    cluster = loaded(1.9)
    cluster.builder = ServiceBuilder(replace(cluster.builder.spec, uid="another"))
    again = cluster.run(5).last()
    assert again.capacity is not None
    assert again.capacity.learned_gain == 1.0
    assert again.explanation.quantile == pytest.approx(FIRST, abs=0.02)


def test_at_its_maximum_a_service_finds_out_that_fewer_replicas_do() -> None:
    bounded, free = (run(1.5, service("chat").with_replicas_between(1, most)) for most in (30, 100))
    assert bounded.run(4 * 3600).replicas() <= free.run(4 * 3600).replicas() < 30
    headroom = bounded.last().explanation.quantile
    assert headroom is not None
    assert headroom < HIGHEST
