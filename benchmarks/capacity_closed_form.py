"""Closed-form capacity against the scheduler loop: the largest rate that attains the objective, by both.

    python benchmarks/capacity_closed_form.py            # all cases, about 15 minutes
    python benchmarks/capacity_closed_form.py --quick    # every fourth, shorter runs

The loop is searched by bisection with common random numbers; its rate has a standard error of a few per cent. A ratio
below 1 means that the closed form promises less than the loop keeps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits, capacity
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import working_point

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
SLOS = {
    "interactive": Slo(0.5, 0.03, 0.99, 3600),
    "server": Slo(2.0, 0.1, 0.99, 3600),
    "loose": Slo(2.0, 0.06, 0.95, 3600),
}

RESIDENCES = 15


@dataclass(frozen=True)
class Case:
    """One comparison; rates in requests per second, 0 where not even a trickle meets the objective."""

    engine: str
    mix: str
    slo: str
    closed_rps: float
    looped_rps: float
    bound_by: str
    milliseconds: float

    @property
    def ratio(self) -> float:
        return self.closed_rps / self.looped_rps if self.looped_rps else math.inf if self.closed_rps else 1.0


def lengths(mix: tuple[float, float, float, float], count: int, most: int) -> list[tuple[int, int]]:
    """Lognormal prompt and output lengths, the same for every rate."""
    generator = np.random.default_rng(7)
    columns = []
    for mean, cv in (mix[:2], mix[2:]):
        sigma = math.sqrt(math.log1p(cv * cv))
        values = generator.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
        columns.append(np.clip(np.rint(values), 1, most).astype(int).tolist())
    return list(zip(*columns, strict=True))


class Loop:
    """The scheduler loop at any rate, with common random numbers."""

    def __init__(self, prior: EnginePrior, pairs: list[tuple[int, int]], slo: Slo) -> None:
        self.timer, self.pairs, self.slo = prior.timer, pairs, slo
        self.gaps = np.cumsum(np.random.default_rng(11).exponential(1.0, len(pairs)))
        self.limits = SchedulerLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default, prior.kv_tokens)

    def attainment(self, rate: float) -> float:
        """Share of good requests among those after the warm-up fifth."""
        arrivals = [
            Arrival(float(at), prompt, output)
            for at, (prompt, output) in zip(self.gaps / rate, self.pairs, strict=True)
        ]
        outcomes = replay(arrivals, self.limits, self.timer)[len(arrivals) // 5 :]
        return sum(outcome.good(self.slo) for outcome in outcomes) / len(outcomes)

    def capacity(self, start: float) -> float:
        """The largest rate that attains, within 3 %."""
        low, high = 0.0, max(start, 0.02)
        while self.attainment(high) >= self.slo.objective:
            low, high = high, high * 1.5
        if low == 0.0 and self.attainment(high / 64) < self.slo.objective:
            return 0.0
        low = low or high / 64
        while high / low > 1.03:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.attainment(middle) >= self.slo.objective else (low, middle)
        return math.sqrt(low * high)


def compare(engine: tuple[str, str, int], mix: str, slo: str, requests: int) -> Case:
    """Both capacities of one case; the closed form sees a fitted law and moments, the loop the table and lengths."""
    model, accelerator, gpus = engine
    prior = engine_prior(model, accelerator, None, gpus)
    pairs = lengths(MIXES[mix], requests, 16_000)
    moments = LengthMix.from_pairs(pairs)
    limits = BatchLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default)

    working = working_point(prior.timer, moments, limits, prior.kv_tokens, SLOS[slo], start=prior.law)
    started = time.process_time()
    result = capacity(working.law, moments, limits, prior.kv_tokens, SLOS[slo])
    elapsed = time.process_time() - started
    # A run must be long against the residence of a request: a multiple of the sequences that are there at a time.
    longer = lengths(MIXES[mix], max(requests, round(RESIDENCES * result.sequences)), 16_000)
    looped = Loop(prior, longer, SLOS[slo]).capacity(result.rate_rps)
    name = f"{model.split('/')[-1]} {gpus}x{accelerator}"
    return Case(name, mix, slo, result.rate_rps, looped, result.bound_by.value, elapsed * 1e3)


def cases(quick: bool) -> Iterator[tuple[tuple[str, str, int], str, str]]:
    everything = list(product(ENGINES, MIXES, SLOS))
    yield from everything[:: 5 if quick else 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--requests", type=int, help="requests per run (3000; quick 1500)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    for engine, mix, slo in cases(arguments.quick):
        case = compare(engine, mix, slo, arguments.requests or (1500 if arguments.quick else 3000))
        results.append(case)
        if not arguments.json:
            rates = f"closed {case.closed_rps:6.2f}  loop {case.looped_rps:6.2f}  ratio {case.ratio:5.2f}"
            print(f"{case.engine:32} {case.mix:8} {case.slo:12} {rates}  {case.bound_by}", flush=True)
    ratios = [case.ratio for case in results if 0 < case.ratio < math.inf and case.looped_rps]
    near = sum(0.85 <= ratio <= 1.15 for ratio in ratios)
    if arguments.json:
        print(json.dumps([asdict(case) | {"ratio": case.ratio} for case in results]))
    else:
        print(
            f"{len(ratios)} of {len(results)} feasible by both: median ratio {statistics.median(ratios):.2f}, "
            f"{min(ratios):.2f}..{max(ratios):.2f}, within 15 %: {near}, above 1.15: {sum(r > 1.15 for r in ratios)}, "
            f"{statistics.median(case.milliseconds for case in results):.1f} ms each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
