"""An open-loop streaming client of the OpenAI completions API.

Arrivals leave when the trace says, however slow the answers are. Two kinds of clients exist in production, and they
meet a Service differently: a pool of keep-alive connections (`connections=N`; a request that finds all N busy opens one
more just for itself, it never waits) and a new connection per request (`connections=0`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import types
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

import aiohttp

from e2e.load.records import Record, Status
from e2e.load.stream import StreamCounter
from e2e.load.trace import Arrival
from e2e.patience import patient

REPLICA_HEADER = "X-Holdfast-Replica"
REACH_SECONDS, REACH_AGAIN_SECONDS = patient(30.0), 0.1
PromptStyle = Literal["count", "ids"]


@dataclasses.dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the engine.

    `prompt_style`: "count" sends a short prompt and `holdfast_prompt_tokens`, which the emulated engine honours and
    which costs nothing to send; "ids" sends a real list of token ids, for real engines.
    `connections`: size of the keep-alive pool, 0 for a new connection per request.
    `timeout_seconds`: per request; what is not complete by then is truncated or an error.
    """

    url: str
    model: str
    connections: int = 64
    prompt_style: PromptStyle = "count"
    timeout_seconds: float = 120.0
    api_key: str = ""


class LoadClient:
    """Send requests and report what became of each; an async context manager."""

    def __init__(self, settings: ClientSettings, on_record: Callable[[Record], None] = lambda record: None) -> None:
        self.sent = 0
        self.on_record = on_record
        self._settings = settings
        self._endpoint = settings.url.rstrip("/") + "/v1/completions"
        self._wall_offset = time.time() - time.monotonic()
        self._pool_busy = 0

    async def __aenter__(self) -> Self:
        self._pool = self._session(keep_alive=True)
        self._single = self._session(keep_alive=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self._pool.close()
        await self._single.close()

    async def reach(self) -> None:
        """Wait until the address takes connections; TimeoutError where it does not.

        A Service refuses connections until the node's proxy has heard of its first endpoint. kube-proxy gathers changes
        for a second and more where the machine is busy: what is Ready at the API server may still refuse.
        """
        url = urllib.parse.urlsplit(self._endpoint)
        async with asyncio.timeout(REACH_SECONDS):
            while True:
                try:
                    _, writer = await asyncio.open_connection(url.hostname, url.port or 80)
                except OSError:
                    await asyncio.sleep(REACH_AGAIN_SECONDS)
                else:
                    writer.close()
                    return

    async def run(self, arrivals: Iterable[Arrival], start: float | None = None) -> list[Record]:
        """Play arrivals from `start` (epoch seconds, else now) on; return once all are answered, in their order.

        Cancelling this aborts what is in flight; `on_record` hears of those too.
        """
        start = self.now() if start is None else start
        running: list[asyncio.Task[Record]] = []
        try:
            for arrival in arrivals:
                due = start + arrival.at_seconds
                if (wait := due - self.now()) > 0:
                    await asyncio.sleep(wait)
                running.append(asyncio.create_task(self.request(arrival.prompt_tokens, arrival.output_tokens, due)))
            return list(await asyncio.gather(*running))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def request(self, prompt_tokens: int, output_tokens: int, scheduled_at: float | None = None) -> Record:
        """Send one request and return its record."""
        now = self.now()
        flight = _Flight(self.sent, scheduled_at if scheduled_at is not None else now, prompt_tokens, output_tokens)
        self.sent += 1
        flight.sent_at = now
        try:
            await self._send_with_one_retry(flight)
        except asyncio.CancelledError:
            flight.fail("aborted", "stopped by the client")
            raise
        finally:
            record = flight.record(self.now())
            self.on_record(record)
        return record

    def now(self) -> float:
        """Return epoch seconds that never jump."""
        return time.monotonic() + self._wall_offset

    async def _send_with_one_retry(self, flight: _Flight) -> None:
        """Send; once more, on a fresh connection, if an idle connection had been closed under the request.

        A keep-alive connection may be closed by the server at the moment a request is written to it. Every HTTP client
        repeats such a request, since no byte of an answer came; anything else that fails is a failure.
        """
        try:
            return await self._send(flight, pooled=self._pool_busy < self._settings.connections)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if flight.new_connection or flight.http_status is not None:
                return flight.fail("error", repr(error))
        except (aiohttp.ClientError, TimeoutError) as error:
            return flight.fail("error", repr(error))
        flight.retried = True
        try:
            await self._send(flight, pooled=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            flight.fail("error", f"retry: {error!r}")

    async def _send(self, flight: _Flight, pooled: bool) -> None:
        session = self._pool if pooled else self._single
        self._pool_busy += pooled
        try:
            body = self._body(flight)
            async with session.post(self._endpoint, data=body, trace_request_ctx=flight) as response:
                flight.http_status = response.status
                flight.replica = response.headers.get(REPLICA_HEADER, "")
                await (self._receive(flight, response) if response.status == 200 else _refused(flight, response))
        finally:
            self._pool_busy -= pooled

    async def _receive(self, flight: _Flight, response: aiohttp.ClientResponse) -> None:
        """Read the stream to its end; a broken stream is a truncated request, not an exception."""
        counter = StreamCounter()
        broken = ""
        try:
            async for chunk in response.content.iter_any():
                counter.feed(chunk)
                if flight.first_token_at is None and counter.events:
                    flight.first_token_at = self.now()
        except (aiohttp.ClientError, TimeoutError) as error:
            broken = repr(error)
        flight.output_tokens = counter.tokens
        if counter.error:
            flight.fail("error", counter.error)
        elif broken or not counter.finished or counter.tokens < flight.output_tokens_asked:
            flight.fail("truncated", broken or f"{counter.tokens} of {flight.output_tokens_asked} tokens")
        else:
            flight.status = "ok"

    def _body(self, flight: _Flight) -> bytes:
        fields: dict[str, Any] = {
            "model": self._settings.model,
            "max_tokens": flight.output_tokens_asked,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._settings.prompt_style == "count":
            fields |= {"prompt": "x", "holdfast_prompt_tokens": flight.prompt_tokens}
        else:
            # Ids differ from request to request, so that a prefix cache does not answer for the engine.
            fields["prompt"] = [1 + (flight.index * 7919 + place) % 251 for place in range(flight.prompt_tokens)]
        return json.dumps(fields).encode()

    def _session(self, keep_alive: bool) -> aiohttp.ClientSession:
        headers = {"Content-Type": "application/json"}
        if self._settings.api_key:
            headers["Authorization"] = f"Bearer {self._settings.api_key}"
        if keep_alive:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0)
        else:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
        return aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_seconds),
            trace_configs=[_connection_trace()],
            auto_decompress=False,
        )


@dataclasses.dataclass(slots=True)
class _Flight:
    """A request under way."""

    index: int
    scheduled_at: float
    prompt_tokens: int
    output_tokens_asked: int
    sent_at: float = 0.0
    first_token_at: float | None = None
    output_tokens: int = 0
    status: Status = "error"
    http_status: int | None = None
    replica: str = ""
    error: str = ""
    new_connection: bool = True
    retried: bool = False

    def fail(self, status: Status, error: str) -> None:
        self.status = status
        self.error = error

    def record(self, finished_at: float) -> Record:
        return Record(finished_at=finished_at, **dataclasses.asdict(self))


async def _refused(flight: _Flight, response: aiohttp.ClientResponse) -> None:
    text = (await response.text(errors="replace"))[:300]
    flight.fail("rejected" if response.status == 503 else "error", text)


def _connection_trace() -> aiohttp.TraceConfig:
    async def reused(session: aiohttp.ClientSession, context: types.SimpleNamespace, parameters: object) -> None:
        context.trace_request_ctx.new_connection = False

    async def created(session: aiohttp.ClientSession, context: types.SimpleNamespace, parameters: object) -> None:
        context.trace_request_ctx.new_connection = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(reused)
    trace.on_connection_create_start.append(created)
    return trace
