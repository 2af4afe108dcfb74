"""Clients that give up before the first token: case C12, with today's vLLM and with one that records no TTFT then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import Decision
from holdfast.domain.signals import AcceleratorTraffic, abandoned
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceView, a_snapshot, condition, node, replicas, service, traffic
from tests.policy.fluid import FixedRates

ONE = service().with_replicas_between(1, 2)
OVERLOAD = {"finished": 60.0, "aborted": 240.0, "ttft_count": 60.0, "waiting": 200.0, "running": 64.0}
HEALTHY = {"finished": 240.0, "aborted": 60.0, "ttft_count": 240.0, "waiting": 0.0, "running": 12.0}


def decided(ttft_within: float, **counts: float) -> Decision:
    """The decision after half an hour in which every interval has these counts."""
    seen = traffic(30.0)
    ((name, usual),) = seen.by_accelerator
    within = {"ttft_within": ttft_within, "tpot_count": counts["finished"], "tpot_within": counts["finished"]}
    seen = replace(seen, by_accelerator=((name, replace(usual, **counts, **within)),))
    memory = Memory()
    for tick in range(360):
        now = NOW + 5.0 * tick
        placed = (Placement("h100", 2, workload=Workload("chat-h100")),)
        view = ServiceView(ONE, seen, replicas(2, now=now), placed, born_at=NOW - 9000.0)
        (decision,), memory = decide(
            a_snapshot(view, now=now, nodes=(node("n", 2, used=2),)), memory, model=FixedRates({"h100": 8.9})
        )
    return decision


def test_requests_that_wait_too_long_and_are_aborted_miss_the_objective() -> None:
    decision = decided(60.0, **OVERLOAD)
    assert condition(decision, "SLOMet")[0] is False
    assert decision.slo.attainment == pytest.approx(0.2, abs=0.02)


def test_an_abort_that_is_recorded_as_a_late_first_token_is_bad_once() -> None:
    decision = decided(60.0, **OVERLOAD | {"ttft_count": 300.0})
    assert condition(decision, "SLOMet")[0] is False
    assert decision.slo.attainment == pytest.approx(0.0, abs=0.01)


def test_clients_that_change_their_mind_at_an_engine_without_a_queue_miss_nothing() -> None:
    decision = decided(240.0, **HEALTHY)
    assert condition(decision, "SLOMet")[0] is True
    assert decision.slo.attainment == 1.0


def late(begun: float | None = 0.0, **counts: float) -> float:
    return abandoned(AcceleratorTraffic(**counts), 0.5, 45.0, 1.0, begun)[0]


@pytest.mark.parametrize(
    ("begun", "counts", "proven"),
    [
        (0.0, OVERLOAD, 240.0),
        (64.0, OVERLOAD, 176.0),  # as many as ran may have had their first token before
        (None, OVERLOAD, 0.0),
        (0.0, OVERLOAD | {"ttft_count": 300.0}, 0.0),
        (0.0, OVERLOAD | {"aborted": 0.0}, 0.0),
        (0.0, OVERLOAD | {"finished": 500.0}, 240.0),
        (0.0, HEALTHY, 0.0),
        (0.0, HEALTHY | {"waiting": 9.0}, 0.0),  # chance: nine of 300 requests in 45 s wait 0.5 s each
        (0.0, HEALTHY | {"waiting": 20.0}, 60.0),
        (0.0, {"waiting": 3.0, "aborted": 1.0}, 0.0),
        (0.0, {}, 0.0),
    ],
)
def test_only_what_the_counters_prove_is_late(begun: float | None, counts: dict[str, float], proven: float) -> None:
    assert late(begun, **counts) == proven


def test_aborts_of_requests_that_had_their_first_token_are_never_late() -> None:
    """Long answers: load falls, and clients end streams that began minutes ago, while others wait."""
    begun: float | None = None
    for running, finished, aborted in ((100.0, 0.0, 0.0), (60.0, 20.0, 20.0), (20.0, 20.0, 20.0), (0.0, 10.0, 10.0)):
        counts = AcceleratorTraffic(finished=finished, aborted=aborted, running=running, waiting=50.0)
        proven, begun = abandoned(counts, 0.5, 45.0, 1.0, begun)
        assert proven == 0.0


def test_after_a_gap_nothing_is_proven_by_what_began_before_it() -> None:
    _, begun = abandoned(AcceleratorTraffic(running=64.0), 0.5, 45.0, 1.0, None)
    assert begun == 64.0
