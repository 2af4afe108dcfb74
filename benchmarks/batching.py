"""What batching limits are worth: the best fixed ones against vLLM's defaults, and bounds beside the fast loop.

    python benchmarks/batching.py capacity      # half an hour: what stock, best limits and the fast loop carry
    python benchmarks/batching.py bounds        # some 10 minutes: goodput under overload with bounds from the operator
    python benchmarks/batching.py maxima        # some 10 minutes: tokens per step that an engine is started with

All in the emulator's scheduler loop and virtual time, Qwen3-8B on an L40S by its step table. `capacity` is the largest
rate at which 95 % of requests are good, searched with common random numbers (within 4 %; standard error a few per
cent); `model` is the closed form that limits are chosen by. `bounds` are goodputs in units of the fast loop's own
without any bound, at 1.25 and 2 times what it carries: active sequences and tokens per step of the working point, those
of the wrong mix, and, with a small KV cache, active sequences for which it has room.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from capacity_closed_form import lengths

from holdfast.domain.service import Slo
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.batching import best, candidates
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, ReplayClock, ReplayedRequest, replay, replay_on
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import WorkingPoint, working_point
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives

MIXES = {  # mean prompt, cv, mean output, cv
    "chat": (1020, 1.2, 210, 0.8),
    "code": (2050, 0.9, 30, 1.5),
    "long prompts": (4000, 0.6, 150, 0.8),
    "writing": (250, 1.0, 600, 0.7),
}
LONGER = {"chat": 4, "writing": 8}
"""Answers that take long need more requests until a capacity is that of a steady state."""

SLOS = {"2 s, 100 ms": Slo(2.0, 0.1, 0.95, 3600), "1 s, 60 ms": Slo(1.0, 0.06, 0.95, 3600)}
PRIOR = engine_prior("Qwen/Qwen3-8B", "l40s")
DEFAULT = BatchLimits(PRIOR.max_num_seqs_default, PRIOR.max_num_batched_tokens_default)
SMALL_KV_TOKENS = 30_000
OVERLOADS = (1.25, 2.0)


@dataclass(frozen=True)
class Bounds:
    """What the operator tells an engine beside the objectives."""

    active_sequences: int | None = None
    tokens_per_step: int | None = None


class Replica:
    """One engine under one mix and SLO; the same requests come in every run, faster or slower."""

    def __init__(self, mix: str, slo: Slo, requests: int, kv_tokens: int = PRIOR.kv_tokens) -> None:
        self.slo, self.kv_tokens = slo, kv_tokens
        self.pairs = lengths(MIXES[mix], requests, 12_000)
        self.mix = LengthMix.from_pairs(self.pairs)
        self.moments = np.cumsum(np.random.default_rng(11).exponential(1.0, requests))

    def stock(self, limits: BatchLimits, rate: float) -> list[ReplayedRequest]:
        return self._steady(replay(self._arrivals(rate), self._started(limits), PRIOR.timer))

    def plugin(self, rate: float, bounds: Bounds = Bounds(), started: BatchLimits = DEFAULT) -> list[ReplayedRequest]:
        asked = Limits(
            1,
            Objectives(self.slo.ttft_seconds, self.slo.tpot_seconds),
            active_sequences=bounds.active_sequences,
            tokens_per_step=bounds.tokens_per_step,
        )
        with tempfile.TemporaryDirectory() as folder:
            path, clock = Path(folder) / "engine-limits", ReplayClock()
            path.write_text(asked.to_json())
            scheduler = FastLoopScheduler(self._started(started), LimitsFiles([path]), clock)
            return self._steady(replay_on(scheduler, self._arrivals(rate), PRIOR.timer, clock))

    def good(self, outcomes: list[ReplayedRequest]) -> float:
        return sum(outcome.good(self.slo) for outcome in outcomes) / len(outcomes)

    def capacity(self, run: Callable[[float], list[ReplayedRequest]], start: float) -> float:
        """The largest rate at which enough are good."""
        low, high = 0.0, max(start, 0.05)
        while self.good(run(high)) >= self.slo.objective:
            low, high = high, high * 1.4
        low = low or high / 16
        while high / low > 1.04:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.good(run(middle)) >= self.slo.objective else (low, middle)
        return math.sqrt(low * high)

    def point(self, limits: BatchLimits) -> WorkingPoint:
        return working_point(PRIOR.timer, self.mix, limits, self.kv_tokens, self.slo, start=PRIOR.law)

    def _started(self, limits: BatchLimits) -> SchedulerLimits:
        return SchedulerLimits(limits.max_num_seqs, limits.max_num_batched_tokens, self.kv_tokens)

    def _arrivals(self, rate: float) -> list[Arrival]:
        return [Arrival(float(at) / rate, *pair) for at, pair in zip(self.moments, self.pairs, strict=True)]

    def _steady(self, outcomes: list[ReplayedRequest]) -> list[ReplayedRequest]:
        return outcomes[len(outcomes) // 5 :]


def print_capacity(mixes: Sequence[str], requests: int) -> None:
    """What is carried without and with the best limits, and with the fast loop."""
    print("| requests | TTFT, TPOT | default: model | loop | best: tokens | model | loop | fast loop |")
    print("|---|---|---|---|---|---|---|---|")
    for mix in mixes:
        for name, slo in SLOS.items():
            replica = Replica(mix, slo, requests * LONGER.get(mix, 1))
            found = candidates(PRIOR, DEFAULT, replica.mix, slo)
            top = best(found)
            default, chosen = (
                replica.capacity(partial(replica.stock, limits), top.rate_rps) for limits in (DEFAULT, top.limits)
            )
            plugin = replica.capacity(replica.plugin, top.rate_rps)
            cells = (found[0].rate_rps, default, top.limits.max_num_batched_tokens, top.rate_rps, chosen, plugin)
            shown = " | ".join(str(cell) if isinstance(cell, int) else f"{cell:.2f}" for cell in cells)
            print(f"| {mix} | {name} | {shown} |", flush=True)


def print_bounds(mixes: Sequence[str], requests: int) -> None:
    """Goodput with bounds, in units of that without, of the fast loop in overload."""
    print("| requests | KV tokens | load | good without | working point | of another mix | room in the KV cache |")
    print("|---|---|---|---|---|---|---|")
    slo = SLOS["2 s, 100 ms"]
    for mix in mixes:
        for kv_tokens in (PRIOR.kv_tokens, SMALL_KV_TOKENS):
            replica = Replica(mix, slo, requests, kv_tokens)
            other = Replica("writing" if mix == "code" else "code", slo, requests)
            carried = replica.capacity(replica.plugin, replica.point(DEFAULT).capacity.rate_rps)
            rooms = replica.kv_tokens / (replica.mix.kv_token_steps / replica.mix.output_tokens)
            tried = (_bounds(replica), _bounds(other), Bounds(max(1, round(0.9 * rooms))))
            for load in OVERLOADS:
                rate = load * carried
                plain = replica.good(replica.plugin(rate))
                shares = [replica.good(replica.plugin(rate, bounds)) / max(plain, 1e-9) for bounds in tried]
                shown = " | ".join(f"{share:.2f}" for share in shares)
                print(f"| {mix} | {kv_tokens} | {load:g} | {plain * rate / carried:.2f} | {shown} |", flush=True)


def _bounds(replica: Replica) -> Bounds:
    """The sequences of the working point with two deviations of a Poisson number, and the best tokens per step."""
    top = best(candidates(PRIOR, DEFAULT, replica.mix, replica.slo))
    sequences = top.point.capacity.sequences
    return Bounds(math.ceil(sequences + 2.0 * math.sqrt(sequences) + 2.0), top.limits.max_num_batched_tokens)


def print_maxima(mixes: Sequence[str], requests: int) -> None:
    """Goodput of the fast loop by the tokens per step that the engine was started with."""
    sizes = (1024, 2048, 4096, 8192)
    print(f"| requests | TTFT, TPOT | load | {' | '.join(map(str, sizes))} |")
    print("|---|---|---|" + "---|" * len(sizes))
    for mix in mixes:
        for name, slo in SLOS.items():
            replica = Replica(mix, slo, requests)
            carried = replica.capacity(replica.plugin, replica.point(DEFAULT).capacity.rate_rps)
            for load in (1.0, *OVERLOADS):
                runs = [
                    replica.plugin(load * carried, started=replace(DEFAULT, max_num_batched_tokens=size))
                    for size in sizes
                ]
                shown = " | ".join(f"{load * replica.good(run):.2f}" for run in runs)
                print(f"| {mix} | {name} | {load:g} | {shown} |", flush=True)


PARTS = {"capacity": print_capacity, "bounds": print_bounds, "maxima": print_maxima}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--mix", choices=MIXES, help="only this one")
    parser.add_argument("--requests", type=int, default=300, help="of short answers; more of long ones")
    options = parser.parse_args()
    PARTS[options.part]([options.mix] if options.mix else list(MIXES), options.requests)


if __name__ == "__main__":
    main()
