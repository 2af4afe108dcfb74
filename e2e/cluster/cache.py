"""Where built binaries, images and the state of runs are kept, outside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """``$HOLDFAST_CACHE``, else ``$XDG_CACHE_HOME/holdfast``, else ``~/.cache/holdfast``."""
    named = os.environ.get("HOLDFAST_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "holdfast"


def digest_of(files: list[Path], *words: str) -> str:
    """Twelve hexadecimal digits that change when a file's name or content, or a word, changes."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(word.encode() + b"\0")
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@contextmanager
def completed(target: Path) -> Iterator[Path]:
    """Yield a path beside `target`, free for a file or a folder that becomes `target` once the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        unfinished = Path(scratch) / "unfinished"
        yield unfinished
        unfinished.rename(target)


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the cache's lock of this name, so that two builds of one thing do not collide."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
