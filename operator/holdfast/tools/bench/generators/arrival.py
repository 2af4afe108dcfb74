"""A plain TCP connection whose bytes come with the moment at which the kernel received them.

While an engine hands a step's tokens to a thousand streams, a client reads the last of them milliseconds after the
first. By the kernel's clock (SO_TIMESTAMPNS of Linux) that delay is not taken for the engine's. Packets of one
connection that wait together have the stamp of the last.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Protocol

SO_TIMESTAMPNS = 35
READ_BYTES, ANCILLARY_BYTES = 65_536, 64
LONGEST_SECONDS = 30.0
"""A stamp that is older is none: somebody has set the machine's clock."""

_TIMESPEC = struct.Struct("@qq")


class Reader(Protocol):
    """Who hears of a connection's bytes, and of its end."""

    def received(self, data: bytes, at: float) -> None:
        """Bytes that were there at a moment of the event loop's clock."""

    def connection_lost(self, error: Exception | None) -> None:
        """There will be no more."""


class StampedTransport:
    """As much of an asyncio transport as a client needs."""

    def __init__(self, sock: socket.socket, reader: Reader) -> None:
        self._sock, self._reader = sock, reader
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self._closing = False
        self._loop.add_reader(sock.fileno(), self._read)

    def is_closing(self) -> bool:
        """Whether it has ended."""
        return self._closing

    def write(self, data: bytes) -> None:
        """Send all of it, now or as soon as the network takes it."""
        if self._closing:
            return
        waits = bool(self._unsent)
        self._unsent += data
        if not waits:
            self._loop.add_writer(self._sock.fileno(), self._write)
            self._write()

    def abort(self) -> None:
        """End it."""
        self._end(None)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._end(error)
        if not self._unsent:
            self._loop.remove_writer(self._sock.fileno())

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._end(error)
        if not data:
            return self._end(None)
        self._reader.received(data, moment(ancillary, self._loop.time(), time.time()))

    def _end(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        # As asyncio's transports do: never from within the reader's own call.
        self._loop.call_soon(self._reader.connection_lost, error)


def moment(ancillary: Sequence[tuple[int, int, bytes]], now: float, wall: float) -> float:
    """The kernel's stamp on the event loop's clock; `now` where there is none, or none that can be."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            ago = wall - (seconds + nanoseconds * 1e-9)
            return now - ago if 0.0 <= ago <= LONGEST_SECONDS else now
    return now


async def stamped_socket(host: str, port: int) -> socket.socket | None:
    """A connected socket that stamps; None where the machine has no stamps. OSError where nobody answers."""
    if sys.platform != "linux":
        return None
    problem: OSError = OSError(f"no address of {host}")
    for family, kind, protocol, _, address in await _addresses(host, port):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


async def _addresses(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """Of a name, asked for each time: a name may stand for several servers. Of a number, at once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found  # type: ignore[return-value]
