"""Counting the tokens of a server-sent event stream without parsing its events."""

from __future__ import annotations

import re

_EVENT = b"\ndata:"
_DONE = b"data: [DONE]"
_TAIL_BYTES = 2048
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_ERROR_EVENT = re.compile(rb'(?:^|\n)data: (\{"(?:error|object"\s*:\s*"error)".*)')


class StreamCounter:
    """Count events over arbitrary chunk borders; one `bytes.count` per chunk is all the work.

    JSON escapes line ends, so "\\ndata:" can only be the start of an event. Where the stream ends with a usage event,
    its completion_tokens is the count: vLLM merges tokens into one event when its reader is slow.
    """

    __slots__ = ("_carry", "_tail", "events")

    def __init__(self) -> None:
        self.events = 0
        self._carry = b"\n"
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        joined = self._carry + chunk
        self.events += joined.count(_EVENT)
        self._carry = joined[1 - len(_EVENT) :]
        self._tail = chunk if len(chunk) >= _TAIL_BYTES else (self._tail + chunk)[-_TAIL_BYTES:]

    @property
    def finished(self) -> bool:
        """Whether the stream said that it is complete."""
        return _DONE in self._tail

    @property
    def tokens(self) -> int:
        """Return the tokens received: what the usage event says, else one per event."""
        usage = _COMPLETION_TOKENS.findall(self._tail)
        if usage and self.finished:
            return int(usage[-1])
        return self.events - self.finished

    @property
    def error(self) -> str:
        """Return the error event of the stream, or an empty string."""
        found = _ERROR_EVENT.search(self._tail)
        return found.group(1).decode(errors="replace")[:300] if found else ""
