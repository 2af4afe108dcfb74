"""What the admission flag keeps of an overloaded replica's goodput, by the scheduler loop.

    python benchmarks/admission.py            # the table of docs/designs/0001-admission.md, some 10 minutes
    python benchmarks/admission.py --quick    # shorter runs, fewer caps

Goodput is in units of what one replica carries (the working point), at offered loads in the same unit; in brackets is
the share of requests that is refused. `best` is the cap of a sweep that is best at that very load, whatever it does at
others; `requests` is a cap on requests in the engine (--max-num-queued-reqs) that knows the mix.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from capacity_closed_form import lengths

from holdfast.domain.service import Slo
from holdfast.enginemodel.admission import queued_tokens
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import working_point

CHAT, CODE = (1020, 1.2, 210, 0.8), (2050, 0.9, 30, 1.5)  # mean prompt, cv, mean output, cv
RELAXED, BRISK = Slo(2.0, 0.1, 0.95, 3600), Slo(1.0, 0.06, 0.95, 3600)
LOADS = (0.8, 1.1, 1.3, 1.7)
CAPS = (1, 2, 3, 5, 8, 12, 16, 24, 40)  # in mean prompts


@dataclass(frozen=True)
class Case:
    """An engine, lengths and objectives; `max_num_seqs` None leaves vLLM's default."""

    name: str
    model: str
    accelerator: str
    lengths: tuple[float, float, float, float]
    slo: Slo
    max_num_seqs: int | None = None


CASES = (
    Case("chat, TTFT 2 s, TPOT 100 ms", "Qwen/Qwen3-8B", "l40s", CHAT, RELAXED),
    Case("chat, TTFT 1 s, TPOT 60 ms", "Qwen/Qwen3-8B", "l40s", CHAT, BRISK),
    Case("code, TTFT 2 s, TPOT 100 ms", "Qwen/Qwen3-8B", "l40s", CODE, RELAXED),
    Case("code, TTFT 1 s, TPOT 60 ms", "Qwen/Qwen3-8B", "l40s", CODE, BRISK),
    Case("chat, 32 sequences, TTFT 2 s, TPOT 100 ms", "Qwen/Qwen3-8B", "l40s", CHAT, RELAXED, 32),
)


@dataclass(frozen=True)
class Result:
    """Good and refused requests of one run, as shares of those that came."""

    good: float
    refused: float


class Replica:
    """One case's replica at its working point; the same requests come in every run, faster or slower."""

    def __init__(self, case: Case, requests: int) -> None:
        prior = engine_prior(case.model, case.accelerator)
        self.slo, self.timer, self.pairs = case.slo, prior.timer, lengths(case.lengths, requests, 16_000)
        self.mix = LengthMix.from_pairs(self.pairs)
        batch = BatchLimits(case.max_num_seqs or prior.max_num_seqs_default, prior.max_num_batched_tokens_default)
        point = working_point(prior.timer, self.mix, batch, prior.kv_tokens, case.slo, start=prior.law)
        self.capacity = point.capacity
        self.rule = round(queued_tokens(point, self.mix, batch, prior.kv_tokens, case.slo))
        self.plain = round(0.6 * case.slo.ttft_seconds * self.capacity.rate_rps * self.mix.prompt_tokens)
        self.limits = SchedulerLimits(batch.max_num_seqs, batch.max_num_batched_tokens, prior.kv_tokens)
        self.gaps = np.cumsum(np.random.default_rng(11).exponential(1.0, requests))

    @property
    def requests_cap(self) -> int:
        """Requests in the engine at its capacity, and two standard deviations of a Poisson number more."""
        present = self.capacity.sequences + self.capacity.rate_rps * self.capacity.ttft_seconds
        return math.ceil(present + 2.0 * math.sqrt(present) + 2.0)

    def run(self, load: float, **caps: int) -> Result:
        """Replay at a multiple of the capacity; the first fifth is warm-up."""
        rate = load * self.capacity.rate_rps
        arrivals = [Arrival(float(at), *pair) for at, pair in zip(self.gaps / rate, self.pairs, strict=True)]
        outcomes = replay(arrivals, replace(self.limits, **caps), self.timer)[len(arrivals) // 5 :]
        good, refused = sum(o.good(self.slo) for o in outcomes), sum(math.isinf(o.ttft_seconds) for o in outcomes)
        return Result(good / len(outcomes), refused / len(outcomes))


def table(case: Case, requests: int, caps: Iterable[int]) -> Iterable[str]:
    """The rows of a case, as Markdown."""
    replica = Replica(case, requests)
    mean = replica.mix.prompt_tokens
    swept = {
        round(cap * mean): [replica.run(load, max_num_queued_tokens=round(cap * mean)) for load in LOADS]
        for cap in caps
    }
    best = [max(swept, key=lambda cap: swept[cap][index].good) for index in range(len(LOADS))]
    rows = {
        "without": [replica.run(load) for load in LOADS],
        f"0.6 x TTFT x capacity: {replica.plain}": [
            replica.run(load, max_num_queued_tokens=replica.plain) for load in LOADS
        ],
        f"**the rule: {replica.rule}**": [replica.run(load, max_num_queued_tokens=replica.rule) for load in LOADS],
        "best of a sweep: " + ", ".join(map(str, best)): [swept[cap][index] for index, cap in enumerate(best)],
        f"requests: {replica.requests_cap}": [
            replica.run(load, max_num_queued_reqs=replica.requests_cap) for load in LOADS
        ],
    }
    found = replica.capacity
    yield f"\n{case.name}: {found.rate_rps:.2f} req/s, bound by {found.bound_by.value}, mean prompt {mean:.0f} tokens\n"
    yield "| cap | " + " | ".join(f"load {load:g}" for load in LOADS) + " |"
    yield "|---" * (len(LOADS) + 1) + "|"
    for name, results in rows.items():
        cells = (f"{r.good * load:.2f} ({r.refused:.0%})" for r, load in zip(results, LOADS, strict=True))
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="only this one")
    options = parser.parse_args()
    for case in CASES if options.case is None else [CASES[options.case]]:
        for line in table(case, 600 if options.quick else 1500, CAPS[::3] if options.quick else CAPS):
            print(line, flush=True)


if __name__ == "__main__":
    main()
