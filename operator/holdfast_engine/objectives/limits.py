"""Limits that change while the engine serves: files that Kubernetes keeps up to date."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast_engine.objectives.rules import Limits, LimitsError, parse_limits

# A changed annotation stands in its file after 0.2 s; looking more often than this would only cost.
LOOK_SECONDS = 0.25
SCHEDULER_CLASS = "holdfast_engine.scheduler.HoldfastScheduler"
"""What `--scheduler-cls` of vLLM names to run the fast loop."""
LIMITS_VARIABLE = "HOLDFAST_ENGINE_LIMITS"
DEFAULT_LIMITS = "/etc/holdfast/pod/engine-limits:/etc/holdfast/limits/engine-limits"
_LARGEST_BYTES = 65536

_Stamp = tuple[int, int, int]

logger = logging.getLogger("vllm.holdfast")


class LimitsFiles:
    """Several files with limits; the highest version counts, and an unusable file changes nothing."""

    def __init__(self, paths: Iterable[Path], look_seconds: float = LOOK_SECONDS) -> None:
        self.current: Limits | None = None
        self._stamps: dict[Path, _Stamp | None] = {path: None for path in paths}
        self._look_seconds = look_seconds
        self._next_look = float("-inf")

    def poll(self, now: float) -> Limits | None:
        """New limits, None where nothing changed; looks at the files a few times per second at most."""
        if now < self._next_look:
            return None
        self._next_look = now + self._look_seconds
        before = self.current
        for path, known in self._stamps.items():
            stamp = _stamp(path)
            if stamp != known:
                self._stamps[path] = stamp
                self._consider(path, stamp)
        return self.current if self.current is not before else None

    def _consider(self, path: Path, stamp: _Stamp | None) -> None:
        text = "" if stamp is None else _text(path)
        # An annotation that does not exist is an empty file.
        if not text.strip():
            return
        try:
            found = parse_limits(text)
        except LimitsError as problem:
            logger.warning("holdfast: %s is left out of account: %s", path, problem)
            return
        if self.current is None or found.version > self.current.version:
            self.current = found
            logger.info("holdfast: limits of version %d from %s", found.version, path)


def _stamp(path: Path) -> _Stamp | None:
    """What tells one content from another: the kubelet swaps a link, so the file behind it counts."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""
