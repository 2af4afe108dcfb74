"""The operator's ports under attack: probes are answered, the Lease is renewed, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from holdfast.control.tick.leadership import Elector, LeaseTiming
from holdfast.page.board import Board
from holdfast.runtime import ports
from holdfast.runtime.ports import Ports
from holdfast.runtime.settings import Settings
from holdfast.runtime.telemetry import Telemetry
from tests.fakes import FakeApi

CONNECTIONS = 2_000
PROBE_SECONDS = 10.0
"""A leader that cannot renew its Lease for so long ends; three failed probes take 30 s."""
MOST_GROWTH_BYTES = 48 * 2**20
CLIENT_ADDRESS = "127.0.0.2"
AT_ONCE = 100
"""Fewer than the backlog of a port: TCP tries a connection again after a second only."""

HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
HALF_HEAD = HEAD + b"X: y\r\n"
FAT_HEAD = HEAD + (b"X: " + b"y" * 8000 + b"\r\n") * 6
ENDLESS_BODY = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"y" * 48_000
NEVER_READ = (HEAD + b"\r\n") * 4
NO_HTTP = b"\x16\x03\x01\r\n\r\n"


@dataclass
class Operator:
    """Its ports and its Lease, on the loop that is attacked."""

    ports: Ports
    elector: Elector
    api: FakeApi
    telemetry: Telemetry

    async def is_served(self, port: int, path: str) -> bool:
        """Whether a client with an address of its own is answered in time, on a new connection."""
        connector = aiohttp.TCPConnector(local_addr=(CLIENT_ADDRESS, 0), force_close=True)
        patience = aiohttp.ClientTimeout(PROBE_SECONDS)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=patience) as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status == 200 and bool(await answer.read())

    def refused(self) -> float:
        samples = (sample for family in self.telemetry.refusals.collect() for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name.endswith("_total"))


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    given = Settings(prometheus_url="http://p", http_port=0, health_port=0)
    board, api = Board(), FakeApi()
    telemetry = Telemetry(board=board)
    timing = LeaseTiming(retry_seconds=0.02)
    elector = Elector(
        api, namespace="ops", name="holdfast", identity="a", timing=timing, monotonic=time.monotonic, wall=time.time
    )
    async with ports.opened(given, telemetry, lambda: True, board) as opened, asyncio.TaskGroup() as tasks:
        electing = tasks.create_task(elector.run())
        await elector.acquired()
        yield Operator(opened, elector, api, telemetry)
        assert not electing.done()
        electing.cancel()


async def flood(port: int, sent: bytes) -> list[socket.socket]:
    """Open the connections and leave them open."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def opened() -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        async with at_once:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
                made.send(sent)
        return made

    return await asyncio.gather(*(opened() for _ in range(CONNECTIONS)))


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    ("attacked", "sent"),
    [
        pytest.param("http", HALF_HEAD, id="half a head"),
        pytest.param("http", FAT_HEAD, id="fat heads"),
        pytest.param("http", ENDLESS_BODY, id="endless bodies"),
        pytest.param("http", NEVER_READ, id="answers that are never read"),
        pytest.param("http", NO_HTTP, id="no HTTP"),
        pytest.param("status", HALF_HEAD, id="the status page"),
        pytest.param("health", HALF_HEAD, id="the port of the probes"),
    ],
)
async def test_2000_connections_end_neither_probes_nor_the_lease(
    attacked: str, sent: bytes, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    before = memory_bytes()
    attack = asyncio.create_task(flood(getattr(operator.ports, attacked), sent))
    while not attack.done():
        renewals = len(operator.api.writes())
        assert await operator.is_served(operator.ports.health, "/healthz")
        assert await operator.is_served(operator.ports.http, "/metrics")
        assert operator.elector.leading
        async with asyncio.timeout(PROBE_SECONDS):
            while len(operator.api.writes()) == renewals:
                await asyncio.sleep(0.01)
    attackers = await attack
    assert await operator.is_served(operator.ports.health, "/readyz")
    assert memory_bytes() - before < MOST_GROWTH_BYTES
    assert operator.refused() >= CONNECTIONS - 2 * ports.BOUNDS.connections
    assert len(caplog.records) <= 2
    for each in attackers:
        each.close()


async def test_probes_have_a_port_of_their_own(operator: Operator) -> None:
    for path in ("/metrics", "/decisions/prod/chat", "/"):
        assert not await operator.is_served(operator.ports.health, path)
    for path in ("/healthz", "/readyz"):
        assert await operator.is_served(operator.ports.health, path)


async def test_the_status_page_is_served_where_there_is_one(operator: Operator) -> None:
    assert await operator.is_served(operator.ports.status, "/")
    given = Settings(prometheus_url="http://p", http_port=0, health_port=0)
    async with ports.opened(given, Telemetry(), lambda: True) as opened:
        assert opened.status == 0
