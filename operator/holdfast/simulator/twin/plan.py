"""What a service needs: what a replica of each accelerator carries, what binds it, how many it takes, their cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from holdfast.domain.service import AcceleratorOption, ServiceSpec, Slo
from holdfast.enginemodel import batching
from holdfast.enginemodel.batching import Candidate
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steadystate import Engine
from holdfast.simulator.twin.capacity import LEAST_SHARE, Bench, Lengths, SimulatedRate, fitting, pairs
from holdfast.simulator.twin.fleet import EngineKind

MOST_PAIRS = 20_000

LEAST_LOAD, MOST_LOAD = 0.5, 0.7
"""Shares of its saturation between which an engine is best run."""

MOST_SIZES = 7
"""How many sizes are looked at for cost against attainment, from the first that is stable to `LEAST_LOAD`."""

MOST_SPREAD_REPLICAS = 40
"""Up to so many replicas are looked at behind a plain Service: the requests played are too few for more."""

TRICKLE = 0.1
"""Share of its saturation from which an engine is looked at where the closed form finds no rate."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Point:
    """So many replicas at the asked rate: the share of good requests, GPUs, and dollars per hour."""

    replicas: int
    gpus: int
    attainment: float
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Offer:
    """One accelerator with one choice of batching.

    `formula_rps` is the closed form's rate per replica, `simulated` the twin's. `saturation_rps` is where a replica's
    queue would grow for ever. `memory_bound`: more of a step goes into reading weights and KV cache than into tokens.
    `spread_attainment` is the good share of as many `replicas` behind a plain Service, which spreads requests unevenly,
    and `spread_replicas` the least of them that attain the objective there; None where that was not looked at, or twice
    as many miss it. `load` is what each of the `replicas` gets, as a share of its saturation. `replicas` is None where
    the objectives cannot be met; `impossible` then says what would be possible.
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
    replicas: int | None = None
    load: float | None = None
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None
    spread_attainment: float | None = None
    spread_replicas: int | None = None
    front: tuple[Point, ...] = ()
    impossible: str = ""

    @property
    def operating_range_rps(self) -> tuple[float, float]:
        """Requests per second of a replica where it is best run: 50 to 70 % of saturation."""
        return LEAST_LOAD * self.saturation_rps, MOST_LOAD * self.saturation_rps

    @property
    def safe_replicas(self) -> int | None:
        """How many it takes to stay within that range."""
        if self.replicas is None or self.load is None:
            return None
        return max(self.replicas, math.ceil(self.load * self.replicas / MOST_LOAD - 1e-9))

    @property
    def spread_holds(self) -> bool:
        """Whether nothing speaks against the size behind a plain Service."""
        return self.spread_attainment is None or self.spread_replicas == self.replicas

    @property
    def tokens_per_dollar(self) -> float | None:
        """Tokens of prompts and answers."""
        return None if not self.cost_per_million_tokens else 1e6 / self.cost_per_million_tokens


def offers(
    spec: ServiceSpec, rate_rps: float, lengths: Lengths, progress: Progress = lambda share: None
) -> tuple[Offer, ...]:
    """Every accelerator with its default batching, and with all that carry nearly the most by the closed form."""
    found: list[Offer] = []
    for place, option in enumerate(spec.accelerators):
        found += _offers(spec, option, rate_rps, lengths)
        progress((place + 1) / len(spec.accelerators))
    return tuple(found)


def priced(found: Iterable[Offer]) -> bool:
    """Whether sizes are compared by dollars, which leaves out what has no price; else by GPUs."""
    return any(point.cost_per_hour is not None for offer in found for point in offer.front)


def pareto(found: Sequence[Offer]) -> list[tuple[Offer, Point]]:
    """Cheapest first: choices that attain more than everything that costs no more."""
    dollars = priced(found)
    front: list[tuple[Offer, Point]] = []
    sizes = [
        (float(point.gpus) if not dollars else point.cost_per_hour, offer, point)
        for offer in found
        for point in offer.front
        if point.cost_per_hour is not None or not dollars
    ]
    for _, offer, point in sorted(sizes, key=lambda size: (size[0] or 0.0, -size[2].attainment)):
        if not front or point.attainment > front[-1][1].attainment:
            front.append((offer, point))
    return front


def _offers(spec: ServiceSpec, option: AcceleratorOption, rate: float, lengths: Lengths) -> list[Offer]:
    prior = engine_prior(
        spec.model_uri, option.name, dict(option.node_selector), option.gpus_per_replica, spec.quantization
    )
    held = fitting(lengths, prior.kv_tokens)
    start = BatchLimits(
        spec.batching.max_num_seqs or prior.max_num_seqs_default,
        spec.batching.max_num_batched_tokens or prior.max_num_batched_tokens_default,
    )
    if len(held.prompt_tokens) == 0:
        return [_nothing(option, prior, start, lengths)]
    mix = LengthMix.from_pairs(pairs(held)[:MOST_PAIRS])
    tried = batching.candidates(prior, start, mix, spec.slo)
    least = batching.FALLEN * batching.best(tried).rate_rps
    wanted = [each for each in tried if each is tried[0] or each.rate_rps > least]
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
    trickle = TRICKLE * engine.most_rate
    carried = bench.rate(found.rate_rps or trickle)
    offer = Offer(
        accelerator=option.name,
        default_batching=default,
        limits=found.limits,
        source=str(prior.source),
        formula_rps=found.rate_rps,
        simulated=carried,
        bound_by=str(found.point.capacity.bound_by),
        memory_bound=_memory_bound(engine, carried.rate_rps or 0.5 * engine.most_rate),
        saturation_rps=engine.most_rate,
    )
    if carried.rate_rps <= 0.0:
        return replace(offer, impossible=_possible(spec.slo, option.name, bench.feasible(LEAST_SHARE * trickle)))
    return _sized(offer, bench, option, mix, rate, spec.slo.objective)


def _sized(
    offer: Offer, bench: Bench, option: AcceleratorOption, mix: LengthMix, rate: float, objective: float
) -> Offer:
    """The offer with its replicas, their cost, and the sizes around them."""
    replicas = math.ceil(rate / offer.simulated.rate_rps - 1e-9)
    price = option.cost_per_replica_hour
    cost = None if price is None else price * replicas
    tokens_per_hour = 3600.0 * rate * (mix.prompt_tokens + mix.output_tokens)

    def point(size: int) -> Point:
        dollars = None if price is None else price * size
        return Point(size, size * option.gpus_per_replica, bench.attainment(rate / size), dollars)

    @cache
    def spread(size: int) -> float:
        return bench.spread_attainment(rate, size)

    looked_at = replicas <= MOST_SPREAD_REPLICAS
    return replace(
        offer,
        replicas=replicas,
        spread_attainment=spread(replicas) if looked_at else None,
        spread_replicas=_spread_replicas(spread, replicas, objective) if looked_at else None,
        load=rate / replicas / offer.saturation_rps,
        cost_per_hour=cost,
        cost_per_million_tokens=None if cost is None else 1e6 * cost / tokens_per_hour,
        front=tuple(point(size) for size in _sizes(rate, offer.saturation_rps, replicas)),
    )


def _spread_replicas(attainment: Callable[[int], float], least: int, objective: float) -> int | None:
    """The least size from there on that attains the objective behind a plain Service, None where twice it does not."""
    sizes = range(least, 2 * least + 1)
    place = bisect_left(sizes, True, key=lambda size: attainment(size) >= objective)
    return sizes[place] if place < len(sizes) else None


def _sizes(rate: float, saturation: float, needed: int) -> list[int]:
    """From the first that is stable to half of saturation, the needed one among them."""
    least = min(needed, math.ceil(rate / saturation))
    most = max(needed, math.ceil(rate / (LEAST_LOAD * saturation)))
    return sorted({needed, *(round(size) for size in np.linspace(least, most, MOST_SIZES))})


def _nothing(option: AcceleratorOption, prior: EnginePrior, limits: BatchLimits, lengths: Lengths) -> Offer:
    shortest = int((lengths.prompt_tokens + lengths.output_tokens).min())
    told = (
        f"{option.name}: its memory has room for {prior.kv_tokens} tokens of KV cache beside the model's weights, and "
        f"the shortest of these requests takes {shortest}: give a replica more GPUs (accelerators[].count, now "
        f"{option.gpus_per_replica}), or quantize the model"
    )
    nothing = SimulatedRate(0.0, 0.0)
    return Offer(option.name, True, limits, str(prior.source), 0.0, nothing, "KVCache", True, 0.0, impossible=told)


def _memory_bound(engine: Engine, rate: float) -> bool:
    """By the step law at this rate: weights and KV cache against prompts, decodes and their attention, per second."""
    law, mix = engine.law, engine.mix
    reading = 1.0 - rate * engine.work_seconds + rate * law.c3 * mix.kv_token_steps
    computing = rate * (engine.prefill_seconds + law.c2 * mix.output_tokens)
    return reading > computing


def _possible(slo: Slo, name: str, alone: tuple[float, float, float]) -> str:
    """What a replica keeps that has next to nothing to do."""
    ttft, tpot, e2e = map(_rounded_up, alone)
    told = f"ttft: {ttft}, tpot: {tpot}" + ("" if slo.e2e_seconds is None else f", e2e: {e2e}")
    return (
        f"{name}: spec.slo cannot be met by this model, not even by an idle engine; possible for "
        f"{100.0 * slo.objective:g} % of these requests: {told}"
    )


def _rounded_up(seconds: float) -> str:
    """As a duration of two digits."""
    milliseconds = max(1000.0 * seconds, 1.0)
    unit = 10.0 ** (math.floor(math.log10(milliseconds)) - 1)
    return f"{math.ceil(milliseconds / unit) * unit:.10g}ms"
