"""The way into an activator: who never asks keeps nobody out, and who leaves is missed at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from yarl import URL

from holdfast.activator import server
from holdfast.activator.server import FRONT
from tests.activator.test_activator_http import running

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"
MANY_SMALL = POST * 600
ONE_LARGE = POST.replace(b"Length: 2", b"Length: 900000") + b"x" * 900_000

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(url: str) -> Client:
    return await asyncio.open_connection("127.0.0.1", URL(url).port)


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


async def test_a_request_that_waits_for_long_is_no_connection_that_does_not_ask() -> None:
    async with running(front=replace(FRONT, head_seconds=0.5)) as it:  # enough for a head on a crowded machine
        asked = it.post()
        await it.holding(1)
        assert not (await asyncio.wait([asked], timeout=0.6))[0]
        await it.engine.start()
        assert (await asked)[0] == 200


async def test_who_is_held_makes_room_for_nobody() -> None:
    async with running(front=replace(FRONT, connections=1)) as it:
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


@pytest.mark.parametrize("to_admin", [True, False], ids=["admin", "http"])
async def test_malformed_requests_are_counted_and_fill_no_log(to_admin: bool, caplog: pytest.LogCaptureFixture) -> None:
    """13 of them were 13 tracebacks."""
    async with running() as it:
        for _ in range(13):
            reader, writer = await connected(it.admin_url if to_admin else it.url)
            writer.write(POST.replace(b"Length: 2", b"Length: two"))
            assert b" 400 " in await reader.readline()
            writer.close()
        (record,) = caplog.records
        assert record.exc_info is None
        async with it.client.get(f"{it.admin_url}/metrics") as answer:
            shown = await answer.text()
        port = "admin" if to_admin else "http"
        assert f'holdfast_activator_port_refusals_total{{port="{port}",reason="malformed"}} 13.0\n' in shown


async def test_a_malformed_body_wakes_nobody_and_is_no_error_of_the_activator() -> None:
    async with running() as it:
        reader, writer = await connected(it.url)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        assert (await it.told()).quiet_seconds == float("inf")
        await it.server.emptied()
