"""One request under way: what its answer's parts make of it."""

from __future__ import annotations

import asyncio
import json
from array import array

from holdfast.tools.bench.generators.http1 import BadHttp, Head
from holdfast.tools.bench.generators.sse import DONE, Alike, BadStream, EventReader, read_event
from holdfast.tools.bench.load.load_generator import Planned
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord

LARGEST_PLAIN = 2**20
REDIRECTS = frozenset({307, 308})
"""Redirects that repeat a POST as it is; 301 to 303 make a GET of it."""

_STATUS_OUTCOMES = {429: RequestOutcome.RATE_LIMITED, 503: RequestOutcome.OVERLOADED}
_EVENT_STARTS = (b"data:", b":", b"event:", b"id:", b"retry:")


class Flight:
    """Collects times and outcome; a listener of its answer. `now` is set before each part is handed over."""

    __slots__ = (
        "_alike",
        "_ended",
        "_events",
        "_is_done",
        "_plain",
        "done",
        "error",
        "head_seen",
        "index",
        "new_connection",
        "now",
        "outcome",
        "output_tokens",
        "planned",
        "prompt_tokens",
        "retried",
        "scheduled_at",
        "sent_at",
        "slo_class",
        "token_at",
    )

    def __init__(
        self, index: int, planned: Planned, scheduled_at: float, done: asyncio.Future[None], slo_class: str = ""
    ) -> None:
        self.index, self.planned, self.scheduled_at, self.done = index, planned, scheduled_at, done
        self.slo_class = slo_class
        self.sent_at = self.now = scheduled_at
        self.token_at: array[float] = array("d")
        self.outcome: RequestOutcome | None = None
        self.error = ""
        self.head_seen: Head | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.new_connection, self.retried = True, False
        self._alike = Alike()
        self._events: EventReader | None = None
        self._plain = b""
        self._is_done = self._ended = False

    def restart(self, done: asyncio.Future[None]) -> None:
        """The same request goes out again: nothing of the answer counts."""
        self.done, self.outcome, self.error = done, None, ""
        self.head_seen, self._events, self._plain = None, None, b""

    def head(self, head: Head) -> None:
        """Status and header fields are there."""
        self.head_seen = head
        if head.status == 200 and "text/event-stream" in head.fields.get("content-type", "").lower():
            self._events = EventReader()

    def body(self, data: bytes) -> None:
        """More of the body; BadStream where it is no completion."""
        if self._events is None:
            if self._is_unnamed_stream(data):
                self._events = EventReader()
            else:
                self._plain += data[: LARGEST_PLAIN - len(self._plain)]
                return
        for event in self._events.feed(data):
            self._event(event)

    def end(self) -> None:
        """The body is complete."""
        if self._events is not None:
            self._end_of_stream(self._events)
        elif self.head_seen is not None and self.head_seen.status == 200:
            self._end_of_plain()
        else:
            self._refused()
        self._settled()

    def fail(self, outcome: RequestOutcome, error: str) -> None:
        """It ends here; the first reason stays."""
        if self.outcome is None:
            self.outcome, self.error = outcome, error
        self._settled()

    def lost(self, error: Exception | None) -> None:
        """The connection ended in the midst of the answer, or before one."""
        told = f": {error}" if error else ""
        if self.head_seen is None:
            self.fail(RequestOutcome.UNREACHABLE, f"the connection ended before an answer{told}")
        elif self.head_seen.status != 200:
            self._refused()
            self._settled()
        else:
            self.fail(RequestOutcome.TRUNCATED, f"the connection ended in the midst of the answer{told}")

    def garbled(self, problem: BadHttp | BadStream) -> None:
        """The answer cannot be read."""
        self.fail(RequestOutcome.GARBAGE, str(problem))

    @property
    def redirect(self) -> str:
        """Where the answer sends this request, as it is; empty where it does not."""
        head = self.head_seen
        return head.fields.get("location", "") if head is not None and head.status in REDIRECTS else ""

    def record(self) -> RequestRecord:
        """The raw record."""
        counted = bool(self.output_tokens) and self.outcome is RequestOutcome.FINISHED
        head = self.head_seen
        return RequestRecord(
            index=self.index,
            scheduled_at=self.scheduled_at,
            sent_at=self.sent_at,
            ended_at=self.now,
            outcome=self.outcome or RequestOutcome.UNFINISHED,
            token_at=self.token_at,
            prompt_tokens=self.planned.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            output_tokens=self.output_tokens if counted and self.output_tokens else len(self.token_at),
            counted=counted,
            asked_tokens=self.planned.output_tokens,
            http_status=None if head is None else head.status,
            retry_after="" if head is None else head.fields.get("retry-after", "")[:60],
            error=self.error,
            new_connection=self.new_connection,
            retried=self.retried,
            slo_class=self.slo_class,
        )

    def _is_unnamed_stream(self, data: bytes) -> bool:
        """Whether a body without a type is a stream all the same."""
        head = self.head_seen
        return head is not None and head.status == 200 and not self._plain and data.lstrip().startswith(_EVENT_STARTS)

    def _event(self, data: bytes) -> None:
        if self._is_done:
            return
        if data == DONE:
            self._is_done = True
            return
        if self._alike.knows(data):
            self.token_at.append(self.now)
            return
        said = read_event(data)
        if said.error and self.outcome is None:
            self.outcome, self.error = RequestOutcome.STREAM_ERROR, said.error
        if said.has_text:
            self.token_at.append(self.now)
            if not said.ended and said.output_tokens is None:
                self._alike.learn(data)
        self._ended = self._ended or said.ended
        if said.prompt_tokens is not None:
            self.prompt_tokens = said.prompt_tokens
        if said.output_tokens is not None:
            self.output_tokens = said.output_tokens

    def _end_of_stream(self, events: EventReader) -> None:
        try:
            # Some servers leave the empty line after the last event out.
            for event in events.feed(b"\n\n"):
                self._event(event)
        except BadStream:
            self._is_done = self._ended = False
        if self.outcome is None:
            if not (self._is_done or self._ended):
                self.outcome, self.error = (
                    RequestOutcome.TRUNCATED,
                    "the stream ended without [DONE] and without a reason",
                )
            elif self.token_at:
                self.outcome = RequestOutcome.FINISHED
            else:
                self.outcome, self.error = RequestOutcome.EMPTY, "a complete answer without any text"

    def _end_of_plain(self) -> None:
        try:
            whole = json.loads(self._plain)
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, dict) and whole.get("choices"):
            self.fail(RequestOutcome.NOT_STREAMED, "the endpoint answered at once though a stream was asked for")
        else:
            shown = self._plain[:120].decode(errors="replace")
            self.fail(RequestOutcome.GARBAGE, f"an answer that is no stream of completions: {shown!r}")

    def _refused(self) -> None:
        assert self.head_seen is not None
        status, place = self.head_seen.status, self.head_seen.fields.get("location", "")
        told = " ".join(self._plain.decode(errors="replace").split())[:200]
        if 301 <= status <= 303:
            told = f"sends to {place}, where a POST becomes a GET: give that address as --url"
        outcome = _STATUS_OUTCOMES.get(status, RequestOutcome.HTTP_ERROR)
        if self.outcome is None:
            self.outcome, self.error = outcome, f"status {status}: {told}"

    def _settled(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
