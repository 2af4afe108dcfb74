"""Whether a worker that refines capacities by the scheduler loop would pay: scenarios with its answers on every tick.

    python -m benchmarks.refined_capacity --data DIR [--scenario NAME ...] [--source NAME ...] [--seeds 3] [--workers 2]

Holdfast plays each scenario with and without the plugin, seeds 1 and up; what a replica is said to carry comes from

  closed form   the closed form, as it is
  loop          the scheduler loop, asked what the closed form is asked: the prior's steps at the believed slowness, and
                lognormal lengths of the believed moments; with the plugin it is the twin's fast loop at vLLM's limits
  histograms    the same with the recorded lengths of prompts and of answers, each by themselves as histograms tell them
  unslowed      the same for steps that take as long as the prior says, whatever was observed
  true bench    the loop with the twin's own steps, admission and recorded lengths, which no worker can know better
  true fleet    the same of five replicas behind the scenario's router
  slowness 1    the closed form for steps that take as long as the prior says, whatever was observed
  lognormal     the closed form with answers of a lognormal alone, whatever is known of the shortest
  quantiles     the closed form with the recorded answers' quantiles in place of any lognormal
  x 0.8         the closed form times a factor

Answers come at once and cost nothing, which no worker can do: an upper bound of what refinement brings. Everything else
is as it is, with slowness and gain corrected by what is observed. Markdown on standard output: attainment and GPU-hours
as means over the seeds; ratios to the closed form of the same seed as geometric means, with the least and the most.
`at this attainment` are GPU-hours relative to those of the closed form times whatever factor attains as much, between
the factors that were played: whether answers are better, or only higher or lower. `believed` is what a replica is
believed to carry after all corrections, `answers` the model's answers themselves; `other size` is the share of the time
with another number of replicas.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.autoscaling.cases import CASES, Case
from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption, ServiceSpec, Slo
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.mix import BIN_WEIGHTS, LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replica_model import SLOWNESS_GRID, ReplicaRate, StepLawModel, on_grid
from holdfast.render.engine_limits import engine_limits
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast.twin.policies import Holdfast
from holdfast.twin.replica.capacity import (
    ALONE,
    DRAWS,
    WARM_UP,
    LengthPairs,
    SimulatedRate,
    bisected,
    good,
    lognormal_lengths,
    sample_of,
)
from holdfast.twin.runs.results import attainment, gpu_hours
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import Scenario
from holdfast_engine.objectives.rules import Limits

SCENARIOS = ("diurnal-small", "smooth", "spike", "step", "shift")
FACTORS = (0.8, 0.9, 1.1, 1.25)
PLAYED = 4000
"""Requests of a trial, of which the bench has 2000; those left a standard error of 3 to 14 %."""

BESIDE = 5
"""Replicas of the true fleet."""

WINDOW = 4000
"""Requests whose lengths stand for a believed mix: of all windows of a workload, those of the one nearest to it."""

MOST_TOKENS = 100_000

STEP_LAW = StepLawModel()
CLOSED = "closed form"
Carried = Callable[[ServiceSpec, AcceleratorOption, LengthMix, float, float], float]
"""Requests per second of a replica, for the questions of an engine model and the closed form's answer."""


@dataclass(frozen=True, slots=True)
class Told(LengthMix):
    """A mix whose answers are those of `bins`."""

    bins: tuple[float, ...] = ()

    @property
    def output_bins(self) -> NDArray[np.float64]:
        """Tokens of answers that stand for the bins of BIN_WEIGHTS."""
        return np.array(self.bins)


@dataclass(frozen=True)
class Trial:
    """So many engines alike under Poisson requests of such lengths; `stretch` is how many times as long steps take."""

    kind: EngineSpec
    slo: Slo
    lengths: LengthPairs
    told: tuple[Limits, ...] = ()
    stretch: float = 1.0
    replicas: int = 1
    routing: Routing = ALONE

    def rate(self, guess_rps: float, draws: int = DRAWS) -> SimulatedRate:
        """Requests per second of one that attain the objective, as `twin.replica.capacity.Bench` looks for them."""
        found = [self._largest(seed, guess_rps) for seed in range(draws)]
        error = statistics.stdev(found) / math.sqrt(draws) if draws > 1 else math.inf
        return SimulatedRate(statistics.fmean(found), error)

    def _largest(self, seed: int, guess: float) -> float:
        sample = sample_of(self.lengths, seed, PLAYED)
        return bisected(lambda rate: self._attained(sample, rate * self.replicas) >= self.slo.objective, guess)

    def _attained(self, sample: Workload, rate: float) -> float:
        fleet = EngineFleet(replace(sample, at=sample.at / rate), [self.kind], self.slo, self.routing, self.told)
        for _ in range(self.replicas):
            fleet.stretch(fleet.add(), self.stretch)
        fleet.advance(math.inf)
        return float(good(fleet.requests[round(WARM_UP * len(sample)) :], self.slo).mean())


@dataclass(frozen=True)
class Played:
    """One scenario with the requests of one seed, under Holdfast with or without the plugin."""

    case: Case
    scenario: Scenario
    each: Declared
    fast_loop: bool
    seed: int

    def kind(self, option: AcceleratorOption, admission: bool) -> EngineSpec:
        """An engine as it really is."""
        return engine_kind(self.each, option, self.scenario.cluster.accelerators[option.name], admission)

    def told(self, option: AcceleratorOption) -> tuple[Limits, ...]:
        """What the plugin is told, nothing where there is none."""
        accelerators = self.each.service.spec.accelerators
        declared = next(each for each in accelerators if each.name == option.name)
        return (engine_limits(self.each.service, declared),) if self.fast_loop else ()

    def loop(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
    ) -> float:
        """What the loop answers to the question that the closed form is asked."""
        kind, stretch = self._asked(spec, option), on_grid(slowness, SLOWNESS_GRID)
        return _looped(kind, spec.slo, mix, self.told(option), stretch, closed_rps)

    def histograms(self, unslowed: bool) -> Carried:
        """What the loop answers where it is told how lengths are distributed, beside their moments."""
        known: dict[object, float] = {}

        def answer(
            spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
        ) -> float:
            stretch = 1.0 if unslowed else on_grid(slowness, SLOWNESS_GRID)
            question = (mix, stretch, spec.batching)
            if question not in known:
                lengths = apart(nearest(self.each.workload, mix))
                trial = Trial(self._asked(spec, option), spec.slo, lengths, self.told(option), stretch)
                known[question] = trial.rate(closed_rps).rate_rps
            return known[question]

        return answer

    def _asked(self, spec: ServiceSpec, option: AcceleratorOption) -> EngineSpec:
        """The engine that the closed form is asked about."""
        prior = engine_prior(spec.model_uri, option.name, None, option.gpus_per_replica, spec.quantization)
        limits = self.kind(option, admission=False).limits
        if not self.fast_loop:  # the plugin finds its own within those that it is started with
            tokens = spec.batching.max_num_batched_tokens or limits.max_num_batched_tokens
            limits = replace(limits, max_num_batched_tokens=tokens)
        return EngineSpec(prior.timer, limits)

    def true(self, replicas: int, routing: Routing) -> Carried:
        """What so many engines carry each as they really are, with the requests that really come."""
        known: dict[LengthMix, float] = {}

        def answer(
            spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
        ) -> float:
            if mix not in known:
                kind, lengths = self.kind(option, admission=not self.fast_loop), nearest(self.each.workload, mix)
                trial = Trial(kind, spec.slo, lengths, self.told(option), 1.0, replicas, routing)
                known[mix] = trial.rate(closed_rps).rate_rps
            return known[mix]

        return answer

    def quantiles(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
    ) -> float:
        """The closed form's answer for the recorded lengths of answers, with the believed mean."""
        outputs = nearest(self.each.workload, mix).output_tokens
        bins = np.quantile(outputs, np.cumsum(BIN_WEIGHTS) - 0.5 * BIN_WEIGHTS)
        told = Told(**asdict(mix), bins=tuple((bins * mix.output_tokens / (bins @ BIN_WEIGHTS)).tolist()))
        return STEP_LAW.rate(spec, option, told, slowness).rate_rps

    def sources(self) -> Mapping[str, Carried]:
        """Where capacities come from, by name; the lengths are those of this seed."""
        scaled = {f"x {factor:g}": _times(factor) for factor in FACTORS}
        behind = Routing(self.scenario.cluster.router)
        true = {"true bench": self.true(1, ALONE), "true fleet": self.true(BESIDE, behind)}
        told = {"histograms": self.histograms(unslowed=False), "unslowed": self.histograms(unslowed=True)}
        closed = {"slowness 1": _unslowed, "lognormal": _lognormal, "quantiles": self.quantiles}
        return {CLOSED: _times(1.0), "loop": self.loop, **told, **true, **closed, **scaled}


@lru_cache(maxsize=4096)
def _looped(
    kind: EngineSpec, slo: Slo, mix: LengthMix, told: tuple[Limits, ...], stretch: float, guess_rps: float
) -> float:
    return Trial(kind, slo, believed_lengths(mix), told, stretch).rate(guess_rps).rate_rps


def _unslowed(
    spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
) -> float:
    return STEP_LAW.rate(spec, option, mix, 1.0).rate_rps


def _lognormal(
    spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, closed_rps: float
) -> float:
    return STEP_LAW.rate(spec, option, replace(mix, shortest_output=0.0), slowness).rate_rps


def _times(factor: float) -> Carried:
    return lambda spec, option, mix, slowness, closed_rps: factor * closed_rps


def believed_lengths(mix: LengthMix) -> LengthPairs:
    """Independent lognormal lengths with the moments of a mix; no prefixes are cached in these scenarios."""
    prompts = lognormal_lengths(mix.prompt_tokens, 1.0, mix.computed_cv, MOST_TOKENS).prompt_tokens
    return LengthPairs(prompts, lognormal_lengths(1.0, mix.output_tokens, mix.output_cv, MOST_TOKENS).output_tokens)


def nearest(load: Workload, mix: LengthMix) -> LengthPairs:
    """The lengths of the requests that came when the means were most like those of the mix."""

    def distance(begins: int) -> float:
        window = slice(begins, begins + WINDOW)
        prompt, output = load.prompt_tokens[window].mean(), load.output_tokens[window].mean()
        return abs(math.log(prompt / mix.prompt_tokens)) + abs(math.log(output / mix.output_tokens))

    begins = min(range(0, max(1, len(load) - WINDOW), WINDOW // 4), key=distance)
    return LengthPairs(load.prompt_tokens[begins : begins + WINDOW], load.output_tokens[begins : begins + WINDOW])


def apart(lengths: LengthPairs) -> LengthPairs:
    """The same lengths without what a prompt tells of its answer, which no histogram holds."""
    return replace(lengths, output_tokens=np.random.default_rng(6).permutation(lengths.output_tokens))


@dataclass
class Refined:
    """The engine model with capacities from elsewhere; it keeps by how much each of its answers was another."""

    carried: Carried
    ratios: list[float] = field(default_factory=list)

    law, best_limits = staticmethod(STEP_LAW.law), staticmethod(STEP_LAW.best_limits)

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        """The closed form's answer with another rate, where the closed form has one to begin from."""
        closed = STEP_LAW.rate(spec, option, mix, slowness)
        if not closed.feasible:
            return closed
        rate = self.carried(spec, option, mix, slowness, closed.rate_rps)
        self.ratios.append(rate / closed.rate_rps)
        return replace(closed, rate_rps=rate, feasible=rate > 0.0)


class Watched(Holdfast):
    """Holdfast with another engine model, which keeps what it believes that a replica carries."""

    def __init__(self, fast_loop: bool, model: Refined) -> None:
        super().__init__(fast_loop, model)
        self.believed: list[float] = []

    def decisions(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """What the operator would say of every service."""
        found = super().decisions(snapshot)
        self.believed += [each.capacity.per_replica_rps for each in found if each.capacity is not None]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to; `sizes` are replicas every few seconds."""

    attainment: float
    gpu_hours: float
    believed_rps: float
    ratios: tuple[float, ...]
    sizes: tuple[int, ...]


def play(played: Played, carried: Carried) -> Outcome:
    """One run with capacities from there."""
    model = Refined(carried)
    watched = Watched(played.fast_loop, model)
    finished = simulate(played.scenario, [played.each], watched, played.seed)
    return Outcome(
        attainment(finished, finished.services[0]) or 0.0,
        gpu_hours(finished),
        statistics.fmean(watched.believed),
        tuple(model.ratios),
        _sizes(finished),
    )


def _sizes(finished: Finished) -> tuple[int, ...]:
    (sizes,) = finished.sizes
    return tuple(ready + starting for ready, starting in zip(sizes.ready, sizes.starting, strict=True))


Job = tuple[str, bool, Path, int, tuple[str, ...]]
"""A scenario, with or without the plugin, the traces, how many seeds, and where capacities come from; all if none."""

Outcomes = Mapping[str, Sequence[Outcome]]
"""By where capacities come from, one of each seed."""


def run(job: Job) -> Outcomes:
    """All runs of one scenario with or without the plugin."""
    name, fast_loop, data, seeds, asked = job
    case = CASES[name]
    scenario = case.scenario()
    seen = [
        Played(case, scenario, case.declared(scenario, data, seed)[0], fast_loop, seed) for seed in range(1, 1 + seeds)
    ]
    sources = {source: found for source, found in seen[0].sources().items() if source in (CLOSED, *asked) or not asked}
    found: dict[str, list[Outcome]] = {source: [] for source in sources}
    for played, (source, carried) in itertools.product(seen, sources.items()):
        found[source].append(play(played, carried))
        _tell(played, source, found[source][-1])
    return found


def _tell(played: Played, source: str, outcome: Outcome) -> None:
    engines = "plugin" if played.fast_loop else "stock"
    figures = f"{100.0 * outcome.attainment:.2f} %, {outcome.gpu_hours:.2f} GPU-hours, {outcome.believed_rps:.2f} req/s"
    answers = f"{len(outcome.ratios)} answers, {statistics.geometric_mean(outcome.ratios):.3f} times the closed form's"
    told = f"{played.case.name}, {engines}, seed {played.seed}, {source}: {figures}, {answers}"
    print(told, file=sys.stderr, flush=True)


HEADER = (
    "capacity from",
    "attainment %",
    "points more",
    "GPU-hours",
    "ratio",
    "at this attainment",
    "answers",
    "how many",
    "believed",
    "other size",
)


def table(outcomes: Outcomes) -> Iterator[str]:
    """One scenario's, as Markdown."""
    yield f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}"
    base = outcomes[CLOSED]
    for source, runs in outcomes.items():
        pairs = list(zip(runs, base, strict=True))
        more = [100.0 * (one.attainment - other.attainment) for one, other in pairs]
        ratios = list(itertools.chain.from_iterable(one.ratios for one in runs))
        cells = (
            source,
            f"{100.0 * statistics.fmean(one.attainment for one in runs):.2f}",
            f"{statistics.fmean(more):+.2f} ({min(more):+.2f} to {max(more):+.2f})",
            f"{statistics.fmean(one.gpu_hours for one in runs):.2f}",
            _spread(hour_ratios(runs, base)),
            "" if factor_of(source) else beside_factors(runs, outcomes),
            _spread(ratios),
            str(len(ratios)),
            f"{statistics.geometric_mean([one.believed_rps / other.believed_rps for one, other in pairs]):.3f}",
            f"{100.0 * statistics.fmean(_differing(one.sizes, other.sizes) for one, other in pairs):.0f} %",
        )
        yield f"| {' | '.join(cells)} |"


def hour_ratios(runs: Sequence[Outcome], base: Sequence[Outcome]) -> list[float]:
    """GPU-hours relative to those of the closed form, seed by seed."""
    return [one.gpu_hours / other.gpu_hours for one, other in zip(runs, base, strict=True)]


def factor_of(source: str) -> float | None:
    """By what the closed form is multiplied; None where capacities come from elsewhere."""
    if source == CLOSED:
        return 1.0
    return next((factor for factor in FACTORS if source == f"x {factor:g}"), None)


def beside_factors(runs: Sequence[Outcome], outcomes: Outcomes) -> str:
    """GPU-hours relative to those of the closed form times what attains as much; nothing beyond what was played."""
    front = sorted(_means(found) for source, found in outcomes.items() if factor_of(source))
    attained, hours = _means(runs)
    reached, paid = zip(*front, strict=True)
    if not reached[0] <= attained <= reached[-1]:
        return "-"
    return f"{hours / float(np.interp(attained, reached, paid)):.3f}"


def _means(runs: Sequence[Outcome]) -> tuple[float, float]:
    return statistics.fmean(one.attainment for one in runs), statistics.geometric_mean([one.gpu_hours for one in runs])


def _differing(one: Sequence[int], other: Sequence[int]) -> float:
    count = min(len(one), len(other))
    return float(np.mean(np.array(one[:count]) != np.array(other[:count])))


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def overall(found: Sequence[Outcomes]) -> Iterator[str]:
    """All scenarios together, each seed as much as any other."""
    yield "| capacity from | GPU-hours, ratio | least and most of a scenario | points more |\n|---|---|---|---|"
    for source in found[0]:
        means = [statistics.geometric_mean(hour_ratios(each[source], each[CLOSED])) for each in found]
        more = [
            100.0 * (one.attainment - other.attainment)
            for each in found
            for one, other in zip(each[source], each[CLOSED], strict=True)
        ]
        yield (
            f"| {source} | {statistics.geometric_mean(means):.3f} | {min(means):.3f} to {max(means):.3f} "
            f"| {statistics.fmean(more):+.2f} |"
        )


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces that scenarios name")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="may be repeated; all by default")
    parser.add_argument("--source", action="append", help=f"may be repeated, beside {CLOSED}; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    names = given.scenario or SCENARIOS
    asked = (given.data, given.seeds, tuple(given.source or ()))
    jobs = [(name, fast_loop, *asked) for name in names for fast_loop in (True, False)]
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as workers:
        found = dict(zip(jobs, workers.map(run, jobs), strict=True))
    for fast_loop, engines in ((True, "with the plugin"), (False, "stock engines")):
        for name in names:
            print(f"\n{name}, {engines}, seeds 1 to {given.seeds}\n")
            print("\n".join(table(found[name, fast_loop, *asked])))
        print(f"\nAll of these, {engines}\n")
        print("\n".join(overall([found[name, fast_loop, *asked] for name in names])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
