"""What a service needs, by simulation: what a replica of each accelerator carries, and how many it takes."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing.pool import ThreadPool
from typing import TypeVar

import numpy as np

from holdfast.domain.service import AcceleratorOption, ServiceSpec, Slo
from holdfast.enginemodel import batching
from holdfast.enginemodel.batching import LimitsCandidate
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import find_model
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.phases import Roofs, StepMix, phases, roofs
from holdfast.enginemodel.prior import EnginePrior, option_prior, option_shape
from holdfast.enginemodel.scheduler import BLOCK_TOKENS, SchedulerLimits
from holdfast.enginemodel.steadystate import Engine
from holdfast.tools.plan.rows import LEAST_LOAD, Offer, Point
from holdfast.tools.plan.spec_bounds import (
    dollars,
    floor,
    least_size,
    most_replicas,
    no_room,
    ruled_out,
    too_long,
    too_many,
)
from holdfast.twin.arrays.fleet import EngineSpec, Routing, Workload
from holdfast.twin.arrays.timers import Integers
from holdfast.twin.replica.capacity import (
    Bench,
    LengthPairs,
    SimulatedRate,
    fitting,
    good,
    pairs,
    played,
)
from holdfast.twin.replica.saturation import saturation

MOST_PAIRS = 20_000

MOST_SIZES = 7
"""How many sizes are looked at for cost against attainment, from the first that is stable to `LEAST_LOAD`."""

MOST_SPREAD_REPLICAS = 40
"""Up to so many replicas are looked at behind a plain Service: the requests played are too few for more."""

TRICKLE, IDLE = 0.1, 1e-3
"""Shares of its saturation: from which an engine is looked at where the closed form finds no rate, and next to none."""

NEARLY = 0.97
"""Share of its saturation above which no search for a rate begins."""

LONG_DRAWS = 3
"""Trials of each rate: they are long, so that fewer tell as much."""

CLOSE = 0.1
"""Loads as near as this to what a replica carries are tried in all draws, others in the first one."""

ALMOST_IDLE = 0.2
"""Load below which more replicas are no remedy where the spec allows no such number: the objectives are too tight."""

SIZED_SHARE = 0.7
"""Share of the reported progress: what comes before sizes are simulated behind a plain Service."""

Progress = Callable[[float], None]
Answer = TypeVar("Answer")


def offers(
    spec: ServiceSpec,
    rate_rps: float,
    lengths: LengthPairs,
    progress: Progress = lambda share: None,
    recorded: Workload | None = None,
    sequences: Sequence[int] = (),
    speeds: bool = False,
) -> tuple[Offer, ...]:
    """Every accelerator with the spec's batching and, unless that is fixed, with the best other one.

    `recorded` requests are what sizes are played with behind a plain Service, as they came; else random ones.
    With `sequences`, each of these numbers is planned for in place of the spec's, with the best tokens per step alone.
    `speeds`: whether sizes tell tokens/s, which takes a further trial of each.
    """
    choices = partial(_choices, spec, rate=rate_rps, lengths=lengths, recorded=recorded, speeds=speeds)
    if sequences:
        asked = [each for option in spec.accelerators for most in sequences for each in choices(option, most)]
    else:
        asked = [each for option in spec.accelerators for each in choices(option)]
    sized = _in_parallel(asked, lambda share: progress(SIZED_SHARE * share))
    found = [each.offer for each in sized]
    spread = [partial(_spread, each, spec.slo.objective) for each in sized if _looked_at(each.offer, found)]
    answers = iter(_in_parallel(spread, lambda share: progress(SIZED_SHARE + (1.0 - SIZED_SHARE) * share)))
    return tuple(next(answers) if _looked_at(offer, found) else offer for offer in found)


def _in_parallel(asked: Sequence[Callable[[], Answer]], progress: Progress = lambda share: None) -> list[Answer]:
    """What they return, by as many threads as there are cores: the engines' steps are compiled."""
    answers: list[Answer] = []
    # Its threads are daemons: who is interrupted does not wait for them.
    with ThreadPool(os.cpu_count()) as pool:
        for each in pool.imap(lambda one: one(), asked):
            answers.append(each)
            progress(len(answers) / len(asked))
    return answers


@dataclass(frozen=True, slots=True)
class _Sized:
    """An offer, what a size of it costs in an hour, and what it attains behind a plain Service."""

    offer: Offer
    cost: Callable[[int], float | None] = field(default=lambda size: None)
    spread_attainment: Callable[[int], float] = field(default=lambda size: 0.0)


def _looked_at(offer: Offer, found: Sequence[Offer]) -> bool:
    """Behind a plain Service: the default, and who takes the fewest replicas of an accelerator."""
    if offer.replicas is None or offer.replicas > MOST_SPREAD_REPLICAS:
        return False
    same = [each for each in found if each.accelerator == offer.accelerator and each.replicas is not None]
    return offer.default_batching or offer is min(same, key=lambda each: (each.replicas or 0, each.load or 0.0))


def _spread(sized: _Sized, objective: float) -> Offer:
    """The offer with the least size that attains the objective behind a plain Service."""
    offer, attainment = sized.offer, cache(sized.spread_attainment)
    least = offer.replicas or 1
    enough = _least(lambda size: attainment(size) >= objective, least, 2 * least)
    cost = None if enough is None else sized.cost(enough)
    return replace(offer, spread_attainment=attainment(least), spread_replicas=enough, spread_cost_per_hour=cost)


def _choices(
    spec: ServiceSpec,
    option: AcceleratorOption,
    sequences: int | None = None,
    *,
    rate: float,
    lengths: LengthPairs,
    recorded: Workload | None,
    speeds: bool,
) -> list[Callable[[], _Sized]]:
    """What is to be simulated of an accelerator: with the spec's sequences, or with so many."""
    prior = option_prior(spec.model_uri, option, spec.quantization)
    in_spec = prior.limits(spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens)
    start = prior.limits(sequences or spec.batching.max_num_seqs, spec.batching.max_num_batched_tokens)
    prior = replace(prior, kv_tokens=prior.kv_tokens_with(start))
    room = prior.kv_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    most = min(room, spec.max_model_len or room)
    held = fitting(lengths, most)
    refused = 1.0 - len(held.prompt_tokens) / len(lengths.prompt_tokens)
    why = ruled_out(spec, option, prior.pipeline * room) or too_many(option, start)
    if not why and 1.0 - refused < spec.slo.objective:
        why = no_room(option, prior, lengths, refused) if most == room else too_long(option, most, refused)
    if why:
        return [
            partial(_Sized, replace(_nothing(option, prior, start, refused, why), default_batching=start == in_spec))
        ]
    mix = LengthMix.from_pairs(pairs(held)[:MOST_PAIRS])
    tried = batching.candidates(prior, start, mix, spec.slo)
    wanted = [tried[0]]
    if not spec.batching_fixed:
        wanted = [batching.best(tried)] if sequences else _worth_long_trials(prior, spec.slo, held, tried)
    prompts = partial(_refused_beyond, most, prior)
    asked = replace(lengths, prompt_tokens=prompts(lengths.prompt_tokens, lengths.output_tokens))
    if recorded is not None:
        recorded = replace(recorded, prompt_tokens=prompts(recorded.prompt_tokens, recorded.output_tokens))
    load = _PlannedLoad(rate, asked, held, refused, mix, recorded, speeds)
    return [partial(_offer, spec, option, prior, load, each, each.limits == in_spec) for each in wanted]


def _worth_long_trials(
    prior: EnginePrior, slo: Slo, lengths: LengthPairs, tried: tuple[LimitsCandidate, ...]
) -> list[LimitsCandidate]:
    """The spec's limits, and the others that attain most in short trials, of those nearly the best by formula.

    Where short trials leave it open which carry most, it matters little.
    """
    least = batching.FALLEN * batching.best(tried).rate_rps
    others = [each for each in tried[1:] if each.rate_rps > least]
    if len(others) <= 1:
        return [tried[0], *others]
    rate = min(each.rate_rps for each in others) / prior.engines
    attained = _in_parallel([partial(_glance, prior, slo, lengths, each, rate) for each in others])
    return [tried[0], others[int(np.argmax(attained))]]


def _glance(prior: EnginePrior, slo: Slo, lengths: LengthPairs, found: LimitsCandidate, rate_rps: float) -> float:
    """Good share of an engine's requests."""
    limits = SchedulerLimits(found.limits.max_num_seqs, found.limits.max_num_batched_tokens, prior.kv_tokens)
    return Bench(EngineSpec(prior.timer, limits), slo, lengths).attainment(rate_rps)


@dataclass(frozen=True, slots=True)
class _PlannedLoad:
    """Requests per second, lengths of all and of the requests that fit an engine, their mix, and the others' share."""

    rate_rps: float
    lengths: LengthPairs
    held: LengthPairs
    refused_share: float
    mix: LengthMix
    recorded: Workload | None
    speeds: bool


def _offer(
    spec: ServiceSpec,
    option: AcceleratorOption,
    prior: EnginePrior,
    load: _PlannedLoad,
    found: LimitsCandidate,
    default: bool,
) -> _Sized:
    limits = SchedulerLimits(found.limits.max_num_seqs, found.limits.max_num_batched_tokens, prior.kv_tokens)
    kind, served = EngineSpec(prior.timer, limits), 1.0 - load.refused_share
    full = saturation(kind, load.held)
    per_engine = served / prior.engines
    saturated = full.rate_rps / per_engine
    bench = Bench(kind, spec.slo, load.lengths, LONG_DRAWS, full.horizon, prior.engines)
    engine = Engine(found.point.law, load.mix, limits.max_num_seqs, limits.max_num_batched_tokens, prior.kv_tokens)
    guess = found.rate_rps / per_engine or TRICKLE * saturated
    carried = bench.rate_below(saturated, min(guess, NEARLY * saturated))
    looked_at = carried.rate_rps * per_engine or 0.5 * engine.most_rate
    offer = Offer(
        accelerator=option.name,
        default_batching=default,
        limits=replace(found.limits, max_num_seqs=found.limits.max_num_seqs * prior.pipeline),
        source=str(prior.source),
        formula_rps=found.rate_rps / per_engine,
        simulated=carried,
        bound_by=str(found.point.capacity.bound_by),
        memory_bound=_memory_bound(engine, looked_at),
        saturation_rps=saturated,
        refused_share=load.refused_share,
        roofline=_roofline(spec, option, engine, looked_at),
    )
    spread = partial(bench.spread_attainment, load.rate_rps)
    if load.recorded is not None:
        spread = partial(_recorded_attainment, kind, spec.slo, load.recorded, prior.engines)
    return _Sized(_sized(offer, bench, option, load, spec), partial(dollars, spec, option), spread)


def _recorded_attainment(kind: EngineSpec, slo: Slo, recorded: Workload, engines: int, replicas: int) -> float:
    """Good share of requests as they came, where each connection meets an engine of a replica at random."""
    return float(good(played(kind, slo, recorded, engines * replicas, Routing()), slo).mean())


def _sized(offer: Offer, bench: Bench, option: AcceleratorOption, load: _PlannedLoad, spec: ServiceSpec) -> Offer:
    """The offer with the least replicas that attain the objective, their cost, and the sizes around them."""
    slo, fewest = spec.slo, floor(spec, option)
    rate, idle = load.rate_rps, IDLE * offer.saturation_rps
    carried = offer.simulated.rate_rps
    attainment = cache(lambda size: bench.attainment(rate / size, None if _is_close(rate / size, carried) else 1))
    least, most = (least_size(spec, option, rate, each) for each in (carried or idle, idle))
    replicas = _least(lambda size: attainment(size) >= slo.objective, least, most)
    if replicas is None:
        return replace(offer, impossible=_possible(slo, option.name, bench.feasible(idle)))
    price = dollars(spec, option, replicas)
    share = rate / replicas / offer.saturation_rps
    # Of prompts and answers, of the requests that fit an engine.
    tokens_per_hour = (
        3600.0 * load.rate_rps * (1.0 - load.refused_share) * (load.mix.prompt_tokens + load.mix.output_tokens)
    )
    front = _front(spec, option, attainment, _sizes(rate, offer.saturation_rps, replicas, fewest))
    wants_idle = share < ALMOST_IDLE and replicas > most_replicas(spec, option.name)[0]
    return replace(
        offer,
        replicas=replicas,
        load=share,
        relaxed=_objectives(slo, bench.feasible(LEAST_LOAD * offer.saturation_rps)) if wants_idle else "",
        cost_per_hour=price,
        cost_per_million_tokens=None if price is None else 1e6 * price / tokens_per_hour,
        front=tuple(_with_speed(point, bench, load) for point in front) if load.speeds else front,
    )


def _is_close(rate: float, carried: float) -> bool:
    """Whether the draws may differ in attaining the objective at this rate."""
    return carried == 0.0 or abs(rate / carried - 1.0) <= CLOSE


def _with_speed(point: Point, bench: Bench, load: _PlannedLoad) -> Point:
    """The size with what it gives a user and all of them, if it keeps up."""
    user = bench.user_tokens_per_second(load.rate_rps / point.replicas)
    whole = load.rate_rps * (1.0 - load.refused_share) * load.mix.output_tokens
    return replace(point, user_tokens_per_second=user, output_tokens_per_second=whole)


def _least(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """The least size that holds, as if all larger ones did, looked for in growing strides; None if `most` does not."""
    below, size = least - 1, least
    while not holds(size):
        if size >= most:
            return None
        below, size = size, min(most, 2 * size - least + 1)
    sizes = range(below + 1, size + 1)
    return sizes[bisect_left(sizes, True, key=holds)]


def _front(
    spec: ServiceSpec, option: AcceleratorOption, attainment: Callable[[int], float], sizes: Sequence[int]
) -> tuple[Point, ...]:
    """What each size attains; above one that attains everything the others are taken to do so, too."""
    found: list[Point] = []
    for size in sizes:
        share = 1.0 if found and found[-1].attainment == 1.0 else attainment(size)
        found.append(Point(size, size * option.gpus_per_replica, share, dollars(spec, option, size)))
    return tuple(found)


def _sizes(rate: float, saturation: float, needed: int, fewest: int) -> list[int]:
    """From the first that is stable to half of saturation, the needed one among them, and none below the fewest."""
    least = min(needed, max(fewest, math.ceil(rate / saturation)))
    most = max(needed, math.ceil(rate / (LEAST_LOAD * saturation)))
    return sorted({needed, *(round(size) for size in np.linspace(least, most, MOST_SIZES))})


def _refused_beyond(most: int, prior: EnginePrior, prompt_tokens: Integers, output_tokens: Integers) -> Integers:
    """Prompts; those of requests beyond `most` tokens so long that an engine refuses them for its KV cache."""
    is_longer = prompt_tokens + output_tokens > most
    return np.where(is_longer, np.maximum(prompt_tokens, prior.kv_tokens + 1), prompt_tokens)


def _nothing(option: AcceleratorOption, prior: EnginePrior, limits: BatchLimits, refused: float, why: str) -> Offer:
    return Offer(
        accelerator=option.name,
        default_batching=True,
        limits=limits,
        source=str(prior.source),
        formula_rps=0.0,
        simulated=SimulatedRate(0.0, 0.0),
        bound_by="KVCache",
        memory_bound=True,
        saturation_rps=0.0,
        refused_share=refused,
        impossible=why,
    )


def _memory_bound(engine: Engine, rate: float) -> bool:
    """By the step law at this rate: weights and KV cache against prompts, decodes and their attention, per second."""
    law, mix = engine.law, engine.mix
    reading = 1.0 - rate * engine.work_seconds + rate * law.c3 * mix.kv_token_steps
    computing = rate * (engine.prefill_seconds + law.c2 * mix.output_tokens)
    return reading > computing


def _roofline(spec: ServiceSpec, option: AcceleratorOption, engine: Engine, rate: float) -> dict[str, Roofs]:
    """Where a step of each phase stands at this rate of one engine; without what is guessed or above a roof."""
    model = find_model(spec.model_uri, option.quantization or spec.quantization, option.kv_cache_dtype, option.facts)
    shape = option_shape(option)
    if model is None or shape is None:
        return {}
    mix, idle = engine.mix, max(1.0 - rate * engine.work_seconds, 0.0)
    decodes = rate * mix.output_tokens * engine.law.c0 / idle if idle else engine.sequences
    step = StepMix(
        mix.computed_tokens, engine.max_num_batched_tokens, min(decodes, engine.sequences), engine.kv_per_sequence
    )
    gpus = option.tensor
    parts = phases(model, engine.law, gpus, step).by_name()
    positions = {name: roofs(work, shape) for name, work in parts.items() if work is not None}
    return {name: position for name, position in positions.items() if position is not None}


def _possible(slo: Slo, name: str, alone: tuple[float, float, float]) -> str:
    """What a replica keeps that has next to nothing to do."""
    return (
        f"{name}: spec.slo cannot be met by this model, not even by an idle engine; possible for "
        f"{100.0 * slo.objective:g} % of these requests: {_objectives(slo, alone)}"
    )


def _objectives(slo: Slo, kept: tuple[float, float, float]) -> str:
    """TTFT, TPOT and, where it is asked for, E2E that are kept, as in a spec."""
    ttft, tpot, e2e = map(_rounded_up, kept)
    return f"ttft: {ttft}, tpot: {tpot}" + ("" if slo.e2e_seconds is None else f", e2e: {e2e}")


def _rounded_up(seconds: float) -> str:
    """As a duration of two digits."""
    milliseconds = max(1000.0 * seconds, 1.0)
    unit = 10.0 ** (math.floor(math.log10(milliseconds)) - 1)
    return f"{math.ceil(milliseconds / unit) * unit:.10g}ms"
