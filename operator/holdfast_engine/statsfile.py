"""Numbers that one process writes and another reads: a small memory-mapped file.

The scheduler runs in vLLM's engine process, /metrics in its API server process, and what lies between them carries
fixed fields only. One process writes the whole record after a step; a reader sees a record as it was written, never
half of it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"holdfst1"
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
        length = _HEADER.size + 8 * size
        scratch.write_bytes(_HEADER.pack(_MAGIC, size, 0) + bytes(8 * size))
        with scratch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), length)
        scratch.replace(path)
        self._size = size
        self._numbers = _numbers(size)
        self._sequence = 0

    def write(self, values: Sequence[float]) -> None:
        """Publish a record; ValueError when its length is not that of the file."""
        if len(values) != self._size:
            raise ValueError(f"{len(values)} numbers for a file of {self._size}")
        record = self._numbers.pack(*values)
        # Odd while the record changes: readers then look again.
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence + 1)
        self._map[_HEADER.size :] = record
        self._sequence += 2
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)

    def close(self) -> None:
        """Let go of the file; what was written stays readable."""
        self._map.close()


def read_stats(path: Path, size: int) -> list[float] | None:
    """The last record, None where there is no file of this size."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file.fileno(), size)
    except OSError:
        return None


def _read(file: int, size: int) -> list[float] | None:
    length = _HEADER.size + 8 * size
    values: tuple[float, ...] = ()
    for _ in range(_ATTEMPTS):
        content = os.pread(file, length, 0)
        if len(content) != length:
            return None
        magic, count, sequence = _HEADER.unpack_from(content)
        if magic != _MAGIC or count != size:
            return None
        again = _SEQUENCE.unpack(os.pread(file, _SEQUENCE.size, _SEQUENCE_AT))[0]
        values = _numbers(size).unpack_from(content, _HEADER.size)
        if sequence % 2 == 0 and sequence == again:
            break
    return list(values)


def _numbers(size: int) -> struct.Struct:
    return struct.Struct(f"={size}d")
