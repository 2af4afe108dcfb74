"""Holdfast's own load generator against servers that do what real ones do, well or badly."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from holdfast.tools.bench.generators.client import OwnGenerator, delay_exceeded
from holdfast.tools.bench.load.load_generator import Api, Endpoint, Load, Planned, PromptKind, Run
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord
from tests.fakes import RawServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":33,"completion_tokens":7}}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = " word", finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode() + b"\n\n"


def stream(*events: bytes) -> list[bytes]:
    """A whole answer, one chunk per event."""
    return [HEAD, *map(chunk, events), END]


def plain(status: str, body: bytes = b"", *fields: bytes) -> list[bytes]:
    extra = b"".join(field + b"\r\n" for field in fields)
    return [b"HTTP/1.1 " + status.encode() + b"\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body]


GOOD = stream(token(), token(), token(finish="length"), USAGE, DONE)


async def send(url: str, planned: Iterable[Planned], load: dict[str, Any] | None = None, **endpoint: Any) -> Run:
    known = {"timeout_seconds": 60.0, **endpoint}
    given = Load(planned, 0, **{"drain_seconds": 60.0, **(load or {})})
    return await OwnGenerator().run(Endpoint(url, "chat", **known), given, lambda record: None)


async def ask(
    *script: Sequence[bytes], count: int = 1, load: dict[str, Any] | None = None, **endpoint: Any
) -> list[RequestRecord]:
    """So many requests, one after another."""
    async with RawServer(*script) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)] * count, {"concurrency": 1, **(load or {})}, **endpoint)
    return list(run.records)


async def test_a_stream_is_timed_event_by_event_and_counted_by_its_usage() -> None:
    (one,) = await ask(stream(ROLE, token(), token(""), token(), USAGE, DONE))
    assert (one.outcome, len(one.token_at), one.output_tokens, one.prompt_tokens) == (RequestOutcome.FINISHED, 2, 7, 33)
    assert one.counted
    assert one.sent_at <= one.token_at[0] <= one.token_at[1] <= one.ended_at


async def test_without_usage_events_are_counted_and_it_is_told() -> None:
    (one,) = await ask(stream(token(), token(), DONE))
    assert (one.outcome, one.output_tokens, one.counted, one.prompt_tokens) == (RequestOutcome.FINISHED, 2, False, 4)


@pytest.mark.parametrize(
    "events",
    [
        [b": ping\n\n", token(), b": ping\n\n", DONE],
        [token().replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")],
        [token(finish="stop")],
        [token(), b"data: [DONE]\n"],
        [token(), DONE, b"data: no json after the end\n\n"],
        [token()[:9], token()[9:], DONE],
        [b"data:" + token()[6:], b"data:[DONE]\n\n"],
    ],
)
async def test_streams_as_servers_write_them_are_read(events: list[bytes]) -> None:
    (one,) = await ask(stream(*events))
    assert (one.outcome, len(one.token_at), one.error) == (RequestOutcome.FINISHED, 1, "")


async def test_text_that_is_cut_in_the_midst_of_a_character_is_read() -> None:
    event = b'data: {"choices":[{"text":"\xc5\xbeluva"}]}\n\n'
    (one,) = await ask(stream(event[:28], event[28:], DONE))
    assert (one.outcome, len(one.token_at)) == (RequestOutcome.FINISHED, 1)


async def test_a_stream_that_names_no_type_is_a_stream_all_the_same() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    (one,) = await ask([head, token(), DONE, RawServer.CLOSE])
    assert (one.outcome, len(one.token_at)) == (RequestOutcome.FINISHED, 1)


FAILURES: list[tuple[list[bytes], RequestOutcome, str]] = [
    (stream(DONE), RequestOutcome.EMPTY, "without any text"),
    (stream(ROLE, USAGE, DONE), RequestOutcome.EMPTY, "without any text"),
    (plain("429 Too Many", b"slow down", b"Retry-After: 7"), RequestOutcome.RATE_LIMITED, "status 429: slow down"),
    (plain("503 Busy", b'{"error": "full"}'), RequestOutcome.OVERLOADED, "full"),
    (plain("500 Oh", b"a\n b"), RequestOutcome.HTTP_ERROR, "status 500: a b"),
    (plain("400 Bad", b"ignore_eos is unknown"), RequestOutcome.HTTP_ERROR, "ignore_eos is unknown"),
    (plain("307 Moved", b"", b"Location: http://x:99999999/"), RequestOutcome.HTTP_ERROR, "status 307"),
    (plain("302 Found", b"", b"Location: https://x/"), RequestOutcome.HTTP_ERROR, "sends to https://x/"),
    (
        stream(token(), b'data: {"error": {"message": "the engine died"}}\n\n', DONE),
        RequestOutcome.STREAM_ERROR,
        "engine died",
    ),
    (stream(token()), RequestOutcome.TRUNCATED, "without [DONE]"),
    ([HEAD, chunk(token()), RawServer.CLOSE], RequestOutcome.TRUNCATED, "in the midst"),
    ([HEAD, chunk(token()), RawServer.RESET], RequestOutcome.TRUNCATED, "in the midst"),
    ([HEAD, chunk(token() + token()[:20]), END], RequestOutcome.TRUNCATED, "without [DONE]"),
    ([RawServer.CLOSE], RequestOutcome.UNREACHABLE, "before an answer"),
    ([b"HTTP/1.1 200 O", RawServer.CLOSE], RequestOutcome.UNREACHABLE, "before an answer"),
    (stream(b"data: hello\n\n"), RequestOutcome.GARBAGE, "no JSON"),
    (stream(b'data: {"hello": 1}\n\n'), RequestOutcome.GARBAGE, "without choices"),
    ([b"220 mail ready\r\n"], RequestOutcome.GARBAGE, "not an HTTP/1.1 answer"),
    ([HEAD, b"zz\r\n"], RequestOutcome.GARBAGE, "chunk's size"),
    (plain("200 OK", b"<html>Welcome"), RequestOutcome.GARBAGE, "Welcome"),
    (plain("200 OK", b""), RequestOutcome.GARBAGE, "no stream"),
    (plain("200 OK", b'{"choices": [{"text": "a"}]}'), RequestOutcome.NOT_STREAMED, "at once"),
    ([HEAD, chunk(token()), RawServer.HOLD], RequestOutcome.TIMED_OUT, "not complete after"),
    ([RawServer.HOLD], RequestOutcome.TIMED_OUT, "not complete after"),
]


@pytest.mark.parametrize(("script", "outcome", "error"), FAILURES)
async def test_every_failure_is_counted_as_what_it_is(script: list[bytes], outcome: RequestOutcome, error: str) -> None:
    (one,) = await ask(script, timeout_seconds=0.4 if outcome is RequestOutcome.TIMED_OUT else 60.0)
    assert one.outcome is outcome
    assert error in one.error
    assert one.ended_at >= one.sent_at


async def test_what_an_endpoint_says_of_retrying_is_kept_and_nothing_is_retried() -> None:
    first, second = await ask(plain("429 Too Many", b"", b"Retry-After: 7"), GOOD, count=2)
    assert (first.retry_after, first.http_status) == ("7", 429)
    assert second.outcome is RequestOutcome.FINISHED


async def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        run = await send(f"http://127.0.0.1:{silent.getsockname()[1]}", [Planned(0.0, 4, 3)])
    assert run.records[0].outcome is RequestOutcome.UNREACHABLE
    assert "no connection to 127.0.0.1" in run.records[0].error


async def test_a_connection_is_used_again_and_repeated_once_where_it_was_closed_under_a_request() -> None:
    async with RawServer(GOOD, [RawServer.CLOSE], GOOD) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)] * 2, {"concurrency": 1})
        assert server.connections == 2
    first, second = run.records
    assert (first.new_connection, second.new_connection, second.retried) == (True, True, True)
    assert (first.outcome, second.outcome) == (RequestOutcome.FINISHED, RequestOutcome.FINISHED)


async def test_a_server_that_closes_every_time_is_not_asked_for_ever() -> None:
    async with RawServer(GOOD, [RawServer.CLOSE]) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)] * 2, {"concurrency": 1})
        assert len(server.heads) == 3
    assert run.records[1].outcome is RequestOutcome.UNREACHABLE


async def test_a_redirect_that_keeps_the_post_is_followed_without_handing_the_key_to_others() -> None:
    async with RawServer(GOOD) as other:
        moved = plain("307 Moved", b"", f"Location: {other.url}/elsewhere".encode())
        async with RawServer(moved) as server:
            run = await send(server.url, [Planned(0.0, 4, 3)], api_key="secret")
        assert "Authorization: Bearer secret" in server.heads[0]
        assert other.heads[0].startswith("POST /elsewhere HTTP/1.1")
        assert "secret" not in other.heads[0]
        assert other.bodies == server.bodies
    assert (run.records[0].outcome, run.records[0].http_status) == (RequestOutcome.FINISHED, 200)


async def test_redirects_without_end_are_an_error() -> None:
    async with RawServer(plain("308 Moved", b"", b"Location: /again")) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)])
    assert run.records[0].outcome is RequestOutcome.HTTP_ERROR


async def test_requests_leave_when_they_are_due_however_slow_answers_are() -> None:
    held = [HEAD, chunk(token()), RawServer.HOLD]
    async with RawServer(held) as server:
        planned = [Planned(0.01 * number, 4, 3) for number in range(10)]
        run = await send(server.url, planned, {"drain_seconds": 0.2}, timeout_seconds=60.0)
    assert [record.outcome for record in run.records] == [RequestOutcome.UNFINISHED] * 10
    assert [record.index for record in run.records] == list(range(10))
    assert all(record.sent_at >= record.scheduled_at for record in run.records)
    assert len({record.scheduled_at for record in run.records}) == 10


async def test_a_closed_loop_keeps_so_many_under_way_and_no_more() -> None:
    under_way, most = 0, 0

    class Counting(RawServer):
        async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await super()._answer(reader, writer)
            finally:
                under_way -= 1

    async with Counting(GOOD) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)] * 20, {"concurrency": 3})
    assert len(run.records) == 20
    assert {record.outcome for record in run.records} == {RequestOutcome.FINISHED}
    assert most <= 3 + 1  # a connection that is used again waits for its next request


async def test_a_closed_loop_ends_with_its_time_even_where_nothing_answers() -> None:
    async with RawServer([RawServer.HOLD]) as server:
        endless = iter(lambda: Planned(0.0, 4, 3), None)
        limits = {"concurrency": 2, "stop_after_seconds": 0.3, "drain_seconds": 0.1}
        run = await send(server.url, endless, limits, timeout_seconds=60.0)
    assert [record.outcome for record in run.records] == [RequestOutcome.UNFINISHED] * 2


async def test_batches_leave_together_when_the_last_one_has_ended() -> None:
    async with RawServer(GOOD) as server:
        run = await send(server.url, [Planned(0.0, 4, 3)] * 6, {"concurrency": 2, "batches": True})
    pairs = [run.records[place : place + 2] for place in range(0, 6, 2)]
    for before, after in itertools.pairwise(pairs):
        assert min(record.sent_at for record in after) >= max(record.ended_at for record in before)


async def test_what_is_asked_for_has_the_wanted_length_in_either_api() -> None:
    async with RawServer(GOOD) as server:
        await send(server.url + "/v1/", [Planned(0.0, 40, 9)], prompts=PromptKind.IDS)
        await send(server.url + "/v1", [Planned(0.0, 40, 9)], api=Api.CHAT, ignore_eos=False)
    ids, chat = map(json.loads, server.bodies)
    assert len(ids["prompt"]) == 40
    assert ids["ignore_eos"] is True
    assert len(chat["messages"][0]["content"].split()) == 40
    assert "ignore_eos" not in chat
    assert (chat["max_tokens"], chat["stream"], chat["stream_options"]) == (9, True, {"include_usage": True})
    assert [head.split()[1] for head in server.heads] == ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("kind", [{}, {"prompts": PromptKind.IDS}, {"api": Api.CHAT}])
async def test_prompts_of_a_session_begin_alike_and_a_header_names_it(kind: dict[str, Any]) -> None:
    async with RawServer(GOOD) as server:
        await send(server.url, [Planned(0.0, 40, 9)] * 24, sessions=3, prefix_tokens=30, **kind)
        await send(server.url, [Planned(0.0, 4, 9)], sessions=3, prefix_tokens=30, **kind)
    *prompts, short = [_prompt(json.loads(body)) for body in server.bodies]
    sessions = [
        next(line for line in head.split("\r\n") if line.startswith("X-Session-Id")) for head in server.heads[:-1]
    ]
    assert len(set(sessions)) == 3
    assert len({(name, *prompt[:30]) for name, prompt in zip(sessions, prompts, strict=True)}) == 3
    assert len({tuple(prompt) for prompt in prompts}) == 24
    assert len(short) == 4


def _prompt(body: dict[str, Any]) -> list[Any]:
    told = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return told.split() if isinstance(told, str) else told


def test_a_rare_long_stall_delays_as_many_events_as_come_in_it() -> None:
    calm = [0.001] * 3000
    assert delay_exceeded(calm, 60.0, 0.01) < 0.001
    # In 60 s, 1 % is 0.6 s: what came in the first 1.4 s of a stall of 2 s is that late at least.
    assert delay_exceeded([*calm, 2.0], 60.0, 0.01) == pytest.approx(1.4)
    assert delay_exceeded([1.0, 1.0], 60.0, 0.01) == pytest.approx(0.7)
    assert delay_exceeded([], 60.0, 0.01) == 0.0


async def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(Endpoint("http://x", "chat", api_key="secret"))


async def test_no_prompt_is_sent_twice_also_in_runs_with_the_same_seed() -> None:
    async with RawServer(GOOD) as server:
        for _ in range(2):
            await send(server.url, [Planned(0.0, 40, 3)] * 3, {"concurrency": 1, "seed": 1})
    prompts = [json.loads(body)["prompt"] for body in server.bodies]
    # Words, so that a block of any engine's prefix cache begins with them: none begins like another.
    assert len({tuple(prompt.split()[:16]) for prompt in prompts}) == 6
