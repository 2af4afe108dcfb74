"""HTTP/1.1 as a client reads it: answers from bytes of any split, handed on without waiting for anything.

A client that wakes a task for each chunk takes 60 to 80 us for one; while an engine hands a step's tokens to hundreds
of streams at once, most of them would be read late, and the delay taken for the engine's. Here a chunk is read in the
callback that the event loop makes for its bytes (docs/designs/0005-bench-client.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

LARGEST_HEAD = 64 * 2**10
_NO_BODY = frozenset({204, 304})


class BadHttp(Exception):
    """Bytes that are no HTTP/1.1 answer."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and header fields of an answer; names in lower case."""

    status: int
    fields: Mapping[str, str]
    http_1_0: bool

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        connection = self.fields.get("connection", "").lower()
        return "keep-alive" in connection if self.http_1_0 else "close" not in connection


class Listener(Protocol):
    """Who hears of an answer's parts, in their order."""

    def head(self, head: Head) -> None:
        """Status and header fields."""

    def body(self, data: bytes) -> None:
        """The next bytes of the body."""

    def end(self) -> None:
        """The answer is complete."""


class ResponseReader:
    """One answer. Feed it bytes, then `eof` where the connection ends."""

    __slots__ = ("_buffer", "_left", "_listener", "_stage", "head")

    def __init__(self, listener: Listener) -> None:
        self.head: Head | None = None
        self._listener = listener
        self._buffer = b""
        self._stage: Callable[[], bool] = self._head
        self._left = 0

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete."""
        return self._stage == self._over

    @property
    def is_clean(self) -> bool:
        """Whether nothing came after the end, so that another answer may follow."""
        return self.is_done and not self._buffer

    def feed(self, data: bytes) -> None:
        """Take the next bytes; BadHttp where they cannot be read."""
        self._buffer = self._buffer + data if self._buffer else data
        while self._buffer and self._stage():
            pass

    def eof(self) -> bool:
        """The connection ended: whether that was the proper end of the answer."""
        if self._stage == self._until_close:
            self._finish()
        return self.is_done

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > LARGEST_HEAD or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise BadHttp(f"not an HTTP/1.1 answer: {self._buffer[:60]!r}")
            return False
        head = _parse_head(self._buffer[:end])
        self._buffer = self._buffer[end + 4 :]
        if 100 <= head.status < 200 and head.status != 101:
            return True
        self.head = head
        self._listener.head(head)
        self._stage = self._body_stage(head)
        if self._stage == self._over:
            self._listener.end()
        return True

    def _body_stage(self, head: Head) -> Callable[[], bool]:
        """How the body's end is marked (RFC 9112, 6.3)."""
        if head.status in _NO_BODY:
            return self._over
        if "chunked" in head.fields.get("transfer-encoding", "").lower():
            return self._chunk_size
        length = head.fields.get("content-length")
        if length is None:
            return self._until_close
        if not length.isascii() or not length.isdigit():
            raise BadHttp(f"Content-Length {length[:40]!r}")
        self._left = int(length)
        return self._counted if self._left else self._over

    def _counted(self) -> bool:
        part, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(part)
        self._listener.body(part)
        if not self._left:
            self._finish()
        return True

    def _until_close(self) -> bool:
        part, self._buffer = self._buffer, b""
        self._listener.body(part)
        return True

    def _chunk_size(self) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > LARGEST_HEAD:
                raise BadHttp("a chunk's size without an end")
            return False
        try:
            # Extensions after a semicolon have no meaning for us.
            size = int(self._buffer[:end].split(b";", 1)[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise BadHttp(f"a chunk's size of {self._buffer[:end][:40]!r}")
        self._buffer = self._buffer[end + 2 :]
        self._left = size
        self._stage = self._chunk if size else self._trailer
        return True

    def _chunk(self) -> bool:
        """What there is of a chunk, without waiting for the rest of it."""
        if self._left:
            part = self._buffer[: self._left]
            self._buffer = self._buffer[self._left :]
            self._left -= len(part)
            self._listener.body(part)
            if self._left:
                return False
        if len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise BadHttp("a chunk that is longer than its size")
        self._buffer = self._buffer[2:]
        self._stage = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line, separator, rest = self._buffer.partition(b"\r\n")
        if not separator:
            if len(line) > LARGEST_HEAD:
                raise BadHttp("a trailer without an end")
            return False
        self._buffer = rest
        if not line:
            self._finish()
        return True

    def _over(self) -> bool:
        return False

    def _finish(self) -> None:
        self._stage = self._over
        self._listener.end()


def _parse_head(head: bytes) -> Head:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.0", "HTTP/1.1") or not (code.isascii() and code.isdigit() and len(code) == 3):
        raise BadHttp(f"not an HTTP/1.1 answer: {lines[0][:60]!r}")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadHttp(f"a header field without a colon: {line[:60]!r}")
        name = name.strip().lower()
        fields[name] = f"{fields[name]}, {value.strip()}" if name in fields else value.strip()
    return Head(int(code), fields, version == "HTTP/1.0")
