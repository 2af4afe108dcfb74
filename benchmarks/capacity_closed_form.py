"""Closed-form capacity against the scheduler loop: the largest rate that attains the objective, by both.

    python benchmarks/capacity_closed_form.py [--data DIR]            # all cases
    python benchmarks/capacity_closed_form.py [--data DIR] --quick    # every fifth, shorter runs

Lengths are lognormal and, with a folder of traces, also those of Azure's two of 2023. The loop is the twin's, asked for
its rate by bisection, three draws of requests; the error is that of their mean. A ratio below 1 means that the closed
form promises less than the loop keeps; `lognormal` is the ratio without what is known of the shortest answers.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from operator import attrgetter
from pathlib import Path

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits, OperatingPoint, capacity
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import working_point
from holdfast.twin.arrays.fleet import EngineSpec
from holdfast.twin.replica.capacity import Bench, Horizon, LengthPairs, SimulatedRate, fitting, pairs
from holdfast.twin.scenarios.traces import read_trace

ENGINES = (
    ("Qwen/Qwen3-8B", "h100", 1),
    ("Qwen/Qwen3-8B", "l40s", 1),
    ("meta-llama/Llama-3.1-8B-Instruct", "a100", 1),
    ("Qwen/Qwen3-32B", "h100", 2),
    ("meta-llama/Llama-3.1-70B-Instruct", "h100", 4),
    ("openai/gpt-oss-120b", "h100", 1),
)
MIXES = {  # mean prompt, cv, mean output, cv
    "chat": (1020, 1.2, 210, 0.8),
    "code": (2050, 0.9, 30, 1.5),
    "writing": (250, 1.0, 600, 0.7),
    "fixed": (512, 0.0, 128, 0.0),
}
TRACES = {
    "chat trace": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "code trace": "azure2023/AzureLLMInferenceTrace_code.csv",
}
SLOS = {
    "interactive": Slo(0.5, 0.03, 0.99, 3600),
    "server": Slo(2.0, 0.1, 0.99, 3600),
    "loose": Slo(2.0, 0.06, 0.95, 3600),
}

RESIDENCES = 15
DRAWS = 3
MOST_TOKENS = 16_000
FIRST_GUESS_RPS = 1.0
"""Where the closed form says that there is no rate."""


@dataclass(frozen=True)
class Case:
    """One comparison; rates in requests per second, 0 where not even a trickle meets the objective."""

    engine: str
    mix: str
    slo: str
    closed_rps: float
    lognormal_rps: float
    looped_rps: float
    error_rps: float
    bound_by: str
    milliseconds: float
    form_milliseconds: float

    @property
    def ratio(self) -> float:
        return self._ratio(self.closed_rps)

    @property
    def lognormal_ratio(self) -> float:
        return self._ratio(self.lognormal_rps)

    def _ratio(self, rate: float) -> float:
        return rate / self.looped_rps if self.looped_rps else math.inf if rate else 1.0


def lengths(mix: tuple[float, float, float, float], count: int, most: int) -> list[tuple[int, int]]:
    """Lognormal prompt and output lengths, the same for every rate."""
    generator = np.random.default_rng(7)
    columns = []
    for mean, cv in (mix[:2], mix[2:]):
        sigma = math.sqrt(math.log1p(cv * cv))
        values = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
        columns.append(np.clip(np.rint(values), 1, most).astype(int).tolist())
    return list(zip(*columns, strict=True))


def known_lengths(data: Path | None) -> Mapping[str, LengthPairs]:
    """By name, those of traces only where there is a folder of them."""
    found = {name: LengthPairs(*np.array(lengths(mix, 20_000, MOST_TOKENS)).T) for name, mix in MIXES.items()}
    for name, path in TRACES.items() if data else ():
        trace = read_trace(data / path, "azure")
        found[name] = fitting(LengthPairs(trace.prompt_tokens, trace.output_tokens), MOST_TOKENS)
    return found


def compare(engine: tuple[str, str, int], mix: str, slo: str, drawn: LengthPairs, requests: int) -> Case:
    """Both capacities of one case; the closed form sees a fitted law and moments, the loop the table and lengths."""
    model, accelerator, gpus = engine
    prior = engine_prior(model, accelerator, None, gpus)
    moments = LengthMix.from_pairs(pairs(drawn))
    started = time.process_time()
    result = closed(prior, moments, SLOS[slo])
    elapsed = time.process_time() - started
    started = time.process_time()
    capacity(prior.law, moments, default_limits(prior), prior.kv_tokens, SLOS[slo])
    once = time.process_time() - started
    lone = closed(prior, replace(moments, shortest_output=0.0), SLOS[slo])
    # A run must be long against the residence of a request: a multiple of the sequences that are there at a time.
    looped = loop(prior, SLOS[slo], drawn, max(requests, round(RESIDENCES * result.sequences)), result.rate_rps)
    return Case(
        f"{model.split('/')[-1]} {gpus}x{accelerator}",
        mix,
        slo,
        result.rate_rps,
        lone.rate_rps,
        looped.rate_rps,
        looped.error_rps,
        result.bound_by.value,
        elapsed * 1e3,
        once * 1e3,
    )


def closed(prior: EnginePrior, moments: LengthMix, slo: Slo) -> OperatingPoint:
    """By the formula, with a law that is fitted where the engine works."""
    return working_point(prior.timer, moments, default_limits(prior), prior.kv_tokens, slo, start=prior.law).capacity


def default_limits(prior: EnginePrior) -> BatchLimits:
    return BatchLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default)


def loop(prior: EnginePrior, slo: Slo, drawn: LengthPairs, requests: int, guess_rps: float) -> SimulatedRate:
    """By simulation of so many requests at each rate."""
    limits = SchedulerLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default, prior.kv_tokens)
    bench = Bench(EngineSpec(prior.timer, limits), slo, drawn, DRAWS, Horizon(math.inf, requests, 0.0))
    return bench.rate(guess_rps or FIRST_GUESS_RPS)


def cases(mixes: Sequence[str], quick: bool) -> Iterator[tuple[tuple[str, str, int], str, str]]:
    everything = list(product(ENGINES, mixes, SLOS))
    yield from everything[:: 5 if quick else 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of traces")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--requests", type=int, help="requests per run (3000; quick 1500)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    known, results = known_lengths(arguments.data), []
    for engine, mix, slo in cases(list(known), arguments.quick):
        case = compare(engine, mix, slo, known[mix], arguments.requests or (1500 if arguments.quick else 3000))
        results.append(case)
        if not arguments.json:
            print(_line(case), flush=True)
    if arguments.json:
        print(json.dumps([asdict(case) | {"ratio": case.ratio} for case in results]))
    else:
        print(_summary("closed form", [case.ratio for case in results if case.closed_rps and case.looped_rps]))
        print(_summary("lognormal", [case.lognormal_ratio for case in results if case.closed_rps and case.looped_rps]))
        each, once = (
            statistics.median(map(attrgetter(name), results)) for name in ("milliseconds", "form_milliseconds")
        )
        print(f"{each:.1f} ms of CPU each with the fits to where the engine works, {once:.2f} ms the formula once")
    return 0


def _line(case: Case) -> str:
    rates = f"closed {case.closed_rps:6.2f}  loop {case.looped_rps:6.2f} +- {case.error_rps:4.2f}"
    ratios = f"ratio {case.ratio:5.2f}  lognormal {case.lognormal_ratio:5.2f}"
    return f"{case.engine:32} {case.mix:10} {case.slo:12} {rates}  {ratios}  {case.bound_by}"


def _summary(name: str, ratios: Sequence[float]) -> str:
    near = sum(0.85 <= ratio <= 1.15 for ratio in ratios)
    spread = f"median ratio {statistics.median(ratios):.2f}, {min(ratios):.2f}..{max(ratios):.2f}"
    return (
        f"{name}: {len(ratios)} feasible by both, {spread}, within 15 %: {near}, above: {sum(r > 1.15 for r in ratios)}"
    )


if __name__ == "__main__":
    sys.exit(main())
