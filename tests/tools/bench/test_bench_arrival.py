"""The moment at which bytes came, by the kernel's clock."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import time

import pytest

from holdfast.tools.bench.generators.arrival import SO_TIMESTAMPNS, StampedTransport, moment, stamped_socket

STAMP = (socket.SOL_SOCKET, SO_TIMESTAMPNS, struct.pack("@qq", 1000, 500_000_000))


@pytest.mark.parametrize(
    ("ancillary", "wall", "at"),
    [
        ([STAMP], 1000.75, 49.75),
        ([], 1000.75, 50.0),
        ([(1, 99, b"x"), STAMP], 1001.5, 49.0),
        ([(STAMP[0], STAMP[1], b"short")], 1000.75, 50.0),
        ([STAMP], 1000.0, 50.0),  # the machine's clock was set back
        ([STAMP], 9000.0, 50.0),  # and forward
        ([STAMP], math.nan, 50.0),
    ],
)
def test_a_stamp_becomes_a_moment_of_the_loops_clock(
    ancillary: list[tuple[int, int, bytes]], wall: float, at: float
) -> None:
    assert moment(ancillary, 50.0, wall) == pytest.approx(at)


class Heard:
    """Keeps what a connection hands over."""

    def __init__(self) -> None:
        self.parts: list[tuple[bytes, float]] = []
        self.ended = asyncio.Event()

    def received(self, data: bytes, at: float) -> None:
        self.parts.append((data, at))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


async def read_late() -> tuple[StampedTransport, float, float]:
    """A connection whose bytes were read late: when they came by its word, and when they were read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"first")
        await writer.drain()
        # Nobody reads meanwhile: one loop serves both.
        time.sleep(0.2)
        written.append(asyncio.get_running_loop().time())
        # Packets that wait together have the stamp of the last, and the end is one: it comes once all is read.
        await reader.read(1)
        writer.close()

    written: list[float] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        sock = await stamped_socket(*server.sockets[0].getsockname())
        assert sock is not None
        heard = Heard()
        transport = StampedTransport(sock, heard)
        transport.write(b"x")
        while not heard.parts:
            await asyncio.sleep(0.01)
        transport.write(b"y")
        await heard.ended.wait()
    ((data, at),) = heard.parts
    assert data == b"first"
    return transport, at, written[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")
async def test_bytes_that_are_read_late_have_the_time_of_their_arrival() -> None:
    with socket.socket() as asking:
        # The kernel begins to give stamps a moment after a first socket asks, and goes on as long as one does.
        asking.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for _ in range(20):
            transport, at, written = await read_late()
            assert transport.is_closing()
            if at < written - 0.1:
                return
    raise AssertionError(f"read {written:.3f}, said to have come {at:.3f}")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")
async def test_what_the_network_does_not_take_at_once_is_sent_later() -> None:
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readexactly(8 * 2**20))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        sock = await stamped_socket(*server.sockets[0].getsockname())
        assert sock is not None
        transport = StampedTransport(sock, Heard())
        for _ in range(8):
            transport.write(b"y" * 2**20)
        assert await received == b"y" * 8 * 2**20
        transport.abort()
        transport.write(b"too late")


async def test_nobody_listening_is_an_error_of_the_system() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        if sys.platform == "linux":
            with pytest.raises(ConnectionRefusedError):
                await stamped_socket(*free.getsockname())
