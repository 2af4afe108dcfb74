"""Numbers that one process writes and another reads: a small memory-mapped file.

The scheduler runs in vLLM's engine process, /metrics in its API server process, and what lies between them carries
fixed fields only. One process writes the whole record after a step; a reader sees a record as it was written, never
half of it: there is room for two, a record is written next to the one that is read, and then its number says so. A
writer that dies or is held up in the middle therefore leaves the record before it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"holdfst2"
_HEADER = struct.Struct("=8sQQ")
_SEQUENCE = struct.Struct("=Q")
_SEQUENCE_AT = 16
_ATTEMPTS = 100


class StatsWriter:
    """The one writer of a file of `size` numbers; an older file of that name is replaced."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_bytes(_HEADER.pack(_MAGIC, size, 0) + bytes(_length(size) - _HEADER.size))
        with scratch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _length(size))
        scratch.replace(path)
        self._size = size
        self._numbers = _numbers(size)
        self._begins = _begin(0, size), _begin(1, size)
        self._sequence = 0

    def write(self, values: Sequence[float]) -> None:
        """Publish a record; ValueError when its length is not that of the file."""
        if len(values) != self._size:
            raise ValueError(f"{len(values)} numbers for a file of {self._size}")
        record, number = self._numbers.pack(*values), self._sequence + 1
        begin = self._begins[number % 2]
        self._map[begin : begin + len(record)] = record
        # In one store: pack_into writes zeros first, which two looks at the number may both meet.
        self._map[_SEQUENCE_AT : _SEQUENCE_AT + _SEQUENCE.size] = _SEQUENCE.pack(number)
        self._sequence = number

    def close(self) -> None:
        """Let go of the file; what was written stays readable."""
        self._map.close()


def read_stats(path: Path, size: int) -> list[float] | None:
    """The last record, None where there is no file of this size or its writer is never slower than the reader."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file.fileno(), size)
    except OSError:
        return None


def _read(file: int, size: int) -> list[float] | None:
    if os.fstat(file).st_size != _length(size):
        return None
    for _ in range(_ATTEMPTS):
        # One read for each: within one, processors copy bytes in whatever order they like.
        magic, count, number = _HEADER.unpack(os.pread(file, _HEADER.size, 0))
        if magic != _MAGIC or count != size:
            return None
        record = os.pread(file, _numbers(size).size, _begin(number, size))
        # With the next record published, the one after it may already be written over this one.
        if os.pread(file, _SEQUENCE.size, _SEQUENCE_AT) == _SEQUENCE.pack(number):
            return list(_numbers(size).unpack(record))
    return None


def _length(size: int) -> int:
    return _HEADER.size + 2 * _numbers(size).size


def _begin(number: int, size: int) -> int:
    """Where the record of this number lies."""
    return _HEADER.size + number % 2 * _numbers(size).size


def _numbers(size: int) -> struct.Struct:
    return struct.Struct(f"={size}d")
