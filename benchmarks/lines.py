"""A file of one line per finished run: what was interrupted goes on where it stopped."""

from __future__ import annotations

import os
from pathlib import Path


class Lines:
    """The lines of a file that may not be there yet, and a way to add one for good.

    A killed process may have left half a line: it does not count, and the next one is written over it.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        content = path.read_bytes() if path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        self.found = content[: self._end].splitlines()

    def add(self, text: str) -> None:
        """Write one line and wait until it is on the disk."""
        line = text.encode() + b"\n"
        with self._path.open("ab") as file:
            file.truncate(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(line)
