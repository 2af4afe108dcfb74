"""`holdfast tune` against vLLM's auto-tune recipe, on the twin's clock: trials, time, and what the choice is worth.

    python benchmarks/tune.py                    # three mixes, three endpoints, three seeds
    python benchmarks/tune.py --mix code --seeds 1 --trials
    python benchmarks/tune.py --held-out --trace synthetic_trace.jsonl.gz    # rows no rule was chosen by; Mooncake's

The endpoint is the twin of Qwen3-8B, on an L40S but for --accelerator, and never what the model that proposes
believes: `slower` takes 1.36 times as long for every step, `host` runs one step at a time with 4.5 ms of host time, and
`law` is the table while the model has only what data sheets say of the accelerator. Both sides get the same SLO, the
same lengths, and the same seconds for a start.

The recipe is vLLM's auto_tune.sh with its own grid, sequences 128 and 256 by tokens per step 512 to 4096: a start for
each, 1,000 requests at once, then 100 at each rate from the throughput down by 1 req/s, with 5 s in between, until the
objective is attained. In its favour it is judged by our SLO, draws the real lengths, and starts at the memory as it is.
Ours looks through the grid of all powers of two. What a choice is worth is the rate that the twin finds for it with
2,000 requests in five draws, as a share of the best of every setting in both grids.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import Host
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.tools.tune.engine_port import TrialRequests, Tried, enough
from holdfast.tools.tune.search import LimitsSearch, TuningResult
from holdfast.tools.tune.setting import Setting, grid
from holdfast.tools.tune.twin import TwinEngine, TwinModel, TwinTrials
from holdfast.twin.arrays.fleet import EngineSpec, Workload
from holdfast.twin.replica.capacity import Bench, LengthPairs, fitting, good
from holdfast.twin.scenarios.traces import read_trace

MODEL, ACCELERATOR = "Qwen/Qwen3-8B", "l40s"
TRACE = "trace"
MIXES = {  # mean prompt, cv, mean output, cv
    "conversation": (1020, 1.2, 210, 0.8),
    "code": (2050, 0.9, 30, 1.5),
    "long prompts": (4000, 0.6, 150, 0.8),
}
HELD_OUT = {"summaries": (3000, 0.8, 250, 0.5)}
SLOS = {"2 s, 100 ms, 95 %": Slo(2.0, 0.1, 0.95, 3600.0), "2 s, 100 ms, 99 %": Slo(2.0, 0.1, 0.99, 3600.0)}
ENDPOINTS = ("slower", "host", "law")
LOOSE, STRICT = SLOS
HELD_OUT_ROWS = (
    *(("summaries", LOOSE, "l40s"), (TRACE, LOOSE, "l40s")),
    *(("conversation", STRICT, "l40s"), ("conversation", LOOSE, "h100")),
)
"""Chosen before anything was measured on them."""

LONGEST, FIRST_GUESS = 12_000, 3.0
START_SECONDS, SLEEP_SECONDS = 60.0, 5.0
RECIPE_BURST, RECIPE_REQUESTS = 1000, 100
MOST = Setting(256, 8192)
RECIPE_GRID = tuple(Setting(sequences, tokens) for sequences in (128, 256) for tokens in (512, 1024, 2048, 4096))
WORTH, TRIALS, SECONDS = 0.98, 0.25, 0.2
"""The bar: of the best, of the recipe's trials, of the recipe's time."""


Play = Callable[[Setting, Workload], tuple[bool, float]]
"""Sends a load to an engine with these limits: whether the objective was attained, and seconds until its last token."""


@dataclass(frozen=True)
class Spent:
    """What a way to tune cost, and what it chose."""

    setting: Setting | None
    rate_rps: float
    trials: int
    seconds: float


def lengths(mix: str, trace: Path | None) -> LengthPairs:
    """20,000 lognormal pairs, or those of a trace that are not too long."""
    if mix == TRACE:
        if trace is None:
            raise SystemExit("--trace FILE is missing: name Mooncake's")
        found = read_trace(trace, "mooncake")
        return fitting(LengthPairs(found.prompt_tokens, found.output_tokens), LONGEST)
    draw = np.random.default_rng(4)
    prompt, prompt_cv, output, output_cv = {**MIXES, **HELD_OUT}[mix]

    def column(mean: float, cv: float) -> np.ndarray:
        sigma = math.sqrt(math.log1p(cv * cv))
        values = mean * np.exp(sigma * draw.standard_normal(20_000) - 0.5 * sigma**2)
        return np.clip(np.rint(values), 1, LONGEST).astype(np.int64)

    return LengthPairs(column(prompt, prompt_cv), column(output, output_cv))


SLOW_HOST = Host(schedule_seconds=0.0045)
"""One step at a time, with 3 ms more than the 1.5 ms that hosts were once taken for."""


def engines(endpoint: str, name: str) -> tuple[TwinEngine, TwinEngine]:
    """The endpoint, and what the model believes before the first trial."""
    prior = engine_prior(MODEL, name)
    assert prior.table is not None
    believed = TwinEngine(prior.timer, prior.law, lambda _: prior.kv_tokens)
    if endpoint == "slower":
        return replace(believed, stretch=1.36), believed
    if endpoint == "host":
        return replace(believed, timer=prior.timer.with_host(SLOW_HOST)), believed
    model, accelerator = find_model(MODEL), find_accelerator(name)
    assert model is not None
    assert accelerator is not None
    law = roofline_law(model, accelerator, 1)
    return believed, TwinEngine(EngineTimer(law, prior.host), law, lambda _: prior.kv_tokens)


class Worth:
    """The rate that each setting really carries, looked up once."""

    def __init__(self, engine: TwinEngine, slo: Slo, drawn: LengthPairs) -> None:
        self._engine, self._slo, self._drawn = engine, slo, drawn
        self._rates: dict[Setting, float] = {}

    def of(self, setting: Setting) -> float:
        if setting not in self._rates:
            self._rates[setting] = self._rate(setting)
        return self._rates[setting]

    def best(self) -> float:
        return max(map(self.of, (MOST, *grid(MOST), *RECIPE_GRID)))

    def _rate(self, setting: Setting) -> float:
        engine = self._engine
        limits = SchedulerLimits(setting.max_num_seqs, setting.max_num_batched_tokens, engine.kv_tokens(setting))
        # The engine's stretch as a faster clock: the requests come, and the bounds are, so many times as short.
        slo = replace(
            self._slo,
            ttft_seconds=self._slo.ttft_seconds / engine.stretch,
            tpot_seconds=self._slo.tpot_seconds / engine.stretch,
        )
        bench = Bench(EngineSpec(engine.timer, limits), slo, self._drawn)
        guess = self._rates.get(MOST, FIRST_GUESS)
        return bench.rate(guess * engine.stretch).rate_rps / engine.stretch


def recipe(play: Play, drawn: LengthPairs, seed: int, requests: int, start_seconds: float = START_SECONDS) -> Spent:
    """vLLM's auto_tune.sh, with so many requests at each rate; `start_seconds` for each setting, which is a restart."""
    best, best_rate, trials, seconds = None, 0.0, 0, 0.0
    for setting in RECIPE_GRID:
        seconds += start_seconds
        for rate, took, held in _descent(play, setting, drawn, seed, requests):
            trials, seconds = trials + 1, seconds + took
            if held and rate > best_rate:
                best, best_rate = setting, rate
    return Spent(best, best_rate, trials, seconds)


def _descent(
    play: Play, setting: Setting, drawn: LengthPairs, seed: int, requests: int
) -> Iterator[tuple[float, float, bool]]:
    """Rate, seconds, and whether it held, of each run with a setting."""
    burst = Workload(np.zeros(RECIPE_BURST), *drawn.draw(RECIPE_BURST, np.random.default_rng([seed, 6])), _none(1000))
    held, took = play(setting, burst)
    throughput = RECIPE_BURST / took
    yield throughput, took, held
    rate = int(throughput) + 1
    while not held and rate > 0:
        draw = np.random.default_rng([seed, rate])
        load = Workload(np.cumsum(draw.exponential(1.0 / rate, requests)), *drawn.draw(requests, draw), _none(requests))
        held, took = play(setting, load)
        yield float(rate), took + SLEEP_SECONDS, held
        rate -= 1


def on_the_twin(engine: TwinEngine, slo: Slo) -> Play:
    """Plays on the twin's clock."""

    def play(setting: Setting, load: Workload) -> tuple[bool, float]:
        records, _ = engine.play(setting, load, slo)
        return float(good(records, slo).mean()) >= slo.objective, float(np.nanmax(records["last_at"]))

    return play


def _none(count: int) -> np.ndarray:
    return np.zeros(count, np.int64)


def tuned(endpoint: TwinEngine, believed: TwinEngine, slo: Slo, drawn: LengthPairs, seed: int, told: bool) -> Spent:
    """Ours, with one start for the engine that takes live limits."""
    requests = TrialRequests(drawn, enough(slo.objective), seed=seed)
    model = TwinModel(believed, slo, requests)
    requests = model.lasting(grid(MOST))
    search = LimitsSearch(TwinTrials(endpoint, slo, MOST), model, requests, on_trial=_tell if told else _quiet)
    found = asyncio.run(search.tune(grid(MOST)))
    return _spent(found)


def _spent(found: TuningResult) -> Spent:
    return Spent(found.best, found.rate_rps, len(found.trials), found.seconds + START_SECONDS)


def _tell(tried: Tried) -> None:
    verdict = "held" if tried.held else "missed"
    early = ", ended early" if tried.ended else ""
    print(f"    {tried.setting}: {tried.rate_rps:.2f} req/s {verdict} ({tried.bad} bad), {tried.seconds:.0f} s{early}")


def _quiet(_: Tried) -> None:
    pass


HEADS = (
    *("requests", "SLO", "endpoint", "best, req/s", "ours: of it", "told / true", "trials", "s"),
    *("recipe: of it", "trials", "s", "trials, s: ours / recipe's", "with longer trials"),
)


@dataclass(frozen=True)
class Kept:
    """Which bars a row keeps."""

    worth: bool
    cost: bool
    cost_longer: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", choices=(*MIXES, *HELD_OUT, TRACE), help="only this one")
    parser.add_argument("--slo", choices=SLOS, help="only this one")
    parser.add_argument("--endpoint", choices=ENDPOINTS, help="only this one")
    parser.add_argument("--accelerator", default=ACCELERATOR, help="default %(default)s")
    parser.add_argument("--held-out", action="store_true", help="the rows that no rule was chosen by")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="of Mooncake, for --mix trace and --held-out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", action="store_true", help="tell each trial")
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    kept = [
        _row(mix, slo, endpoint, accelerator, options)
        for mix, slo, accelerator in (HELD_OUT_ROWS if options.held_out else _rows(options))
        if options.mix in (None, mix) and options.slo in (None, slo)
        for endpoint in ([options.endpoint] if options.endpoint else ENDPOINTS)
    ]
    print(
        f"\nof {len(kept)} rows (medians of the seeds) {sum(row.worth for row in kept)} are within 2 % of the best, "
        f"{sum(row.cost for row in kept)} at a quarter of the trials and a fifth of the time of the recipe as it is, "
        f"{sum(row.cost_longer for row in kept)} of the recipe with as many requests as a trial of ours has at least"
    )
    return 0 if all(row.worth and row.cost for row in kept) or not options.check else 1


def _rows(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    return [(mix, slo, options.accelerator) for mix in ([options.mix] if options.mix else MIXES) for slo in SLOS]


def _row(mix: str, slo_name: str, endpoint: str, accelerator: str, options: argparse.Namespace) -> Kept:
    slo, drawn = SLOS[slo_name], lengths(mix, options.trace)
    real, believed = engines(endpoint, accelerator)
    seeds, told = options.seeds, options.trials
    worth = Worth(real, slo, drawn)
    best = worth.best()
    ours = [tuned(real, believed, slo, drawn, seed, told) for seed in range(1, seeds + 1)]
    play = on_the_twin(real, slo)
    theirs = [recipe(play, drawn, seed, RECIPE_REQUESTS) for seed in range(1, seeds + 1)]
    longer = [recipe(play, drawn, seed, enough(slo.objective)) for seed in range(1, seeds + 1)]
    shares = _shares(worth, ours, best)
    ratios = [_ratio(ours, others, name) for others in (theirs, longer) for name in ("trials", "seconds")]
    told_rates = [spent.rate_rps / worth.of(spent.setting) for spent in ours if spent.setting]
    cells = (
        *(mix, slo_name, f"{endpoint}, {accelerator}", f"{best:.2f}", _spread(shares), _spread(told_rates)),
        *(_median(ours, "trials"), _median(ours, "seconds"), _spread(_shares(worth, theirs, best))),
        *(_median(theirs, "trials"), _median(theirs, "seconds")),
    )
    print(f"| {' | '.join(cells)} | {ratios[0]:.2f}, {ratios[1]:.2f} | {ratios[2]:.2f}, {ratios[3]:.2f} |", flush=True)
    return Kept(
        statistics.median(shares) >= WORTH,
        ratios[0] <= TRIALS and ratios[1] <= SECONDS,
        ratios[2] <= TRIALS and ratios[3] <= SECONDS,
    )


def _shares(worth: Worth, found: Sequence[Spent], best: float) -> list[float]:
    return [worth.of(spent.setting) / best if spent.setting else 0.0 for spent in found]


def _ratio(ours: Sequence[Spent], theirs: Sequence[Spent], name: str) -> float:
    return statistics.median(getattr(one, name) / getattr(other, name) for one, other in zip(ours, theirs, strict=True))


def _median(found: Sequence[Spent], name: str) -> str:
    return f"{statistics.median(getattr(spent, name) for spent in found):.0f}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    sys.exit(main())
