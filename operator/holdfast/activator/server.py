"""The HTTP side of an activator: requests for tokens wait, all else is answered at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import signal
import time
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import NoReturn

import aiohttp
from aiohttp import web
from prometheus_client import generate_latest

from holdfast.activator.counts import FORWARDED, GONE, RequestCounts
from holdfast.activator.options import Options
from holdfast.activator.upstream import Gone, NotThere, Upstream, answer_headers
from holdfast.listener import refusals
from holdfast.listener.connections import Bounds
from holdfast.listener.refusals import Refusals
from holdfast.listener.serve import connection_of, listening
from holdfast_engine.objectives.claims import header_claim

_LOG = logging.getLogger(__name__)
WAITED_HEADER = "X-Holdfast-Waited-Seconds"
RETRY_AFTER_SECONDS = 10
BODY_SECONDS = 60.0
CROWDED_SECONDS = 10.0
"""Who has been sending for longer makes room where there is none."""
FRONT = Bounds(connections=4096, takes_bodies=True)
"""Of clients: gateways open one connection for each request that they pass on, and all of them may wait here."""
LINGER_SECONDS = 5.0
"""A pod that ends is still sent requests until every node knows."""
TOLD_SECONDS = 20.0
"""What it counted last ends with it unless the operator asks before, who asks it and the next pod by turns."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PROBES = ("/health", "/ping")


class TurnedAway(Exception):
    """There is no room, or no more time."""


class TooSlow(Exception):
    """The client did not send what it announced."""


class BodyBudget:
    """Bytes of the requests in hand, over all of them."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._taken = 0
        self._given_back = asyncio.Event()

    def has(self, size: int) -> bool:
        return self._taken + size <= self._most

    def take(self, size: int) -> None:
        if not self.has(size):
            raise TurnedAway(f"the queue is full: {self._most} bytes of requests wait")
        self._taken += size

    def give_back(self, size: int) -> None:
        self._taken -= size
        self._given_back.set()

    async def given_back(self) -> None:
        """Wait until somebody has left."""
        self._given_back.clear()
        await self._given_back.wait()


class ActivatorServer:
    """Holds what comes, within bounds of number, bytes and age."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._upstream = Upstream(options.upstream)
        self._numbers = itertools.count()
        self._in_hand: set[int] = set()
        self._placed: set[int] = set()  # those in hand that are whole
        self._arriving: dict[int, asyncio.Timeout] = {}  # deadlines of bodies, the oldest first
        self._room = BodyBudget(options.most_bytes)
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._asked = asyncio.Event()
        self.counts = RequestCounts(clock)

    def app(self) -> web.Application:
        """What clients reach; a client that leaves frees its place (run it with handler_cancellation)."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.cleanup_ctx.append(self._upstream.opened)
        return app

    def admin_app(self) -> web.Application:
        """What the operator, the kubelet and Prometheus reach, on a port that no Service of clients leads to."""
        app = web.Application()
        app.router.add_get("/held", self._held)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        return app

    def leave(self) -> None:
        """Go on with what is in hand, but not for a service that was deleted."""
        self._upstream.leave()

    async def emptied(self) -> None:
        """Wait until no request is in hand."""
        await self._emptied.wait()

    async def told(self) -> None:
        """Wait until the operator knows all that was counted, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_SECONDS):
                while self.counts.untold:
                    self._asked.clear()
                    await self._asked.wait()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asks, number = request.method == "POST", next(self._numbers)
        try:
            self._in_hand.add(number)
            self._emptied.clear()
            return await (self._hold(request, number) if asks else self._pass(request, number))
        except TurnedAway as why:
            if asks and math.isfinite(self._patience(request)):
                self.counts.turned_away()
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}; please try again later")
        except TooSlow:
            return _refusal(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")
        except aiohttp.ClientError as error:
            _LOG.warning("the engine closed the connection: %s", error)
            return _refusal(HTTPStatus.BAD_GATEWAY, "the engine closed the connection before it answered")
        finally:
            self._in_hand.discard(number)
            self._placed.discard(number)
            if not self._in_hand:
                self._emptied.set()

    def _patience(self, request: web.Request) -> float:
        """How long a request of a patient class may wait without a miss, in seconds; 0 for all others."""
        claimed = header_claim((name.lower(), value) for name, value in request.raw_headers)
        return self._options.patient.get(claimed, 0.0)

    async def _hold(self, request: web.Request, number: int) -> web.StreamResponse:
        """Pass a request on as soon as a replica takes it, and count how long that was.

        It came when it was whole: one that its client never finishes wakes nobody, and no engine would have judged it.
        """
        body = await self._read(request, number)
        came_at = self.counts.came(number)
        sent_at: float | None = None

        def ended(outcome: str) -> None:
            waited = (self._clock() if sent_at is None else sent_at) - came_at
            # The operator compares with the service's own time, and takes what is longer for a miss.
            self.counts.ended(outcome, waited if waited > self._patience(request) else 0.0)

        try:
            try:
                deadline = asyncio.get_running_loop().time() + self._options.longest_seconds
                while True:
                    sent_at = self._clock()
                    try:
                        answer = await self._upstream.send(request, body)
                        break
                    except NotThere:
                        sent_at = None
                    await self._replica(deadline)
            finally:
                self._room.give_back(len(body))
        except (asyncio.CancelledError, ConnectionError):
            ended(GONE if sent_at is None else FORWARDED)
            raise
        except aiohttp.ClientError:
            ended(FORWARDED)
            raise
        finally:
            # Whatever it was: one that counts as waiting for ever would keep a replica for ever.
            self.counts.left(number)
        ended(FORWARDED)
        return await _relay(request, answer, sent_at - came_at)

    async def _replica(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._upstream.there()
        except TimeoutError:
            raise TurnedAway(f"no replica was ready within {self._options.longest_seconds:g} s") from None
        except Gone:
            raise TurnedAway("the service was deleted") from None

    async def _pass(self, request: web.Request, number: int) -> web.StreamResponse:
        """Pass on what asks for no token; without a replica it waits for none, and starts none."""
        body = await self._read(request, number)
        try:
            answer = await self._upstream.send(request, body)
        except NotThere:
            return self._alone(request)
        finally:
            self._room.give_back(len(body))
        return await _relay(request, answer, 0.0)

    def _alone(self, request: web.Request) -> web.Response:
        if request.path in _PROBES:
            return _closing(web.Response())
        if request.path == "/v1/models" and self._options.models:
            models = [{"id": name, "object": "model", "owned_by": "holdfast"} for name in self._options.models]
            return _closing(web.json_response({"object": "list", "data": models}))
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "no replica runs: the next POST starts one and waits for it")

    def _place(self) -> None:
        if len(self._placed) >= self._options.most_requests:
            raise TurnedAway(f"the queue is full: {self._options.most_requests} requests wait")

    async def _read(self, request: web.Request, number: int) -> bytearray:
        """Return the body; its room is the caller's to give back, unless this fails.

        It takes its place once it is whole, or requests that never are would take all places.
        """
        self._place()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS) as deadline:
                self._arriving[number] = deadline
                async for chunk in request.content.iter_any():
                    await self._make_room(len(chunk), number)
                    self._room.take(len(chunk))
                    body += chunk
            self._place()
            self._placed.add(number)
        except BaseException as error:
            self._room.give_back(len(body))
            if isinstance(error, TimeoutError):
                raise TooSlow from None
            raise
        finally:
            self._arriving.pop(number, None)
        if (asked := connection_of(request)) is not None:
            asked.whole()
        return body

    async def _make_room(self, size: int, number: int) -> None:
        """End slow requests, the oldest first, for as long as there is no room for this one."""
        now = asyncio.get_running_loop().time()
        slow = [
            other
            for other, deadline in self._arriving.items()
            if other != number and (deadline.when() or now) - now <= BODY_SECONDS - CROWDED_SECONDS
        ]
        for other in slow:
            if self._room.has(size):
                return
            if (deadline := self._arriving.pop(other, None)) is not None:
                if not deadline.expired():
                    deadline.reschedule(now)
                await self._room.given_back()

    async def _held(self, _: web.Request) -> web.Response:
        self._asked.set()
        return web.json_response(self.counts.told())

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.counts.registry), headers={"Content-Type": _METRICS_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")


async def _relay(request: web.Request, answer: aiohttp.ClientResponse, waited_seconds: float) -> web.StreamResponse:
    """Hand an answer through as it comes; one that breaks off ends the connection, or it would be taken for whole."""
    async with answer:
        headers = answer_headers(answer.headers)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        response.headers[WAITED_HEADER] = f"{waited_seconds:.1f}"
        # The next request of this client is to meet the engines themselves.
        response.force_close()
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        except aiohttp.ClientError as error:
            _LOG.warning("an answer was cut off: %s", error)
            _break_off(request)
        await response.write_eof()
        return response


def _break_off(request: web.Request) -> NoReturn:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("the engine closed the connection")


def _refusal(status: HTTPStatus, message: str) -> web.Response:
    error = {"message": message, "type": status.phrase.replace(" ", ""), "param": None, "code": int(status)}
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
    return _closing(web.json_response({"error": error}, status=status, headers=headers))


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response


@contextlib.asynccontextmanager
async def opened(server: ActivatorServer, options: Options) -> AsyncIterator[tuple[int, int]]:
    """Listen to clients and to the operator; yields the ports of both."""
    counter = refusals.counter(server.counts.registry, "holdfast_activator")
    admin = listening(server.admin_app(), options.host, options.admin_port, Bounds(), Refusals("admin", counter))
    # What a client has compressed stays so: its headers are passed on as well.
    handling = {"handler_cancellation": True, "auto_decompress": False}
    front = listening(
        server.app(), options.host, options.port, options.front or FRONT, Refusals("http", counter), **handling
    )
    async with admin as admin_port, front as port:
        yield port, admin_port


async def serve(options: Options, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; then what is in hand is still held and passed on."""
    server, stopped = ActivatorServer(options), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with opened(server, options):
        announce()
        await stopped.wait()
        server.leave()
        await asyncio.sleep(LINGER_SECONDS)
        await server.emptied()
        await server.told()
        await server.emptied()
