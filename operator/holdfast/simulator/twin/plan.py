"""What a service needs: what a replica of each accelerator carries, what binds it, how many it takes, their cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel import batching
from holdfast.enginemodel.batching import Candidate
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steadystate import Engine
from holdfast.simulator.twin.capacity import Bench, Lengths, SimulatedRate, fitting, pairs
from holdfast.simulator.twin.fleet import EngineKind

MOST_PAIRS = 20_000
NEIGHBOURS = (-2, 2)
"""How many replicas fewer and more than needed are looked at for cost against attainment."""


@dataclass(frozen=True, slots=True)
class Point:
    """So many replicas at the asked rate: the share of good requests, and dollars per hour."""

    replicas: int
    attainment: float
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Offer:
    """One accelerator with one choice of batching.

    `formula_rps` is the closed form's rate per replica, `simulated` the twin's. `saturation_rps` is where a replica's
    queue would grow for ever. `memory_bound`: more of a step goes into reading weights and KV cache than into tokens.
    `replicas` is None where the objectives cannot be met; `impossible` then says what would be.
    """

    accelerator: str
    default_batching: bool
    limits: BatchLimits
    source: str
    formula_rps: float
    simulated: SimulatedRate
    bound_by: str
    memory_bound: bool
    saturation_rps: float
    replicas: int | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    front: tuple[Point, ...]
    impossible: str = ""

    @property
    def operating_range_rps(self) -> tuple[float, float]:
        """Where an engine is best run: 50 to 70 % of saturation."""
        return 0.5 * self.saturation_rps, 0.7 * self.saturation_rps


def offers(spec: ServiceSpec, rate_rps: float, lengths: Lengths) -> tuple[Offer, ...]:
    """Every accelerator with vLLM's default batching, and with the best found where that carries more."""
    return tuple(offer for option in spec.accelerators for offer in _offers(spec, option, rate_rps, lengths))


def pareto(found: Iterable[Offer]) -> list[tuple[Offer, Point]]:
    """Cheapest first: choices that attain more than everything that costs no more."""
    priced = [(offer, point) for offer in found for point in offer.front if point.cost_per_hour is not None]
    front: list[tuple[Offer, Point]] = []
    for offer, point in sorted(priced, key=lambda pair: (pair[1].cost_per_hour or 0.0, -pair[1].attainment)):
        if not front or point.attainment > front[-1][1].attainment:
            front.append((offer, point))
    return front


def _offers(spec: ServiceSpec, option: AcceleratorOption, rate: float, lengths: Lengths) -> Sequence[Offer]:
    prior = engine_prior(
        spec.model_uri, option.name, dict(option.node_selector), option.gpus_per_replica, spec.quantization
    )
    held = fitting(lengths, prior.kv_tokens)
    start = BatchLimits(
        spec.batching.max_num_seqs or prior.max_num_seqs_default,
        spec.batching.max_num_batched_tokens or prior.max_num_batched_tokens_default,
    )
    if len(held.prompt_tokens) == 0:
        return [_nothing(option, prior, start)]
    mix = LengthMix.from_pairs(pairs(held)[:MOST_PAIRS])
    tried = batching.candidates(prior, start, mix, spec.slo)
    chosen = batching.best(tried)
    wanted = [tried[0]] if chosen.limits == start else [tried[0], chosen]
    return [_offer(spec, option, prior, mix, held, each, rate, each is tried[0]) for each in wanted]


def _offer(
    spec: ServiceSpec,
    option: AcceleratorOption,
    prior: EnginePrior,
    mix: LengthMix,
    lengths: Lengths,
    found: Candidate,
    rate: float,
    default: bool,
) -> Offer:
    limits = SchedulerLimits(found.limits.max_num_seqs, found.limits.max_num_batched_tokens, prior.kv_tokens)
    bench = Bench(EngineKind(prior.timer, limits), spec.slo, lengths)
    engine = Engine(found.point.law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, prior.kv_tokens)
    carried = bench.rate(found.rate_rps or 0.1 * engine.most_rate)
    replicas = math.ceil(rate / carried.rate_rps - 1e-9) if carried.rate_rps > 0.0 else None
    price = option.cost_per_replica_hour
    cost = None if price is None or replicas is None else price * replicas
    tokens_per_hour = 3600.0 * rate * (mix.prompt_tokens + mix.output_tokens)
    return Offer(
        accelerator=option.name,
        default_batching=default,
        limits=found.limits,
        source=str(prior.source),
        formula_rps=found.rate_rps,
        simulated=carried,
        bound_by=str(found.point.capacity.bound_by),
        memory_bound=_memory_bound(engine, carried.rate_rps or 0.5 * engine.most_rate),
        saturation_rps=engine.most_rate,
        replicas=replicas,
        cost_per_hour=cost,
        cost_per_million_tokens=None if cost is None else 1e6 * cost / tokens_per_hour,
        front=_front(bench, rate, replicas, price),
        impossible="" if replicas else _possible(prior, mix, option.name),
    )


def _nothing(option: AcceleratorOption, prior: EnginePrior, limits: BatchLimits) -> Offer:
    told = f"{option.name}: its memory holds none of these requests beside the model's weights"
    nothing = SimulatedRate(0.0, 0.0)
    return Offer(
        option.name, True, limits, str(prior.source), 0.0, nothing, "KVCache", True, 0.0, None, None, None, (), told
    )


def _front(bench: Bench, rate: float, replicas: int | None, price: float | None) -> tuple[Point, ...]:
    if replicas is None:
        return ()
    counts = range(max(1, replicas + NEIGHBOURS[0]), replicas + NEIGHBOURS[1] + 1)
    return tuple(
        Point(count, bench.attainment(rate / count), None if price is None else price * count) for count in counts
    )


def _memory_bound(engine: Engine, rate: float) -> bool:
    """By the step law at this rate: weights and KV cache against prompts, decodes and their attention, per second."""
    law, mix = engine.law, engine.mix
    reading = 1.0 - rate * engine.work_seconds + rate * law.c3 * mix.kv_token_steps
    computing = rate * (engine.prefill_seconds + law.c2 * mix.output_tokens)
    return reading > computing


def _possible(prior: EnginePrior, mix: LengthMix, name: str) -> str:
    """What a lone request of mean length would get."""
    prompt, output = round(mix.prompt_tokens), round(mix.output_tokens)
    tpot = prior.timer.step_seconds((), 1, prompt + 0.5 * output)
    ttft = prior.timer.step_seconds(((prompt, 0),), 0, 0.0)
    return (
        f"{name}: the objectives cannot be met; a lone request of {prompt} + {output} tokens takes "
        f"{1000.0 * ttft:.3g} ms to its first token and {1000.0 * tpot:.3g} ms for each further one"
    )
