"""Samples and decisions on disk: one JSON line each, so that a stopped run still has a report."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import types
from typing import Any, Self

from e2e.demo.watch import ConditionSample, Decision, PodSample, Sample


class Journal:
    """Append what was seen to a file."""

    def __init__(self, path: pathlib.Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = path.open("w", encoding="utf-8", buffering=1)

    def sample(self, sample: Sample) -> None:
        """Append a sample."""
        self._write("sample", dataclasses.asdict(sample))

    def decision(self, decision: Decision) -> None:
        """Append a decision."""
        self._write("decision", dataclasses.asdict(decision))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._lines.close()

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        self._lines.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")


def read(path: pathlib.Path) -> tuple[list[Sample], list[Decision]]:
    """Read samples and decisions, each ordered by time."""
    samples: list[Sample] = []
    decisions: list[Decision] = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        # A run that was killed may leave half a line at the end.
        if not line.endswith("\n"):
            continue
        fields = json.loads(line)
        if fields.pop("kind") == "decision":
            decisions.append(Decision(**fields))
        else:
            samples.append(_sample(fields))
    return sorted(samples, key=lambda seen: seen.at), sorted(decisions, key=lambda decision: decision.at)


def _sample(fields: dict[str, Any]) -> Sample:
    pods = tuple(PodSample(**pod) for pod in fields.pop("pods"))
    conditions = tuple(ConditionSample(**condition) for condition in fields.pop("conditions"))
    return Sample(pods=pods, conditions=conditions, **fields)
