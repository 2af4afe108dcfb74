"""What the admission flags keep of an overloaded replica's goodput, by the scheduler loop.

    python benchmarks/admission.py             # both parts of docs/designs/0001-admission.md, some 8 minutes
    python benchmarks/admission.py --case 2    # only this one, counted from 0 over both parts
    python benchmarks/admission.py --quick     # shorter runs, a coarser sweep

The first part gives goodput in units of what one replica carries (the working point), at offered loads in the same
unit; in brackets is the share of requests that is refused. The rule is the pair that `intake` gives for that very mix;
`best` is the pair of a sweep that is best at that very load, whatever it does at others.

The second part gives the pair that is rendered, which comes from a typical mix, other requests: the largest rate at
which a replica keeps the objective without and with it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from capacity_closed_form import lengths

from holdfast.domain.service import BatchingLimits, Slo
from holdfast.enginemodel.admission import batch_limits, intake
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import working_point

Lengths = tuple[float, float, float, float]  # mean prompt, cv, mean output, cv
Caps = dict[str, int]

CHAT, CODE = (1020, 1.2, 210, 0.8), (2050, 0.9, 30, 1.5)
RELAXED, BRISK = Slo(2.0, 0.1, 0.95, 3600), Slo(1.0, 0.06, 0.95, 3600)
LOADS = (0.5, 0.8, 1.1, 1.3, 1.7)
PROMPTS = (1, 3, 8, 16)  # mean prompts that may queue
BOUNDS = (math.inf, 1.0)  # sequences at a time, in those of the rule
SEARCH_STEPS = 6


@dataclass(frozen=True)
class Case:
    """Lengths and objectives of requests to Qwen3-8B on an L40S; `max_num_seqs` None leaves it to the rule."""

    name: str
    lengths: Lengths
    slo: Slo
    max_num_seqs: int | None = None


CASES = (
    Case("chat, TTFT 2 s, TPOT 100 ms", CHAT, RELAXED),
    Case("chat, TTFT 1 s, TPOT 60 ms", CHAT, BRISK),
    Case("code, TTFT 2 s, TPOT 100 ms", CODE, RELAXED),
    Case("code, TTFT 1 s, TPOT 60 ms", CODE, BRISK),
    Case("chat, 32 sequences, TTFT 2 s, TPOT 100 ms", CHAT, RELAXED, 32),
)
MIXES = {
    "chat": CHAT,
    "code": CODE,
    "1000 in, 1000 out": (1000, 1.0, 1000, 0.8),
    "300 in, 1000 out": (300, 1.0, 1000, 0.8),
    "300 in, 200 out": (300, 1.0, 200, 0.8),
}
OTHERS = tuple(Case(name, mix, slo) for slo in (RELAXED, BRISK) for name, mix in MIXES.items())


@dataclass(frozen=True)
class Result:
    """Good and refused requests of one run, as shares of those that came."""

    good: float
    refused: float


class Replica:
    """One case's replica at its working point; the same requests come in every run, faster or slower."""

    def __init__(self, case: Case, requests: int) -> None:
        self.prior, self.slo, self.batching = engine_prior("Qwen/Qwen3-8B", "l40s"), case.slo, case.max_num_seqs
        self.timer, self.pairs = self.prior.timer, lengths(case.lengths, requests, 16_000)
        self.mix = LengthMix.from_pairs(self.pairs)
        batch = batch_limits(self.prior, BatchingLimits(self.batching))
        point = working_point(self.timer, self.mix, batch, self.prior.kv_tokens, case.slo, start=self.prior.law)
        self.capacity = point.capacity
        self.limits = SchedulerLimits(batch.max_num_seqs, batch.max_num_batched_tokens, self.prior.kv_tokens)
        self.gaps = np.cumsum(np.random.default_rng(11).exponential(1.0, requests))

    @property
    def plain(self) -> Caps:
        """The rule of before: 0.6 x TTFT x the prompt tokens per second at capacity."""
        return caps(0.6 * self.slo.ttft_seconds * self.capacity.rate_rps * self.mix.prompt_tokens)

    def rule(self, *mix: LengthMix) -> Caps:
        """What `intake` gives, by default for the typical mix."""
        found = intake(self.prior, BatchingLimits(self.batching), self.slo, *mix)
        return {} if found is None else caps(found.queued_tokens, found.active_sequences)

    def sweep(self, prompts: Iterable[int]) -> Iterator[Caps]:
        """Pairs around the rule's."""
        bound = self.rule(self.mix).get("max_num_seqs", math.inf)
        for count, share in product(prompts, BOUNDS if bound < math.inf else BOUNDS[:1]):
            sequences = share * bound
            yield caps(count * self.mix.prompt_tokens, max(1, round(sequences)) if sequences < math.inf else None)

    def run(self, rate_rps: float, limited: Caps) -> Result:
        """Replay at a rate; the first fifth is warm-up."""
        times = self.gaps / rate_rps
        arrivals = [Arrival(float(at), *pair) for at, pair in zip(times, self.pairs, strict=True)]
        outcomes = replay(arrivals, replace(self.limits, **limited), self.timer)[len(arrivals) // 5 :]
        good, refused = sum(o.good(self.slo) for o in outcomes), sum(math.isinf(o.ttft_seconds) for o in outcomes)
        return Result(good / len(outcomes), refused / len(outcomes))

    def runs(self, limited: Caps) -> list[Result]:
        """One run for each load."""
        return [self.run(load * self.capacity.rate_rps, limited) for load in LOADS]

    def carried_rps(self, limited: Caps) -> float:
        """The largest rate at which the objective holds, to some 2.5 %."""
        low, high = 0.0, 1.6 * self.capacity.rate_rps
        for _ in range(SEARCH_STEPS):
            middle = (low + high) / 2.0
            holds = self.run(middle, limited).good >= self.slo.objective
            low, high = (middle, high) if holds else (low, middle)
        return low


def caps(queued_tokens: float, sequences: int | None = None) -> Caps:
    """The two limits by the names of the scheduler loop."""
    return {"max_num_queued_tokens": round(queued_tokens)} | ({"max_num_seqs": sequences} if sequences else {})


def told(limited: Caps) -> str:
    """The pair as `tokens / sequences`."""
    return f"{limited.get('max_num_queued_tokens', 'none')} / {limited.get('max_num_seqs', '-')}"


def goodput_table(case: Case, requests: int, prompts: Iterable[int]) -> Iterator[str]:
    """The rows of a case of the first part, as Markdown."""
    replica = Replica(case, requests)
    swept = [(pair, replica.runs(pair)) for pair in replica.sweep(prompts)]
    best = [max(swept, key=lambda pair: pair[1][index].good) for index in range(len(LOADS))]
    rule = replica.rule(replica.mix)
    rows = {
        "without": replica.runs({}),
        f"0.6 x TTFT x capacity: {told(replica.plain)}": replica.runs(replica.plain),
        f"**the rule: {told(rule)}**": replica.runs(rule),
        "best of a sweep: " + ", ".join(told(pair) for pair, _ in best): [
            results[index] for index, (_, results) in enumerate(best)
        ],
    }
    found, mean = replica.capacity, replica.mix.prompt_tokens
    yield f"\n{case.name}: {found.rate_rps:.2f} req/s, bound by {found.bound_by.value}, mean prompt {mean:.0f} tokens\n"
    yield "| queued tokens / sequences | " + " | ".join(f"load {load:g}" for load in LOADS) + " |"
    yield "|---" * (len(LOADS) + 1) + "|"
    for name, results in rows.items():
        cells = (f"{r.good * load:.2f} ({r.refused:.0%})" for r, load in zip(results, LOADS, strict=True))
        yield f"| {name} | " + " | ".join(cells) + " |"


def other_mix_row(case: Case, requests: int) -> str:
    """A row of the second part, as Markdown."""
    replica = Replica(case, requests)
    typical = replica.rule()
    without, bounded = replica.carried_rps({}), replica.carried_rps(typical)
    over = [f"{1.7 * replica.run(1.7 * without, limited).good:.2f}" for limited in ({}, typical)]
    slo = f"{case.slo.ttft_seconds:g} s, {case.slo.tpot_seconds * 1000:g} ms"
    cells = (case.name, slo, told(replica.rule(replica.mix)), told(typical), f"{without:.2f}", f"{bounded:.2f}")
    return "| " + " | ".join((*cells, f"{1.0 - bounded / without:.0%}", *over)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", type=int, choices=range(len(CASES) + len(OTHERS)), help="only this one")
    options = parser.parse_args()
    wanted = set(range(len(CASES) + len(OTHERS)) if options.case is None else [options.case])
    requests, prompts = (600, PROMPTS[::2]) if options.quick else (1500, PROMPTS)
    for index, case in enumerate(CASES + OTHERS):
        if index not in wanted:
            continue
        if index < len(CASES):
            print(*goodput_table(case, requests, prompts), sep="\n", flush=True)
        else:
            print(other_mix_row(case, min(requests, 1000)), flush=True)


if __name__ == "__main__":
    main()
