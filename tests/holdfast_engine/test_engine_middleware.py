"""The middleware around a small ASGI application, with a file as the scheduler writes it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from holdfast_engine.apiserver.routes import GENERATING
from holdfast_engine.middleware import AdmissionMiddleware
from holdfast_engine.objectives.request import OWN_REQUEST
from holdfast_engine.stats.stats_fields import FIELDS, Mode
from holdfast_engine.stats.statsfile import StatsWriter
from tests.holdfast_engine.test_engine_admission import record

BODY = b'{"model": "m", "prompt": "Hello"}'


class FakeVllm:
    """vLLM's API server: takes every request, or answers with `status` once it `answers`; counts refusals."""

    def __init__(self) -> None:
        self.status = 200
        self.answers = asyncio.Event()
        self.answers.set()
        self.served = 0
        self.tokens_per_byte = 0.0
        """Tokens that become of a body; 0 where no body is a request for any."""
        self.refusals: list[str] = []
        self.state = SimpleNamespace(engine_client=self, args=SimpleNamespace(api_key=None))
        self.model_config = SimpleNamespace(max_model_len=8192)
        self.output_processor = SimpleNamespace(request_states={}, add_request=lambda *_: None)

    def _record_admission_rejection(self, reason: str) -> None:
        self.refusals.append(reason)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served += 1
        size = 0
        while (message := await receive())["type"] == "http.request":
            size += len(message["body"])
            if not message.get("more_body"):
                break
        if self.tokens_per_byte:
            tokens = [0] * int(size * self.tokens_per_byte)
            params = SimpleNamespace(output_kind=SimpleNamespace(name="FINAL_ONLY"))
            request = SimpleNamespace(request_id=f"r{self.served}", prompt_token_ids=tokens, sampling_params=params)
            self.output_processor.add_request(request)
        await self.answers.wait()
        headers = [(b"x-served", b"1"), (b"Connection", b"keep-alive")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})


ALMOST = ("/v1/messages/count_tokens", "/v1/responses/r/cancel", "/v1/chat/completions/render", "/v1/messages/")


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

    async def post(
        self,
        path: str = "/v1/completions",
        method: str = "POST",
        given: bytes = BODY,
        marks: Mapping[str, Any] = MappingProxyType({}),
        **headers: str,
    ) -> int:
        pairs = {"content-length": str(len(given)), **{name.replace("_", "-"): text for name, text in headers.items()}}
        scope = {
            "type": "http",
            "http_version": self.version,
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "app": self.vllm,
            **marks,
        }
        parts = [given[:5], given[5:]]

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


@pytest.mark.parametrize("path", GENERATING)
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


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/embeddings", "/tokenize", *ALMOST])
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


@pytest.mark.parametrize("given", ["", "secret", "Bearer", "Bearer ", "Bearer other", "Bearer secretx", "Basic secret"])
async def test_who_has_no_key_is_left_to_vllm_and_counted_nowhere(
    pod: Pod, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    pod.tell()
    assert await pod.post(**({"authorization": given} if given else {})) == 200, "vLLM answers 401 itself"
    assert pod.vllm.refusals == []


async def test_the_key_counts_where_vllm_asks_for_it(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    pod.tell()
    assert await pod.post("/v1/messages", x_api_key="secret") == 200, "vLLM answers 401 itself"
    assert await pod.post("/invocations") == 503, "vLLM asks for no key there"


@pytest.mark.parametrize("key", ["first", "second"])
async def test_who_has_one_of_the_keys_is_turned_away_like_everybody(
    pod: Pod, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "unused where the command line has one")
    pod.vllm.state.args.api_key = ["first", "second"]
    pod.tell()
    assert await pod.post(authorization=f"bearer {key}") == 503
    assert await pod.post(authorization="Bearer unused where the command line has one") == 200


@pytest.mark.parametrize(("keys", "status"), [(("good", "bad"), 503), (("bad", "good"), 200)])
async def test_of_several_keys_the_first_counts_as_for_vllm(
    pod: Pod, keys: tuple[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "good")
    pod.tell()
    headers = [(b"authorization", f"Bearer {key}".encode()) for key in keys]
    assert await pod.post(marks={"headers": headers}) == status


async def test_the_pods_own_request_is_never_turned_away(pod: Pod) -> None:
    pod.tell()
    assert await pod.post(marks={OWN_REQUEST: True}) == 200


CLAIMS = {
    "x_request_id": "holdfast-warm-up",
    OWN_REQUEST: "1",
    "x_vllm_priority": "-9",
    "x_data_parallel_rank": "0",
    "x_session_id": "holdfast",
    "x_forwarded_for": "127.0.0.1",
    "content_length": "0",
    "transfer_encoding": "chunked",
}


@pytest.mark.parametrize("name", CLAIMS)
async def test_nothing_that_a_client_claims_lets_it_jump_the_queue(pod: Pod, name: str) -> None:
    pod.tell()
    assert await pod.post(**{name: CLAIMS[name]}) == 503
    assert len(pod.vllm.refusals) == 1


async def burst(pod: Pod, given: bytes = BODY) -> list[int]:
    """The answers to 30 requests that come between two records."""
    pod.vllm.answers.clear()
    found = [asyncio.create_task(pod.post(given=given)) for _ in range(30)]
    while pod.vllm.served + len(pod.vllm.refusals) < 30:
        await asyncio.sleep(0)
    pod.vllm.answers.set()
    answers = await asyncio.gather(*found)
    pod.vllm.served = 0
    pod.vllm.refusals.clear()
    return answers


QUIET = {"waiting_fresh": 1.0, "waiting_fresh_tokens": 10.0, "mean_prompt_tokens": 100.0}


@pytest.mark.parametrize(
    ("given", "stated"),
    [(BODY, "900000000000000"), (b"{}", "900000000000000"), (b"1", "1"), (b"", "0"), (b"x" * 100_000, "1")],
)
async def test_heads_that_lie_about_their_size_change_nothing(pod: Pod, given: bytes, stated: str) -> None:
    """Bodies that vLLM makes no tokens of: they never come, are no JSON, or have another key."""
    pod.tell(**QUIET)
    pod.vllm.tokens_per_byte = 100.0 / len(BODY)
    before = await burst(pod)
    pod.vllm.tokens_per_byte = 0.0
    pod.now += 10.0
    pod.tell(**QUIET | {"waiting_fresh": 0.0, "waiting_fresh_tokens": 0.0})
    for _ in range(100):
        await pod.post(given=given, content_length=stated)
        pod.now += 1.0
    pod.tell(**QUIET)
    pod.vllm.served = 0
    pod.vllm.refusals.clear()
    pod.vllm.tokens_per_byte = 100.0 / len(BODY)
    assert await burst(pod) == before
    assert 8 <= before.count(200) <= 12


async def test_a_burst_of_long_prompts_is_measured_by_what_came(pod: Pod) -> None:
    pod.tell(**QUIET)
    pod.vllm.tokens_per_byte = 100.0 / len(BODY)
    await burst(pod)
    pod.now += 10.0
    assert (await burst(pod, BODY * 4)).count(200) <= 3


async def test_a_client_that_hangs_up_while_it_sends_is_left_to_vllm(pod: Pod) -> None:
    pod.tell()
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    seen = []

    async def vllm(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive(), await receive()])

    async def receive() -> Any:
        return messages.pop(0)

    pod.app._app = vllm
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "app": pod.vllm}
    await pod.app(scope, receive, lambda _: asyncio.sleep(0))
    assert [message["type"] for message in seen] == ["http.request", "http.disconnect"]
    assert pod.vllm.refusals == []


async def test_a_fault_lets_everybody_through(pod: Pod) -> None:
    pod.tell(mode=7.0, computed_share=1.0)
    del pod.vllm.state.engine_client
    assert [await pod.post() for _ in range(3)] == [200, 200, 200]
    assert pod.vllm.served == 3
