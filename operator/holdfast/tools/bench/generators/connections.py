"""Connections to an endpoint: opened when none is idle, kept alive, each with one request at a time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from holdfast.tools.bench.generators.arrival import StampedTransport, stamped_socket
from holdfast.tools.bench.generators.flight import Flight
from holdfast.tools.bench.generators.http1 import BadHttp, ResponseReader
from holdfast.tools.bench.generators.sse import BadStream


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection goes to."""

    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> Origin:
        """Of an http or https address."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or (443 if tls else 80), tls)


class Connection(asyncio.Protocol):
    """One connection; `released` hears of it once it is idle again, `gone` once it has ended."""

    def __init__(
        self, origin: Origin, released: Callable[[Connection], None], gone: Callable[[Connection], None]
    ) -> None:
        self.origin = origin
        self._released, self._gone = released, gone
        self._clock = asyncio.get_running_loop().time
        self._transport: asyncio.Transport | StampedTransport | None = None
        self._flight: Flight | None = None
        self._reader: ResponseReader | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, flight: Flight, request: bytes) -> None:
        """Send a request and hand its answer to the flight."""
        assert self._transport is not None
        self._flight, self._reader = flight, ResponseReader(flight)
        self._transport.write(request)

    def close(self) -> None:
        """End the connection; what is under way on it hears nothing more."""
        self._flight = self._reader = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def attach(self, transport: StampedTransport) -> None:
        """Use a connection that says when its bytes came."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Without the kernel's stamp, the moment is taken before anything is looked at."""
        self.received(data, self._clock())

    def received(self, data: bytes, at: float) -> None:
        """Read what came at this moment."""
        flight, reader = self._flight, self._reader
        if flight is None or reader is None:
            return self.close()  # nobody asked for anything
        flight.now = max(flight.now, at)
        try:
            reader.feed(data)
        except (BadHttp, BadStream) as problem:
            self.close()
            return flight.garbled(problem)
        if reader.is_done:
            self._flight = self._reader = None
            if reader.is_clean and reader.head is not None and reader.head.keeps_alive and self.is_open:
                self._released(self)
            else:
                self.close()

    def connection_lost(self, error: Exception | None) -> None:
        flight, reader = self._flight, self._reader
        self._flight = self._reader = self._transport = None
        self._gone(self)
        if flight is not None and reader is not None:
            flight.now = self._clock()
            if not reader.eof():
                flight.lost(error)


class Connections:
    """All connections of a run."""

    def __init__(self, ca_file: str = "") -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self.opened = self.stamped = 0
        self._tls: ssl.SSLContext | None = None
        self._ca_file = ca_file

    def idle(self, origin: Origin) -> Connection | None:
        """An open connection that waits for a request, the last used first."""
        waiting = self._idle.get(origin, [])
        while waiting:
            connection = waiting.pop()
            if connection.is_open:
                return connection
        return None

    async def connect(self, origin: Origin) -> Connection:
        """A new connection; OSError where none can be opened."""
        connection = Connection(origin, self._release, self._open.discard)
        sock = None if origin.tls else await stamped_socket(origin.host, origin.port)
        if sock is not None:
            connection.attach(StampedTransport(sock, connection))
            self.stamped += 1
        else:
            tls = self._context() if origin.tls else None
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        self.opened += 1
        self._open.add(connection)
        return connection

    def close(self) -> None:
        """End all of them."""
        for connection in tuple(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    def _release(self, connection: Connection) -> None:
        self._idle.setdefault(connection.origin, []).append(connection)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._ca_file or None)
        return self._tls
