"""Server-sent events of a completions stream: from bytes of any split to what each event says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from holdfast.tools.bench.load.records import MOST_COUNT

DONE = b"[DONE]"
LARGEST_EVENT = 16 * 2**20
_PLAIN_TEXT = re.compile(rb'"(?:text|content)": ?"([^"\\]+)"')
_DELTAS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class BadStream(Exception):
    """Bytes that are no event stream of completions."""


class EventReader:
    """Data of each event, over any split of the bytes: in the midst of a line end or of a UTF-8 character.

    As in the WHATWG's standard: lines end with LF, CRLF or CR, comments and other fields are passed over, several data
    lines of one event are joined, and an event that no empty line ended is none.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; returns the data of the events that they complete."""
        joined = self._rest + chunk
        if b"\r" in joined:
            # A CR at the very end may be half of a CRLF.
            held = b"\r" if joined.endswith(b"\r") else b""
            joined = joined[: len(joined) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        else:
            held = b""
        *blocks, rest = joined.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > LARGEST_EVENT:
            raise BadStream(f"an event of more than {LARGEST_EVENT} bytes")
        return [data for block in blocks if (data := _data(block))]

    @property
    def rest(self) -> bytes:
        """What came after the last complete event."""
        return self._rest


def _data(block: bytes) -> bytes:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


class Alike:
    """Knows events that differ from an earlier one of their stream in one text alone, without reading their JSON.

    Most events of a stream are such; reading the JSON of each is half of what a client has to do for it.
    """

    __slots__ = ("_begin", "_end")

    def __init__(self) -> None:
        self._begin = self._end = b""

    def learn(self, data: bytes) -> None:
        """An event with text that neither ends its stream nor counts tokens."""
        found = _PLAIN_TEXT.search(data)
        if found is not None:
            self._begin, self._end = data[: found.start(1)], data[found.end(1) :]

    def knows(self, data: bytes) -> bool:
        """Whether this event is such a one, with text in the same place."""
        begin, end = self._begin, self._end
        if not begin or not data.startswith(begin) or not data.endswith(end):
            return False
        text = data[len(begin) : len(data) - len(end)]
        # A quote or a backslash could end the text, and begin anything.
        return text != b"" and b'"' not in text and b"\\" not in text


@dataclass(frozen=True, slots=True)
class Said:
    """What one event says. `has_text`: it carries something for a reader; `ended`: it has a reason to finish."""

    has_text: bool
    ended: bool = False
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


def read_event(data: bytes) -> Said:
    """Read the JSON of an event, of the completions or of the chat API; BadStream where it is none of theirs."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise BadStream(f"an event that is no JSON: {data[:120].decode(errors='replace')!r}") from None
    if not isinstance(given, dict):
        raise BadStream(f"an event that is no object: {data[:120].decode(errors='replace')!r}")
    if given.get("error") or given.get("object") == "error":
        return Said(False, error=_error(given))
    choices = given.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise BadStream(f"an event without choices: {data[:120].decode(errors='replace')!r}")
    usage = given.get("usage")
    known = usage if isinstance(usage, dict) else {}
    return Said(
        has_text=any(_has_text(choice) for choice in choices),
        ended=any(choice.get("finish_reason") is not None for choice in choices),
        prompt_tokens=_count(known.get("prompt_tokens")),
        output_tokens=_count(known.get("completion_tokens")),
    )


def _has_text(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta") or choice.get("message")
    return isinstance(delta, dict) and any(delta.get(name) for name in _DELTAS)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT else None


def _error(given: dict[str, Any]) -> str:
    error = given.get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or given.get("message") or "an error event")[:300]
