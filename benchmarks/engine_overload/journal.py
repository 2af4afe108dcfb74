"""Finished runs, one JSON line each, so that an interrupted campaign goes on where it stopped.

Runs for which the machine was too unsteady are lines too: they are told, and do not count.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_overload.cells import FixedLimits, Variant, Window
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.speed import Reference, Speed, reference
from benchmarks.lines import Lines

# Traces of the search have seeds of their own.
SEARCH_SEED = 1000


class OtherCampaignError(Exception):
    """The folder holds runs that were made with other settings."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """What tells one run from all others.

    `limits` only where stock vLLM got fixed ones; `queued_tokens` is --max-num-queued-tokens; `take` tells repetitions
    of the very same run apart.
    """

    cell: int
    variant: Variant
    rate_rps: float
    window: Window
    seed: int
    limits: FixedLimits | None = None
    queued_tokens: int | None = None
    take: int = 0

    @property
    def is_search(self) -> bool:
        """Whether it was made to find C."""
        return self.seed >= SEARCH_SEED


@dataclass(frozen=True, slots=True)
class Circumstances:
    """When a run began and on what."""

    began: str
    commit: str
    load_average: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run that was made; `unsteady` says why it does not count, and is empty where it does."""

    key: RunKey
    figures: Figures
    speed: Speed
    unsteady: str
    seconds: float
    circumstances: Circumstances


class Journal:
    """The runs in `runs.jsonl` of a folder; `campaign.json` beside it holds the settings they have in common."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._lines = Lines(folder / "runs.jsonl")
        _claim(folder / "campaign.json", settings)
        self._attempts: list[Attempt] = []
        self._of: dict[RunKey, list[Attempt]] = {}
        for line in self._lines.found:
            self._keep(_attempt(line))

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def attempts(self) -> list[Attempt]:
        """All of them, in their order."""
        return list(self._attempts)

    def of(self, key: RunKey) -> list[Attempt]:
        """All attempts at a run, in their order."""
        return list(self._of.get(key, ()))

    def get(self, key: RunKey) -> Attempt | None:
        """The attempt that counts."""
        return next((each for each in self.of(key) if not each.unsteady), None)

    def reference(self, cell: int) -> Reference | None:
        """The speed at which the cell's rates were chosen."""
        return reference([each.speed for each in self._attempts if each.key.cell == cell and each.key.is_search])

    def add(self, attempt: Attempt) -> None:
        """Write a finished run down for good."""
        run = {
            "run": _plain(attempt.key),
            "figures": _plain(attempt.figures),
            "speed": _plain(attempt.speed),
            "unsteady": attempt.unsteady,
            "seconds": round(attempt.seconds, 1),
            "circumstances": _plain(attempt.circumstances),
        }
        self._lines.add(json.dumps(run))
        self._keep(attempt)

    def _keep(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)
        self._of.setdefault(attempt.key, []).append(attempt)


def _claim(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        path.write_text(json.dumps(settings, indent=1) + "\n")
        return
    known = json.loads(path.read_text())
    if known != settings:
        differing = sorted(name for name in known.keys() | settings.keys() if known.get(name) != settings.get(name))
        raise OtherCampaignError(f"{path} was made with other {', '.join(differing)}: take another folder")


def _attempt(line: bytes) -> Attempt:
    found = json.loads(line)
    run = found["run"]
    limits = run["limits"]
    run["variant"] = Variant(run["variant"])
    run["window"] = Window(**run["window"])
    run["limits"] = None if limits is None else FixedLimits(**limits)
    speed = _numbers(found["speed"])
    return Attempt(
        RunKey(**run),
        Figures(**_numbers(found["figures"])),
        Speed(**{**speed, "parts_ms": tuple(speed["parts_ms"])}),
        found["unsteady"],
        found["seconds"],
        Circumstances(**found["circumstances"]),
    )


def _numbers(found: dict[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in found.items()}


def _plain(value: Any) -> dict[str, Any]:
    """Fields for JSON, which knows no NaN."""
    found = dataclasses.asdict(value)
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in found.items()}
