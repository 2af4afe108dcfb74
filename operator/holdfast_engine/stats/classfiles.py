"""The numbers of each class, from the scheduler to the API server: a file for each, named by engine and class.

Only engines with declared classes have such files: without, nothing more is written or read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast_engine.objectives.rules import SERVICE_CLASS
from holdfast_engine.stats.stats_fields import COUNTS
from holdfast_engine.stats.statsfile import StatsWriter, read_stats

CLASS_FIELDS = (
    *COUNTS[: COUNTS.index("good_tokens") + 1],
    "unjudged",
    "is_batch",
    "limit_ttft_seconds",
    "waiting_requests",
    "waiting_fresh_tokens",
)
"""One number each. The last three judge a request at the door: the bound of its first token, NaN where no header may
claim the class and infinite for batch, and what waits of its own and higher priorities."""


def class_path(stats: Path, name: str) -> Path:
    """The file of a class next to that of its engine; a name is a DNS label, or empty for the service's own class."""
    return stats.with_name(f"{stats.stem}.{name}.class")


ReadClass = Callable[[str], Mapping[str, float] | None]
"""Finds the numbers of a class, None where the engine has no such class."""


def claimed_in(read: ReadClass, claimed: str) -> str:
    """The class as which a request counts that claims this one at the door: the service's own where none may."""
    found = read(claimed) if claimed else None
    return SERVICE_CLASS if found is None or math.isnan(found["limit_ttft_seconds"]) else claimed


def at_door(read: ReadClass, claimed: str) -> dict[str, float]:
    """What differs from the numbers of the service for a request of this class: its bound, and what waits before it."""
    found = read(claimed_in(read, claimed))
    if found is None:
        return {}
    waiting = {"waiting_front": 0.0, "waiting_fresh": found["waiting_requests"], "waiting_late": 0.0}
    return waiting | {name: found[name] for name in ("limit_ttft_seconds", "waiting_fresh_tokens")}


class ClassFiles:
    """Writes them; files of an earlier engine of that number are removed."""

    def __init__(self, stats: Path) -> None:
        self._stats = stats
        self._writers: dict[str, StatsWriter] = {}
        for path in _paths(stats):
            path.unlink(missing_ok=True)

    def write(self, numbers: Mapping[str, Sequence[float]]) -> None:
        """Publish the numbers of these classes; a class that is not among them any more loses its file."""
        for name in [name for name in self._writers if name not in numbers]:
            self._writers.pop(name).path.unlink(missing_ok=True)
        for name, values in numbers.items():
            if name not in self._writers:
                self._writers[name] = StatsWriter(class_path(self._stats, name), len(CLASS_FIELDS))
            self._writers[name].write(values)


def read_class(stats: Path, name: str) -> dict[str, float] | None:
    """The numbers of one class by name, None where the engine has no such class."""
    found = read_stats(class_path(stats, name), len(CLASS_FIELDS))
    return None if found is None else dict(zip(CLASS_FIELDS, found, strict=True))


def read_classes(stats: Path) -> dict[str, dict[str, float]]:
    """The numbers of all classes of an engine, by class."""
    names = [path.name.removesuffix(".class").removeprefix(f"{stats.stem}.") for path in _paths(stats)]
    found = {name: read_class(stats, name) for name in sorted(names)}
    return {name: numbers for name, numbers in found.items() if numbers is not None}


def _paths(stats: Path) -> list[Path]:
    return list(stats.parent.glob(f"{stats.stem}.*.class"))
