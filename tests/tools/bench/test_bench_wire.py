"""HTTP answers and event streams, cut anywhere and broken in every way."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.bench.generators.http1 import BadHttp, Head, ResponseReader
from holdfast.tools.bench.generators.sse import Alike, BadStream, EventReader, read_event


class Heard:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.data = b""
        self.ended = 0

    def head(self, head: Head) -> None:
        self.heads.append(head)

    def body(self, data: bytes) -> None:
        self.data += data

    def end(self) -> None:
        self.ended += 1


def read(answer: bytes, cuts: list[int] | None = None) -> tuple[Heard, ResponseReader]:
    """Feed an answer in parts."""
    heard = Heard()
    reader = ResponseReader(heard)
    places = [0, *sorted(cut % (len(answer) + 1) for cut in cuts or []), len(answer)]
    for begin, end in itertools.pairwise(places):
        reader.feed(answer[begin:end])
    return heard, reader


CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nx-a: 2\r\n\r\n"
    b"5;name=value\r\nhello\r\n1\r\n \r\nA\r\nwo\r\nrld\r\n!\r\n0\r\nTrailer: x\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"


@given(st.lists(st.integers(0, 1000), max_size=12))
def test_an_answer_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    heard, reader = read(CHUNKED, cuts)
    assert (heard.data, heard.ended, reader.is_clean) == (b"hello wo\r\nrld\r\n!", 1, True)
    assert [head.status for head in heard.heads] == [200]
    assert heard.heads[0].fields["x-a"] == "1, 2"
    heard, reader = read(COUNTED, cuts)
    assert (heard.data, heard.ended) == (b"hello world", 1)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    heard, reader = read(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert (heard.data, reader.is_done) == (b"hello", False)
    assert reader.eof()
    assert heard.ended == 1
    assert reader.head is not None
    assert not reader.head.keeps_alive


@pytest.mark.parametrize("answer", [CHUNKED[:-2], CHUNKED[:100], COUNTED[:-1], b"HTTP/1.1 200"])
def test_a_connection_that_ends_early_is_no_end(answer: bytes) -> None:
    heard, reader = read(answer)
    assert not reader.eof()
    assert heard.ended == 0


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
)
def test_an_answer_without_a_body_ends_with_its_head(answer: bytes) -> None:
    heard, reader = read(answer)
    assert (heard.ended, reader.is_clean) == (1, True)


def test_bytes_after_the_end_are_not_read_as_an_answer() -> None:
    heard, reader = read(COUNTED + b"HTTP/1.1 500 Oh\r\n\r\n")
    assert (heard.ended, reader.is_clean, len(heard.heads)) == (1, False, 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(answer: bytes) -> None:
    with pytest.raises(BadHttp):
        read(answer)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_are_read_or_refused(answer: bytes, cuts: list[int]) -> None:
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        try:
            _, reader = read(start + answer, cuts)
            reader.eof()
        except BadHttp:
            pass


STREAM = ': ping\r\n\r\ndata: {"a": "žluť"}\r\n\r\nevent: x\rdata:1\rdata: 2\r\rid: 7\n\ndata: [DONE]\n\n'.encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_events_read_the_same_however_they_are_cut(cuts: list[int]) -> None:
    reader = EventReader()
    places = [0, *sorted(cuts), len(STREAM)]
    events = [event for begin, end in itertools.pairwise(places) for event in reader.feed(STREAM[begin:end])]
    assert events == ['{"a": "žluť"}'.encode(), b"1\n2", b"[DONE]"]


def test_an_event_without_an_end_is_refused_in_time() -> None:
    reader = EventReader()
    reader.feed(b"x" * 2**24)
    with pytest.raises(BadStream, match="more than"):
        reader.feed(b"x")


@given(st.text(max_size=5), st.text(max_size=5), st.sampled_from([None, "stop"]), st.booleans())
def test_events_that_are_known_are_read_as_their_json_says(
    first: str, second: str, finish: str | None, chat: bool
) -> None:
    def event(text: str, reason: str | None) -> bytes:
        content = {"delta": {"content": text}} if chat else {"text": text}
        return json.dumps({"id": "x", "choices": [{"index": 0, **content, "finish_reason": reason}]}).encode()

    alike = Alike()
    if read_event(event(first, None)).has_text:
        alike.learn(event(first, None))
    following = event(second, finish)
    if alike.knows(following):
        assert read_event(following) == read_event(event("word", None))


def test_an_event_that_continues_a_text_with_something_else_is_not_known() -> None:
    alike = Alike()
    alike.learn(b'{"choices":[{"text":"a"}]}')
    assert alike.knows(b'{"choices":[{"text":" word"}]}')
    for other in (b'{"choices":[{"text":""}]}', b'{"choices":[{"text":"a","finish_reason":"b"}]}', b'{"choices":[]}'):
        assert not alike.knows(other)
    assert not alike.knows(b'{"choices":[{"text":"a"}]')
    assert not Alike().knows(b"")


def said(**event: object) -> tuple[bool, bool]:
    found = read_event(json.dumps(event).encode())
    return found.has_text, found.ended


def test_text_is_found_in_either_api_and_a_role_alone_is_none() -> None:
    assert said(choices=[{"text": " word"}]) == (True, False)
    assert said(choices=[{"text": "", "finish_reason": "length"}]) == (False, True)
    assert said(choices=[{"delta": {"role": "assistant", "content": ""}}]) == (False, False)
    assert said(choices=[{"delta": {"content": "a"}, "finish_reason": "stop"}]) == (True, True)
    assert said(choices=[{"delta": {"reasoning_content": "hm"}}]) == (True, False)
    assert said(choices=[{"delta": {"tool_calls": [{"index": 0}]}}]) == (True, False)
    assert said(choices=[{"delta": None}]) == (False, False)
    assert said(choices=[]) == (False, False)


@pytest.mark.parametrize("count", [-1, True, "7", 1.5, None, float("nan")])
def test_a_count_of_tokens_that_is_none_is_not_taken(count: object) -> None:
    found = read_event(json.dumps({"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 3}}).encode())
    assert (found.output_tokens, found.prompt_tokens) == (None, 3)


@pytest.mark.parametrize(
    "event", [{"error": {"message": "died"}}, {"error": "died"}, {"object": "error", "message": "died"}]
)
def test_an_error_says_its_message(event: dict[str, object]) -> None:
    assert read_event(json.dumps(event).encode()).error == "died"


@pytest.mark.parametrize(
    "data", [b"x", b"[]", b"1", b"{}", b'{"choices": {}}', b'{"choices": [1]}', b"\xff\xfe", b"[" * 9999]
)
def test_events_that_are_no_completions_are_refused(data: bytes) -> None:
    with pytest.raises(BadStream):
        read_event(data)
