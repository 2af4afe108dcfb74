"""Serves an aiohttp application on a port within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from holdfast.listener.connections import Bounds, ClientConnection, Connections
from holdfast.listener.refusals import MALFORMED, Refusal, Refusals

_BACKLOG = 128
_PIECE_BYTES = 32 * 1024
"""An answer is handed over in pieces: the socket copies what the client has not read yet."""
_MOST_DESCRIPTORS = 65_536
"""As many as a process is given where nobody says otherwise; many container runtimes begin with 1,024."""
_SHARE_OF_DESCRIPTORS = 4
"""One in so many for each port: the connections to the API server need descriptors too."""


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, host: str | None, port: int, bounds: Bounds, refusals: Refusals, **handling: Any
) -> AsyncIterator[int]:
    """Serve for as long as the context lasts; yields the port."""
    app.middlewares.insert(0, _attended(refusals))
    handling |= {"access_log": None, "logger": _RequestLog(refusals), "keepalive_timeout": bounds.idle_seconds}
    runner = web.AppRunner(app, **handling)
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner is not set up")
        connections = Connections(runner.server, _affordable(bounds), refusals)
        listener = await asyncio.get_running_loop().create_server(connections, host, port, backlog=_BACKLOG)
        try:
            yield _port_of(listener.sockets)
        finally:
            listener.close()
    finally:
        await runner.cleanup()


def _port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the port of IPv4 where there is one: port 0 gives each address family another free port."""
    first = min(sockets, key=lambda each: each.family != socket.AF_INET)
    return int(first.getsockname()[1])


def connection_of(request: web.BaseRequest) -> ClientConnection | None:
    """Return the connection of a request; None where it is gone already."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, ClientConnection) else None


def _attended(refusals: Refusals) -> Middleware:
    @web.middleware
    async def attended(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Tell the connection how far its request is, which aiohttp has read; the outermost middleware."""
        connection = connection_of(request)
        if connection is not None:
            connection.head()
        try:
            return _in_pieces(await handler(request))
        except MALFORMED as error:
            refusals.count(Refusal.MALFORMED, request.remote, error)
            return _no_http()
        finally:
            if connection is not None:
                connection.answered()

    return attended


def _no_http() -> web.Response:
    response = web.Response(status=HTTPStatus.BAD_REQUEST, text="the body is not valid HTTP\n")
    response.force_close()
    return response


def _in_pieces(response: web.StreamResponse) -> web.StreamResponse:
    if not isinstance(response, web.Response) or response.prepared:
        return response
    body = response.body
    if isinstance(body, bytes) and len(body) > _PIECE_BYTES:
        kind = response.headers.get("Content-Type")
        response.body = _pieces(body)
        response.headers["Content-Length"] = str(len(body))
        if kind is not None:
            response.headers["Content-Type"] = kind
    return response


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


def _affordable(bounds: Bounds) -> Bounds:
    """Bound connections by the process's descriptors: without one, no request to the API server leaves the operator."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return replace(bounds, connections=min(bounds.connections, most // _SHARE_OF_DESCRIPTORS))


class _RequestLog(logging.Logger):
    """Stands where aiohttp would log a traceback for each request that fails."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(__name__, logging.INFO)
        self._refusals = refusals

    def exception(self, msg: object, *args: object, exc_info: Any = True, **_: Any) -> None:
        """Count it; aiohttp passes the address of the client where it knows it."""
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
        self._refusals.failed(error, str(args[0]) if args else None)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:
        """Count malformed requests here too: aiohttp logs an unknown method as detail."""
        if isinstance(exc_info, MALFORMED):
            self.exception(msg, *args, exc_info=exc_info)
