"""What a client saw of each request: the raw material of every figure, one JSON line per request."""

from __future__ import annotations

import itertools
import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any

from holdfast.twin.scenarios.inputs import BadInput
from holdfast_engine.objectives.rules import is_class_name


class RequestOutcome(StrEnum):
    """How a request ended; only `FINISHED` can be good."""

    FINISHED = "finished"
    EMPTY = "empty"
    """A complete answer without a token."""
    RATE_LIMITED = "rate_limited"
    """429."""
    OVERLOADED = "overloaded"
    """503."""
    HTTP_ERROR = "http_error"
    """Any other status than 200."""
    UNREACHABLE = "unreachable"
    """No connection, or one that ended before an answer began."""
    TRUNCATED = "truncated"
    """The stream ended, or broke off, before it said that it was complete."""
    STREAM_ERROR = "stream_error"
    """An error event in the midst of a stream."""
    GARBAGE = "garbage"
    """An answer that is no HTTP, no event stream or no JSON."""
    NOT_STREAMED = "not_streamed"
    """A whole answer at once: nothing is known of its first token."""
    TIMED_OUT = "timed_out"
    """Not complete within the time limit of a request."""
    UNFINISHED = "unfinished"
    """Still under way when the drain limit of the run ended."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it; every time in seconds of one monotonic clock.

    `token_at` has the arrival of each event that carried text. An event may carry several tokens: `output_tokens` is
    what the usage block says, and the number of such events only where there is none (`counted` is then False).
    `ended_at` is when the stream ended or failed, which is later than the last token. It claimed the class `slo_class`.
    """

    index: int
    scheduled_at: float
    sent_at: float
    ended_at: float
    outcome: RequestOutcome
    token_at: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: int = 0
    output_tokens: int = 0
    counted: bool = False
    asked_tokens: int = 0
    http_status: int | None = None
    retry_after: str = ""
    error: str = ""
    new_connection: bool = True
    retried: bool = False
    slo_class: str = ""

    @property
    def lateness_seconds(self) -> float:
        """How late the client itself was in sending."""
        return self.sent_at - self.scheduled_at


def impossible(record: RequestRecord) -> str:
    """Why this cannot have happened on one clock, or an empty text: such a record is counted, and never timed."""
    times = (record.scheduled_at, record.sent_at, *record.token_at, record.ended_at)
    if not all(map(math.isfinite, times)):
        return "a time is no number"
    events = times[1:]
    if any(later < earlier for earlier, later in itertools.pairwise(events)):
        return "time goes back"
    if record.prompt_tokens < 0 or record.output_tokens < 0:
        return "a negative number of tokens"
    return ""


_NAMES = tuple(each.name for each in fields(RequestRecord))
_TIMES = ("scheduled_at", "sent_at", "ended_at")
_COUNTS = ("index", "prompt_tokens", "output_tokens", "asked_tokens")
_SIZES = ("prompt_tokens", "output_tokens")
_KINDS: dict[str, tuple[type, ...]] = (
    dict.fromkeys(_TIMES, (float, int))
    | dict.fromkeys(_COUNTS, (int,))
    | dict.fromkeys(("counted", "new_connection", "retried"), (bool,))
    | dict.fromkeys(("retry_after", "error", "slo_class"), (str,))
    | {"http_status": (int, NoneType)}
)
MOST_COUNT = 2**40
"""More tokens or requests than any run has: what is read as floats later keeps its digits."""


def write(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write one JSON line per request."""
    with path.open("w", encoding="utf-8") as lines:
        for record in records:
            row: dict[str, Any] = {name: getattr(record, name) for name in _NAMES}
            row["token_at"] = list(record.token_at)
            lines.write(json.dumps(row, separators=(",", ":")) + "\n")


def read(path: Path) -> list[RequestRecord]:
    """Read what `write` wrote; BadInput names file, line and remedy."""
    seen: dict[int, int] = {}
    found: list[RequestRecord] = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"{path}: cannot be read: {problem}: name a file that --records wrote") from None
    for number, line in enumerate(text.splitlines(), start=1):
        record = _record(path, number, line)
        if record.index in seen:
            raise BadInput(
                f"{path}:{number}: request {record.index} stands in line {seen[record.index]} too: records of several "
                "runs cannot be mixed, remove one"
            )
        seen[record.index] = number
        found.append(record)
    if not found:
        raise BadInput(f"{path}: no records in it: name a file that --records wrote")
    return found


def _record(path: Path, number: int, line: str) -> RequestRecord:
    try:
        row = json.loads(line)
        if missing := [name for name in _SIZES if name not in row]:
            raise ValueError(f"no {' and no '.join(missing)}, and without sizes no TPOT and no tokens/s")
        row["token_at"] = array("d", row["token_at"])
        row["outcome"] = RequestOutcome(row["outcome"])
        return _sane(RequestRecord(**row))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as problem:
        told = " ".join(str(problem).split())[:200]
        raise BadInput(f"{path}:{number}: not a record of a request: {told}: remove the line") from None


def _sane(record: RequestRecord) -> RequestRecord:
    """The record with times as floats; TypeError, ValueError or OverflowError where `write` writes no such value."""
    for name, kinds in _KINDS.items():
        value = getattr(record, name)
        if type(value) not in kinds:
            raise TypeError(f"{name} is {value!r:.40}")
    for name in _COUNTS:
        if abs(getattr(record, name)) > MOST_COUNT:
            raise ValueError(f"{name} is beyond what anybody counts")
    if record.slo_class and not is_class_name(record.slo_class):
        raise ValueError("slo_class is no DNS label")
    scheduled, sent, ended = (float(getattr(record, name)) for name in _TIMES)
    return replace(record, scheduled_at=scheduled, sent_at=sent, ended_at=ended)
