"""The twin against real vLLM: each recorded run again, request by request.

    python -m benchmarks.twin_fidelity --data DIR      # DIR holds vllm_groundtruth/ and itertime/

Each run has one source of step times and at most one declared number, a factor on the whole table. The engines of the
shipped tables had the usual host, and no step in flight while the next one is scheduled. Errors are those of the twin's
mean and percentiles against the engine's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.profiles import profiled_table
from holdfast.domain.service import Slo
from holdfast.enginemodel.catalog import find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import SYNCHRONOUS
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.enginemodel.steptable import StepTable
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.arrays.timers import Floats

LIMITS = {"ttft": 0.10, "tpot": 0.05, "e2e": 0.10}
"""Largest relative error of mean and p99, of TTFT and E2E of the median and p90 too (docs/twin.md)."""

PROFILES = "itertime/llmservingsim_vllm019_profiles.tar.gz"


@dataclass(frozen=True)
class Recorded:
    """One run of a real engine, and how the twin is set up for it."""

    folder: str
    source: str
    timer: Callable[[Path], StepTimer]
    limits: SchedulerLimits


def _shipped(model: str, gpus: int) -> tuple[StepTable, int]:
    prior = engine_prior(model, "rtx_pro_6000_server", None, gpus)
    assert prior.table is not None
    return prior.table, prior.kv_tokens


def _slower(table: StepTable, factor: float) -> StepTable:
    """The table with every time multiplied."""
    parts = ("mixed", "decode_only", "chunk_attention", "decode_attention")
    curves = {name: getattr(table, name) for name in parts}
    scaled = {name: replace(c, values=tuple(factor * value for value in c.values)) for name, c in curves.items()}
    return replace(table, **scaled)


def _one_by_one(table: StepTable, model: str) -> EngineTimer:
    """The usual host, without asynchronous scheduling."""
    return EngineTimer(table, replace(engine_prior(model, "rtx_pro_6000_server").host, depth=SYNCHRONOUS))


def _rtx4090(data: Path) -> StepTable:
    model = find_model("meta-llama/Llama-3.1-8B")
    assert model is not None
    return profiled_table(data / PROFILES, "RTX4090", model, 1)


_LLAMA, _LLAMA_KV = _shipped("meta-llama/Llama-3.1-8B", 1)
_QWEN, _QWEN_KV = _shipped("Qwen/Qwen3-32B", 2)

RUNS = (
    Recorded(
        "RTX4090_Llama-3.1-8B", "LLMServingSim profile, as it is", _rtx4090, SchedulerLimits(256, 2048, 2588 * 16)
    ),
    Recorded(
        "RTXPRO6000_Llama-3.1-8B",
        "shipped table",
        lambda _: _one_by_one(_LLAMA, "meta-llama/Llama-3.1-8B"),
        SchedulerLimits(128, 2048, _LLAMA_KV),
    ),
    Recorded(
        "RTXPRO6000_Qwen3-32B",
        "shipped table x 1.30 (two GPUs over PCIe)",
        lambda _: _one_by_one(_slower(_QWEN, 1.30), "Qwen/Qwen3-32B"),
        SchedulerLimits(128, 2048, _QWEN_KV),
    ),
)


@dataclass(frozen=True)
class Compared:
    """Relative errors (mean, p50, p90, p99) by metric, and preemptions in the twin."""

    errors: Mapping[str, tuple[float, ...]]
    preemptions: int

    @property
    def within(self) -> bool:
        """Whether every bounded figure is inside its limit."""
        ttft, tpot, e2e = (self.errors[name] for name in ("ttft", "tpot", "e2e"))
        bounded = (
            [("ttft", each) for each in ttft] + [("e2e", each) for each in e2e] + [("tpot", tpot[0]), ("tpot", tpot[3])]
        )
        return all(abs(error) <= LIMITS[name] for name, error in bounded)


def compare(run: Recorded, data: Path) -> Compared:
    """Replay a run and compare what its requests saw."""
    (real, ours), preemptions = _played(run, data)
    errors = {
        name: tuple((_figures(ours[place]) / _figures(real[place]) - 1.0).tolist()) for place, name in enumerate(LIMITS)
    }
    return Compared(errors, preemptions)


def columns(run: Recorded, data: Path) -> tuple[Floats, Floats]:
    """TTFT, TPOT and E2E of the requests with more than one token: as recorded, and in the twin."""
    return _played(run, data)[0]


def _played(run: Recorded, data: Path) -> tuple[tuple[Floats, Floats], int]:
    """Both, and preemptions in the twin."""
    lines = (data / "vllm_groundtruth" / run.folder / "requests.jsonl").read_text().splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: float(row["queued_ts"]))

    def column(name: str) -> Floats:
        return np.array([row[name] for row in rows])

    at = column("queued_ts") - column("queued_ts")[0]
    outputs = column("output_toks").astype(np.int64)
    load = Workload(at, column("input_toks").astype(np.int64), outputs, np.zeros(len(rows), np.int64))
    fleet = EngineFleet(
        load, [EngineSpec(run.timer(data), run.limits)], Slo(1.0, 1.0, 0.9, 300.0), Routing("round-robin")
    )
    fleet.add()
    fleet.advance(np.inf)
    start = column("queued_ts")[0]
    real = _latencies(at, column("first_token_ts") - start, column("last_token_ts") - start, outputs)
    ours = _latencies(at, fleet.requests["first_at"], fleet.requests["last_at"], outputs)
    return (real, ours), int(fleet.requests["preemptions"].sum())


def _latencies(at: Floats, first: Floats, last: Floats, outputs: np.ndarray) -> Floats:  # type: ignore[type-arg]
    several = outputs > 1
    tpot = (last - first)[several] / (outputs[several] - 1)
    return np.array([(first - at)[several], tpot, (last - at)[several]])


def _figures(values: Floats) -> Floats:
    return np.array([values.mean(), *np.percentile(values, (50, 90, 99))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    print("| run (300 requests) | step times | TTFT mean/p50/p90/p99 % | TPOT | E2E | preemptions |")
    print("|---|---|---|---|---|---|")
    held = True
    for run in RUNS:
        found = compare(run, data)
        held = held and found.within
        cells = ["/".join(f"{100 * error:+.1f}" for error in found.errors[name]) for name in LIMITS]
        print(f"| {run.folder} | {run.source} | {' | '.join(cells)} | {found.preemptions} |")
    print("\nAll within the limits." if held else "\n**Not within the limits.**")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
