"""`holdfast emulate`: an OpenAI-compatible server with vLLM's timing and metrics, and no GPU."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from holdfast.emulator.engine import EmulatedEngine, Job
from holdfast.emulator.fast_loop import FastLoopMetrics, FastLoopScheduler
from holdfast.emulator.openai import BadRequest, Completion, CompletionRequest, parse_request
from holdfast.emulator.options import EmulatorOptions, EngineSetup, set_up
from holdfast.emulator.pairs import left_behind, shifted
from holdfast.emulator.stream import Collector, TokenStream
from holdfast.enginemodel.scheduler import LoraRequest, Refusal, RejectReason, SamplingParams, Sequence
from holdfast_engine.apiserver.admission import GUARDED
from holdfast_engine.objectives.claims import CLAIMED, header_claim, header_key, pass_on

EMULATED_VLLM_VERSION = "0.32.0"
BODY_LIMIT_BYTES = 64 * 2**20
LEAVING_CHECK_SECONDS = 0.25
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MESSAGES = {
    RejectReason.REQUESTS: "The server is currently busy: too many requests are queued. Please try again later.",
    RejectReason.TOKENS: "The server has too large a backlog of prompt tokens. Please try again later.",
    RejectReason.TTFT: "The first token would come later than this service promises. Please try again later.",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EmulatorServer:
    """The HTTP side of one emulated engine."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        own_name = secrets.token_hex(16)
        self._claim_key = header_key(own_name)
        self._engine_id = secrets.token_hex(16)
        scheduler = setup.scheduler(_loop_time, own_name)
        metrics = setup.metrics(time.time())
        self.engine = EmulatedEngine(scheduler, setup.timer(), metrics, speed=setup.options.speed, work=setup.work())
        self._fast_loop = (
            FastLoopMetrics(scheduler, setup.options.names[0], EMULATED_VLLM_VERSION, setup.engine_info())
            if isinstance(scheduler, FastLoopScheduler)
            else None
        )
        self.engine.metrics.set("vllm:engine_sleep_state", 1, "awake")
        self.draining = False
        self._ids = itertools.count(1)
        self._close_debt = 0.0
        self._leaving = Leaving(setup.options.drain_file)
        self._named = {"X-Holdfast-Replica": setup.options.replica} if setup.options.replica else {}

    def app(self) -> web.Application:
        """The application; the engine steps while it runs."""
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_LIMIT_BYTES)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/holdfast/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/health", "/ping"):
            app.router.add_route("*", path, self._health)
        app.cleanup_ctx.append(self._stepping)
        return app

    async def drain(self, timeout_seconds: float) -> None:
        """Refuse what is new and give what is in flight some time to finish."""
        self.draining = True
        if timeout_seconds > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.engine.idle(), timeout_seconds)

    async def _stepping(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.engine.run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keys, refusals as JSON, and connections that end now and then so that clients meet new replicas."""
        if request.path.startswith("/v1/") and not self._authorized(request):
            return web.json_response({"error": "Unauthorized"}, status=HTTPStatus.UNAUTHORIZED)
        try:
            response = await handler(request)
        except BadRequest as refusal:
            response = web.Response(
                body=refusal.body(), status=refusal.status, headers=refusal.headers, content_type="application/json"
            )
        if not response.prepared:
            response.headers.update(self._named)
            if self._closes(request):
                response.force_close()
        return response

    def _authorized(self, request: web.Request) -> bool:
        keys = self.setup.options.api_keys
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return not keys or any(hmac.compare_digest(given.encode(), key.encode()) for key in keys)

    def _closes(self, request: web.Request) -> bool:
        """Whether this answer ends its connection: evenly spread over the answers, all of them while draining, and
        those to requests for tokens in overload."""
        self._close_debt += self.setup.options.connection_close_share
        due = self._close_debt >= 1.0
        self._close_debt -= due
        overloaded = request.path in GUARDED and self.engine.sends_away()
        return due or overloaded or self.draining or self._leaving()

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=False)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, chat=True)

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        arrived_at = asyncio.get_running_loop().time()
        asked = parse_request(await request.read(), request.headers, chat=chat, max_model_len=self.setup.max_model_len)
        CLAIMED.set(header_claim((name.lower(), value) for name, value in request.raw_headers))
        self._admit(asked)
        prefix = "chatcmpl" if chat else "cmpl"
        answer = Completion(f"{prefix}-{next(self._ids):016x}", int(time.time()), asked.model or self._name, asked)
        sequence = Sequence(asked.prompt_tokens, asked.max_tokens, arrived_at, asked.cached_tokens)
        sequence.sampling_params = SamplingParams(asked.extra_args)
        sequence.kv_transfer_params = shifted(asked.kv_transfer_params, -_wall_clock_ahead())
        sequence.handed_over = left_behind(sequence, self._engine_id, answer.id)
        pass_on(sequence.sampling_params, self._claim_key)
        if asked.model in self.setup.options.adapters:
            sequence.lora_request = LoraRequest(asked.model)
        if asked.stream:
            return await self._stream(request, answer, sequence)
        collector = Collector()
        await self._run_job(Job(sequence, collector, asked.max_tokens, answer.finish_reason), collector)
        told = shifted(sequence.handed_over, _wall_clock_ahead())
        return web.Response(body=answer.body(told), content_type="application/json")

    async def _stream(self, request: web.Request, answer: Completion, sequence: Sequence) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **self._named})
        if self._closes(request):
            response.force_close()
        stream = TokenStream(request, response, answer)
        job = Job(sequence, stream, answer.request.max_tokens, answer.finish_reason)
        # Queued before the headers go out: admission and queue position are decided at arrival.
        self.engine.submit(job)
        try:
            await stream.open()
            await stream.finished()
        finally:
            self.engine.abort(job)
        await stream.close()
        return response

    async def _run_job(self, job: Job, collector: Collector) -> None:
        self.engine.submit(job)
        try:
            await collector.finished()
        finally:
            self.engine.abort(job)

    def _admit(self, asked: CompletionRequest) -> None:
        options = self.setup.options
        if asked.model and asked.model not in (*options.names, *options.adapters):
            raise BadRequest(f"The model `{asked.model}` does not exist.", HTTPStatus.NOT_FOUND, "model")
        if self.draining:
            raise BadRequest("The server is shutting down.", HTTPStatus.SERVICE_UNAVAILABLE)
        refusal = self.engine.admit(asked.prompt_tokens)
        if refusal is not None:
            raise _busy(refusal)

    @property
    def _name(self) -> str:
        return self.setup.options.names[0]

    async def _models(self, _: web.Request) -> web.Response:
        options, created = self.setup.options, int(time.time())
        shared = {"object": "model", "created": created, "owned_by": "vllm", "permission": []}
        model = {"root": options.model, "parent": None, "max_model_len": self.setup.max_model_len}
        adapter = {"parent": self._name, "max_model_len": None}
        models: list[dict[str, object]] = [
            *({"id": name, **shared, **model} for name in options.names),
            *({"id": name, **shared, "root": name, **adapter} for name in options.adapters),
        ]
        return web.json_response({"object": "list", "data": models})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, _: web.Request) -> web.Response:
        if self.draining or self._leaving():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="draining\n")
        return web.Response(text="ready\n")

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": EMULATED_VLLM_VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        self.engine.refresh_gauges()
        body = self.engine.metrics.render()
        if self._fast_loop is not None:
            body += self._fast_loop.render()
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})


def _wall_clock_ahead() -> float:
    """By how much the clock of other engines is ahead of the loop's, in seconds."""
    return time.time() - _loop_time()


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _busy(refusal: Refusal) -> BadRequest:
    """A 503 as vLLM's; the fast loop knows when to come again."""
    again = refusal.retry_after_seconds
    return BadRequest(MESSAGES[refusal.reason], HTTPStatus.SERVICE_UNAVAILABLE, retry_after_seconds=again)


class Leaving:
    """Whether the pod's preStop has begun: its file is looked for a few times per second at most."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._value = False
        self._next_look = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LEAVING_CHECK_SECONDS
            self._value = os.path.exists(self._path)
        return self._value


def runner_of(server: EmulatorServer) -> web.AppRunner:
    """A runner that tells handlers when their client went away, and closes at once when it is cleaned up."""
    return web.AppRunner(
        server.app(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0.5,
        keepalive_timeout=server.setup.options.keep_alive_seconds,
    )


async def serve(options: EmulatorOptions, ready: Callable[[int], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; `ready` is called with the port once requests can come."""
    setup = set_up(options)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if await _stopped_within(stop, options.cold_start_seconds):
        return
    server = EmulatorServer(setup)
    runner = runner_of(server)
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port, backlog=1024)
        await site.start()
        if ready is not None:
            ready(runner.addresses[0][1])
        await stop.wait()
        await server.drain(options.shutdown_timeout_seconds)
    finally:
        await runner.cleanup()


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    if seconds <= 0:
        return stop.is_set()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
    return stop.is_set()
