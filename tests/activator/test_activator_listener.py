"""The way into an activator: who never asks keeps nobody out, and who leaves is missed at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from yarl import URL

from holdfast.activator import listener, server
from holdfast.activator.listener import Door, in_time
from tests.activator.test_activator_http import running

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"
KEEPALIVE = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
MANY_SMALL = POST * 600
ONE_LARGE = POST.replace(b"Length: 2", b"Length: 900000") + b"x" * 900_000

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(url: str) -> Client:
    return await asyncio.open_connection("127.0.0.1", URL(url).port)


@contextlib.asynccontextmanager
async def hall(most: int = 2, head_seconds: float = 60.0) -> AsyncIterator[str]:
    """A server that tells at once how it looks after a connection, behind a door."""

    async def answer(request: web.Request) -> web.Response:
        ours = request.get_extra_info("socket")
        options = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), *((socket.IPPROTO_TCP, name) for name in KEEPALIVE))
        return web.Response(text=" ".join(str(ours.getsockopt(*option)) for option in options))

    app = web.Application(middlewares=[in_time])
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    assert runner.server is not None
    made = Door(runner.server, most, head_seconds)
    listener = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await runner.cleanup()


@pytest.mark.parametrize("more", [b"", POST, MANY_SMALL, ONE_LARGE], ids=["none", "one", "many", "large"])
@pytest.mark.parametrize("at_once", [True, False], ids=["with it", "later"])
async def test_a_client_that_leaves_frees_its_place_whatever_it_sent_behind_its_request(
    more: bytes, at_once: bool
) -> None:
    async with running() as it:
        _, writer = await connected(it.url)
        writer.write(POST + (more if at_once else b""))
        await it.holding(1)
        writer.write(b"" if at_once else more)
        await writer.drain()
        writer.close()
        assert sum((await it.holding(0)).gone) == 1
        await it.server.emptied()


async def test_what_follows_a_request_is_answered_by_the_engines_and_not_by_the_activator() -> None:
    async with running() as it:
        reader, writer = await connected(it.url)
        writer.write(MANY_SMALL)
        await it.holding(1)
        await it.engine.start()
        assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        writer.close()
        assert len(it.engine.seen) == 1


@pytest.mark.parametrize("sent", [b"", b"P", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: "])
async def test_a_connection_that_does_not_ask_in_time_is_closed(sent: bytes) -> None:
    async with hall(head_seconds=0.05) as url:
        reader, writer = await connected(url)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_one_that_drips_its_head_wins_no_time_by_it() -> None:
    async with hall(head_seconds=0.1) as url:
        reader, writer = await connected(url)
        writer.write(b"GET / HTTP/1.1\r\n")
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(60.0):
            while not ended.done():
                with contextlib.suppress(ConnectionError):
                    writer.write(b"X: y\r\n")
                    await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            assert await ended == b""


async def test_a_request_that_waits_for_long_is_no_connection_that_does_not_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.5)  # enough for a head on a crowded machine
    async with running() as it:
        asked = it.post()
        await it.holding(1)
        assert not (await asyncio.wait([asked], timeout=0.6))[0]
        await it.engine.start()
        assert (await asked)[0] == 200


async def test_who_has_not_asked_for_longest_makes_room_for_the_next() -> None:
    async with hall(most=2) as url:
        (first, first_writer), (_, second_writer), (third, third_writer) = [await connected(url) for _ in range(3)]
        assert await first.read() == b""
        third_writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await third.read()).startswith(b"HTTP/1.1 200")
        for writer in (first_writer, second_writer, third_writer):
            writer.close()


async def test_who_is_held_makes_room_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 1)
    async with running() as it:
        _, held = await connected(it.url)
        held.write(POST)
        await it.holding(1)
        late, late_writer = await connected(it.url)
        assert await late.read() == b""
        assert (await it.told()).waiting == 1
        for writer in (held, late_writer):
            writer.close()
        await it.holding(0)


async def test_those_whose_requests_never_end_take_no_place() -> None:
    async with running(most_requests=1) as it:
        halves = [await connected(it.url) for _ in range(3)]
        for _, writer in halves:
            writer.write(HALF)
        asked = it.post()
        await it.holding(1)
        halves[0][1].write(b"whole!")
        assert b" 503 " in await halves[0][0].readline()
        await it.engine.start()
        assert (await asked)[0] == 200
        for _, writer in halves:
            writer.close()
        await it.server.emptied()


async def test_those_who_send_slowly_keep_no_room_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(most_bytes=1000) as it:
        slow = await connected(it.url)
        slow[1].write(HALF.replace(b"10", b"2000").replace(b"half", b"x" * 900))
        while it.server._room.has(900):
            await asyncio.sleep(0.01)
        assert (await it.post(data=b"x" * 200))[0] == 503, "it may still come to its end"
        monkeypatch.setattr(server, "CROWDED_SECONDS", 0.0)
        asked = it.post(data=b"x" * 200)
        assert b" 408 " in await slow[0].readline()
        await it.holding(1)
        await it.engine.start()
        assert (await asked)[0] == 200
        slow[1].close()
        await it.server.emptied()


async def test_a_client_whose_node_is_gone_is_asked_for() -> None:
    async with hall() as url:
        reader, writer = await connected(url)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n1 30 10 3")
        writer.close()
