"""Finished runs, one JSON line each, so that an interrupted campaign goes on where it stopped."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine_overload.cells import FixedLimits, Variant, Window
from benchmarks.engine_overload.goodput import Figures
from benchmarks.lines import Lines


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


@dataclass(frozen=True, slots=True)
class Circumstances:
    """When a run began and on what."""

    began: str
    commit: str
    load_average: float


class Journal:
    """The runs in `runs.jsonl` of a folder; `campaign.json` beside it holds the settings they have in common."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._lines = Lines(folder / "runs.jsonl")
        _claim(folder / "campaign.json", settings)
        self._found: dict[RunKey, Figures] = {}
        self._circumstances: list[Circumstances] = []
        for line in self._lines.found:
            key, figures, circumstances = _run(line)
            self._found[key] = figures
            self._circumstances.append(circumstances)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def circumstances(self) -> list[Circumstances]:
        """Of all runs, in their order."""
        return list(self._circumstances)

    @property
    def figures(self) -> list[Figures]:
        """Of all runs."""
        return list(self._found.values())

    def get(self, key: RunKey) -> Figures | None:
        """The figures of a finished run."""
        return self._found.get(key)

    def add(self, key: RunKey, figures: Figures, circumstances: Circumstances) -> None:
        """Write a finished run down for good."""
        run = {"run": _plain(key), "figures": _plain(figures), "circumstances": _plain(circumstances)}
        self._lines.add(json.dumps(run))
        self._found[key] = figures
        self._circumstances.append(circumstances)


def _claim(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        path.write_text(json.dumps(settings, indent=1) + "\n")
        return
    known = json.loads(path.read_text())
    if known != settings:
        differing = sorted(name for name in known.keys() | settings.keys() if known.get(name) != settings.get(name))
        raise OtherCampaignError(f"{path} was made with other {', '.join(differing)}: take another folder")


def _run(line: bytes) -> tuple[RunKey, Figures, Circumstances]:
    found = json.loads(line)
    run = found["run"]
    limits = run["limits"]
    run["variant"] = Variant(run["variant"])
    run["window"] = Window(**run["window"])
    run["limits"] = None if limits is None else FixedLimits(**limits)
    figures: dict[str, Any] = {name: math.nan if value is None else value for name, value in found["figures"].items()}
    return RunKey(**run), Figures(**figures), Circumstances(**found["circumstances"])


def _plain(value: Any) -> dict[str, Any]:
    """Fields for JSON, which knows no NaN."""
    found = dataclasses.asdict(value)
    return {name: None if isinstance(each, float) and math.isnan(each) else each for name, each in found.items()}
