"""What the fast loop keeps of an overloaded replica's goodput, in the emulator's scheduler loop and virtual time.

    python benchmarks/fastloop_emulated.py             # eight cells, some minutes each
    python benchmarks/fastloop_emulated.py --cell 1    # one of them
    python benchmarks/fastloop_emulated.py --cell 2 --model meta-llama/Llama-3.1-8B-Instruct --accelerator h100

Engines schedule a step ahead, launch each as its kind needs (CUDA graphs up to their edge), and stand behind an API
server that has one thread: clients see tokens later than the engine (enginemodel.host). All of it holds for C too.

C is the best goodput that vLLM without the fast loop reaches at any offered rate with its best fixed limits (sequences
and tokens per step; mean over the seeds). Goodput counts good requests among those that arrived in the steady window,
per second of that window, as a share of C. The fast loop is holdfast_engine's own code; it is told the objectives and
nothing else, so that every limit is its own. `flag` is stock vLLM at C's limits with the --max-num-queued-tokens that
is best at that very load. The last lines compare with stock vLLM at its defaults at loads that it can carry, and say
beside it what C's limits cost there.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

import numpy as np

from holdfast.domain.service import Slo
from holdfast.emulator.client_reports import ClientReports
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.host import BUSY_FRONT_END, USUAL_FRONT_END, FrontEnd
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, ReplayClock, ReplayedRequest, replay, replay_on
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives, Overload

MODEL = "Qwen/Qwen3-8B"
CHAT, CODE = (1020, 1.2, 210, 0.8), (2050, 0.9, 30, 1.5)  # mean prompt, cv, mean output, cv
SHORT = (500, math.sqrt(math.expm1(0.9**2)), 143, math.sqrt(math.expm1(0.55**2)))
"""What an H200 was measured with (data/vllm_gpu_h200): lognormal with sigma 0.9 and 0.55."""

RELAXED, BRISK, SHARP = (Slo(ttft, tpot, 0.95, 3600) for ttft, tpot in ((2.0, 0.1), (1.0, 0.06), (0.5, 0.03)))
CELLS = {
    "conversation, TTFT 2 s, TPOT 100 ms": ("l40s", CHAT, RELAXED, 1, 1.0),
    "conversation, TTFT 1 s, TPOT 60 ms": ("l40s", CHAT, BRISK, 1, 1.0),
    "code, TTFT 2 s, TPOT 100 ms": ("l40s", CODE, RELAXED, 1, 1.0),
    "code, TTFT 1 s, TPOT 60 ms": ("l40s", CODE, BRISK, 1, 1.0),
    "short, TTFT 0.5 s, TPOT 30 ms, H100": ("h100", SHORT, SHARP, 3, 1.0),
    "short, TTFT 0.5 s, TPOT 30 ms, H200": ("h200", SHORT, SHARP, 3, 1.0),
    "short, TTFT 0.5 s, TPOT 30 ms, H200, slow host": ("h200", SHORT, SHARP, 3, 1.25),
    "short, TTFT 0.5 s, TPOT 30 ms, H100, slow host, busy API server": ("h100", SHORT, SHARP, 3, 1.3),
}
"""Accelerator, lengths, objectives, how many times the requests where they come fast, and how slow the host is.

The measured H200's host was as slow as the last of its cells at times, and then the fast loop lost its goodput. The
last cell is the measured H100: host and API server as recorded (data/vllm_gpu_h100).
"""
BUSY = len(CELLS) - 1

CALM, OVERLOADS = (0.5, 0.8), (1.1, 1.25, 1.5, 2.0)
BAR_QUEUE = dict(zip(OVERLOADS, (0.95, 0.95, 0.9, 0.85), strict=True))
BAR_REJECT, CALM_LOSS = 0.95, 0.02
RATES = tuple(2.0 * 1.15**step for step in range(29))
TOKENS, SEQUENCES = (384, 512, 768, 1024, 2048), (64, 256)
CAPS = (1, 2, 4, 8)  # in mean prompts
WARM_UP = 0.2
LONGEST = 16_000


@dataclass(frozen=True)
class Run:
    """Outcomes of the requests that arrived in the steady window, and how long that lasted."""

    outcomes: list[ReplayedRequest]
    seconds: float
    slo: Slo

    @property
    def goodput(self) -> float:
        """Good requests per second of the window."""
        return sum(outcome.good(self.slo) for outcome in self.outcomes) / self.seconds

    def median(self, name: str) -> float:
        """Median seconds of those that were served."""
        return float(median(getattr(each, name) for each in self.outcomes if math.isfinite(each.ttft_seconds)))


class Replica:
    """One engine under one mix and SLO; the same requests come in every run of a seed, faster or slower.

    `captured` is what the plugin knows of the engine's CUDA graphs. The first `calm_requests` come at `calm_rps`; they
    are not judged.
    """

    def __init__(
        self,
        engine: tuple[str, str],
        mix: tuple[float, float, float, float],
        slo: Slo,
        requests: int,
        seeds: int,
        host: float = 1.0,
        front_end: FrontEnd | None = None,
    ) -> None:
        prior = engine_prior(*engine)
        self.slo, self.mean_prompt = slo, mix[0]
        found = replace(prior.host, front_end=USUAL_FRONT_END).slower(host)
        self.timer = prior.timer.with_host(found if front_end is None else replace(found, front_end=front_end))
        self.captured = self.timer.host.graphs.captured
        self.calm_requests, self.calm_rps = 0, 1.0
        self.stock = SchedulerLimits(
            prior.max_num_seqs_default, prior.max_num_batched_tokens_default, kv_tokens=prior.kv_tokens
        )
        self.seeds = range(seeds)
        self._traces = [_trace(mix, requests, seed) for seed in self.seeds]

    def plain(self, limits: SchedulerLimits, rate: float, seed: int) -> Run:
        """Stock vLLM."""
        return self._run(replay(self._arrivals(rate, seed), limits, self.timer))

    def plugin(self, overload: Overload, rate: float, seed: int, fixed_tokens: int | None = None) -> Run:
        """vLLM's default limits and the fast loop, which adapts its limits where no tokens per step are given."""
        bounds = Objectives(self.slo.ttft_seconds, self.slo.tpot_seconds)
        asked = Limits(1, bounds, tokens_per_step=fixed_tokens, adapt=fixed_tokens is None, overload=overload)
        with tempfile.TemporaryDirectory() as folder:
            path, clock = Path(folder) / "engine-limits", ReplayClock()
            path.write_text(asked.to_json())
            scheduler = FastLoopScheduler(self.stock, LimitsFiles([path]), clock, self.captured, ClientReports())
            outcomes = replay_on(scheduler, self._arrivals(rate, seed), self.timer, clock)
            # What is on its way to clients when the last step ends.
            clock.now = math.inf
            scheduler.loop.look()
        ledger = scheduler.loop.ledger.own
        judged = ledger.good + sum(ledger.bad.values()) + ledger.withdrawn + scheduler.rejected.total()
        assert judged == len(outcomes), f"{len(outcomes)} requests came, {judged} were judged"
        return self._run(outcomes)

    def capacity(self) -> tuple[float, SchedulerLimits]:
        """C, and the limits it takes."""
        best = (0.0, self.stock)
        for tokens in TOKENS:
            for sequences in SEQUENCES:
                limits = replace(self.stock, max_num_batched_tokens=tokens, max_num_seqs=sequences)
                best = max(best, (self.best_goodput(limits, best[0]), limits), key=lambda found: found[0])
        return best

    def best_goodput(self, limits: SchedulerLimits, known: float = 0.0) -> float:
        """At the best rate, where that is above `known`.

        Rates are tried upwards until queues have eaten what more requests would bring.
        """
        best = 0.0
        for rate in RATES:
            if rate <= known:
                continue
            found = fmean(self.plain(limits, rate, seed).goodput for seed in self.seeds)
            best = max(best, found)
            if found < 0.8 * best or found < 0.7 * known:
                break
        return best

    def _arrivals(self, rate: float, seed: int) -> list[Arrival]:
        moments, pairs = self._traces[seed]
        calm = self.calm_requests
        begun = moments[calm - 1] if calm else 0.0
        times = [at / self.calm_rps if at <= begun else begun / self.calm_rps + (at - begun) / rate for at in moments]
        return [Arrival(at, *pair) for at, pair in zip(times, pairs, strict=True)]

    def _run(self, outcomes: list[ReplayedRequest]) -> Run:
        steady = outcomes[self.calm_requests + round(WARM_UP * (len(outcomes) - self.calm_requests)) :]
        return Run(steady, steady[-1].arrival.at - steady[0].arrival.at, self.slo)


def _trace(mix: tuple[float, float, float, float], count: int, seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    """Poisson moments at one request per second, and lognormal lengths."""
    draw = np.random.default_rng(seed)
    moments = np.cumsum(draw.exponential(1.0, count)).tolist()
    columns = []
    for mean, cv in (mix[:2], mix[2:]):
        sigma = math.sqrt(math.log1p(cv * cv))
        values = draw.lognormal(math.log(mean) - sigma**2 / 2, sigma, count)
        columns.append(np.clip(np.rint(values), 1, LONGEST).astype(int).tolist())
    return moments, list(zip(*columns, strict=True))


def table(replica: Replica) -> Iterator[str]:
    """The rows of a cell as Markdown."""
    best, limits = replica.capacity()
    yield f"Started with {replica.stock.max_num_seqs} sequences, {replica.stock.max_num_batched_tokens} tokens per step"
    yield f"C = {best:.2f} good/s with {limits.max_num_seqs} sequences, {limits.max_num_batched_tokens} tokens per step"
    yield "\n| offered | stock | stock at C's limits | flag | Queue | Reject | bar |\n|---|---|---|---|---|---|---|"
    for load in OVERLOADS:
        yield _overload_row(replica, load, best, limits)
    yield "\n| offered | | good of all | goodput / stock's | TTFT p50 | TPOT p50 | bar |\n|---|---|---|---|---|---|---|"
    for load in CALM:
        yield from _calm_rows(replica, load, load * best, limits)


def _overload_row(replica: Replica, load: float, best: float, limits: SchedulerLimits) -> str:
    def share(run: Callable[[float, int], Run]) -> float:
        return fmean(run(load * best, seed).goodput for seed in replica.seeds) / best

    capped = [replace(limits, max_num_queued_tokens=round(cap * replica.mean_prompt)) for cap in CAPS]
    stock, at_limits = (share(partial(replica.plain, each)) for each in (replica.stock, limits))
    flag = max(share(partial(replica.plain, each)) for each in capped)
    queue, reject = (share(partial(replica.plugin, overload)) for overload in (Overload.QUEUE, Overload.REJECT))
    held = queue >= BAR_QUEUE[load] and reject >= BAR_REJECT
    cells = " | ".join(f"{value:.2f}" for value in (stock, at_limits, flag, queue, reject))
    return f"| {load:g} C | {cells} | {BAR_QUEUE[load]:g}, {BAR_REJECT:g}: {'held' if held else '**missed**'} |"


def _calm_rows(replica: Replica, load: float, rate: float, limits: SchedulerLimits) -> Iterator[str]:
    stock = [replica.plain(replica.stock, rate, seed) for seed in replica.seeds]
    yield f"| {load:g} C | stock | {_good_share(stock):.3f} | 1 | 1 | 1 | |"
    at_limits = [replica.plain(limits, rate, seed) for seed in replica.seeds]
    yield _calm_row(f"| {load:g} C | stock at C's limits", at_limits, stock)
    for overload in Overload:
        ours = [replica.plugin(overload, rate, seed) for seed in replica.seeds]
        yield _calm_row(f"| {load:g} C | {overload}", ours, stock, _calm_verdict(*ratios(ours, stock)))


def _calm_row(name: str, runs: list[Run], stock: list[Run], verdict: str = "") -> str:
    goodput, ttft, tpot = ratios(runs, stock)
    return f"{name} | {_good_share(runs):.3f} | {goodput:.3f} | {ttft:.3f} | {tpot:.3f} | {verdict} |"


def _calm_verdict(goodput: float, ttft: float, tpot: float) -> str:
    losses = {"goodput": 1.0 - goodput, "TTFT": ttft - 1.0, "TPOT": tpot - 1.0}
    missed = [name for name, loss in losses.items() if loss > CALM_LOSS]
    return f"within {CALM_LOSS:.0%}: " + (f"**missed** in {', '.join(missed)}" if missed else "held")


def ratios(runs: list[Run], stock: list[Run]) -> tuple[float, float, float]:
    """Goodput and medians of TTFT and TPOT, as multiples of stock's."""
    pairs = list(zip(runs, stock, strict=True))
    ttft, tpot = (
        fmean(ours.median(name) / plain.median(name) for ours, plain in pairs)
        for name in ("ttft_seconds", "tpot_seconds")
    )
    return fmean(ours.goodput / plain.goodput for ours, plain in pairs), ttft, tpot


def _good_share(runs: list[Run]) -> float:
    return fmean(run.goodput * run.seconds / len(run.outcomes) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", type=int, choices=range(len(CELLS)), help="only this one")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--accelerator", help="instead of the cell's")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for index, (name, (accelerator, mix, slo, times, host)) in enumerate(CELLS.items()):
        if options.cell in (None, index):
            engine = options.model, options.accelerator or accelerator
            print(f"\n{name} ({' on '.join(engine)})\n")
            front_end = BUSY_FRONT_END if index == BUSY else None
            for line in table(Replica(engine, mix, slo, times * options.requests, options.seeds, host, front_end)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
