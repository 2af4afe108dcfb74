"""Recorded requests from files: read as a stream into columns of numbers, checked line by line."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np

from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.scenarios.inputs import TRACE_FORMATS, BadInput

TraceRow = tuple[float, int, int]
"""Seconds, prompt tokens, output tokens."""

LONGEST_TOKENS = 10_000_000

LONGEST_LINE = 1_000_000
"""Characters: who reads a longer one whole has no bound on memory."""

_UNREADABLE = (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile, zlib.error)


def read_trace(path: Path, format_name: str, until_seconds: float = math.inf) -> Workload:
    """All requests of a trace, the first one at 0 s; BadInput names file, line and remedy.

    Nothing is read behind the first request at `until_seconds` or later, which shows that the trace goes on so long.
    """
    at, prompts, outputs = array("d"), array("q"), array("q")
    for moment, prompt, output in requests(path, format_name):
        at.append(moment)
        prompts.append(prompt)
        outputs.append(output)
        if moment >= until_seconds:
            break
    columns = np.frombuffer(at), np.frombuffer(prompts, np.int64), np.frombuffer(outputs, np.int64)
    return Workload(*columns, np.zeros(len(at), np.int64))


def requests(path: Path, format_name: str) -> Iterator[TraceRow]:
    """Line by line, checked, the first one at 0 s; at least one."""
    last = first = -float("inf")
    with _text(path) as file:
        for line, (moment, prompt, output) in _READERS[format_name](path, file):
            if not moment >= last:
                raise BadInput(f"{path}:{line}: time goes backwards: sort the trace by arrival")
            if not (1 <= prompt <= LONGEST_TOKENS and 1 <= output <= LONGEST_TOKENS):
                told = f"{prompt} prompt and {output} output tokens: each must be from 1 to {LONGEST_TOKENS:,}"
                raise BadInput(f"{path}:{line}: {told}: remove the line")
            last, first = moment, moment if first == -float("inf") else first
            yield moment - first, prompt, output
    if first == -float("inf"):
        raise BadInput(f"{path}: the trace has no requests: give at least one")


def read_rates(path: Path) -> tuple[Floats, Floats]:
    """Seconds and requests/s of a ServeGen file with the columns t_s and rate_rps."""
    times, rates = array("d"), array("d")
    with _text(path) as file:
        for line, values in _columns(path, file, ("t_s", "rate_rps")):
            time, rate = (_number(path, line, value) for value in values)
            if rate < 0.0 or (times and time <= times[-1]):
                raise BadInput(f"{path}:{line}: times must increase and rates must not be negative: correct the line")
            times.append(time)
            rates.append(rate)
    if not times:
        raise BadInput(f"{path}: the file has no rates: give at least one")
    return np.array(times), np.array(rates)


@contextmanager
def _text(path: Path) -> Iterator[Iterator[str]]:
    """Lines of a text, perhaps compressed; BadInput where it cannot be opened, or turns out not to be one."""
    with _opened(path) as file:
        try:
            yield _lines(path, file)
        except _UNREADABLE as error:
            raise BadInput(f"{path}: not a text file: {error}") from None


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) >= LONGEST_LINE:
            raise BadInput(f"{path}:{number}: the line has {LONGEST_LINE:,} characters or more: remove it")
        yield line


def _opened(path: Path) -> IO[str]:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")  # spreadsheets begin a CSV with a byte order mark
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}: check the path, or give its folder with --data") from None


def _csv(path: Path, file: Iterator[str]) -> Iterator[tuple[int, TraceRow]]:
    for line, values in _columns(path, file, ("arrival_seconds", "prompt_tokens", "output_tokens")):
        at, prompt, output = (_number(path, line, value) for value in values)
        if at < 0.0:
            raise BadInput(f"{path}:{line}: arrival_seconds {at:g} is negative")
        yield line, (at, _whole(path, line, prompt), _whole(path, line, output))


def _azure(path: Path, file: Iterator[str]) -> Iterator[tuple[int, TraceRow]]:
    start: datetime | None = None
    for line, (moment, prompt, output) in _columns(path, file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            at = datetime.fromisoformat(moment)
        except ValueError:
            raise BadInput(
                f"{path}:{line}: TIMESTAMP {moment!r} is not a time such as 2023-11-16 18:15:46.68"
            ) from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        start = start or at
        prompts, outputs = (_whole(path, line, _number(path, line, value)) for value in (prompt, output))
        yield line, ((at - start).total_seconds(), prompts, outputs)


def _mooncake(path: Path, file: Iterator[str]) -> Iterator[tuple[int, TraceRow]]:
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            at, prompt, output = (row[name] for name in ("timestamp", "input_length", "output_length"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadInput(
                f"{path}:{line}: not a request with timestamp, input_length, output_length: {error}"
            ) from None
        numbers = [_number(path, line, str(value)) for value in (at, prompt, output)]
        if numbers[0] < 0.0:
            raise BadInput(f"{path}:{line}: timestamp {numbers[0]:g} is negative")
        yield line, (numbers[0] / 1000.0, _whole(path, line, numbers[1]), _whole(path, line, numbers[2]))


_READERS: dict[str, Callable[[Path, Iterator[str]], Iterator[tuple[int, TraceRow]]]] = dict(
    zip(TRACE_FORMATS, (_azure, _csv, _mooncake), strict=True)
)


def _columns(path: Path, file: Iterator[str], names: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the values of the named columns of a CSV file with a header."""
    rows = csv.reader(file)
    header = next(rows, None)
    if header is None:
        raise BadInput(f"{path}: the file is empty: it needs a header with {', '.join(names)}")
    missing = [name for name in names if name not in header]
    if missing:
        raise BadInput(f"{path}:1: no column {missing[0]!r}: the columns {', '.join(names)} are needed")
    places = [header.index(name) for name in names]
    for row in rows:
        if not row:
            continue
        if len(row) <= max(places):
            raise BadInput(f"{path}:{rows.line_num}: fewer columns than the header has")
        yield rows.line_num, [row[place] for place in places]


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e15:
        raise BadInput(f"{path}:{line}: {text!r} is not a number")
    return value


def _whole(path: Path, line: int, value: float) -> int:
    if value != int(value):
        raise BadInput(f"{path}:{line}: {value:g} tokens: give whole numbers")
    return int(value)
