"""Metrics that are steadily late: the lead time is longer by as much, and evidence waits for as long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.valid_traffic import judge
from holdfast.policy.decide import decide
from holdfast.policy.estimate.evidence_window import EvidenceWindow, watch
from holdfast.policy.estimate.slo_budget import NONE
from holdfast.policy.memory import Memory, ServiceMemory
from tests.builders import NOW, ServiceView, a_snapshot, node, replicas, service, traffic
from tests.policy.fluid import FixedRates

CHAT = service().with_replicas_between(1, 10)


def learned(late_seconds: float) -> ServiceMemory:
    """What is known after a quarter of an hour of steady load."""
    memory = Memory()
    for tick in range(180):
        now = NOW + 5.0 * tick
        seen = replace(traffic(10.0), late_seconds=late_seconds)
        placed = (Placement("h100", 2, workload=Workload("chat-h100")),)
        view = ServiceView(CHAT, seen, replicas(2, now=now), placed, born_at=NOW - 9000.0)
        nodes = (node("n", 8, used=2),)
        _, memory = decide(a_snapshot(view, now=now, nodes=nodes), memory, model=FixedRates({"h100": 8.9}))
    return memory.services[CHAT.spec.key]


def test_the_forecast_looks_ahead_by_the_delay_as_well() -> None:
    assert learned(45.0).supply.lead_seconds == learned(0.0).supply.lead_seconds + 45.0


def test_late_metrics_give_a_forecast_and_evidence() -> None:
    late = learned(60.0).demand
    assert late.arrivals.line is not None
    assert late.arrivals.line.level_rps == pytest.approx(10.0, rel=0.01)
    assert late.budget.total.judged > 0.0


@pytest.mark.parametrize("late", [0.0, 45.0])
def test_evidence_begins_once_metrics_tell_of_the_replicas_that_serve(late: float) -> None:
    seen = judge(replace(traffic(10.0), late_seconds=late))
    begun = watch(EvidenceWindow(), seen, 100.0, NONE, ("a", "b"), 5.0, NOW)
    assert begun.since == NOW + seen.interval_seconds + late


@pytest.mark.parametrize("late", [float("nan"), float("inf"), -5.0])
def test_a_delay_that_makes_no_sense_is_none(late: float) -> None:
    assert judge(replace(traffic(10.0), late_seconds=late)).late_seconds == 0.0
