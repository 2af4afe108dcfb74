"""The middleware around a small ASGI application, with a file as the scheduler writes it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_engine.middleware import AdmissionMiddleware
from holdfast_engine.stats_fields import FIELDS, Mode
from holdfast_engine.statsfile import StatsWriter
from tests.holdfast_engine.test_engine_admission import record

BODY = b'{"model": "m", "prompt": "Hello"}'


class FakeVllm:
    """vLLM's API server: takes every request, or answers with `status` once it `answers`; counts refusals."""

    def __init__(self) -> None:
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()
        self.served = 0
        self.refusals: list[str] = []
        self.state = SimpleNamespace(engine_client=self)
        self.output_processor = SimpleNamespace(request_states={}, add_request=lambda *_: None)

    def _record_admission_rejection(self, reason: str) -> None:
        self.refusals.append(reason)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        await self.answers.wait()
        headers = [(b"x-served", b"1"), (b"Connection", b"keep-alive")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


class Pod:
    """The middleware, its engine, and one client at a time."""

    def __init__(self, folder: Path) -> None:
        self.vllm = FakeVllm()
        self.now = 100.0
        self.app = AdmissionMiddleware(self.vllm, lambda: self.now)
        self.writer = StatsWriter(folder / "engine-0.stats", len(FIELDS))
        self.version = "1.1"
        self.headers: dict[str, str] = {}
        self.body = b""

    def tell(self, **numbers: float) -> None:
        self.writer.write([record(**numbers)[name] for name in FIELDS])

    async def post(self, path: str = "/v1/completions", method: str = "POST", **headers: str) -> int:
        pairs = {"content-length": str(len(BODY)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "http_version": self.version,
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "app": self.vllm,
        }
        parts = [BODY[:5], BODY[5:]]

        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        status = 0

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                self.body = message["body"]

        await self.app(scope, receive, send)
        assert status == 200 or not parts or self.vllm.served, "a client that is turned away has sent its request"
        return status


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    monkeypatch.setenv("HOLDFAST_ENGINE_FOLDER", str(tmp_path))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "me/model"])
    return Pod(tmp_path)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_request_that_would_be_late_gets_a_503_and_a_time_to_come_again(pod: Pod, path: str) -> None:
    pod.tell()
    assert await pod.post(path) == 503
    assert pod.headers["retry-after"] == "4"
    error = json.loads(pod.body)["error"]
    assert (error["code"], error["type"]) == (503, "Service Unavailable")
    assert "first token" in error["message"]
    assert pod.vllm.served == 0
    assert pod.vllm.refusals == ["max_num_queued_tokens"]


async def test_a_full_queue_is_told_apart(pod: Pod) -> None:
    pod.tell(limit_reject=0.0, limit_max_queued_requests=5.0)
    assert await pod.post() == 503
    assert "Too many" in json.loads(pod.body)["error"]["message"]
    assert pod.vllm.refusals == ["max_num_queued_reqs"]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/embeddings", "/tokenize"])
async def test_other_paths_are_left_alone(pod: Pod, path: str) -> None:
    pod.tell()
    assert await pod.post(path) == 200
    assert await pod.post(path, method="GET") == 200


async def test_an_engine_with_room_serves(pod: Pod) -> None:
    pod.tell(waiting_fresh_tokens=0.0)
    assert await pod.post() == 200
    assert "retry-after" not in pod.headers
    assert pod.vllm.refusals == []


async def test_without_a_file_everybody_is_served(pod: Pod, tmp_path: Path) -> None:
    (tmp_path / "engine-0.stats").unlink()
    assert await pod.post() == 200


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.WAITING])
async def test_a_plugin_that_does_nothing_turns_nobody_away(pod: Pod, mode: Mode) -> None:
    pod.tell(mode=float(mode))
    assert await pod.post() == 200


async def test_a_burst_between_two_records_is_noticed(pod: Pod) -> None:
    pod.tell(waiting_fresh=1.0, waiting_fresh_tokens=10.0, mean_prompt_tokens=100.0)
    pod.vllm.answers.clear()
    asked = [asyncio.create_task(pod.post()) for _ in range(30)]
    while pod.vllm.served + len(pod.vllm.refusals) < 30:
        await asyncio.sleep(0)
    pod.now += 1.0
    asked.append(asyncio.create_task(pod.post()))
    pod.vllm.answers.set()
    *answers, later = await asyncio.gather(*asked)
    assert 8 <= answers.count(200) <= 12
    assert answers == sorted(answers)
    assert later == 200


async def test_whoever_comes_one_at_a_time_is_never_one_too_many(pod: Pod) -> None:
    pod.tell(waiting_fresh=0.0, waiting_fresh_tokens=0.0, limit_max_queued_requests=2.0, step_seconds=30.0)
    assert [await pod.post() for _ in range(8)] == [200] * 8


async def test_one_engine_with_room_is_enough(pod: Pod, tmp_path: Path) -> None:
    pod.tell()
    StatsWriter(tmp_path / "engine-1.stats", len(FIELDS)).write(
        [record(waiting_fresh_tokens=0.0)[name] for name in FIELDS]
    )
    assert await pod.post() == 200


async def test_vllms_own_503_gets_a_time_to_come_again(pod: Pod) -> None:
    pod.tell(limit_reject=0.0)
    pod.vllm.status = 503
    assert await pod.post() == 503
    assert pod.headers["retry-after"] == "4"
    assert pod.headers["x-served"] == "1"
    assert pod.vllm.refusals == []


LATE = {"waiting_fresh": 0.0, "waiting_fresh_tokens": 0.0, "waiting_late": 1.0}


async def test_while_requests_are_late_answers_end_their_connection(pod: Pod) -> None:
    pod.tell(**LATE)
    assert await pod.post() == 200
    assert (pod.headers["connection"], pod.headers["x-served"]) == ("close", "1")
    pod.tell(**LATE | {"waiting_late": 0.0})
    assert await pod.post() == 200
    assert pod.headers["connection"] == "keep-alive"


async def test_who_is_turned_away_comes_again_over_another_connection(pod: Pod) -> None:
    pod.tell()
    assert await pod.post() == 503
    assert (pod.headers["connection"], pod.headers["retry-after"]) == ("close", "4")
    pod.tell(limit_reject=0.0)
    pod.vllm.status = 503
    assert await pod.post() == 503
    assert (pod.headers["connection"], pod.headers["retry-after"]) == ("close", "4")


async def test_other_paths_and_http_2_keep_their_connections(pod: Pod) -> None:
    pod.tell(**LATE)
    assert await pod.post("/metrics", method="GET") == 200
    assert pod.headers["connection"] == "keep-alive"
    pod.version = "2"
    assert await pod.post() == 200
    assert pod.headers["connection"] == "keep-alive"


async def test_a_pod_with_an_engine_that_has_room_keeps_its_clients(pod: Pod, tmp_path: Path) -> None:
    pod.tell(**LATE)
    numbers = record(waiting_fresh_tokens=0.0)
    StatsWriter(tmp_path / "engine-1.stats", len(FIELDS)).write([numbers[name] for name in FIELDS])
    assert await pod.post() == 200
    assert pod.headers["connection"] == "keep-alive"


async def test_only_those_who_may_ask_are_turned_away(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    pod.tell()
    assert await pod.post() == 200, "vLLM answers 401 itself"
    assert await pod.post(authorization="Bearer secret") == 503


async def test_the_warm_up_is_never_turned_away(pod: Pod) -> None:
    pod.tell()
    assert await pod.post(x_request_id="holdfast-warm-up") == 200


async def test_a_fault_lets_everybody_through(pod: Pod) -> None:
    pod.tell(mode=7.0, computed_share=1.0)
    del pod.vllm.state.engine_client
    assert [await pod.post() for _ in range(3)] == [200, 200, 200]
    assert pod.vllm.served == 3
