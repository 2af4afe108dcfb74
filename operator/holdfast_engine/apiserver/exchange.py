"""One HTTP request and its answer: reports when the first and the last token were written."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from holdfast_engine.clients.written_file import ReportKind, WrittenWriter, name_of

_EVENT = b"data: "
_NO_TOKEN = (b"data: [DONE]", b'data: {"error"')
# Events that have a name, of /v1/responses and /v1/messages: those with a token. A message_delta tells of its end.
_NAMED, _TOKEN_EVENTS = b"event: ", (b".delta\ndata: ", b"event: content_block_delta\n")
# Events of /cohere/v2/chat.
_TYPED, _TYPED_TOKEN = b'data: {"type":"', b'-delta"'
# What vLLM's chat answers begin with, before any token.
_ROLE, _EMPTY = b'"delta":{"role":', b'"content":""'

EXCHANGE: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar("holdfast_exchange", default=None)
"""The exchange that this task works for: tasks inherit it from the one that the server began."""


class Exchange:
    """Follows the one request of a stream. An exchange with several (`n`, several prompts) follows none of them: its
    events do not tell cheaply which of them a token belongs to. One whose answer has been written goes on in the
    background, and is not followed either."""

    def __init__(
        self,
        writer: WrittenWriter,
        clock: Callable[[], float],
        arrived_at: float | None = None,
        held: bytes | None = None,
    ) -> None:
        """A request that came at `arrived_at`, and waited at the door under the name `held` if it did."""
        self._writer = writer
        self._clock = clock
        self._arrived_at = clock() if arrived_at is None else arrived_at
        self._held = held
        self._name: bytes | None = None
        self._requests = 0
        self._waits = False
        self._newest: str | None = None
        self._left = False

    def start(self, request_id: str, streams: bool, running: Container[str] | None = None) -> None:
        """A request goes to the engine, where requests of these names are `running`.

        One that comes when the one before it has ended, as after the call of a tool, came no earlier than now.
        """
        if self._newest is not None and running is not None and self._newest not in running:
            self._arrived_at = self._clock()
        self._newest = request_id
        self._requests += 1
        name, follows = name_of(request_id), streams and self._requests == 1 and not self._left
        if self._requests > 1:
            self.leave()
        if follows:
            self._name = name
            self._waits = True
        if self._held is not None:
            self._writer.write(ReportKind.RESUMED, self._held, math.nan)
            self._held = None
        self._writer.write(ReportKind.STARTED if follows else ReportKind.ARRIVED, name, self._arrived_at)

    def is_awaited(self, message: Mapping[str, Any]) -> bool:
        """Whether the time at which this part of the answer is written matters."""
        if self._name is None or message["type"] != "http.response.body":
            return False
        return self._waits or not message.get("more_body")

    def write(self, message: Mapping[str, Any]) -> None:
        """A part of the answer has been written."""
        if self._name is None:
            return
        now = self._clock()
        if self._waits and has_token(message.get("body", b"")):
            self._waits = False
            self._writer.write(ReportKind.FIRST, self._name, now)
        if not message.get("more_body"):
            self._writer.write(ReportKind.LAST, self._name, now)
            self._name = None

    def leave(self) -> None:
        """Nothing more will be reported."""
        for name in (self._name, self._held):
            if name is not None:
                self._writer.write(ReportKind.GONE, name, math.nan)
        self._name = self._held = None
        self._left = True


def has_token(body: bytes) -> bool:
    """Whether an event of a stream carries a token, not only a role, an end, an error or a sign of life."""
    if body.startswith(_NAMED):
        return any(name in body for name in _TOKEN_EVENTS)
    if not body.startswith(_EVENT) or body.startswith(_NO_TOKEN):
        return False
    if body.startswith(_TYPED):
        return _TYPED_TOKEN in body
    return not (_ROLE in body and _EMPTY in body) or body.count(_EVENT) > 1
