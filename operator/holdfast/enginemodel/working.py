"""The capacity of an engine that is known by a step timer: the law is fitted to the steps it would run there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits, OperatingPoint, capacity
from holdfast.enginemodel.enginetimer import host_of, within
from holdfast.enginemodel.fit import SampleStep, fit_law
from holdfast.enginemodel.mix import LengthMix, lognormal_nodes
from holdfast.enginemodel.steadystate import Engine, steady_state
from holdfast.enginemodel.steplaw import Chunk, StepLaw, StepTimer

ROUNDS = 4
SETTLED = 0.02
"""Fits until the rate changes by less than this share, or so often."""

ROUNDS_AT_RATE = 3
BUSIEST = 0.95
"""Share of the unstable rate up to which a steady state is looked for."""

LEAST_WEIGHT = 0.01
DECODE_SPREAD = ((0.6, 0), (1.0, 0), (1.4, 2))
MOST_PROMPTS = 6

CONTINUED = (0.0, 0.5, 1.0)
"""How far along the later chunks of a prompt are looked at."""


@dataclass(frozen=True, slots=True)
class WorkingPoint:
    """A capacity, the law it was computed with, and how many steps the engine launches ahead."""

    law: StepLaw
    capacity: OperatingPoint
    steps_ahead: int = 0


def working_point(
    timer: StepTimer,
    mix: LengthMix,
    limits: BatchLimits,
    kv_tokens: float,
    slo: Slo,
    arrival_cv: float = 1.0,
    start: StepLaw | None = None,
) -> WorkingPoint:
    """Fit where the engine works, which depends on the capacity, which depends on the fit: some 10 ms in all.

    One linear law cannot follow a table everywhere (a small prompt costs nothing while the weights are read
    anyway, a mixture of experts jumps at the first prompt token), but near one point it does. `start` is a law known
    to be near (a prior's), to begin with.
    """
    timer = within(timer, limits.max_num_seqs, limits.max_num_batched_tokens)
    law, ahead = start or fit_law(timer), host_of(timer).depth - 1
    result = capacity(law, mix, limits, kv_tokens, slo, arrival_cv, ahead)
    for _ in range(ROUNDS):
        before = result.rate_rps
        law = fit_law(timer, steps_at(result.rate_rps, result.step_seconds, result.sequences, mix, limits))
        result = capacity(law, mix, limits, kv_tokens, slo, arrival_cv, ahead)
        if abs(result.rate_rps - before) <= SETTLED * before:
            break
    return WorkingPoint(law, result, ahead)


def law_at(
    timer: StepTimer, mix: LengthMix, limits: BatchLimits, kv_tokens: float, rate_rps: float, start: StepLaw
) -> StepLaw:
    """The law of the steps at a rate, by the same fits; where no steady state exists, at the busiest that does."""
    timer, law = within(timer, limits.max_num_seqs, limits.max_num_batched_tokens), start
    for _ in range(ROUNDS_AT_RATE):
        engine = Engine(law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, kv_tokens)
        rate = min(rate_rps, BUSIEST * engine.most_rate)
        steady = steady_state(engine, np.array([rate]))
        law = fit_law(timer, steps_at(rate, float(steady.step_seconds[0]), float(steady.sequences[0]), mix, limits))
    return law


def steps_at(
    rate_rps: float, step_seconds: float, sequences: float, mix: LengthMix, limits: BatchLimits
) -> list[SampleStep]:
    """Steps as they occur at a rate: 0, 1, 2, ... prompts by their Poisson weights, lengths by the mix's.

    A prompt's first chunk comes after what the prefix cache held of it.
    """
    arrivals = max(rate_rps * step_seconds, 1e-3)
    most = min(MOST_PROMPTS, max(2, math.ceil(arrivals + 2.0 * math.sqrt(arrivals))))
    mean_kv = mix.kv_token_steps / mix.output_tokens
    cached = mix.prompt_tokens / mix.computed_tokens - 1.0
    computed = [max(1, round(prompt)) for prompt in lognormal_nodes(mix.computed_tokens, mix.computed_cv, 9).tolist()]
    prompts = [(tokens, round(cached * tokens)) for tokens in computed]
    steps = []
    for factor, more in DECODE_SPREAD:
        decodes = max(1, round(sequences * factor)) + more
        for count in range(most + 1):
            weight = max(_poisson(count, arrivals), LEAST_WEIGHT)
            firsts = range(len(prompts) if count else 1)
            for first in firsts:
                for batch, times in _batches(prompts, first, count, limits.max_num_batched_tokens):
                    steps.append(SampleStep(batch, decodes, mean_kv, weight * times / len(firsts)))
    # The fit can separate KV reads from the number of sequences only where their ratio varies.
    steps += [SampleStep((), max(1, round(sequences)), mean_kv * factor, LEAST_WEIGHT) for factor in (0.5, 2.0)]
    return steps


def _batches(prompts: list[Chunk], first: int, count: int, budget: int) -> list[tuple[tuple[Chunk, ...], float]]:
    """The steps that `count` prompts take, from the first one on and evenly spread over the lengths, with weights.

    The rest of a prompt that exceeds the token budget is computed in later steps, without the other prompts.
    """
    stride = max(1, len(prompts) // count) if count else 1
    room, chunks = budget, []
    later: list[tuple[tuple[Chunk, ...], float]] = []
    for index in range(count):
        prompt, before = prompts[(first + index * stride) % len(prompts)]
        chunk = min(prompt, room)
        room -= chunk
        if chunk:
            chunks.append((chunk, before))
        later += _continued(prompt, chunk, budget, before)
    return [(tuple(chunks), 1.0), *later]


def _continued(prompt: int, done: int, budget: int, before: int) -> list[tuple[tuple[Chunk, ...], float]]:
    """The later chunks of a prompt: `before` tokens were cached, `done` tokens are computed."""
    left = prompt - done
    if left <= 0:
        return []
    chunk, weight = min(left, budget), left / budget / len(CONTINUED)
    return [(((chunk, before + round(done + share * (left - chunk))),), weight) for share in CONTINUED]


def _poisson(count: int, mean: float) -> float:
    return math.exp(-mean + count * math.log(mean) - math.lgamma(count + 1))
