"""What is no HTTP is counted; the log has one line a minute of it, whatever a client sends."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from holdfast.listener import refusals
from holdfast.listener.connections import Bounds
from holdfast.listener.refusals import LOG_SECONDS, Refusal, Refusals
from holdfast.listener.serve import listening
from tests.fakes import ManualClock
from tests.listener.test_listener_bounds import Hall, cut_off, hall

HOST = b"Host: x\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "binary": b"\x00\x01\x02\xff\xfe\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x55" * 100 + b"\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "unknown version": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "unknown method": b"G(T / HTTP/1.1\r\n" + HOST + b"\r\n",
    "target of another kind": b"GET http://[::1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "space in a name": b"GET / HTTP/1.1\r\n" + HOST + b"a b: c\r\n\r\n",
    "null in a value": b"GET / HTTP/1.1\r\n" + HOST + b"X: \x00\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
    "length that is no number": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: NaN\r\n\r\n",
    "endless length": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "length and chunks": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "long target": b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "long header": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 10_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 200 + b"\r\n",
    "size of a chunk": CHUNKED + b"zz\r\n",
    "negative chunk": CHUNKED + b"-1\r\n",
    "end of a chunk": CHUNKED + b"1\r\nxxxx\r\n",
}


async def _read(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


async def _fails(_: web.Request) -> web.Response:
    raise UnicodeError("unforeseen")


@pytest.fixture
async def it() -> AsyncIterator[Hall]:
    app, made = web.Application(), Hall()
    app.router.add_route("*", "/fails", _fails)
    app.router.add_route("*", "/{path:.*}", _read)
    refused = Refusals("hall", refusals.counter(made.registry, "holdfast"))
    async with listening(app, "127.0.0.1", 0, Bounds(), refused) as made.port:
        yield made
        for writer in made.clients:
            writer.close()


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_request_is_counted_and_logs_no_traceback(
    kind: str, it: Hall, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await cut_off(await it.client(MALFORMED[kind]))
    assert answer == b"" or answer.startswith(b"HTTP/1.0 400") or answer.startswith(b"HTTP/1.1 400")
    assert it.refused("malformed") == 1
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert "port hall refused requests that are not valid HTTP: 1 " in record.message
    assert len(record.message) < 600
    assert record.message.isprintable()
    assert await it.works()


async def test_random_bytes_fill_no_log(it: Hall, caplog: pytest.LogCaptureFixture) -> None:
    noise = random.Random(51)
    for _ in range(200):
        good = bytearray(noise.choice(list(MALFORMED.values()))[:2000])
        for _ in range(noise.randrange(8)):
            good[noise.randrange(len(good))] = noise.randrange(256)
        reader, writer = await it.both(bytes(good))
        writer.write_eof()
        await cut_off(reader)
    assert len(caplog.records) <= 2
    assert it.refused("failed") == 0
    assert await it.works()


async def test_an_error_of_ours_is_logged_with_its_traceback_once(it: Hall, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        answer = await cut_off(await it.client(b"GET /fails HTTP/1.0\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.0 500")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert it.refused("failed") == 5


def test_the_log_has_one_line_a_minute_with_the_number(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    refused = Refusals("http", refusals.counter(CollectorRegistry(), "holdfast"), clock)
    for _ in range(13):
        refused.count(Refusal.MALFORMED, "10.0.0.7", ValueError("x\ny\x1b[31m" * 1000))
    clock.advance(LOG_SECONDS - 1.0)
    refused.count(Refusal.MALFORMED, "10.0.0.7")
    assert len(caplog.records) == 1
    clock.advance(1.0)
    refused.count(Refusal.MALFORMED, "10.0.0.8")
    first, second = (record.message for record in caplog.records)
    assert ": 1 since the last such line; the last came from 10.0.0.7 (ValueError: " in first
    assert ": 14 since the last such line; the last came from 10.0.0.8. " in second
    assert first.isprintable()


def test_each_reason_is_shown_as_0_from_the_start() -> None:
    registry = CollectorRegistry()
    Refusals("http", refusals.counter(registry, "holdfast"))
    for why in Refusal:
        labels = {"port": "http", "reason": why.value}
        assert registry.get_sample_value("holdfast_port_refusals_total", labels) == 0


async def test_late_and_slow_clients_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async with hall(head_seconds=0.01) as late:
        for _ in range(3):
            await cut_off(await late.client())
        await late.has_refused("late", 3)
    assert caplog.records == []
