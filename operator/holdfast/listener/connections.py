"""The connections of one port: bounded in number, in bytes of unfinished requests, and in time."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.listener.refusals import Refusal, Refusals

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A client whose node is gone says no goodbye: it is missed after a minute, not after two hours."""

_READ_BYTES = 64 * 1024
"""What is read at once: what follows a request in the same piece lies in memory for as long as that waits."""

_HEAD_ENDS = re.compile(rb"[^\r\n]\r?\n\r?\n")
"""Empty lines before a request are no end of its head."""
_END_BYTES = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the clients of one port may use together (connections, bytes) and each of them (seconds).

    A connection takes about 20 kB, whether it asks anything or not. One head may take 2 MB of memory: the HTTP parser
    accepts 128 lines of 8 kB each, and holds them twice.
    """

    connections: int = 64
    head_seconds: float = 10.0
    """A head fits into few packets, and TCP sends one that is lost five times over within 6.2 s."""
    idle_seconds: float = 75.0
    """From an answer to the next request. Longer than any scrape interval in use: Prometheus keeps its connection."""
    stalled_seconds: float = 30.0
    """A client that reads nothing for so long is cut off: its answer waits in memory."""
    unfinished_bytes: int = 8 * 2**20
    """Of all requests that are not answered yet; with `takes_bodies`, of the heads only."""
    takes_bodies: bool = False
    """The application that reads the bodies bounds them."""


class Connections:
    """Makes the connections of one port, and closes one where there are too many or too much.

    Of the address with the most connections, the one that asked longest ago makes room: a client with few connections
    is not shut out by one with many.
    """

    def __init__(self, server: Callable[[], asyncio.Protocol], bounds: Bounds, refusals: Refusals) -> None:
        self.bounds = bounds
        self.refusals = refusals
        self._server = server
        self._open: set[ClientConnection] = set()
        self._replaceable: dict[str, dict[ClientConnection, None]] = {}  # by address, the longest silent first
        self._unfinished: dict[ClientConnection, int] = {}
        self._unfinished_bytes = 0
        self._piece = bytearray(_READ_BYTES)  # emptied before the next connection is read

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, self._server(), self._piece)

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more."""
        if len(self._open) >= self.bounds.connections:
            of_most = max(self._replaceable.values(), key=len, default=None)
            if not of_most:
                self.refusals.count(Refusal.CROWDED, connection.address)
                return False
            next(iter(of_most)).end(Refusal.CROWDED)
        self._open.add(connection)
        self.asks(connection)
        return True

    def asks(self, connection: ClientConnection) -> None:
        """Put a connection behind all others of its address."""
        self.keep(connection)
        self._replaceable.setdefault(connection.address, {})[connection] = None

    def keep(self, connection: ClientConnection) -> None:
        """Do not close this one to make room."""
        of_address = self._replaceable.get(connection.address, {})
        of_address.pop(connection, None)
        if not of_address:
            self._replaceable.pop(connection.address, None)

    def read(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of an unfinished request; beyond the bound, the largest one ends."""
        self._unfinished[connection] = self._unfinished.get(connection, 0) + size
        self._unfinished_bytes += size
        while self._unfinished_bytes > self.bounds.unfinished_bytes:
            max(self._unfinished, key=self._unfinished.__getitem__).end(Refusal.LARGE)

    def finished(self, connection: ClientConnection) -> None:
        """Its bytes count no more."""
        self._unfinished_bytes -= self._unfinished.pop(connection, 0)

    def leave(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        self.keep(connection)
        self.finished(connection)


class ClientConnection(asyncio.BufferedProtocol):
    """Stands between a socket and aiohttp, which bounds neither the time of a head nor that of an answer.

    aiohttp also stops reading, and so misses a client that leaves, once much waits.
    """

    def __init__(self, all_of_port: Connections, behind: asyncio.Protocol, piece: bytearray) -> None:
        self.address = ""
        self._all = all_of_port
        self._bounds = all_of_port.bounds
        self._behind = behind
        self._piece = piece
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._counts_bytes = True
        self._last = b""
        self._whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.address = str((transport.get_extra_info("peername") or ("unknown",))[0])
        if not isinstance(transport, asyncio.Transport) or not self._all.enter(self):
            transport.close()
            return
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(self._bounds.head_seconds, self.end, Refusal.LATE)
        self._behind.connection_made(transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            for option, value in _KEEPALIVE:
                peer.setsockopt(socket.IPPROTO_TCP, option, value)

    def head(self) -> None:
        """The head of a request is there."""
        _cancel(self._deadline)
        if self._transport is not None and not self._whole:
            self._all.asks(self)

    def answered(self) -> None:
        """The answer is on its way; once it has gone, the next request may come."""
        if self._transport is not None:
            _cancel(self._deadline)
            self._deadline = asyncio.get_running_loop().call_later(self._bounds.idle_seconds, self._end_idle)
            self._all.finished(self)
            self._counts_bytes = True

    def whole(self) -> None:
        """A request is there, and the last one: its answer ends the connection, and what follows it is read by nobody.

        It is taken off the socket all the same, for behind it is the end that tells that the client has left.
        """
        self._whole = True
        self._all.keep(self)
        if self._transport is not None:
            self._transport.resume_reading()

    def end(self, why: Refusal | None = None) -> None:
        """Close at once."""
        if self._transport is None:
            return
        if why is not None:
            self._all.refusals.count(why, self.address)
        self._all.leave(self)
        self._transport.abort()

    def _end_idle(self) -> None:
        is_sending = self._transport is not None and self._transport.get_write_buffer_size() > 0
        self.end(Refusal.SLOW if is_sending else None)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if self._whole:
            return
        piece = bytes(memoryview(self._piece)[:nbytes])
        self._count(piece)
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._behind.data_received(piece)
        except Exception as error:  # else asyncio logs a traceback for each such connection
            self._all.refusals.failed(error, self.address)
            self.end()

    def _count(self, piece: bytes) -> None:
        if not self._counts_bytes:
            return
        self._last += piece
        if self._bounds.takes_bodies and _HEAD_ENDS.search(self._last):
            self._counts_bytes = False
            self._all.finished(self)
        else:
            self._all.read(self, len(piece))
        self._last = self._last[-_END_BYTES:]

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def pause_writing(self) -> None:
        self._stalled = asyncio.get_running_loop().call_later(self._bounds.stalled_seconds, self.end, Refusal.SLOW)
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        _cancel(self._stalled)
        self._behind.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._stalled)
        self._all.leave(self)
        if self._transport is not None:
            self._behind.connection_lost(error)
            self._transport = None


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
