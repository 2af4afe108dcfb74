"""When answers were written: a memory-mapped ring of reports from the API server's process to the scheduler's.

One process writes, any number read. A report lies at its number modulo the size of the ring, with its number and a
checksum, so a reader recognizes one that is half written, overwritten or damaged, and skips it.
"""

from __future__ import annotations

import enum
import hashlib
import mmap
import os
import struct
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

# At 100 requests per second, with three reports each, this is half a minute.
SLOTS = 8192
# How often a reader checks whether the file is another one.
LOOK_SECONDS = 0.25
_MAGIC = b"holdwrt1"
_HEADER = struct.Struct("=8sQQQ")
_COUNT = struct.Struct("=Q")
_COUNT_AT, _OPEN_AT = 16, 24
_BODY = struct.Struct("=16sdQI")
_CHECKSUM = struct.Struct("=I")
_REPORT = struct.Struct("=16sdQII")
_BODY_BYTES, _REPORT_BYTES = _BODY.size, _REPORT.size


class ReportKind(enum.IntEnum):
    """What became of an answer."""

    STARTED = 1
    """The request goes to the engine, and its answer is watched; `at` is when it came to the API server's host."""
    FIRST = 2
    """The first token was written."""
    LAST = 3
    """The answer was written to its end."""
    GONE = 4
    """Nothing more will be reported: the client left, or several answers share a stream."""
    ARRIVED = 5
    """The request goes to the engine, and nobody watches its answer; `at` as above."""
    HELD = 6
    """A request that came at `at` waits at the door under a name of its own."""
    RESUMED = 7
    """It goes to the engine: the next ARRIVED or STARTED tells the name it has there."""


BEGINS = (ReportKind.STARTED, ReportKind.ARRIVED)
"""The request goes to the engine."""


class Report(NamedTuple):
    """`name` stands for the request (`name_of`), `at` is in seconds of the machine's monotonic clock."""

    kind: ReportKind
    name: bytes
    at: float


def name_of(request_id: str) -> bytes:
    """Sixteen bytes for a request: a client may choose an id of any length."""
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()


CLASS_BYTES = 8


def class_digest(name: str) -> bytes:
    """What the name of a request that waits at the door begins with: the class that it claims."""
    return hashlib.blake2b(name.encode(), digest_size=CLASS_BYTES).digest()


class WrittenWriter:
    """The one writer of a file; an older file of that name is replaced."""

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        length = _HEADER.size + slots * _REPORT_BYTES
        scratch.write_bytes(_HEADER.pack(_MAGIC, slots, 0, 1) + bytes(length - _HEADER.size))
        with scratch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), length)
        scratch.replace(path)
        self._slots = slots
        self._count = 0

    def write(self, kind: ReportKind, name: bytes, at: float) -> None:
        """Publish a report."""
        body = _BODY.pack(name, at, self._count, kind)
        begin = _HEADER.size + self._count % self._slots * _REPORT_BYTES
        self._map[begin : begin + _REPORT_BYTES] = body + _CHECKSUM.pack(crc32(body))
        self._count += 1
        # One store: pack_into would write zeros first.
        self._map[_COUNT_AT : _COUNT_AT + _COUNT.size] = _COUNT.pack(self._count)

    def close(self) -> None:
        """Say that no report will follow; the written reports stay readable."""
        self._map[_OPEN_AT : _OPEN_AT + _COUNT.size] = _COUNT.pack(0)


class WrittenReader:
    """Reads each report once. Reports that were written before it are skipped, or those before number `first`.

    `is_open` is whether somebody writes.
    """

    def __init__(self, path: Path, look_seconds: float = LOOK_SECONDS, first: int | None = None) -> None:
        self.is_open = False
        self._path = path
        self._look_seconds = look_seconds
        self._next_look = float("-inf")
        self._file: FileIO | None = None
        self._known: tuple[int, int] | None = None
        self._read = 0
        self._seen: bytes | None = None
        # What an earlier server left behind is old.
        self._look(skip=True)
        if first is not None:
            self._read = min(first, self._read)

    @property
    def taken(self) -> int:
        """So many reports of the file have been read, or passed over."""
        return self._read

    def poll(self, now: float) -> list[Report]:
        """The reports since the last call. To be called after every step: it reads 32 bytes where there are none."""
        if not now < self._next_look:
            self._next_look = now + self._look_seconds
            if _identity(self._path) != self._known:
                found = self._take()
                self._look(skip=False)
                return found + self._take()
        return self._take()

    def _take(self) -> list[Report]:
        found = self._pread(_HEADER.size, 0)
        if found == self._seen:
            return []
        self._seen, self.is_open = found, False
        header = _parsed(found)
        if header is None:
            return []
        slots, count, is_open = header
        self.is_open = is_open
        # Reports that were overwritten are lost, and so are those of a count that went backwards.
        first, self._read = max(min(self._read, count), count - slots), count
        if first == count:
            return []
        # In one read, or two where they go round the end of the ring.
        turn = min(count, (first // slots + 1) * slots)
        return self._reports(first, turn, slots) + self._reports(turn, count, slots)

    def _reports(self, first: int, end: int, slots: int) -> list[Report]:
        if first == end:
            return []
        found, block = [], self._pread((end - first) * _REPORT_BYTES, _HEADER.size + first % slots * _REPORT_BYTES)
        whole = block[: len(block) // _REPORT_BYTES * _REPORT_BYTES]
        expected, begin = first, 0
        for name, at, number, kind, checksum in _REPORT.iter_unpack(whole):
            if number == expected and kind in _KINDS and crc32(whole[begin : begin + _BODY_BYTES]) == checksum:
                found.append(_report((_KINDS[kind], name, at)))
            expected += 1
            begin += _REPORT_BYTES
        return found

    def _look(self, skip: bool) -> None:
        """Open the file that now has the name."""
        if self._file is not None:
            self._file.close()
        self._file, self._known, self._read, self._seen = None, None, 0, None
        try:
            self._file = FileIO(self._path)
            found = os.fstat(self._file.fileno())
        except OSError:
            return
        self._known = found.st_dev, found.st_ino
        header = _parsed(self._pread(_HEADER.size, 0))
        if skip and header is not None:
            self._read = header[1]

    def _pread(self, size: int, at: int) -> bytes:
        """Read, not mapped: a mapped file that somebody cuts short ends the process."""
        try:
            return b"" if self._file is None or not size else os.pread(self._file.fileno(), size, at)
        except OSError:
            return b""


def begun_since(path: Path, first: int) -> int:
    """Requests that went to the engine by the reports from number `first` on, and have not ended by them.

    One that comes from the door is not among them: the engine counts it where it waits there.
    """
    names: set[bytes] = set()
    before = 0
    for report in WrittenReader(path, first=first).poll(0.0):
        if report.kind in BEGINS:
            names.add(report.name)
        elif report.kind is ReportKind.RESUMED:
            before += 1
        elif report.kind is not ReportKind.FIRST:
            names.discard(report.name)
    return max(0, len(names) - before)


def _parsed(header: bytes) -> tuple[int, int, bool] | None:
    """Slots, number of reports, and whether more will come; None for what is no header."""
    if len(header) != _HEADER.size:
        return None
    magic, slots, count, is_open = _HEADER.unpack(header)
    if magic != _MAGIC or not 0 < slots <= SLOTS:
        return None
    return slots, count, is_open == 1


_KINDS = {int(kind): kind for kind in ReportKind}
# What Report() does, without a call of Python code for each of some hundred reports per second.
_report: Callable[[tuple[ReportKind, bytes, float]], Report] = partial(tuple.__new__, Report)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
