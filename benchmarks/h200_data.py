"""What was measured on an H200 with vLLM and the plugin: runs, requests and logged steps (data/vllm_gpu_h200)."""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.enginemodel.host import USUAL_FRONT_END
from holdfast.enginemodel.replay import Arrival
from holdfast.enginemodel.steplaw import Chunk, StepTimer

FOLDER = "vllm_gpu_h200"


@dataclass(frozen=True)
class RecordedStep:
    """One step of the log as a plan: what the pipeline asks of it."""

    prefills: tuple[Chunk, ...]
    decodes: int
    mean_kv: float
    begun_at: float
    ended_at: float
    empty: bool = False

    @property
    def tokens(self) -> int:
        return self.decodes + round(sum(chunk for chunk, _ in self.prefills))

    @property
    def sequences(self) -> int:
        return self.decodes + len(self.prefills)

    def seconds(self, timer: StepTimer) -> float:
        return timer.step_seconds(self.prefills, self.decodes, self.mean_kv)


@dataclass(frozen=True)
class Recorded:
    """The runs with arrivals, their requests, and their steps by period in which the engine was busy."""

    runs: Mapping[str, Mapping[str, Any]]
    requests: Mapping[str, Sequence[Mapping[str, Any]]]
    periods: Mapping[str, Sequence[Sequence[RecordedStep]]]

    def arrivals(self, name: str) -> list[Arrival]:
        """The requests of a run, on the clock of all of them."""
        start = self.runs[name]["start_s"]
        return [Arrival(start + each["at"], each["prompt"], each["output"]) for each in self.requests[name]]

    def judged(self, name: str) -> list[int]:
        """Which of them were due in the run's window."""
        begin, end = self.runs[name]["window"]
        return [index for index, each in enumerate(self.requests[name]) if begin <= each["at"] < end]

    def window_seconds(self, name: str) -> float:
        begin, end = self.runs[name]["window"]
        return float(end - begin)

    def token_seconds(self, name: str) -> float:
        """Processor seconds of the API server per token, less what its requests take."""
        run, requests, usual = self.runs[name], self.requests[name], USUAL_FRONT_END
        used = sum(share for process, share in run["cpu"].items() if process.startswith("python3")) * run["took"]
        prompts = sum(each["prompt"] for each in requests)
        used -= usual.request_seconds * len(requests) + usual.prompt_seconds * prompts
        return float(used / sum(each["tokens"] for each in requests))


def read(data: Path, name: str = FOLDER) -> Recorded:
    """Read a folder of the data folder."""
    folder = data / name
    lines = map(json.loads, (folder / "runs.jsonl").read_text().splitlines())
    runs = {run["run"]: run for run in lines if "variant" in run}
    requests: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for row in rows_of(folder / "requests.csv.xz"):
        if row["run"] in requests:
            requests[row["run"]].append(_request(row))
    for each in requests.values():
        each.sort(key=lambda request: request["at"])
    steps = sorted(
        (row for row in rows_of(folder / "steps.csv.xz") if float(row["prompt_tokens"]) + float(row["decodes"]) > 0.0),
        key=lambda row: float(row["sched_begin_s"]),
    )
    return Recorded(runs, requests, {name: _periods(run, steps) for name, run in runs.items()})


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a compressed CSV file."""
    with lzma.open(path, "rt") as file:
        return list(csv.DictReader(file))


def span_of(run: Mapping[str, Any]) -> tuple[float, float]:
    """Within which time (s, on the clock of the steps) a run's steps lie."""
    return run["start_s"] - 0.5, run["start_s"] + run["took"] + 1.0


def _request(row: Mapping[str, str]) -> dict[str, Any]:
    def number(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    return {
        **{name: number(f"{name}_s") for name in ("at", "first", "last")},
        "prompt": int(row["prompt_tokens"]),
        "output": int(row["output_tokens"]),
        "tokens": int(row["tokens_received"]),
        "end": row["end"],
    }


def _periods(run: Mapping[str, Any], rows: Iterable[Mapping[str, str]]) -> list[list[RecordedStep]]:
    """The steps of a run; a period begins with a step that is scheduled when all results have been taken."""
    (begin, end), periods = span_of(run), list[list[RecordedStep]]()
    for row in rows:
        if not (float(row["sched_begin_s"]) >= begin and float(row["update_end_s"]) <= end):
            continue
        step = _step(row)
        if not periods or step.begun_at > periods[-1][-1].ended_at:
            periods.append([])
        periods[-1].append(step)
    return periods


def _step(row: Mapping[str, str]) -> RecordedStep:
    """The prompts of a step are not known one by one: they count as equal ones."""
    prompt, decodes, chunks = float(row["prompt_tokens"]), int(float(row["decodes"])), int(float(row["prompt_chunks"]))
    prefills: tuple[Chunk, ...] = ()
    if prompt:
        count = max(1, chunks)
        before = max(0.0, float(row["pairs"]) / prompt - 0.5 * prompt / count)
        prefills = ((prompt / count, before),) * count  # type: ignore[assignment]  # means need not be whole
    kv = float(row["kv_tokens"]) / decodes if decodes else 0.0
    return RecordedStep(prefills, decodes, kv, float(row["sched_begin_s"]), float(row["update_end_s"]))
