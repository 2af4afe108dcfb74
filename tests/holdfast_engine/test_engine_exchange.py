"""Which parts of an answer are reported as written, and when."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast_engine.apiserver.exchange import Exchange, has_token
from holdfast_engine.clients.written_file import Report, ReportKind, WrittenReader, WrittenWriter, name_of

ROLE = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
TEXT = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":" Hi","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Stream:
    """An exchange whose clock the test sets."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.exchange = Exchange(WrittenWriter(path), lambda: self.now)
        self._reader = WrittenReader(path)

    def send(self, now: float, body: bytes, more: bool = True) -> None:
        self.now = now
        message = {"type": "http.response.body", "body": body, "more_body": more}
        if self.exchange.is_awaited(message):
            self.exchange.write(message)

    def reports(self) -> list[tuple[ReportKind, float]]:
        found = self._reader.poll(0.0)
        assert {report.name for report in found} <= {name_of("r")}
        return [(report.kind, report.at) for report in found]


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path / "answers.written")


@pytest.mark.parametrize(
    ("body", "token"),
    [
        (TOKEN, True),
        (TEXT, True),
        (ROLE, False),
        (ROLE + TOKEN, True),
        (DONE, False),
        (b'data: {"error":{"message":"no"}}\n\n', False),
        (b": ping\n\n", False),
        (b"", False),
        (b'{"choices":[]}', False),
        (b'data: {"choices":[{"index":0,"text":"","token_ids":[7]}]}\n\n', True),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":"","reasoning":"x"}}]}\n\n', False),
        (b'event: response.created\ndata: {"type":"response.created"}\n\n', False),
        (b'event: response.output_item.added\ndata: {"item":{"content":[]}}\n\n', False),
        (b'event: response.output_text.delta\ndata: {"delta":"Hi"}\n\n', True),
        (b'event: response.reasoning_text.delta\ndata: {"delta":"Hm"}\n\n', True),
        (b'event: response.function_call_arguments.delta\ndata: {"delta":"{"}\n\n', True),
        (b'event: response.output_text.done\ndata: {"text":"a .delta data: b"}\n\n', False),
        (b'event: message_start\ndata: {"type":"message_start"}\n\n', False),
        (b'event: content_block_start\ndata: {"index":0}\n\n', False),
        (b'event: content_block_start\ndata: {}\n\nevent: content_block_delta\ndata: {"delta":{}}\n\n', True),
        (b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"Hi"}}\n\n', True),
        (b'event: message_delta\ndata: {"delta":{"stop_reason":"end_turn"}}\n\n', False),
        (b'event: error\ndata: {"type":"error"}\n\n', False),
        (b'data: {"type":"message-start","id":"c"}\n\n', False),
        (b'data: {"type":"content-delta","index":0}\n\n', True),
        (b'data: {"type":"message-end","delta":{"finish_reason":"COMPLETE"}}\n\n', False),
    ],
)
def test_what_carries_a_token(body: bytes, token: bool) -> None:
    assert has_token(body) is token


def test_the_first_token_and_the_end_are_reported(stream: Stream) -> None:
    stream.exchange.start("r", True)
    for now, body in enumerate((ROLE, TOKEN, TOKEN, TOKEN, DONE), start=1):
        stream.send(float(now), body)
    stream.send(6.0, b"", more=False)
    stream.exchange.leave()
    assert stream.reports() == [(ReportKind.STARTED, 0.0), (ReportKind.FIRST, 2.0), (ReportKind.LAST, 6.0)]


def test_a_client_that_leaves_is_reported(stream: Stream) -> None:
    stream.exchange.start("r", True)
    stream.send(1.0, TEXT)
    stream.exchange.leave()
    stream.exchange.leave()
    kinds = [kind for kind, _ in stream.reports()]
    assert kinds == [ReportKind.STARTED, ReportKind.FIRST, ReportKind.GONE]


def test_of_an_answer_that_comes_as_a_whole_only_the_arrival_is_reported(stream: Stream) -> None:
    stream.exchange.start("r", False)
    stream.send(1.0, b'{"choices":[]}', more=False)
    stream.exchange.leave()
    assert stream.reports() == [(ReportKind.ARRIVED, 0.0)]


def test_of_several_requests_in_one_stream_none_is_followed(stream: Stream) -> None:
    stream.exchange.start("r", True)
    stream.exchange.start("r", True)
    stream.exchange.start("r", True)
    stream.send(1.0, TEXT)
    stream.send(2.0, b"", more=False)
    kinds = [kind for kind, _ in stream.reports()]
    assert kinds == [ReportKind.STARTED, ReportKind.GONE, ReportKind.ARRIVED, ReportKind.ARRIVED]


def test_a_request_that_waited_at_the_door_is_reported_as_the_one_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "answers.written"
    writer, reader = WrittenWriter(path), WrittenReader(path)
    exchange = Exchange(writer, lambda: 9.0, arrived_at=2.0, held=b"h" * 16)
    exchange.start("r", True)
    resumed, started = reader.poll(0.0)
    assert (resumed.kind, resumed.name) == (ReportKind.RESUMED, b"h" * 16)
    assert started == Report(ReportKind.STARTED, name_of("r"), 2.0)
    Exchange(writer, lambda: 9.0, held=b"i" * 16).leave()
    (gone,) = reader.poll(0.0)
    assert (gone.kind, gone.name) == (ReportKind.GONE, b"i" * 16), "vLLM refused it"


def test_an_exchange_without_a_request_reports_nothing(stream: Stream) -> None:
    stream.send(1.0, TEXT)
    stream.exchange.leave()
    assert stream.reports() == []


def test_who_is_gone_has_no_time(tmp_path: Path) -> None:
    path = tmp_path / "answers.written"
    exchange, reader = Exchange(WrittenWriter(path), lambda: 1.0), WrittenReader(path)
    exchange.start("r", True)
    exchange.leave()
    started, gone = reader.poll(0.0)
    assert started == Report(ReportKind.STARTED, name_of("r"), 1.0)
    assert math.isnan(gone.at)


def test_a_turn_after_the_call_of_a_tool_came_when_it_came(stream: Stream) -> None:
    """One POST to /v1/responses may ask the engine several times, each time after the answer before."""
    stream.exchange.start("r", True, {"r"})
    stream.now = 40.0
    stream.exchange.start("r", True, {"another"})
    kinds = [(ReportKind.STARTED, 0.0), (ReportKind.GONE, math.nan), (ReportKind.ARRIVED, 40.0)]
    assert stream.reports() == [(kind, pytest.approx(at, nan_ok=True)) for kind, at in kinds]


def test_several_prompts_of_one_request_came_together(stream: Stream) -> None:
    stream.exchange.start("r", False, {"r"})
    stream.now = 2.0
    stream.exchange.start("r", False, {"r"})
    assert stream.reports() == [(ReportKind.ARRIVED, 0.0), (ReportKind.ARRIVED, 0.0)]


def test_a_request_that_begins_after_its_answer_goes_on_in_the_background_unfollowed(stream: Stream) -> None:
    """POST /v1/responses with `background` is answered at once."""
    stream.send(1.0, b'{"status":"queued"}', more=False)
    stream.exchange.leave()
    stream.exchange.start("r", True, {"r"})
    assert stream.reports() == [(ReportKind.ARRIVED, 0.0)]
