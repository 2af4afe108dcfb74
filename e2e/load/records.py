"""What the client saw of each request, one JSON line per request."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import types
from collections.abc import Iterator
from typing import IO, Literal, Self

Status = Literal["ok", "rejected", "error", "truncated", "aborted"]


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One request as its client saw it; every time is in epoch seconds on a monotonic clock.

    | status    | meaning                                                           | lost |
    |-----------|-------------------------------------------------------------------|------|
    | ok        | every token asked for arrived, and the end of the stream          | no   |
    | rejected  | the engine answered 503 before any token                          | no   |
    | error     | no connection, no answer, another HTTP status, an error event     | yes  |
    | truncated | the answer began and did not end, or ended short                  | yes  |
    | aborted   | this client stopped it (Ctrl-C); not judged                       | no   |

    `output_tokens` of a broken stream is a lower bound: what came together with the break is not counted.
    """

    index: int
    scheduled_at: float
    sent_at: float
    first_token_at: float | None
    finished_at: float
    prompt_tokens: int
    output_tokens_asked: int
    output_tokens: int
    status: Status
    http_status: int | None = None
    replica: str = ""
    error: str = ""
    new_connection: bool = False
    retried: bool = False

    @property
    def lateness_seconds(self) -> float:
        """Return how late the client itself was in sending."""
        return self.sent_at - self.scheduled_at


class RecordWriter:
    """Append records to a JSONL file; a line is on disk as soon as it is written."""

    def __init__(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines: IO[str] = path.open("w", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        """Append one record."""
        self._lines.write(json.dumps(dataclasses.asdict(record), separators=(",", ":")) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._lines.close()


def read(path: pathlib.Path) -> list[Record]:
    """Read a records file, ordered by scheduled time."""
    return sorted(_lines(path), key=lambda record: record.scheduled_at)


def _lines(path: pathlib.Path) -> Iterator[Record]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            # A run that was killed may leave half a line at the end.
            if line.endswith("\n"):
                yield Record(**json.loads(line))
