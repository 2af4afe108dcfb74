"""What one refined capacity costs on one core: CPU seconds, standard error and memory, compiled and in plain Python.

    python -m benchmarks.refined_cost [--draws 5] [--plain-draws 2]

The question is that of `step` and of `shift` before their first request: Llama-3.1-8B, conversations, 99 %. Compiled,
it is the twin's loop as in benchmarks/refined_capacity.py, with its own requests per trial and with the bench's fewer
ones; plain, it is `enginemodel.replay` with as many as the bench has. The error is that of a mean over the draws, of
which seeds are 0 and up; what 2 % would take is reckoned from the spread of single draws. Memory is the most that a
process of its own ever had. Machine code is read from where an earlier run has kept it: run it twice.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from benchmarks.capacity_closed_form import lengths
from holdfast.domain.service import Slo
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CONVERSATIONS = (1155.0, 1.0, 211.0, 1.0)
BENCH_REQUESTS = 2000
HEADER = ("point", "loop", "draws of requests", "req/s", "error", "CPU", "CPU for 2 %", "memory")
WANTED_ERROR = 0.02
MOST_TOKENS = 100_000


class Question(NamedTuple):
    """An engine, its objectives, and a rate to begin from."""

    accelerator: str
    slo: Slo
    guess_rps: float


QUESTIONS = {
    "step": Question("l40s", Slo(1.0, 0.08, 0.99, 3600.0), 3.7),
    "shift": Question("a100", Slo(2.0, 0.1, 0.99, 3600.0), 7.5),
}


class Cost(NamedTuple):
    """Of one point, all draws together."""

    rate_rps: float
    deviation: float
    draws: int
    cpu_seconds: float
    rss_mib: float

    @property
    def error(self) -> float:
        """Standard error of the mean, relative."""
        return self.deviation / math.sqrt(self.draws) / self.rate_rps

    @property
    def seconds_wanted(self) -> float:
        """CPU seconds of as many draws as the error that was asked for takes."""
        return self.cpu_seconds * max(1.0 / self.draws, (self.error / WANTED_ERROR) ** 2)


class Loop:
    """The scheduler loop in plain Python at any rate, with common random numbers."""

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


def plain(question: Question, requests: int, draws: int) -> Cost:
    """By the loop in plain Python."""
    prior = engine_prior(MODEL, question.accelerator)

    def draw(seed: int) -> float:
        chance = np.random.default_rng([seed, 3])
        drawn = lengths(CONVERSATIONS, requests, MOST_TOKENS)
        loop = Loop(prior, [drawn[row] for row in chance.integers(0, requests, requests)], question.slo)
        loop.gaps = np.cumsum(chance.exponential(1.0, requests))
        return loop.capacity(question.guess_rps)

    return _cost(draw, draws)


def compiled(question: Question, requests: int, draws: int, fast_loop: bool = False) -> Cost:
    """By the twin's loop, which is not imported where only plain Python is measured."""
    from holdfast.enginemodel.scheduler import SchedulerLimits
    from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Workload
    from holdfast.twin.replica.capacity import ALONE, WARM_UP, bisected, good, lognormal_lengths, sample_of
    from holdfast_engine.objectives.rules import Limits, Objectives

    prior = engine_prior(MODEL, question.accelerator)
    limits = SchedulerLimits(prior.max_num_seqs_default, prior.max_num_batched_tokens_default, prior.kv_tokens)
    kind, slo = EngineSpec(prior.timer, limits), question.slo
    told = [Limits(version=1, objectives=Objectives(slo.ttft_seconds, slo.tpot_seconds, None))] if fast_loop else []
    drawn = lognormal_lengths(CONVERSATIONS[0], CONVERSATIONS[2], CONVERSATIONS[1], MOST_TOKENS)

    def draw(seed: int) -> float:
        sample = sample_of(drawn, seed, requests)

        def holds(rate: float) -> bool:
            stretched = Workload(sample.at / rate, sample.prompt_tokens, sample.output_tokens, sample.cached_tokens)
            fleet = EngineFleet(stretched, [kind], slo, ALONE, told)
            fleet.add()
            fleet.advance(math.inf)
            return float(good(fleet.requests[round(WARM_UP * requests) :], slo).mean()) >= slo.objective

        return bisected(holds, question.guess_rps)

    draw(0)  # compiled, or read from where it was kept
    return _cost(draw, draws)


def with_plugin(question: Question, requests: int, draws: int) -> Cost:
    """By the twin's loop with the plugin's fast loop in it."""
    return compiled(question, requests, draws, fast_loop=True)


def _cost(draw: Callable[[int], float], draws: int) -> Cost:
    began = time.process_time()
    rates = [draw(seed) for seed in range(draws)]
    spent = time.process_time() - began
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return Cost(statistics.fmean(rates), statistics.stdev(rates), draws, spent, rss)


def rows(draws: int, plain_draws: int, requests: int) -> Iterator[str]:
    """One line for each way and question, each measured in a process of its own."""
    ways = (
        ("stock, compiled", compiled, requests, draws),
        ("stock, compiled", compiled, BENCH_REQUESTS, draws),
        ("plugin, compiled", with_plugin, requests, draws),
        ("stock, plain", plain, BENCH_REQUESTS, plain_draws),
    )
    for name, question in QUESTIONS.items():
        for way, measure, count, times in ways:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as worker:
                cost = worker.submit(measure, question, count, times).result()
            cells = (
                f"{name}, {question.accelerator}",
                way,
                f"{times} of {count}",
                f"{cost.rate_rps:.2f}",
                f"{100.0 * cost.error:.1f} %",
                f"{cost.cpu_seconds:.1f} s",
                f"{cost.seconds_wanted:.1f} s",
                f"{cost.rss_mib:.0f} MiB",
            )
            yield f"| {' | '.join(cells)} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--plain-draws", type=int, default=2)
    parser.add_argument("--requests", type=int, default=4000)
    given = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    for line in rows(given.draws, given.plain_draws, given.requests):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
