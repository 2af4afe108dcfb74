"""What a campaign reads of the audit log and of a status, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.campaign import report
from e2e.campaign.recorder import Writes
from e2e.campaign.runner import BOUNDS, Outcome, is_whole
from e2e.campaign.schedule import drawn
from e2e.campaign.timeline import Size, Timeline


def entry(resource: str, name: str, code: int = 200, user: str = "holdfast", pod: str = "holdfast-a") -> str:
    return json.dumps(
        {
            "user": {
                "username": f"system:serviceaccount:holdfast-system:{user}",
                "extra": {"authentication.kubernetes.io/pod-name": [pod]},
            },
            "objectRef": {"resource": resource, "namespace": "a", "name": name},
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": "2026-11-27T10:00:00.000000Z",
            "stageTimestamp": "2026-11-27T10:00:00.500000Z",
        }
    )


def test_only_writes_of_operators_that_succeeded_are_read_and_each_once(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(entry("pods", "from before") + "\n")
    writes = Writes(log)
    lines = [
        entry("leases", "holdfast"),
        entry("deployments", "chat-l40s"),
        entry("deployments", "refused", code=409),
        entry("pods", "of somebody else", user="other"),
    ]
    with log.open("a") as file:
        file.write("\n".join(lines) + '\n{"half')
    found = writes.new()
    assert [(each.what, each.is_lease) for each in found] == [
        ("leases/a/holdfast", True),
        ("deployments/a/chat-l40s", False),
    ]
    assert found[0].answered_at - found[0].received_at == 0.5
    assert found[0].writer == "holdfast-a"
    assert writes.new() == []


def status(**changes: Any) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "MetricsAvailable")]
    replicas = {"ready": BOUNDS.needed, "desired": BOUNDS.needed}
    return {"status": {"observedGeneration": 7, "conditions": conditions, "replicas": replicas, **changes}}


def test_a_service_is_whole_once_its_last_edit_is_seen_and_what_its_load_needs_serves() -> None:
    assert is_whole(status(), 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"observedGeneration": 6},
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"conditions": []},
        {"replicas": {"ready": BOUNDS.needed - 1, "desired": BOUNDS.needed - 1}},
        {"replicas": {"ready": BOUNDS.needed, "desired": BOUNDS.needed + 1}},
        {"replicas": {}},
    ],
)
def test_a_service_is_not_whole(changes: dict[str, Any]) -> None:
    assert not is_whole(status(**changes), 7)


def test_a_broken_schedule_says_what_broke_and_how_to_play_it_again() -> None:
    lowered = [Size(0.0, "campaign-0", 2), Size(1.0, "campaign-0", 1)]
    outcome = Outcome(drawn(51, 8), Timeline(BOUNDS, lowered, recovered_seconds=2.0))
    line = report.line(outcome)
    assert "from 2 to 1" in report.told(line, outcome)
    assert "again: --seed 51 --only 8" in report.told(line, outcome)
    assert json.loads(report.as_json(line))["broken"]["false scale-downs"]


def test_the_summary_counts_and_tells_how_fast_the_system_was_whole_again() -> None:
    lines = [
        report.Line(number, ("nan",), 10, 1, seconds, {"lost requests": ["one", "two"]} if number else {})
        for number, seconds in enumerate((2.0, 4.0, 9.0, None))
    ]
    words = report.summary(lines)
    assert "4 schedules, 40 requests" in words
    assert "lost requests: 6" in words
    assert "false scale-downs: 0" in words
    assert "recovery: p50 4.0 s, worst 9.0 s of 3" in words
