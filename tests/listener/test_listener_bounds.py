"""A port on real sockets: clients that never ask, never finish or never read take nothing from others for long."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from holdfast.listener import refusals, serve
from holdfast.listener.connections import Bounds
from holdfast.listener.refusals import Refusals
from holdfast.listener.serve import listening

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HALF_HEAD = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
LARGE = bytes(range(256)) * 64 * 1024
OTHER_ADDRESS = "127.0.0.2"
KEEPALIVE = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Hall:
    """A port, what it answers, and what it refused."""

    port: int = 0
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def client(self, sent: bytes = b"", address: str = "127.0.0.1") -> asyncio.StreamReader:
        return (await self.both(sent, address))[0]

    async def both(self, sent: bytes = b"", address: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self.clients.append(writer)
        writer.write(sent)
        return reader, writer

    def refused(self, why: str) -> float | None:
        return self.registry.get_sample_value("holdfast_port_refusals_total", {"port": "hall", "reason": why})

    async def has_refused(self, why: str, number: float) -> None:
        async with asyncio.timeout(60.0):
            while self.refused(why) != number:
                await asyncio.sleep(0.01)

    async def works(self) -> bool:
        return (await cut_off(await self.client(LAST_GET))).startswith(b"HTTP/1.1 200")


async def _small(request: web.Request) -> web.Response:
    ours = request.get_extra_info("socket")
    options = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), *((socket.IPPROTO_TCP, name) for name in KEEPALIVE))
    return web.Response(text=" ".join(str(ours.getsockopt(*option)) for option in options))


async def _large(_: web.Request) -> web.Response:
    return web.Response(body=LARGE, headers={"Content-Type": "application/json"})


@contextlib.asynccontextmanager
async def hall(**bounds: Any) -> AsyncIterator[Hall]:
    app, it = web.Application(), Hall()
    app.router.add_get("/large", _large)
    app.router.add_route("*", "/{path:.*}", _small)
    refused = Refusals("hall", refusals.counter(it.registry, "holdfast"))
    async with listening(app, "127.0.0.1", 0, Bounds(**bounds), refused) as it.port:
        try:
            yield it
        finally:
            for writer in it.clients:
                writer.close()


async def cut_off(reader: asyncio.StreamReader) -> bytes:
    """What came before the connection ended."""
    found = b""
    async with asyncio.timeout(60.0):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                found += piece
    return found


@pytest.mark.parametrize("sent", [b"", b"P", HALF_HEAD])
async def test_a_connection_that_does_not_ask_in_time_is_closed(sent: bytes) -> None:
    async with hall(head_seconds=0.05) as it:
        assert await cut_off(await it.client(sent)) == b""
        assert it.refused("late") == 1


async def test_one_that_drips_its_head_wins_no_time_by_it() -> None:
    async with hall(head_seconds=0.1) as it:
        reader, writer = await it.both(b"GET / HTTP/1.1\r\n")
        ended = asyncio.create_task(cut_off(reader))
        async with asyncio.timeout(60.0):
            while not ended.done():
                with contextlib.suppress(ConnectionError):
                    writer.write(b"X: y\r\n")
                    await writer.drain()
                await asyncio.sleep(0.01)
        assert await ended == b""


@pytest.mark.parametrize("more", [b"", HALF_HEAD])
async def test_a_connection_that_asks_no_more_is_closed(more: bytes) -> None:
    async with hall(idle_seconds=0.1) as it:
        assert (await cut_off(await it.client(GET + more))).startswith(b"HTTP/1.1 200")


async def test_a_client_that_asks_again_keeps_its_connection() -> None:
    async with hall(head_seconds=0.5) as it:
        reader, writer = await it.both(GET)
        await reader.readuntil(b"\r\n\r\n1 30 10 3")
        assert not (await asyncio.wait([asyncio.create_task(reader.read())], timeout=0.6))[0]
        reader, writer = await it.both(GET)
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n1 30 10 3")
            writer.write(GET)


async def test_of_one_address_the_connection_that_asked_longest_ago_makes_room() -> None:
    async with hall(connections=2) as it:
        first, second, third = [await it.client() for _ in range(3)]
        assert await cut_off(first) == b""
        it.clients[2].write(LAST_GET)
        assert (await cut_off(third)).startswith(b"HTTP/1.1 200")
        assert it.refused("crowded") == 1
        it.clients[1].write(LAST_GET)
        assert (await cut_off(second)).startswith(b"HTTP/1.1 200")


async def test_a_client_with_many_connections_shuts_nobody_else_out() -> None:
    async with hall(connections=8) as it:
        reader, writer = await it.both(GET, OTHER_ADDRESS)
        await reader.readuntil(b"1 30 10 3")
        many = [await it.client() for _ in range(50)]
        await asyncio.gather(*(cut_off(each) for each in many[:43]))
        writer.write(LAST_GET)
        assert (await cut_off(reader)).startswith(b"HTTP/1.1 200")
        assert (await cut_off(await it.client(LAST_GET, OTHER_ADDRESS))).startswith(b"HTTP/1.1 200")


async def test_the_unfinished_heads_of_all_clients_are_bounded() -> None:
    """128 lines of 8 kB each are a valid head: a hundred of them took 200 MB."""
    async with hall(unfinished_bytes=2**20) as it:
        small = await it.client(HALF_HEAD)
        fat = [await it.client(HALF_HEAD + (b"y" * 8000 + b"\r\nX: ") * 60) for _ in range(4)]
        await it.has_refused("large", 2)
        ended = [asyncio.create_task(cut_off(each)) for each in fat]
        assert len((await asyncio.wait(ended, timeout=0.5))[0]) == 2
        it.clients[0].write(b"y\r\nConnection: close\r\n\r\n")
        assert (await cut_off(small)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("before", [b"", b"\r\n\r\n\r\n"], ids=["head", "head after empty lines"])
@pytest.mark.parametrize("takes_bodies", [True, False])
async def test_a_fat_head_is_bounded_also_where_bodies_may_be_large(before: bytes, takes_bodies: bool) -> None:
    async with hall(unfinished_bytes=2**16, takes_bodies=takes_bodies) as it:
        reader = await it.client(before + HALF_HEAD + (b"y" * 8000 + b"\r\nX: ") * 20)
        assert await cut_off(reader) == b""
        assert it.refused("large") == 1


@pytest.mark.parametrize(("takes_bodies", "status"), [(True, b"HTTP/1.1 200"), (False, b"")])
async def test_a_body_counts_where_nobody_reads_bodies(takes_bodies: bool, status: bytes) -> None:
    async with hall(unfinished_bytes=2**12, takes_bodies=takes_bodies) as it:
        body = b"y" * 2**16
        head = LAST_GET.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert (await cut_off(await it.client(head + body))).startswith(status)


async def test_what_was_answered_counts_no_more() -> None:
    async with hall(unfinished_bytes=len(GET) + 10) as it:
        reader, writer = await it.both()
        for _ in range(5):
            writer.write(GET)
            await reader.readuntil(b"1 30 10 3")


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    async with hall(stalled_seconds=0.1) as it:
        await it.client(GET.replace(b"/ ", b"/large ", 1))
        await it.has_refused("slow", 1)


async def test_an_answer_that_is_not_read_takes_little_memory() -> None:
    async with hall() as it:
        reader = await it.client(GET.replace(b"/ ", b"/large ", 1))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(LARGE) in head
        assert b"Content-Type: application/json\r\n" in head
        (waiting,) = (
            transport.get_write_buffer_size()
            for transport in _transports()
            if transport.get_extra_info("sockname")[1] == it.port
        )
        assert waiting < 256 * 1024
        assert await reader.readexactly(len(LARGE)) == LARGE


def _transports() -> list[Any]:
    """Of all sockets that the loop watches."""
    loop: Any = asyncio.get_running_loop()
    return list(loop._transports.values())


async def test_the_head_of_a_large_answer_has_its_length() -> None:
    async with hall() as it:
        found = await cut_off(await it.client(LAST_GET.replace(b"GET /", b"HEAD /large")))
        assert b"Content-Length: %d\r\n" % len(LARGE) in found
        assert found.endswith(b"\r\n\r\n")


async def test_a_client_whose_node_is_gone_is_asked_for() -> None:
    async with hall() as it:
        assert (await cut_off(await it.client(LAST_GET))).endswith(b"\r\n\r\n1 30 10 3")


@pytest.mark.parametrize(
    ("soft", "hard", "most"), [(256, 256, 64), (1024, 4096, 1024), (64, resource.RLIM_INFINITY, 4096)]
)
async def test_connections_leave_descriptors_for_the_api_server(
    soft: int, hard: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert serve._affordable(Bounds(connections=4096)).connections == most
    assert [limits[1] for limits in given] == [hard] * (soft != hard)
