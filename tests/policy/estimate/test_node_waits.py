"""Replicas that are wanted at a known hour are asked for early enough for their nodes to come."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest

from holdfast.domain.cluster import Replica
from holdfast.domain.decision import Action
from holdfast.domain.service import Schedule
from holdfast.policy.decide import decide
from holdfast.policy.estimate.cold_start import ColdStarts, node_seconds, watch_cold_starts
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceView, a_snapshot, replicas, service, traffic
from tests.policy.fluid import FixedRates

SETTINGS, MODEL = PolicySettings(), FixedRates({"h100": 4.0})
OPENS = 600.0  # NOW is 8:00 UTC
OFFICE = Schedule("office", "UTC", ZoneInfo("UTC"), 490, 600, frozenset(range(7)), 5)
CHAT = service().with_replicas_between(1, 10).with_schedules(OFFICE)


def waited(seconds: float, count: int) -> tuple[Replica, ...]:
    """Replicas that had to wait so long for their nodes."""
    return tuple(
        replace(replica, created_at=replica.created_at - seconds) for replica in replicas(count, cold_start=40.0)
    )


def actions(pods: tuple[Replica, ...], since: float, until: float) -> tuple[list[Action], float]:
    """What is decided each second, and the lead time."""
    seen, memory, found = ServiceView(CHAT, traffic(2.0), pods), Memory(), []
    for second in range(round(since), round(until)):
        (decision,), memory = decide(a_snapshot(seen, now=NOW + second), memory, SETTINGS, MODEL)
        found.append(decision.verdict.action)
    return found, decision.explanation.lead_time_seconds


@pytest.mark.parametrize(("seconds", "sooner"), [(0.0, 0.0), (240.0, 240.0), (2000.0, SETTINGS.provisioning_seconds)])
def test_a_floor_is_asked_for_as_much_earlier_as_nodes_took_to_come(seconds: float, sooner: float) -> None:
    found, lead = actions(waited(seconds, 2), 100.0, OPENS)
    assert found.index(Action.SCALE_UP) == pytest.approx(OPENS - 100.0 - lead - sooner, abs=1.0)


@pytest.mark.parametrize(("seconds", "goes"), [(0.0, True), (20.0, False)])
def test_who_would_have_to_wait_for_a_node_again_is_not_let_go_shortly_before(seconds: float, goes: bool) -> None:
    found, lead = actions(waited(seconds, 5), 200.0, 450.0)
    assert lead < 100.0
    assert (Action.SCALE_DOWN in found) is goes


def test_waits_are_learned_once_per_replica_and_bounded() -> None:
    first = watch_cold_starts(ColdStarts(), waited(120.0, 1), 35.0)
    assert (first.seconds, first.waits) == ((35.0,), (120.0,))
    later = watch_cold_starts(first, (*waited(120.0, 1), *replicas(3)[1:]), None)
    assert later.waits == (120.0, 0.0, 0.0)
    assert node_seconds(later, SETTINGS) == 120.0
    assert node_seconds(ColdStarts(), SETTINGS) == 0.0
    strange = (replace(replicas(1)[0], name=f"odd-{at}", scheduled_at=at) for at in (None, 0.0, NOW + 1e9))
    assert watch_cold_starts(ColdStarts(), tuple(strange), None).waits == (0.0, 0.0, 0.0)
