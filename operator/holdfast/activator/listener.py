"""The way in: connections bounded in number and in the time they take to ask, one request on each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

MOST_CONNECTIONS = 4096
"""Whether they ask anything or not: each takes about 20 kB where its headers never end."""

HEAD_SECONDS = 10.0
"""A head fits into few packets, and TCP sends one that is lost five times over within 6.2 s."""

_BACKLOG = 128
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A client whose node is gone says no goodbye: it is missed after a minute, not after two hours."""

_READ_BYTES = 64 * 1024
"""What is read at once: what follows a request in the same piece lies in memory for as long as that waits."""


class Door:
    """Makes the connections of a server; once there are so many, the one that has asked for longest makes room."""

    def __init__(self, server: Callable[[], asyncio.Protocol], most: int, head_seconds: float) -> None:
        self._server = server
        self._most = most
        self._head_seconds = head_seconds
        self._open: set[ClientConnection] = set()
        self._asking: dict[ClientConnection, None] = {}  # the oldest first
        self._piece = bytearray(_READ_BYTES)  # emptied before the next connection is read

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, self._server(), self._piece, self._head_seconds)

    def enter(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._asking), None)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.end()
        self._open.add(connection)
        self._asking[connection] = None
        return True

    def asked(self, connection: ClientConnection) -> None:
        """Its request is whole: it keeps its place."""
        self._asking.pop(connection, None)

    def leave(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        self.asked(connection)


class ClientConnection(asyncio.BufferedProtocol):
    """Stands between a socket and aiohttp, which stops reading, and so misses a client that leaves, once much waits."""

    def __init__(self, door: Door, behind: asyncio.Protocol, piece: bytearray, head_seconds: float) -> None:
        self._door = door
        self._behind = behind
        self._piece = piece
        self._head_seconds = head_seconds
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport) or not self._door.enter(self):
            transport.close()
            return
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(self._head_seconds, self.end)
        self._behind.connection_made(transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            for option, value in _KEEPALIVE:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)

    def head(self) -> None:
        """The head of a request is there."""
        if self._deadline is not None:
            self._deadline.cancel()

    def whole(self) -> None:
        """A request is there, and the last one: its answer ends the connection, and what follows it is read by nobody.

        It is taken off the socket all the same, for behind it is the end that tells that the client has left.
        """
        self._whole = True
        self._door.asked(self)
        if self._transport is not None:
            self._transport.resume_reading()

    def end(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if not self._whole:
            self._behind.data_received(bytes(memoryview(self._piece)[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def pause_writing(self) -> None:
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        self._behind.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.head()
        self._door.leave(self)
        if self._transport is not None:
            self._behind.connection_lost(error)
            self._transport = None


def connection(request: web.BaseRequest) -> ClientConnection | None:
    """Return the connection of a request; None where it is gone already."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, ClientConnection) else None


@web.middleware
async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Call the deadline of the head off: aiohttp has read it."""
    if (asking := connection(request)) is not None:
        asking.head()
    return await handler(request)


@contextlib.asynccontextmanager
async def listening(runner: web.AppRunner, host: str, port: int) -> AsyncIterator[int]:
    """Serve through a door for as long as the context lasts; yields the port."""
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the runner is not set up")
        door = Door(runner.server, MOST_CONNECTIONS, HEAD_SECONDS)
        listener = await asyncio.get_running_loop().create_server(door, host, port, backlog=_BACKLOG)
        try:
            yield int(listener.sockets[0].getsockname()[1])
        finally:
            listener.close()
    finally:
        await runner.cleanup()
