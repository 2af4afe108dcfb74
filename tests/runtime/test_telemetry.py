"""What an operator process tells about itself, over HTTP."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, Candidate, CapacityView, Decision, Explanation, SloView, Verdict
from holdfast.page.board import Board
from holdfast.runtime.telemetry import MetricsText, Telemetry, health_application, http_application
from tests.control.parts import decision, llmservice, parts
from tests.fakes import BrokenBoard, BrokenCollector, ManualClock

BEHIND = Explanation(
    forecast_rps=29.04,
    quantile=0.97123,
    lead_time_seconds=45.0,
    backlog_requests=0.0,
    wanted_replicas=4,
    candidates=(Candidate("h100", 4, 8.912, 11.8), Candidate("l40s", 10, 3.0, 15.0, "dearer")),
    guards=("DownHold: fewer replicas must suffice for 75 s",),
)


def held(name: str = "chat") -> Decision:
    part = parts(llmservice(name))
    return replace(
        decision(part, Action.HOLD, h100=4),
        slo=SloView(attainment=0.995, arrival_rps=26.1),
        capacity=CapacityView("h100", 8.912, "TPOT", 0.9),
        explanation=BEHIND,
    )


def telemetry(*decisions: Decision) -> Telemetry:
    told = Telemetry(wall=lambda: 1_800_000_000.0)
    tick(told, *decisions)
    return told


def tick(told: Telemetry, *decisions: Decision) -> None:
    services = [parts(llmservice(made.key.name)) for made in decisions]
    told.pictured(services, decisions, (), ())
    for made in decisions:
        told.decided(made)
    told.tick(0.1, len(decisions))


async def test_the_newest_decision_is_answered_whole() -> None:
    async with TestClient(TestServer(http_application(telemetry(held()), lambda: True))) as client:
        answer = await client.get("/decisions/prod/chat")
        assert answer.status == 200
        assert await answer.json() == {
            "time": "2027-01-15T08:00:00Z",
            "action": "Hold",
            "reason": "ForecastAboveCapacity",
            "message": "because",
            "inputs": {
                "arrivalRps": 26.1,
                "forecastRps": 29.0,
                "quantile": 0.9712,
                "leadTime": "45s",
                "backlogRequests": 0.0,
                "accelerator": "h100",
                "perReplicaRps": 8.91,
                "boundBy": "TPOT",
                "learnedGain": 1.0,
                "learnedSlowness": 1.0,
                "wantedReplicas": 4,
            },
            "candidates": [
                {"accelerator": "h100", "replicas": 4, "perReplicaRps": 8.91, "costPerHour": 11.8},
                {
                    "accelerator": "l40s",
                    "replicas": 10,
                    "perReplicaRps": 3.0,
                    "costPerHour": 15.0,
                    "lostBecause": "dearer",
                },
            ],
            "guards": ["DownHold: fewer replicas must suffice for 75 s"],
        }


async def test_what_is_not_decided_here_is_said_so() -> None:
    async with TestClient(TestServer(http_application(telemetry(held()), lambda: True))) as client:
        answer = await client.get("/decisions/prod/other")
        assert answer.status == 404
        assert "only the leader decides" in (await answer.json())["message"]


def test_where_people_hold_the_size_the_recommendation_has_the_inputs() -> None:
    pinned = Verdict(Action.HOLD, Reason.PINNED, "spec.replicas pins the size at 4")
    free = Verdict(Action.SCALE_UP, Reason.FORECAST_ABOVE_CAPACITY, "4 -> 6 replicas")
    told = telemetry(replace(held(), verdict=pinned, recommendation=free)).decision("prod", "chat")
    assert told is not None
    assert "inputs" not in told
    assert told["recommendation"]["inputs"]["wantedReplicas"] == 4


def test_a_service_that_is_gone_leaves_neither_decision_nor_attainment() -> None:
    told, labels = telemetry(held("chat"), held("other")), {"namespace": "prod", "service": "other"}
    assert told.registry.get_sample_value("holdfast_slo_attainment_ratio", labels) == 0.995
    tick(told, held("chat"))
    assert told.registry.get_sample_value("holdfast_slo_attainment_ratio", labels) is None
    assert told.decision("prod", "other") is None
    assert told.decision("prod", "chat") is not None


def test_numbers_that_are_none_are_left_out() -> None:
    odd = replace(BEHIND, forecast_rps=float("nan"), quantile=float("inf"), lead_time_seconds=float("nan"))
    told = telemetry(replace(held(), explanation=odd)).decision("prod", "chat")
    assert told is not None
    assert {"forecastRps", "quantile", "leadTime"}.isdisjoint(told["inputs"])


async def test_a_stuck_loop_fails_the_health_check() -> None:
    async with TestClient(TestServer(health_application(lambda: False))) as client:
        assert (await client.get("/healthz")).status == 503
        assert (await client.get("/readyz")).status == 200


async def test_clients_that_ask_within_a_second_share_one_text() -> None:
    told, clock = telemetry(held()), ManualClock()
    shown = MetricsText(told.registry, clock)
    first, second = await asyncio.gather(shown.text(), shown.text())
    clock.advance(0.9)
    assert first is second is await shown.text()
    clock.advance(0.1)
    told.error("act")
    assert b'holdfast_errors_total{phase="act"} 1.0' in await shown.text()


async def test_metrics_that_cannot_be_rendered_are_tried_again() -> None:
    told = telemetry(held())
    shown, broken = MetricsText(told.registry), BrokenCollector()
    told.registry.register(broken)
    with pytest.raises(ZeroDivisionError):
        await shown.text()
    told.registry.unregister(broken)
    assert b"holdfast_leader" in await shown.text()


async def test_metrics_by_name_take_no_more_memory_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else clients that read slowly hold a copy each."""
    monkeypatch.setattr("holdfast.runtime.telemetry._MOST_OWN_BYTES", 100)
    shown = MetricsText(telemetry(held()).registry)
    assert await shown.text(["holdfast_leader", "holdfast_services"]) is await shown.text()


async def test_whoever_looks_often_asks_for_some_metrics_only() -> None:
    async with TestClient(TestServer(http_application(telemetry(held()), lambda: True))) as client:
        told = await (await client.get("/metrics?name[]=holdfast_leader&name[]=holdfast_tick_seconds_count")).text()
    assert {line.split()[0] for line in told.splitlines() if not line.startswith("#")} == {
        "holdfast_leader",
        "holdfast_tick_seconds_count",
    }


async def test_each_tick_and_its_changes_reach_the_status_page() -> None:
    board = Board()
    changed = replace(held(), verdict=replace(held().verdict, action=Action.SCALE_UP))
    tick(Telemetry(wall=lambda: 1_800_000_000.0, board=board), changed)
    answer = board.service(changed.key)
    assert answer
    found = json.loads(answer.body)
    assert (found["at"], found["arrival_rps"]) == (1_800_000_000.0, 26.1)
    assert [change["action"] for change in found["changes"]] == ["ScaleUp"]


def test_a_status_page_that_fails_keeps_nobody_from_acting() -> None:
    changed = replace(held(), verdict=replace(held().verdict, action=Action.SCALE_UP))
    told = Telemetry(board=BrokenBoard())
    tick(told, changed)
    assert told.decision("prod", "chat") is not None
    assert told.registry.get_sample_value("holdfast_errors_total", {"phase": "page"}) == 2.0
