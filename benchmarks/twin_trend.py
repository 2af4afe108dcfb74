"""The twin against real vLLM over max_num_batched_tokens: does it rank the limits as the engines did?

    python benchmarks/twin_trend.py --data DIR      # DIR holds vllm_groundtruth/ppas_mbt_sweep/

Prompts of 20,000 to 30,000 tokens arrive in phases of ten seconds; each row is one run of vLLM 0.22.1. Gaps were drawn
from Python's generator with the row's seed, so that the same requests can be played again. None of these models has
measured step times here: the twin takes the roofline of data sheets, which can show a trend but no milliseconds. The
record does not say how steps were scheduled; as in the runs of twin_fidelity.py, it is one at a time.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.host import SYNCHRONOUS
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.arrays.timers import Floats

SWEEP = "vllm_groundtruth/ppas_mbt_sweep/ppas_vllm_0.22.1_mbt_sweep.csv"
MODELS = {
    "qwen_0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen_3b": "Qwen/Qwen2.5-3B-Instruct",
    "llama_3b": "meta-llama/Llama-3.2-3B-Instruct",
}
"""What its names stand for; a fourth model is of no shape known here."""

Row = Mapping[str, str]
Latency = tuple[float, float]
"""Means of TTFT and TPOT in seconds."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One engine: for each load, its latencies by limit in ascending order, measured and played again."""

    engine: tuple[str, str]
    limits: tuple[int, ...]
    real: tuple[tuple[Latency, ...], ...]
    twin: tuple[tuple[Latency, ...], ...]

    def correlations(self, metric: int) -> list[float]:
        """Spearman's, of each load, over the limits; 0 is TTFT, 1 is TPOT."""
        return [
            spearman([each[metric] for each in real], [each[metric] for each in twin])
            for real, twin in zip(self.real, self.twin, strict=True)
        ]

    def ratios(self, metric: int) -> list[float]:
        """What the twin says over what was measured, of each load and limit."""
        return [
            told[metric] / seen[metric]
            for real, twin in zip(self.real, self.twin, strict=True)
            for seen, told in zip(real, twin, strict=True)
        ]


def trends(data: Path) -> list[Trend]:
    """Every engine of the sweep whose model is known, with vLLM's own scheduler."""
    with (data / SWEEP).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["config_name"].startswith("mbt_") and row["model"] in MODELS]
    engines: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        engines[row["gpu"], row["model"]].append(row)
    return [_trend(engine, found) for engine, found in engines.items()]


def _trend(engine: tuple[str, str], rows: Sequence[Row]) -> Trend:
    prior = engine_prior(MODELS[engine[1]], engine[0])
    seen: dict[tuple[tuple[str, ...], int], list[tuple[Latency, Latency]]] = defaultdict(list)
    for row in rows:
        load = row["phase_schedule"], row["configured_prompt_tokens"], row["configured_output_tokens"]
        real = float(row["avg_ttft"]), float(row["avg_tpot"])
        seen[load, int(row["max_num_batched_tokens"])].append((real, played(row, prior)))
    loads, limits = sorted({load for load, _ in seen}), sorted({limit for _, limit in seen})

    def means(which: int) -> tuple[tuple[Latency, ...], ...]:
        return tuple(tuple(_mean([pair[which] for pair in seen[load, limit]]) for limit in limits) for load in loads)

    return Trend(engine, tuple(limits), means(0), means(1))


def played(row: Row, prior: EnginePrior) -> Latency:
    """The run again, on the twin."""
    at = np.array(list(arrivals(row["phase_schedule"], int(row["seed"]))))
    assert len(at) == int(row["num_requests"]), "other requests than those that were recorded"
    outputs = np.full(len(at), int(row["configured_output_tokens"]), np.int64)
    prompts = np.full(len(at), int(row["configured_prompt_tokens"]), np.int64)
    limits = SchedulerLimits(int(row["max_num_seqs"]), int(row["max_num_batched_tokens"]), prior.kv_tokens)
    load = Workload(at, prompts, outputs, np.zeros(len(at), np.int64))
    timer = prior.timer.with_host(replace(prior.host, depth=SYNCHRONOUS))
    fleet = EngineFleet(
        load,
        [EngineSpec(timer, limits)],
        Slo(1.0, 1.0, 0.9, 300.0),
        Routing("round-robin"),
    )
    fleet.add()
    fleet.advance(np.inf)
    first, last = fleet.requests["first_at"], fleet.requests["last_at"]
    return float((first - at).mean()), float(((last - first) / (outputs - 1)).mean())


def arrivals(schedule: str, seed: int) -> Iterator[float]:
    """Seconds of the requests of phases such as `10:0.2,10:1.0`: how long, and requests per second."""
    draw, begins = random.Random(seed), 0.0
    for phase in schedule.split(","):
        lasts, rate = map(float, phase.split(":"))
        at = begins + draw.expovariate(rate)
        while at < begins + lasts:
            yield at
            at += draw.expovariate(rate)
        begins += lasts


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks; no two values are equal."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> Floats:
    return np.argsort(np.argsort(values)).astype(np.float64)


def _mean(latencies: Sequence[Latency]) -> Latency:
    ttft, tpot = zip(*latencies, strict=True)
    return fmean(ttft), fmean(tpot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    print("| engine | limits | loads | TTFT: rank correlation, mean (lowest) | TPOT | TTFT: twin / real | TPOT |")
    print("|---|---|---|---|---|---|---|")
    for trend in trends(parser.parse_args().data):
        ranks = [f"{fmean(found):.2f} ({min(found):.2f})" for found in map(trend.correlations, (0, 1))]
        ratios = [f"{min(found):.2f} to {max(found):.2f}" for found in map(trend.ratios, (0, 1))]
        limits = f"{trend.limits[0]} to {trend.limits[-1]} ({len(trend.limits)})"
        print(f"| {', '.join(trend.engine)} | {limits} | {len(trend.real)} | {' | '.join(ranks + ratios)} |")


if __name__ == "__main__":
    main()
