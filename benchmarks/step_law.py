"""The plugin's step law on a log of a real engine's steps, played through the fast loop on the clock of the log.

    python benchmarks/step_law.py --data DIR      # DIR holds vllm_gpu_h200/

(a) Each run by itself: a law fitted on every other block of 16 steps, judged by the sums of the blocks between.
(b) All runs of stock vLLM: what their law says of decodes alone and of lone prompts, beside the measured steps.
(c) What a prompt among decodes costs: the three intervals around it less two decodes, beside that law.
(d) Each run of the plugin by itself: the largest error on (b), beside the prior's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.h200_data import rows_of, span_of
from holdfast.enginemodel.prior import engine_prior
from holdfast_engine.fastloop import FastLoop, StartLimits
from holdfast_engine.law.arithmetic import Law, launch_seconds, linear_seconds
from holdfast_engine.law.captured_graphs import CapturedGraphs
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives

GRAPHS = CapturedGraphs(512.0)
OVERLOADED = ("1.25", "1.5", "2.0")


@dataclass(frozen=True, eq=False)
class LoggedStep:
    """One engine step: when it was scheduled and its results taken (s), what it computed; as vLLM's SchedulerOutput."""

    scheduled_at: float
    launched_at: float
    came_at: float
    updated_at: float
    prefill: int
    decodes: int
    kv: float
    pairs: float

    @property
    def work(self) -> tuple[int, int, float, float]:
        """The terms of the step law."""
        return self.prefill, self.decodes, self.kv, self.pairs

    @property
    def scheduled_new_reqs(self) -> Sequence[Any]:
        """The prompt tokens as one chunk with as many pairs."""
        return [_New("prompt", self.pairs / self.prefill - 0.5 * self.prefill)] if self.prefill else []

    @property
    def scheduled_cached_reqs(self) -> Any:
        """The decodes; the first has all KV tokens."""
        names = [f"decode-{number}" for number in range(self.decodes)]
        return _Cached(names, [self.kv - self.decodes, *[0] * (self.decodes - 1)] if names else [])

    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        tokens = dict.fromkeys((f"decode-{number}" for number in range(self.decodes)), 1)
        return tokens | ({"prompt": self.prefill} if self.prefill else {})

    @property
    def total_num_scheduled_tokens(self) -> int:
        return self.prefill + self.decodes


@dataclass(frozen=True)
class _New:
    req_id: str
    num_computed_tokens: float


@dataclass(frozen=True)
class _Cached:
    req_ids: list[str]
    num_computed_tokens: list[float]


@dataclass(frozen=True)
class Phase:
    """The steps of one run, in order."""

    name: str
    stock: bool
    steps: list[LoggedStep]


def read_phases(folder: Path) -> list[Phase]:
    """The runs of `vllm_gpu_h200`, in order."""
    steps = sorted(map(_step, rows_of(folder / "steps.csv.xz")), key=lambda step: step.scheduled_at)
    runs = [run for run in map(json.loads, (folder / "runs.jsonl").read_text().splitlines()) if "took" in run]
    return [Phase(run["run"][3:], run["variant"] == "stock", _steps_of(run, steps)) for run in runs]


def _steps_of(run: dict[str, Any], steps: list[LoggedStep]) -> list[LoggedStep]:
    begin, end = span_of(run)
    return [step for step in steps if begin <= step.scheduled_at and step.updated_at <= end]


def _step(row: dict[str, str]) -> LoggedStep:
    times = (float(row[name]) for name in ("sched_begin_s", "sched_end_s", "update_begin_s", "update_end_s"))
    work = (int(row["prompt_tokens"]), int(row["decodes"]), float(row["kv_tokens"]), float(row["pairs"]))
    return LoggedStep(*times, *work)


class LoggedEngine:
    """A fast loop that has seen the steps it was given."""

    def __init__(self, prior: Law, folder: Path, graphs: CapturedGraphs = GRAPHS) -> None:
        self.now = 0.0
        path = folder / "engine-limits"
        path.write_text(Limits(1, Objectives(0.5, 0.03), prior=prior).to_json())
        start = StartLimits(1024, 8192, graphs=graphs)
        self.loop = FastLoop(start, LimitsFiles([path]), lambda: self.now, lambda: self.now)
        self.loop.look()

    @property
    def law(self) -> Law:
        assert self.loop.fit.law is not None
        return self.loop.fit.law

    def play(self, steps: Sequence[LoggedStep]) -> dict[int, Law]:
        """Schedule and update as the log says, idle before; returns the law that was known when each step began."""
        known = {}
        for moment, what, step in sorted(_events(steps), key=lambda event: event[:2]):
            self.now = moment
            if what == "2 scheduled":
                self.loop.before_step(len(self.loop._pending))
                self.loop.scheduled(step)
                known[id(step)] = self.law
            elif what == "0 came":
                self.loop.came()
            else:
                self.loop.updated(step, ())
        self.loop.fit.update()
        return known


def _events(steps: Sequence[LoggedStep]) -> Iterator[tuple[float, str, LoggedStep]]:
    for step in steps:
        yield step.launched_at, "2 scheduled", step
        yield step.came_at, "0 came", step
        yield step.updated_at, "1 updated", step


def blocks(steps: Sequence[LoggedStep], size: int = 16) -> list[list[LoggedStep]]:
    """Consecutive steps with tokens, in blocks."""
    busy = [step for step in steps if step.total_num_scheduled_tokens]
    return [busy[first : first + size] for first in range(0, len(busy) - size, size)]


def seconds_of(law: Law, steps: Sequence[LoggedStep]) -> float:
    """What a law says steps take one after the other, where the thread launches each while the one before it runs."""
    launched = ended = before = 0.0
    ends = []
    for step in [steps[0], *steps]:
        launched = max(launched, before) + launch_seconds(law, step.prefill, step.decodes)
        before, ended = ended, max(ended + linear_seconds(law, *step.work), launched)
        ends.append(ended)
    return ends[-1] - ends[0]


@dataclass(frozen=True)
class BlockErrors:
    """How far sums of 16 steps are off: the median, and the root mean square of the relative errors."""

    median: float
    relative_rms: float


def block_errors(prior: Law, phase: Phase) -> BlockErrors:
    """Fit on the even blocks of a run, and judge the odd ones."""
    parts = blocks(phase.steps)
    engine = played(prior, parts[::2])
    errors = []
    for before, part in list(pairwise(parts))[::2]:
        steps = [before[-1], *part]
        if all(later.scheduled_at <= step.updated_at for step, later in pairwise(steps)):
            measured = part[-1].updated_at - before[-1].updated_at
            errors.append(seconds_of(engine.law, part) / measured - 1.0)
    return BlockErrors(float(np.median(np.abs(errors))), float(np.sqrt(np.mean(np.square(errors)))))


def played(prior: Law, parts: Sequence[Sequence[LoggedStep]]) -> LoggedEngine:
    """An engine that has run these parts of the log, idle between them."""
    with TemporaryDirectory() as folder:
        engine = LoggedEngine(prior, Path(folder))
        for part in parts:
            engine.play(part)
    return engine


Cell = tuple[str, tuple[float, float, float, float], float]
"""A name, the terms of a step, and the seconds it was measured to take."""


def cells(phases: Sequence[Phase]) -> list[Cell]:
    """Decodes alone after decodes alone, and lone prompts (their launch, about 1 ms, included)."""
    found: list[Cell] = []
    ramp = _busy(next(phase for phase in phases if phase.name == "ramp-512"))
    for decodes in (64, 128, 256):
        pairs = [(b, b.updated_at - a.updated_at) for a, b in pairwise(ramp) if not a.prefill]
        alike = [(b, seconds) for b, seconds in pairs if not b.prefill and b.decodes == decodes]
        kv = median(step.kv for step, _ in alike)
        found.append((f"{decodes} decodes", (0, decodes, kv, 0), median(seconds for _, seconds in alike)))
    alone = _busy(next(phase for phase in phases if phase.name == "prefill"))
    for tokens in (512, 2048, 8192):
        lone = [step for step in alone if step.prefill == tokens and not step.decodes]
        seconds = median(step.updated_at - step.launched_at for step in lone)
        found.append((f"prompt of {tokens}", (tokens, 0, 0, 0.5 * tokens**2), seconds))
    return found


def cell_errors(law: Law, phases: Sequence[Phase]) -> dict[str, float]:
    """The relative error of a law on each cell."""
    return {name: linear_seconds(law, *work) / seconds - 1.0 for name, work, seconds in cells(phases)}


@dataclass(frozen=True)
class MixedStep:
    """A step with a prompt between two of decodes alone, what it cost, and what the law of that moment says (s)."""

    prefill: int
    decodes: int
    seconds: float
    expected: float


def mixed_steps(prior: Law, phases: Sequence[Phase]) -> list[MixedStep]:
    """All of them; the law is that of all stock runs, its launches are those known when the step ran."""
    law = played(prior, [phase.steps for phase in phases if phase.stock]).law
    decodes = _decode_law(phases)
    found = []
    with TemporaryDirectory() as folder:
        engine = LoggedEngine(prior, Path(folder))
        for phase in phases:
            steps = _busy(phase)
            launches = engine.play(phase.steps)
            for index in _between_decodes(steps):
                first, step = steps[index - 1], steps[index]
                seconds = steps[index + 1].updated_at - steps[index - 2].updated_at
                seconds -= linear_seconds(decodes, *first.work) + linear_seconds(decodes, *steps[index + 1].work)
                known = Law._make([*law[:5], *launches[id(step)][5:]])
                # The launch of the step began when the GPU began the decodes before it.
                launch = launch_seconds(known, step.prefill, step.decodes) - linear_seconds(law, *first.work)
                expected = max(linear_seconds(law, *step.work), launch)
                found.append(MixedStep(step.prefill, step.decodes, seconds, expected))
    return found


PROMPTS = ((1, 32), (32, 64), (64, 128), (128, 256), (256, 400), (400, 512), (512, 768), (768, 1024), (1024, 2048))
PROMPTS += ((2048, 4096), (4096, 9000))
DECODES = ((1, 32), (32, 64), (64, 128), (128, 10_000))
LEAST_ROWS = 10


def mixed_bins(rows: Sequence[MixedStep]) -> Iterator[tuple[str, int, float, float]]:
    """Name, rows, median seconds and median relative error of each bin with enough rows."""
    for low, high in PROMPTS:
        for least, most in DECODES:
            inside = [row for row in rows if low <= row.prefill < high and least <= row.decodes < most]
            if len(inside) >= LEAST_ROWS:
                error = median(row.expected / row.seconds - 1.0 for row in inside)
                name = f"{low}..{high - 1} tokens, {least}..{most - 1} decodes"
                yield name, len(inside), median(row.seconds for row in inside), error


def _busy(phase: Phase) -> list[LoggedStep]:
    return [step for step in phase.steps if step.total_num_scheduled_tokens]


def _between_decodes(steps: Sequence[LoggedStep]) -> list[int]:
    """Where a step with a prompt stands between two of decodes alone, in a busy engine."""
    found = []
    for index in range(2, len(steps) - 1):
        around = steps[index - 2 : index + 2]
        busy = all(later.scheduled_at < step.updated_at for step, later in pairwise(around))
        _, before, step, after = around
        if busy and step.prefill and not before.prefill and not after.prefill and before.decodes and after.decodes:
            found.append(index)
    return [index for index in found if steps[index].decodes]


def _decode_law(phases: Sequence[Phase]) -> Law:
    """What decodes alone between such steps took: least squares, for what is subtracted from mixed steps."""
    rows, seconds = [], []
    for phase in phases:
        steps = _busy(phase)
        for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
            if not (before.prefill or step.prefill or after.prefill) and step.scheduled_at < before.updated_at:
                rows.append((1.0, step.decodes, step.kv))
                seconds.append(step.updated_at - before.updated_at)
    c0, c2, c3 = np.linalg.lstsq(np.array(rows), np.array(seconds), rcond=None)[0]
    return Law(float(c0), 0.0, float(c2), float(c3), 0.0)


def h200_prior() -> Law:
    """What is believed of Qwen3-8B on an H200 before anything is measured."""
    found = engine_prior("Qwen/Qwen3-8B", "h200", {"nvidia.com/gpu.product": "NVIDIA-H200"})
    return Law(*astuple(found.law))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    phases, prior = read_phases(parser.parse_args().data / "vllm_gpu_h200"), h200_prior()
    served = [phase for phase in phases if phase.name.startswith(("stock", "holdfast"))]
    print("| run | (a) median error of 16 steps % | relative RMS | (d) largest error on (b) % |\n|---|---|---|---|")
    for phase in served:
        errors = block_errors(prior, phase)
        own = max(map(abs, cell_errors(played(prior, [phase.steps]).law, phases).values()))
        print(f"| {phase.name} | {100 * errors.median:.1f} | {errors.relative_rms:.3f} | {100 * own:.1f} |")
    law = played(prior, [phase.steps for phase in phases if phase.stock]).law
    print("\n| (b) | measured ms | law % | prior % |\n|---|---|---|---|")
    fitted, believed = cell_errors(law, phases), cell_errors(prior, phases)
    for name, _, seconds in cells(phases):
        print(f"| {name} | {1e3 * seconds:.2f} | {100 * fitted[name]:+.1f} | {100 * believed[name]:+.1f} |")
    print("\n| (c) | rows | measured ms | law % |\n|---|---|---|---|")
    for name, count, seconds, error in mixed_bins(mixed_steps(prior, phases)):
        print(f"| {name} | {count} | {1e3 * seconds:.1f} | {100 * error:+.1f} |")


if __name__ == "__main__":
    main()
