"""ASGI middleware for vLLM's API server (`--middleware holdfast_middleware.ReadyAndBalance`).

Standard library only, Python 3.9. It does six things, and touches no request or answer body:
- `GET /holdfast/ready` is 200 once this server has really served one token, and as long as /health is; that token
  stays out of the engine's metrics, because no client asked for it;
- `GET /health`, which the liveness probe asks, is 503 while the engine holds requests and nothing moves in it;
- a share of all answers carries `Connection: close`: kube-proxy balances connections, not requests, so clients that
  keep theirs would never meet a new replica;
- where the plugin is mounted, its own check of new requests stands before the engine's (holdfast_engine.middleware);
- while the pod drains (preStop has made a file) all answers carry it, so that no client clings to a pod that goes;
- a 503 to a request for tokens says when to come again, also where neither vLLM nor the plugin does.
The server closes such a connection after the answer is complete: no request is lost by it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

READY_PATH = "/holdfast/ready"
HEALTH_PATH = "/health"
# Where vLLM generates: as holdfast_engine.apiserver.routes, which pods without the plugin do not have.
ENGINE_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/decisions",
    "/v1/systemone",
    "/generative_scoring",
    "/inference/v1/generate",
    "/cohere/v2/chat",
    "/invocations",
)
# With --tool-server a request there may wait for a tool, while the engine has nothing to do.
TOOLS_PATH = "/v1/responses"
# What moves while an engine works: a prompt counts with its first token only, its chunks fill the KV cache before.
PROGRESS = ("vllm:generation_tokens", "vllm:prompt_tokens", "vllm:kv_cache_usage_perc")
# Of these, requests that wait for something outside of the engine's steps, such as a grammar that is being compiled.
WAITING = "vllm:num_requests_waiting_by_reason"
# The failures in a row that the liveness probe waits for come on top.
HANG_SECONDS = 60.0
CLOSE = (b"connection", b"close")
RETRY_AFTER = (b"retry-after", b"1")
DRAIN_CHECK_SECONDS = 0.25
# The plugin leaves the pod's own request out of its counts. Its admission knows it by a mark in the scope, which no
# client can set, and its scheduler by a name that the launcher draws at each start.
OWN_REQUEST = "holdfast_own_request"
OWN_NAME_VARIABLE = "HOLDFAST_OWN_REQUEST_NAME"
POD_PORT_VARIABLE = "HOLDFAST_POD_PORT"  # where it is set, the first process of the pod asks, as any client does
REQUEST_ID = b"x-request-id"
UNSUPPORTED_ENGINE = 65  # exit status: the engine will never serve a token
# Refusals that a later attempt may not meet: a key, or too many requests.
PASSING = (401, 403, 408, 425, 429)
REFUSALS = 3
TERMINATION_LOG = "/dev/termination-log"


class ReadyAndBalance:
    """Wraps the engine's application; every API server process has its own."""

    def __init__(self, app: App) -> None:
        self._progress = Progress()
        # Outside of what wraps `receive`: admission asks the server's own for the age of a request.
        self._app = with_admission(self._progress.watching(app))
        self._warm_up = WarmUp(self._app)
        self._hang_seconds = positive(os.environ.get("HOLDFAST_HANG_SECONDS", ""), HANG_SECONDS)
        self._draining = Draining(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"))  # noqa: S108
        # A connection carries one request at a time, seconds each: one close in ten moves a busy client within
        # about a cold start, and costs one handshake for ten requests.
        self._close_share = share(os.environ.get("HOLDFAST_CONNECTION_CLOSE_SHARE", "0.1"))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._closing(send) if scope.get("http_version", "1.1").startswith("1") else send
        if scope["path"] == READY_PATH:
            await self._ready(scope, receive, answer)
        elif scope["path"] == HEALTH_PATH:
            await self._health(scope, receive, answer)
        elif scope["path"] in ENGINE_PATHS:
            await self._app(without_own_name(scope), receive, advising(answer))
        else:
            await self._app(scope, receive, answer)

    def _closing(self, send: Send) -> Send:
        """Add `Connection: close` to the answer where it is due, decided when the answer starts."""

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._closes():
                headers = [header for header in message.get("headers", ()) if header[0].lower() != CLOSE[0]]
                message = {**message, "headers": [*headers, CLOSE]}
            await send(message)

        return send_closing

    def _closes(self) -> bool:
        return random.random() < self._close_share or self._draining()

    async def _ready(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._draining():
            await answer_text(send, 503, "draining")
        elif not self._warm_up.done:
            self._warm_up.start(scope)
            await answer_text(send, 503, self._warm_up.state)
        else:
            await self._app(request_scope(scope, "GET", "/health"), receive, send)

    async def _health(self, scope: Message, receive: Receive, send: Send) -> None:
        seconds = self._progress.still_seconds()
        if seconds >= self._hang_seconds:
            await answer_text(send, 503, f"hung: requests are held and nothing has moved for {seconds:.0f} s")
        else:
            await self._app(scope, receive, send)


class Progress:
    """How long the engine has held requests without making anything of them.

    Requests count from their last byte to their answer's, and not while their client has bytes to take: neither who
    does not send on nor who does not read on is a sign of a hang. Where vLLM's metrics are off nothing is known and
    nothing hangs; of several processes (--api-server-count) the pod's server asks. As many requests as the engine
    defers (it compiles their grammars, say) do not count: a restart would only send them to the next replica.
    """

    def __init__(self) -> None:
        self._held = 0
        self._since = 0.0
        self._seen: list[float] | None = None

    def watching(self, app: App) -> App:
        """The application, whose clients' requests for tokens count while the engine has them."""

        async def watch(scope: Message, receive: Receive, send: Send) -> None:
            if is_watched(scope):
                await self._watched(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return watch

    async def _watched(self, app: App, scope: Message, receive: Receive, send: Send) -> None:
        whole = False

        async def receive_whole() -> Message:
            nonlocal whole
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not whole:
                whole = True
                self._hold()
            return message

        async def send_on(message: Message) -> None:
            held = whole
            self._held -= held
            try:
                await send(message)
            finally:
                if held:
                    self._hold()

        try:
            await app(scope, receive_whole, send_on)
        finally:
            self._held -= whole

    def _hold(self) -> None:
        if not self._held:
            self._since = time.monotonic()
        self._held += 1

    def still_seconds(self) -> float:
        """Seconds since something moved, or was held; 0 where nothing is known."""
        now, seen = time.monotonic(), progress()
        if self._held <= deferred() or seen is None or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since


def is_watched(scope: Message) -> bool:
    """Whether the engine has work while it holds this request: a client's, and none that waits for a tool."""
    if scope["type"] != "http" or scope["path"] not in ENGINE_PATHS or OWN_REQUEST in scope:
        return False
    return scope["path"] != TOOLS_PATH or not has_tool_server()


def has_tool_server() -> bool:
    """Whether the API server calls tools by itself."""
    return any(argument.partition("=")[0] == "--tool-server" for argument in sys.argv)


def progress() -> list[float] | None:
    """What the engine counts of its own work, None where it does not."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return None
    try:
        return [value for name in PROGRESS for value in metric(name).values()] or None
    except Exception:  # another release of vLLM or of the client: nothing is known
        return None


def deferred() -> float:
    """How many requests the engine defers; 0 where it does not say."""
    try:
        return sum(value for labels, value in metric(WAITING).items() if "deferred" in labels and value > 0.0)
    except Exception:  # an older release
        return 0.0


def metric(name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by their labels; raises where the client of Prometheus has none of that name."""
    from prometheus_client import REGISTRY

    collector: Any = REGISTRY._names_to_collectors[name]
    return {labels: series._value.get() for labels, series in collector._metrics.items()}


def advising(send: Send) -> Send:
    """Tell those who are turned away to come again soon; the plugin knows when, and has said so before."""

    async def send_advising(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 503:
            headers = list(message.get("headers", ()))
            if all(name.lower() != RETRY_AFTER[0] for name, _ in headers):
                message = {**message, "headers": [*headers, RETRY_AFTER]}
        await send(message)

    return send_advising


def with_admission(app: App) -> App:
    """The application behind the plugin's check of new requests; as it is where no plugin is mounted."""
    try:
        from holdfast_engine.middleware import AdmissionMiddleware
    except ImportError:
        return app
    except Exception as error:  # a plugin that this Python does not read is no reason not to serve
        print(f"holdfast: no admission: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
        return app
    return AdmissionMiddleware(app)


class Refused(RuntimeError):
    """The engine answered that it will not serve the request."""


class FirstToken:
    """One token through the whole engine: a green /health is no proof, an engine that will crash at once shows it.

    The first probe asks for it, and a later one again where that failed. An engine that refuses it again and again
    generates no text, and is ended: a pod that is never ready shows nobody why.
    """

    def __init__(self, end: Callable[[str], None] | None = None) -> None:
        self._end = end or end_unsupported
        self._refusals = 0
        self.done = False
        self.state = "warming up: no token served yet"

    def failed(self, error: Exception) -> None:
        """Say why; end an engine that will always refuse."""
        self.state = f"warming up: {error}"
        self._refusals = self._refusals + 1 if isinstance(error, Refused) else 0
        if self._refusals == REFUSALS:
            self._end(str(error))

    def served(self) -> None:
        """The pod is ready from now on."""
        self.done = True
        print("holdfast: ready, one token served", file=sys.stderr, flush=True)  # noqa: T201


class WarmUp(FirstToken):
    """Asks inside of this process: the token stays out of the engine's metrics."""

    def __init__(self, app: App, end: Callable[[str], None] | None = None) -> None:
        super().__init__(end)
        self._app = app
        self._task: asyncio.Future[None] | None = None

    def start(self, scope: Message) -> None:
        """Begin, unless it is under way; `scope` is a request from which the application's state is taken."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run(scope))

    async def _run(self, scope: Message) -> None:
        try:
            await self._serve_one_token(scope)
        except Exception as error:
            self.failed(error)
        else:
            forget_counts()
            self.served()

    async def _serve_one_token(self, scope: Message) -> None:
        models = await self._call(scope, "GET", "/v1/models")
        request = {"model": models["data"][0]["id"], "prompt": "Hello", "max_tokens": 1}
        answer = await self._call(scope, "POST", "/v1/completions", request)
        if not answer.get("choices"):
            raise RuntimeError("/v1/completions answered without a choice")

    async def _call(self, scope: Message, method: str, path: str, body: Message | None = None) -> Message:
        """Send a request straight into the application; return the JSON answer, raise unless it is 200."""
        exchange = Exchange(json.dumps(body).encode() if body is not None else b"")
        await self._app(request_scope(scope, method, path, exchange.body), exchange.receive, exchange.send)
        if exchange.status != 200:
            kind = Refused if is_refusal(exchange.status) else RuntimeError
            raise kind(f"{path} answered {exchange.status}")
        answer: Message = json.loads(exchange.answer)
        return answer


def is_refusal(status: int | None) -> bool:
    """Whether an answer will be the same at the next attempt: a route that is not there, a request that is wrong."""
    return status == 501 or (status is not None and 400 <= status < 500 and status not in PASSING)


def end_unsupported(said: str) -> None:
    """End the engine with a sentence that Kubernetes shows; of several API servers each ends all of them."""
    sentence = (
        f"engine unsupported: {said}: the engine does not generate text from a prompt, and ttft and tpot are those of "
        "text; serve models for embeddings, ranking, classification or speech without Holdfast"
    )
    print("holdfast: " + sentence, file=sys.stderr, flush=True)  # noqa: T201
    try:
        with open(TERMINATION_LOG, "r+") as file:  # the kubelet has made it
            file.write(sentence)
    except OSError:
        pass  # Kubernetes shows the last lines of the log instead
    os._exit(UNSUPPORTED_ENGINE)


def forget_counts() -> None:
    """Set vLLM's counters and histograms back to zero, so that no metric ever tells of the warm-up.

    vLLM has counted a request before its answer is sent, and no other arrives before the pod is ready. Several API
    servers (--api-server-count) count together and are not ready at one time: there the pod's page leaves it out.
    """
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        return
    try:
        from prometheus_client import REGISTRY

        collectors: Any = list(REGISTRY._collector_to_names)
        for collector in collectors:
            if getattr(collector, "_name", "").startswith("vllm:"):
                for series in collector._metrics.values():
                    set_to_zero(series)
    except Exception as error:  # a request too many in the metrics is no reason not to serve
        print(f"holdfast: the warm-up stays counted: {error!r}", file=sys.stderr, flush=True)  # noqa: T201


def set_to_zero(series: Any) -> None:
    """Reset a counter or histogram as prometheus_client writes them; gauges tell of now and stay."""
    if series._type == "counter":
        series._value.set(0)
    elif series._type == "histogram":
        for value in (series._sum, *series._buckets):
            value.set(0)


class Exchange:
    """The two ends of one request made inside the process."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status: int | None = None
        self.answer = b""
        self._asked = False

    async def receive(self) -> Message:
        """The body once; then nothing, as from a client that waits for its answer."""
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Collect the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            self.answer += message.get("body", b"")


class Draining:
    """Whether preStop has begun: looks for its file a few times per second at most."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._value = False
        self._next_look = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + DRAIN_CHECK_SECONDS
            self._value = os.path.exists(self._path)
        return self._value


def request_scope(scope: Message, method: str, path: str, body: bytes = b"") -> Message:
    """The scope of another request to the same application, with the API key where the engine wants one."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    if own_name():
        headers.append((REQUEST_ID, own_name()))
    key = api_key()
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return {
        **scope,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "state": dict(scope.get("state") or {}),
        OWN_REQUEST: True,
    }


def own_name() -> bytes:
    """The name of this pod's own request, empty where no launcher has drawn one."""
    return os.environ.get(OWN_NAME_VARIABLE, "").encode()


def without_own_name(scope: Message) -> Message:
    """A client's request, less a name that only the pod's own request has: vLLM gives it another one.

    Where the first process of the pod asks, its request comes as a client's does.
    """
    name = own_name()
    named = any(name in value for header, value in scope["headers"] if header == REQUEST_ID)
    if not name or not named or POD_PORT_VARIABLE in os.environ:
        return scope
    return {**scope, "headers": [header for header in scope["headers"] if header[0] != REQUEST_ID]}


def api_key() -> str:
    """The key as vLLM finds it: from the command line, else from the environment."""
    for index, argument in enumerate(sys.argv):
        if argument.startswith("--api-key="):
            return argument.partition("=")[2]
        if argument == "--api-key":
            return sys.argv[index + 1] if index + 1 < len(sys.argv) else ""
    return os.environ.get("VLLM_API_KEY", "")


def share(text: str) -> float:
    """A share between 0 and 1; 0 for text that is none."""
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0


def positive(text: str, otherwise: float) -> float:
    """A number above 0, `inf` included; otherwise for text that is none."""
    try:
        number = float(text)
    except ValueError:
        return otherwise
    return number if number > 0.0 else otherwise


async def answer_text(send: Send, status: int, text: str) -> None:
    """A small plain answer."""
    body = (text + "\n").encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
