"""The middleware against a small ASGI application that behaves like vLLM's."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from holdfast_engine.apiserver.routes import GENERATING
from holdfast_engine.middleware import AdmissionMiddleware
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE, OWN_REQUEST
from tests.render.pod_module import load

MIDDLEWARE = load("holdfast_middleware")
LAUNCHER = load("launcher")
READY = "/holdfast/ready"


class FakeEngine:
    """vLLM's API server as the middleware sees it; counts the tokens it serves."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.health = 200
        self.completion_status = 200
        self.tokens = 0
        self.hold: asyncio.Event | None = None
        self.headers = [(b"content-type", b"application/json"), (b"Connection", b"keep-alive")]
        self.seen: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            self.seen.append((scope["type"], ""))
            return
        self.seen.append((scope["method"], scope["path"]))
        status, answer = await self._answer(scope, receive)
        await send({"type": "http.response.start", "status": status, "headers": self.headers})
        body = json.dumps(answer).encode()
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, Any]:
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode()
        if self.key and scope["path"].startswith("/v1") and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if scope["path"] == "/health":
            return self.health, {}
        if scope["path"] == "/v1/models":
            return 200, {"data": [{"id": "llama"}]}
        request = json.loads((await receive())["body"])
        if self.hold is not None:
            await self.hold.wait()
        if request["model"] != "llama":
            return 404, {}
        self.tokens += request["max_tokens"]
        return self.completion_status, {"choices": [{"text": "x"}]}


class CountingEngine(FakeEngine):
    """Counts as vLLM does: on the global registry, each request before its answer is sent."""

    def __init__(self) -> None:
        super().__init__()
        labels = ["model_name", "engine"]
        self.requests = prometheus_client.Counter("vllm:request_success", "Requests.", [*labels, "finished_reason"])
        self.ttft = prometheus_client.Histogram("vllm:time_to_first_token_seconds", "TTFT.", labels, buckets=[0.5, 1.0])
        self.running = prometheus_client.Gauge("vllm:num_requests_running", "Running.", labels)
        self.other = prometheus_client.Counter("http_requests", "Not of the engine.", ["path"])
        self.running.labels("llama", "0").set(3.0)
        self.other.labels("/v1/models").inc()

    def forget(self) -> None:
        for metric in (self.requests, self.ttft, self.running, self.other):
            prometheus_client.REGISTRY.unregister(metric)

    async def _answer(self, scope: Any, receive: Any) -> tuple[int, Any]:
        status, answer = await super()._answer(scope, receive)
        if scope["method"] == "POST":
            self.requests.labels("llama", "0", "length").inc()
            self.ttft.labels("llama", "0").observe(0.7)
        return status, answer

    def sample(self, name: str, **labels: str) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value(name, {"model_name": "llama", "engine": "0", **labels})


class Answer:
    """What a client gets."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        else:
            self.body += message["body"]

    @property
    def closes(self) -> bool:
        return self.values(b"connection") == [b"close"]

    def values(self, wanted: bytes) -> list[bytes]:
        return [value for name, value in self.headers if name.lower() == wanted]


async def no_body() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def get(app: Any, path: str, version: str = "1.1") -> Answer:
    answer = Answer()
    scope = {"type": "http", "http_version": version, "method": "GET", "path": path, "headers": []}
    await app(scope, no_body, answer.send)
    return answer


async def ask_for_a_token(app: Any, path: str, version: str = "1.1") -> Answer:
    answer = Answer()
    body = json.dumps({"model": "llama", "prompt": "Hello", "max_tokens": 1}).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "http_version": version, "method": "POST", "path": path, "headers": []}
    await app(scope, receive, answer.send)
    return answer


async def until_warm(app: Any) -> Answer:
    for _ in range(100):
        if (answer := await get(app, READY)).status == 200:
            return answer
        await asyncio.sleep(0)
    raise AssertionError(f"never ready: {answer.body!r}")


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DRAIN_FILE", str(tmp_path / "draining"))
    monkeypatch.setenv("HOLDFAST_CONNECTION_CLOSE_SHARE", "0")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "me/model"])


async def test_it_is_ready_only_once_a_token_was_served() -> None:
    engine = FakeEngine()
    engine.hold = asyncio.Event()
    app = MIDDLEWARE.ReadyAndBalance(engine)
    for _ in range(10):
        answer = await get(app, READY)
        assert (answer.status, answer.body) == (503, b"warming up: no token served yet\n")
        await asyncio.sleep(0)
    assert engine.tokens == 0
    engine.hold.set()
    await until_warm(app)
    assert engine.tokens == 1


class Ending:
    """What the warm-up says where it would end the engine."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, said: str) -> None:
        self.said.append(said)


async def after_attempts(engine: FakeEngine, number: int) -> Ending:
    ending = Ending()
    warm_up = MIDDLEWARE.WarmUp(engine, ending)
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": READY, "headers": []}
    for _ in range(number):
        warm_up.start(scope)
        await warm_up._task
    return ending


# C07: kserve/kserve#4025, ROCm/rocm-cli#150: a probe must be a request that the model can answer
@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_an_engine_that_generates_no_text_is_ended_and_says_why(status: int) -> None:
    engine = FakeEngine()
    engine.completion_status = status
    assert not (await after_attempts(engine, 2)).said
    (said,) = (await after_attempts(engine, 5)).said
    assert said == f"/v1/completions answered {status}"


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_an_engine_that_may_serve_later_is_asked_again(status: int) -> None:
    engine = FakeEngine()
    engine.completion_status = status
    assert not (await after_attempts(engine, 10)).said


def test_the_end_of_an_engine_is_told_to_kubernetes(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    code = (
        f"import sys; sys.path.append({str(Path(MIDDLEWARE.__file__).parent)!r}); import holdfast_middleware as own; "
        f"own.TERMINATION_LOG = {str(log)!r}; own.end_unsupported('/v1/completions answered 404')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == MIDDLEWARE.UNSUPPORTED_ENGINE
    assert log.read_text() in done.stderr
    assert "engine unsupported: /v1/completions answered 404: the engine does not generate text" in log.read_text()


async def test_many_probes_cost_one_token() -> None:
    engine = FakeEngine()
    app = MIDDLEWARE.ReadyAndBalance(engine)
    await until_warm(app)
    for _ in range(20):
        assert (await get(app, READY)).status == 200
    assert engine.tokens == 1


@pytest.fixture
def counting() -> Iterator[CountingEngine]:
    engine = CountingEngine()
    yield engine
    engine.forget()


async def test_the_warm_up_leaves_no_trace_in_the_metrics_of_the_engine(counting: CountingEngine) -> None:
    app = MIDDLEWARE.ReadyAndBalance(counting)
    await until_warm(app)
    ttft = "vllm:time_to_first_token_seconds"
    assert counting.tokens == 1
    assert counting.sample("vllm:request_success_total", finished_reason="length") == 0.0
    assert [counting.sample(f"{ttft}_bucket", le=edge) for edge in ("0.5", "1.0", "+Inf")] == [0.0, 0.0, 0.0]
    assert (counting.sample(f"{ttft}_count"), counting.sample(f"{ttft}_sum")) == (0.0, 0.0)
    assert counting.sample("vllm:num_requests_running") == 3.0, "a gauge tells of now"
    others = prometheus_client.REGISTRY.get_sample_value("http_requests_total", {"path": "/v1/models"})
    assert others, "what is not the engine's stays"
    request = {"model": "llama", "prompt": "Hi", "max_tokens": 1}
    await MIDDLEWARE.WarmUp(app)._call({"type": "http"}, "POST", "/v1/completions", request)
    assert counting.sample("vllm:request_success_total", finished_reason="length") == 1.0
    assert counting.sample(f"{ttft}_bucket", le="1.0") == 1.0


async def test_where_several_servers_count_together_the_warm_up_stays_counted(
    counting: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    await until_warm(MIDDLEWARE.ReadyAndBalance(counting))
    assert counting.sample("vllm:request_success_total", finished_reason="length") == 1.0


async def test_metrics_of_another_make_do_not_keep_a_pod_from_serving(
    counting: CountingEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    del counting.other._metrics
    counting.other._name = "vllm:other"
    await until_warm(MIDDLEWARE.ReadyAndBalance(counting))
    assert "the warm-up stays counted" in capsys.readouterr().err


async def test_readiness_follows_health_afterwards() -> None:
    engine = FakeEngine()
    app = MIDDLEWARE.ReadyAndBalance(engine)
    await until_warm(app)
    engine.health = 503
    assert (await get(app, READY)).status == 503


async def test_a_first_request_that_fails_is_named_and_tried_again() -> None:
    engine = FakeEngine()
    engine.completion_status = 500
    app = MIDDLEWARE.ReadyAndBalance(engine)
    for _ in range(20):
        await get(app, READY)
        await asyncio.sleep(0)
    assert (await get(app, READY)).body == b"warming up: /v1/completions answered 500\n"
    engine.completion_status = 200
    await until_warm(app)


@pytest.mark.parametrize("arguments", [["--api-key", "secret"], ["--api-key=secret"], []])
async def test_the_warm_up_brings_the_api_key(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if arguments:
        monkeypatch.setattr(sys, "argv", ["vllm", "serve", "m", *arguments])
    else:
        monkeypatch.setenv("VLLM_API_KEY", "secret")
    await until_warm(MIDDLEWARE.ReadyAndBalance(FakeEngine(key="secret")))


async def test_a_wrong_key_shows_in_the_probe() -> None:
    app = MIDDLEWARE.ReadyAndBalance(FakeEngine(key="secret"))
    await get(app, READY)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"/v1/models answered 401" in (await get(app, READY)).body


async def test_a_draining_pod_is_not_ready_and_closes_every_connection(tmp_path: Path) -> None:
    app = MIDDLEWARE.ReadyAndBalance(FakeEngine())
    await until_warm(app)
    (tmp_path / "draining").touch()
    app = MIDDLEWARE.ReadyAndBalance(FakeEngine())
    ready, models = await get(app, READY), await get(app, "/v1/models")
    assert (ready.status, ready.body, ready.closes) == (503, b"draining\n", True)
    assert (models.status, models.closes) == (200, True)


async def test_draining_is_noticed_by_a_running_server(tmp_path: Path) -> None:
    draining = MIDDLEWARE.Draining(str(tmp_path / "draining"))
    assert not draining()
    (tmp_path / "draining").touch()
    draining._next_look = 0.0
    assert draining()


@pytest.mark.parametrize(("share", "closes"), [("1", True), ("0", False), ("7", True), ("nonsense", False)])
async def test_a_share_of_answers_closes_its_connection(
    share: str, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONNECTION_CLOSE_SHARE", share)
    answer = await get(MIDDLEWARE.ReadyAndBalance(FakeEngine()), "/v1/models")
    assert answer.closes is closes
    assert json.loads(answer.body) == {"data": [{"id": "llama"}]}, "the answer itself is whole"


async def test_http_2_answers_carry_no_connection_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONNECTION_CLOSE_SHARE", "1")
    answer = await get(MIDDLEWARE.ReadyAndBalance(FakeEngine()), "/v1/models", version="2")
    assert not answer.closes


async def test_other_scopes_pass_through() -> None:
    engine = FakeEngine()
    for kind in ("lifespan", "websocket"):
        await MIDDLEWARE.ReadyAndBalance(engine)({"type": kind}, no_body, Answer().send)
    assert engine.seen == [("lifespan", ""), ("websocket", "")]


class NamedEngine(FakeEngine):
    """Remembers by which name each request came, and whether with the mark of the pod's own."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[tuple[bytes | None, bool]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.named.append((dict(scope["headers"]).get(b"x-request-id"), OWN_REQUEST in scope))
        await super().__call__(scope, receive, send)


OWN_NAME = "holdfast-" + "5f" * 16


async def test_the_warm_up_bears_the_mark_and_the_name_that_the_plugin_leaves_out_of_its_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MIDDLEWARE.OWN_REQUEST == OWN_REQUEST
    assert MIDDLEWARE.OWN_NAME_VARIABLE == LAUNCHER.OWN_NAME_VARIABLE == OWN_NAME_VARIABLE
    monkeypatch.setenv(OWN_NAME_VARIABLE, OWN_NAME)
    engine = NamedEngine()
    await until_warm(MIDDLEWARE.ReadyAndBalance(engine))
    assert engine.named[:2] == [(OWN_NAME.encode(), True)] * 2


async def test_without_a_launcher_the_warm_up_has_no_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWN_NAME_VARIABLE, raising=False)
    engine = NamedEngine()
    await until_warm(MIDDLEWARE.ReadyAndBalance(engine))
    assert engine.named[:2] == [(None, True)] * 2


@pytest.mark.parametrize("name", [OWN_NAME, f"{OWN_NAME}-0", f"x{OWN_NAME}", "holdfast-warm-up", "", "mine"])
async def test_a_client_that_sends_the_pods_own_name_gets_another_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWN_NAME_VARIABLE, OWN_NAME)
    engine = NamedEngine()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "headers": [(b"x-request-id", b"first"), (b"x-request-id", name.encode()), (b"host", b"h")],
    }
    body = json.dumps({"model": "llama", "max_tokens": 1}).encode()

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    app = MIDDLEWARE.ReadyAndBalance(engine)
    await app(scope, receive, Answer().send)
    assert engine.named == [(None if OWN_NAME in name else name.encode(), False)]
    monkeypatch.setenv(MIDDLEWARE.POD_PORT_VARIABLE, "8082")
    await app(scope, receive, Answer().send)
    assert engine.named[1] == (name.encode(), False), "it may be the first process of the pod that asks"


async def test_admission_asks_the_server_itself_how_old_a_request_is() -> None:
    """What wraps `receive` hides the connection: nothing of ours may stand between the server and admission."""
    seen = []

    async def vllm(scope: Any, receive: Any, send: Any) -> None: ...

    class Admission:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(receive)
            await self.app(scope, receive, send)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holdfast_engine.middleware.AdmissionMiddleware", Admission)
        app = MIDDLEWARE.ReadyAndBalance(vllm)
    await app({"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}, no_body, Answer().send)
    assert seen == [no_body]


def test_the_plugins_admission_stands_before_the_engine() -> None:
    assert isinstance(MIDDLEWARE.with_admission(FakeEngine()), AdmissionMiddleware)


def test_an_engine_without_the_plugin_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setitem(sys.modules, "holdfast_engine.middleware", None)
    assert MIDDLEWARE.with_admission(engine) is engine


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("path", GENERATING)
async def test_who_is_turned_away_by_an_engine_without_the_plugin_hears_when_to_come_again(
    path: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "holdfast_engine.middleware", None)
    engine = FakeEngine()
    engine.completion_status = 503
    answer = await ask_for_a_token(MIDDLEWARE.ReadyAndBalance(engine), path, version)
    assert (answer.status, answer.values(b"retry-after")) == (503, [b"1"])
    assert json.loads(answer.body) == {"choices": [{"text": "x"}]}, "the answer itself is whole"


async def test_a_time_to_come_again_that_was_given_stays() -> None:
    engine = FakeEngine()
    engine.completion_status = 503
    engine.headers = [(b"Retry-After", b"7")]
    answer = await ask_for_a_token(MIDDLEWARE.ReadyAndBalance(engine), "/v1/completions")
    assert answer.values(b"retry-after") == [b"7"]


@pytest.mark.parametrize("status", [200, 404, 429, 500])
async def test_other_answers_tell_nobody_to_come_again(status: int) -> None:
    engine = FakeEngine()
    engine.completion_status = status
    answer = await ask_for_a_token(MIDDLEWARE.ReadyAndBalance(engine), "/v1/completions")
    assert (answer.status, answer.values(b"retry-after")) == (status, [])


class WorkingEngine(FakeEngine):
    """Shows on the global registry what it has worked, as vLLM does."""

    def __init__(self) -> None:
        super().__init__()
        labels = ["model_name", "engine"]
        self.tokens_made = prometheus_client.Counter("vllm:generation_tokens", "Tokens.", labels)
        self.prompts = prometheus_client.Counter("vllm:prompt_tokens", "Tokens.", labels)
        self.cache = prometheus_client.Gauge("vllm:kv_cache_usage_perc", "Share.", labels)
        self.metrics = [self.tokens_made, self.prompts, self.cache]
        for metric in self.metrics:
            metric.labels("llama", "0")
        self.waiting = prometheus_client.Gauge("vllm:num_requests_waiting_by_reason", "Number.", [*labels, "reason"])
        self.metrics.append(self.waiting)

    def forget(self) -> None:
        for metric in self.metrics:
            prometheus_client.REGISTRY.unregister(metric)


@pytest.fixture
def working() -> Iterator[WorkingEngine]:
    engine = WorkingEngine()
    yield engine
    engine.forget()


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(MIDDLEWARE, "time", clock)
    return clock


def asking(
    app: Any, path: str = "/v1/completions", *, whole: bool = True, reads: asyncio.Event | None = None
) -> asyncio.Task[None]:
    """A request that the engine holds, or of which the body is still to come; its client may not read on for now."""
    body = json.dumps({"model": "llama", "prompt": "Hello", "max_tokens": 1}).encode()
    forever = asyncio.Event()

    async def receive() -> Any:
        if not whole:
            await forever.wait()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if reads is not None:
            await reads.wait()

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": path, "headers": []}
    return asyncio.ensure_future(app(scope, receive, send))


async def healths(app: Any, clock: Clock, seconds: float) -> list[int]:
    """What /health says every ten seconds."""
    found = []
    for _ in range(int(seconds / 10.0)):
        await asyncio.sleep(0)
        clock.now += 10.0
        found.append((await get(app, "/health")).status)
    return found


async def test_an_engine_that_holds_a_request_and_stands_still_is_not_healthy(
    working: WorkingEngine, clock: Clock
) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    held = asking(app)
    assert await healths(app, clock, 120.0) == [200] * 6 + [503] * 6
    assert b"nothing has moved for 110 s" in (await get(app, "/health")).body
    working.tokens_made.labels("llama", "0").inc()
    assert (await get(app, "/health")).status == 200
    working.hold.set()
    await held


def test_the_pod_knows_the_same_routes_as_the_plugin() -> None:
    """It runs where the plugin is not mounted, so it has a copy."""
    assert MIDDLEWARE.ENGINE_PATHS == GENERATING


@pytest.mark.parametrize("path", GENERATING)
async def test_a_hang_shows_at_every_route_that_generates(path: str, working: WorkingEngine, clock: Clock) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    held = asking(app, path)
    assert 503 in await healths(app, clock, 120.0)
    held.cancel()


@pytest.mark.parametrize("arguments", [["--tool-server", "demo"], ["--tool-server=demo"]])
async def test_who_waits_for_a_tool_is_no_sign_of_a_hang(
    arguments: list[str], working: WorkingEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server calls tools by itself, and may wait for one while the engine has nothing to do."""
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "me/model", *arguments])
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    waits = asking(app, "/v1/responses")
    assert set(await healths(app, clock, 120.0)) == {200}
    held = asking(app, "/v1/messages")
    assert 503 in await healths(app, clock, 120.0)
    waits.cancel()
    held.cancel()


@pytest.mark.parametrize("sign", ["tokens_made", "prompts", "cache"])
async def test_whatever_moves_is_a_sign_of_life(sign: str, working: WorkingEngine, clock: Clock) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    held = asking(app, "/v1/chat/completions")
    for _ in range(6):
        getattr(working, sign).labels("llama", "0").inc(0.01)
        assert await healths(app, clock, 50.0) == [200] * 5
    held.cancel()


async def test_an_idle_engine_is_healthy_and_a_request_has_its_whole_minute(
    working: WorkingEngine, clock: Clock
) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    assert set(await healths(app, clock, 600.0)) == {200}
    clock.now += 600.0  # nobody asked meanwhile
    working.hold = asyncio.Event()
    held = asking(app)
    assert await healths(app, clock, 50.0) == [200] * 5
    held.cancel()
    await asyncio.sleep(0)
    assert set(await healths(app, clock, 600.0)) == {200}


async def test_who_does_not_send_on_is_no_sign_of_a_hang(working: WorkingEngine, clock: Clock) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    slow = asking(app, whole=False)
    assert set(await healths(app, clock, 300.0)) == {200}
    slow.cancel()


async def test_who_does_not_read_on_is_no_sign_of_a_hang(working: WorkingEngine, clock: Clock) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    reads = asyncio.Event()
    slow = asking(app, reads=reads)
    assert set(await healths(app, clock, 300.0)) == {200}
    working.hold = asyncio.Event()
    held = asking(app)
    assert await healths(app, clock, 60.0) == [200] * 5 + [503]  # of another one
    reads.set()
    await slow
    assert await healths(app, clock, 10.0) == [503]
    working.hold.set()
    await held
    assert set(await healths(app, clock, 300.0)) == {200}


async def test_a_grammar_that_is_compiled_for_minutes_is_no_sign_of_a_hang(
    working: WorkingEngine, clock: Clock
) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.waiting.labels("llama", "0", "deferred").set(1.0)
    working.waiting.labels("llama", "0", "capacity").set(0.0)
    working.hold = asyncio.Event()
    compiles = asking(app)
    assert set(await healths(app, clock, 300.0)) == {200}
    waits = asking(app)  # nothing becomes of this one
    assert await healths(app, clock, 60.0) == [200] * 5 + [503]
    for task in (compiles, waits):
        task.cancel()


@pytest.mark.parametrize("deferred", [0.0, -5.0, math.nan])
async def test_an_engine_that_defers_nothing_hangs_as_ever(
    deferred: float, working: WorkingEngine, clock: Clock
) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.waiting.labels("llama", "0", "deferred").set(deferred)
    working.waiting.labels("llama", "0", "capacity").set(7.0)
    working.hold = asyncio.Event()
    held = asking(app)
    assert await healths(app, clock, 70.0) == [200] * 6 + [503]
    held.cancel()


async def test_requests_that_come_and_go_leave_no_trace(working: WorkingEngine, clock: Clock) -> None:
    app = MIDDLEWARE.ReadyAndBalance(working)
    for _ in range(3):
        await asking(app)
    assert set(await healths(app, clock, 300.0)) == {200}


@pytest.mark.parametrize(("text", "first"), [("inf", None), ("200", 210.0), ("-1", 70.0), ("nan", 70.0), ("x", 70.0)])
async def test_people_say_what_a_hang_is(
    text: str, first: float | None, working: WorkingEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HANG_SECONDS", text)
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    held = asking(app)
    found = await healths(app, clock, 300.0)
    assert (10.0 * (found.index(503) + 1) if 503 in found else None) == first
    held.cancel()


async def test_without_metrics_nothing_hangs(clock: Clock) -> None:
    engine = FakeEngine()
    app = MIDDLEWARE.ReadyAndBalance(engine)
    engine.hold = asyncio.Event()
    held = asking(app)
    assert set(await healths(app, clock, 300.0)) == {200}
    held.cancel()


async def test_several_api_servers_know_too_little_to_tell_a_hang(
    working: WorkingEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "somewhere")
    app = MIDDLEWARE.ReadyAndBalance(working)
    working.hold = asyncio.Event()
    held = asking(app)
    assert set(await healths(app, clock, 300.0)) == {200}
    held.cancel()


async def test_an_engine_that_says_it_is_dead_stays_so(working: WorkingEngine, clock: Clock) -> None:
    working.health = 503
    assert (await get(MIDDLEWARE.ReadyAndBalance(working), "/health")).status == 503
