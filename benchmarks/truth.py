"""Every recorded run of a real engine against the twin and the formulas, on one page.

    python -m benchmarks.truth --data DIR [--write docs/truth.md]

DIR holds vllm_groundtruth/, itertime/ and vllm_gpu_h200/. Nothing is fitted to a run, unless its row says so. An error
is twin / real - 1. Its interval is the middle 95 % of bootstrap samples of the requests: chance among the requests of
this one run, not among runs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import h200_data, kv_memory, twin_fidelity, twin_h200
from benchmarks.twin_fidelity import RUNS
from holdfast.domain.service import Slo
from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import ASYNCHRONOUS, SYNCHRONOUS, USUAL_FRONT_END
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import replay
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepTimer
from holdfast.enginemodel.steptable import step_tables
from holdfast.twin.arrays.fleet import EngineSpec
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.replica.capacity import Bench, Horizon, LengthPairs

PAGE = Path("docs/truth.md")
LIMITS = {"TTFT": 0.10, "TPOT": 0.05, "E2E": 0.10}
"""Largest error of each figure that is no miss: those of `twin_fidelity`."""

KV_LIMIT, RATE_LIMIT, DECODE_LIMIT = 0.15, 0.10, 0.10
PERCENTILES = (50, 90, 99)
SAMPLES = 400
INTERVAL = (2.5, 97.5)
H100 = Path(__file__).with_name("data")
H100_FOLDER = "vllm_gpu_h100"
SEARCH_REQUESTS, DRAWS, LENGTHS = 1200, 5, 4000
"""Of a rate in the twin: about as many as a search sent, and how often."""

LONE_CONTEXT = 512.0
SILICON = "itertime/aic_silicon_sample.csv.gz"
MOST_CONCURRENT = 256
"""Of runs whose sequences all run at once under vLLM's limits."""


@dataclass(frozen=True)
class Run:
    """A run: what was recorded of its requests and what the twin gives them, columns of TTFT, TPOT, E2E in seconds."""

    name: str
    played: str
    real: Floats
    twin: Floats


def _fidelity(data: Path) -> Iterator[Run]:
    """LLMServingSim's runs: the record says asynchronous scheduling of the first; of the others it says nothing."""
    for run in RUNS:
        meta = json.loads((data / "vllm_groundtruth" / run.folder / "meta.json").read_text())
        says = meta.get("resolved_config", {}).get("scheduler_config", {}).get("async_scheduling")
        for depth, word in ((SYNCHRONOUS, "one step at a time"), (ASYNCHRONOUS, "asynchronous")):
            if says and depth == SYNCHRONOUS:
                continue
            timer = run.timer(data)
            if not isinstance(timer, EngineTimer):
                host = engine_prior("meta-llama/Llama-3.1-8B", "rtx-4090").host
                timer = EngineTimer(timer, host)
            timer = timer.with_host(replace(timer.host, depth=depth))
            record = "as recorded" if says else "the record does not say"
            yield Run(
                f"{run.folder.replace('_', ', ')}, vLLM {meta['vllm_version']}",
                f"{run.source}; {word} ({record})",
                *twin_fidelity.columns(replace(run, timer=lambda _, timer=timer: timer), data),  # type: ignore[misc]
            )


def _timer(accelerator: str) -> EngineTimer:
    """The shipped table on the usual host with its graphs and API server."""
    prior = engine_prior(twin_h200.MODEL, accelerator)
    return prior.timer.with_host(replace(prior.host, front_end=USUAL_FRONT_END))


def _calm(recorded: h200_data.Recorded, names: Sequence[str], accelerator: str, kv_tokens: int) -> Iterator[Run]:
    """Runs of vLLM's own scheduler below capacity, recorded with asynchronous scheduling.

    Where a run's steps were logged, it is played on the host that they show, too.
    """
    timer, limits = _timer(accelerator), replace(twin_h200.LIMITS, kv_tokens=kv_tokens)
    for name in names:
        called = f"{accelerator.upper()}, Qwen3-8B, vLLM 0.32.0, {name}"
        yield Run(called, "usual host, asynchronous (as recorded)", *_both(recorded, name, timer, limits))
        if recorded.periods[name]:
            factor = twin_h200.host_factor(recorded.periods[name], timer)
            slower = timer.with_host(timer.host.slower(factor))
            played = f"host x {factor:.2f} by its steps, asynchronous (as recorded)"
            yield Run(called, played, *_both(recorded, name, slower, limits))


def _both(
    recorded: h200_data.Recorded, name: str, timer: EngineTimer, limits: SchedulerLimits
) -> tuple[Floats, Floats]:
    """What clients measured of the judged requests that finished, and what the twin gives them."""
    outcomes, requests = replay(recorded.arrivals(name), limits, timer), recorded.requests[name]
    chosen = [each for each in recorded.judged(name) if requests[each]["end"] == "done"]
    played = [outcomes[each] for each in chosen]
    twin = np.array([(each.ttft_seconds, each.tpot_seconds, each.e2e_seconds) for each in played])
    return np.array([twin_h200.seen(requests[each]) for each in chosen]).T, twin.T


def runs(data: Path) -> list[Run]:
    """Every run whose requests were recorded one by one and all served."""
    h200, h100 = h200_data.read(data), h200_data.read(H100, H100_FOLDER)
    calm = [name for name in h100.runs if "stock" in name and "0.8" in name]
    h100_kv = engine_prior(twin_h200.MODEL, "h100").kv_tokens
    return [
        *_fidelity(data),
        *_calm(h200, twin_h200.CALM[:1], "h200", twin_h200.LIMITS.kv_tokens),
        *_calm(h100, calm, "h100", h100_kv),
    ]


def errors(run: Run) -> dict[str, list[tuple[float, float, float]]]:
    """By latency, and for mean, p50, p90, p99: the error and both ends of its interval, as shares."""
    draw, count = np.random.default_rng(1), run.real.shape[1]
    rows = draw.integers(0, count, (SAMPLES, count))
    found = {}
    for place, name in enumerate(LIMITS):
        real, twin = run.real[place], run.twin[place]
        whole, sampled = _figures(twin) / _figures(real) - 1.0, _figures(twin[rows]) / _figures(real[rows]) - 1.0
        low, high = np.percentile(sampled, INTERVAL, axis=1)
        found[name] = list(zip(whole.tolist(), low.tolist(), high.tolist(), strict=True))
    return found


def _figures(values: Floats) -> Floats:
    """Mean and percentiles over the last axis."""
    return np.array([values.mean(axis=-1), *np.percentile(values, PERCENTILES, axis=-1)])


def _cell(error: float, low: float, high: float, limit: float) -> str:
    shown = f"{100 * error:+.1f} ({100 * low:+.0f}..{100 * high:+.0f})"
    return f"**{shown}**" if abs(error) > limit else shown


def latencies(data: Path) -> Iterator[str]:
    """The table of runs, a row for each latency."""
    yield "| run | played with | | mean | p50 | p90 | p99 |"
    yield "|---|---|---|---|---|---|---|"
    for run in runs(data):
        for name, cells in errors(run).items():
            shown = " | ".join(_cell(*each, LIMITS[name]) for each in cells)
            lead = f"{run.name} | {run.played}" if name == "TTFT" else " | "
            yield f"| {lead} | {name} | {shown} |"


def kv_cache() -> Iterator[str]:
    """The table of KV caches: each engine by the fit to the others."""
    rows = kv_memory.reports()
    yield "| engine | reported tokens | error, predicted without itself |"
    yield "|---|---|---|"
    for each in rows:
        error = each.error(kv_memory.without(each, rows))
        yield f"| {each.name} | {each.kv_tokens:,} | {_bold(error, KV_LIMIT)} |"


def capacities(data: Path) -> Iterator[str]:
    """The table of lambda*: the most good requests per second of a staircase of rates, each search by itself."""
    yield "| engine | measured, good requests/s | twin (± is one standard error) | error |"
    yield "|---|---|---|---|"
    for accelerator, folder, kv_tokens in (
        ("h200", data / h200_data.FOLDER, twin_h200.LIMITS.kv_tokens),
        ("h100", H100 / H100_FOLDER, engine_prior(twin_h200.MODEL, "h100").kv_tokens),
    ):
        steps = [json.loads(line) for line in (folder / "staircase.jsonl").read_text().splitlines()]
        searches = sorted({each.get("search", 1) for each in steps})
        measured = [max(each["goodput_rps"] for each in steps if each.get("search", 1) == one) for one in searches]
        best = _most_good(accelerator, kv_tokens, sorted({float(each["rate"]) for each in steps}))
        for number, real in zip(searches, measured, strict=True):
            shown = _bold(best[0] / real - 1.0, RATE_LIMIT)
            named = f"{accelerator.upper()}, Qwen3-8B, vLLM 0.32.0, search {number}"
            yield f"| {named} | {real:.1f} | {best[0]:.1f} ± {best[1]:.1f} | {shown} |"


def _most_good(accelerator: str, kv_tokens: int, rates: Sequence[float]) -> tuple[float, float]:
    """The most good requests per second at these rates, and its standard error over draws."""
    kind = EngineSpec(_timer(accelerator), replace(twin_h200.LIMITS, kv_tokens=kv_tokens))
    slo, short = Slo(twin_h200.TTFT, twin_h200.TPOT, 0.9, 3600.0), Horizon(0.0, SEARCH_REQUESTS, 0.0)
    most = []
    for seed in range(DRAWS):
        bench = Bench(kind, slo, _lengths(seed), draws=1, horizon=short)
        most.append(max(rate * bench.attainment(rate) for rate in rates))
    return float(np.mean(most)), float(np.std(most, ddof=1) / np.sqrt(len(most)))


def _lengths(seed: int) -> LengthPairs:
    """Of the load of both measurements (their README)."""
    draw = np.random.default_rng([seed, 5])

    def column(mean: float, sigma: float, least: int, most: int) -> Any:
        values = mean * np.exp(sigma * draw.standard_normal(LENGTHS) - 0.5 * sigma**2)
        return np.clip(np.rint(values), least, most).astype(np.int64)

    return LengthPairs(column(500.0, 0.9, 16, 4096), column(150.0, 0.55, 16, 320))


def public(data: Path) -> Iterator[str]:
    """The table of public runs of vLLM with a fixed number of requests in flight: TPOT by the table's steps."""
    yield "| engine, GPUs | runs | TPOT: median error | lowest..highest |"
    yield "|---|---|---|---|"
    found: dict[str, list[float]] = {}
    with gzip.open(data / SILICON, "rt", newline="") as file:
        for row in csv.DictReader(file):
            error = _tpot_error(row)
            if error is not None:
                gpu = row["system"].split("_")[0].upper()
                name = f"{row['model_path'].split('/')[-1]}, {row['tp_size']} x {gpu}, vLLM {row['backend_version']}"
                found.setdefault(name, []).append(error)
    for name, values in sorted(found.items()):
        shown = _bold(float(np.median(values)), DECODE_LIMIT)
        yield f"| {name} | {len(values)} | {shown} | {100 * min(values):+.0f}..{100 * max(values):+.0f} % |"


def _bold(error: float, limit: float) -> str:
    shown = f"{100 * error:+.1f} %"
    return f"**{shown}**" if abs(error) > limit else shown


def _tpot_error(row: Mapping[str, str]) -> float | None:
    """None where the run is no comparable one, or no table is measured for it.

    Only of 16-bit weights the record says how many requests were in flight.
    """
    if row["backend"] != "vllm" or row["mode"] != "agg" or row["gemm_quant_mode"] or row["pp_size"] not in ("", "1"):
        return None
    model, gpus, running = row["model_path"], int(row["tp_size"]), int(row["batch_size"])
    if find_model(model) is None or find_accelerator(row["system"]) is None or running > MOST_CONCURRENT:
        return None
    prior = engine_prior(model, row["system"], None, gpus)
    if prior.table is None:
        return None
    prompt, answer = int(row["isl"]), int(row["osl"])
    timer, context = prior.timer, prompt + 0.5 * answer
    decode = timer.step_seconds((), running, context)
    among = timer.step_seconds(((prompt, 0),), running - 1, context) - timer.step_seconds((), running - 1, context)
    # While one request gets its answer, each of the others ends, and the next one's prompt is computed.
    return 1e3 * (decode + (running - 1) * among / answer) / float(row["silicon_tpot_ms"]) - 1.0


def block_fp8() -> Iterator[str]:
    """The table of lone decodes of Qwen3-32B: what a second GPU saves, by the tables and by data sheets."""
    yield "| Qwen3-32B, lone decode, ms | table, 1 GPU | table, 2 GPUs | data sheet, 1 GPU | 2 GPUs |"
    yield "|---|---|---|---|---|"
    for system in ("h100_sxm", "h200_sxm", "l40s"):
        for model, weights in (("Qwen/Qwen3-32B", "BF16"), ("Qwen/Qwen3-32B-FP8", "FP8 in blocks")):
            shape, gpu = find_model(model), find_accelerator(system)
            assert shape is not None
            assert gpu is not None
            timers: list[StepTimer] = [step_tables()[model, system, count] for count in (1, 2)]
            timers += [roofline_law(shape, gpu, count) for count in (1, 2)]
            cells = [1e3 * each.step_seconds((), 1, LONE_CONTEXT) for each in timers]
            yield f"| {gpu.system.split('_')[0].upper()}, {weights} | {' | '.join(f'{each:.1f}' for each in cells)} |"


def page(data: Path) -> str:
    """The page in Markdown."""
    parts = {
        "LATENCIES": latencies(data),
        "KV": kv_cache(),
        "RATES": capacities(data),
        "PUBLIC": public(data),
        "FP8": block_fp8(),
    }
    text = TEMPLATE
    for name, lines in parts.items():
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


TEMPLATE = """# Truth: every real run against the model

`python -m benchmarks.truth --data DIR --write docs/truth.md` writes this page. Nothing is fitted to a run unless its
row says so. An error is twin / real - 1. In brackets is the middle 95 % of bootstrap samples of the run's requests:
chance among the requests of one run, not among runs. **Bold is a miss.**

## Latencies

Errors in %. Limits: 10 % of TTFT and E2E, 5 % of TPOT. Runs that were recorded with asynchronous scheduling are played
so. Where the record does not say it, both are shown: one step at a time, which fits, and asynchronous.

@LATENCIES@

## KV cache

Limit 15 % ([how](benchmarks/capacity.md#tokens-of-kv-cache)). vLLM before 0.19 took 33 bytes a logit for sampling, by
the other two such rows; with today's 12, which a plan takes, Qwen3-32B is 69.6 % off there.

@KV@

## Capacity

The most good requests per second (TTFT 500 ms, TPOT 30 ms) over the rates of a search on the real engine, and of the
twin at the same rates, with lengths of the same distribution and the usual host. Limit 10 %.

@RATES@

## Public runs

TPOT of vLLM with a fixed number of requests in flight (NVIDIA's sample of silicon runs, 8 to 128 in flight, 1024 or
4096 prompt tokens), by the step times of the table: a decode step of all, and the prompts of the others in between.
Limit 10 % of the median.

@PUBLIC@

## FP8 in blocks

The table puts a lone decode of Qwen3-32B-FP8 on two H200 at 19.5 ms. Public runs were faster with many requests in
flight: 15.1 ms on two H200 (Dynamo's documentation); in NVIDIA's sample, with 4000 prompt tokens on H100s, vLLM's `fp8`
took 16.9 ms on one and 11.6 ms on two, and SGLang's `fp8_block` 22.3 ms on one with 48 in flight. No engine is faster
with many in flight than with one, so these tables are too slow for what runs today:

@FP8@

A decode step reads all weights: half the bytes should take about half the time, and a second GPU should halve that
again. In the tables it does so with BF16, and with FP8 of one scale per tensor (Llama-3.1-70B without attention: 12.0
ms on two H200, 7.5 on four). Here the second GPU saves 1 ms on H200, 2.5 on H100 and 7.8 of 105.9 on L40S. So the table
holds kernels that take a constant time a layer (0.3 ms on H200), not the reading of weights. aiconfigurator takes its
quantization `fp8_block` for this checkpoint, from kernels measured one by one. vLLM had such a slow path itself: [its
pull request 19085](https://github.com/vllm-project/vllm/pull/19085) reports 27 ms for a decode of Qwen3-32B-FP8 where
SGLang took 14, and adds the kernels of DeepGEMM.

So these tables are not believed: a bound on the lone decode, 1.65 times the data sheet's (`IMPLAUSIBLE_FACTOR` in
`enginemodel/prior.py`), rejects all tables of Qwen3-32B-FP8, and those of Llama-3.1-70B-FP8 on B200 (2.1 and 2.6
times). Of the others none is beyond 1.49. Such engines start from data sheets, which a plan marks with `?`.

## Elsewhere

Runs in overload, whose requests were cut off, and ranks of batching limits are in [the
twin](twin.md#how-far-to-believe-it).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", type=Path, default=None, help="file for the page; without it, standard output")
    arguments = parser.parse_args()
    try:
        text = page(arguments.data)
    except FileNotFoundError as problem:
        print(f"truth: --data: {problem.filename} is missing: give the folder of the recorded runs", file=sys.stderr)
        return 2
    if arguments.write is None:
        print(text)
    else:
        arguments.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
