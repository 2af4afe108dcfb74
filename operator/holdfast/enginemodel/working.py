"""The capacity of an engine that is known by a step timer: the law is fitted to the steps it would run there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits, Capacity, capacity
from holdfast.enginemodel.fit import SampleStep, fit_law
from holdfast.enginemodel.mix import LengthMix, lognormal_nodes
from holdfast.enginemodel.steplaw import Chunk, StepLaw, StepTimer

ROUNDS = 3
LEAST_WEIGHT = 0.01
DECODE_SPREAD = ((0.6, 0), (1.0, 0), (1.4, 2))
MOST_PROMPTS = 6


@dataclass(frozen=True, slots=True)
class WorkingPoint:
    """A capacity, and the law it was computed with."""

    law: StepLaw
    capacity: Capacity


def working_point(
    timer: StepTimer, mix: LengthMix, limits: BatchLimits, kv_tokens: float, slo: Slo, arrival_cv: float = 1.0
) -> WorkingPoint:
    """Fit where the engine works, which depends on the capacity, which depends on the fit: some 30 ms in all.

    One linear law cannot follow a table everywhere (a small prompt costs nothing beside the weights that are read
    anyway, a mixture of experts jumps at the first prompt token), but near one point it does.
    """
    law = fit_law(timer)
    result = capacity(law, mix, limits, kv_tokens, slo, arrival_cv)
    for _ in range(ROUNDS):
        law = fit_law(timer, steps_at(result, mix, limits))
        result = capacity(law, mix, limits, kv_tokens, slo, arrival_cv)
    return WorkingPoint(law, result)


def steps_at(point: Capacity, mix: LengthMix, limits: BatchLimits) -> list[SampleStep]:
    """Steps as they occur at a capacity: 0, 1, 2, ... prompts by their Poisson weights, lengths by the mix's."""
    arrivals = max(point.rate_rps * point.step_seconds, 1e-3)
    most = min(MOST_PROMPTS, max(2, math.ceil(arrivals + 2.0 * math.sqrt(arrivals))))
    mean_kv = mix.kv_token_steps / mix.output_tokens
    prompts = [max(1, round(prompt)) for prompt in lognormal_nodes(mix.computed_tokens, mix.computed_cv, 9).tolist()]
    steps = []
    for factor, more in DECODE_SPREAD:
        decodes = max(1, round(point.sequences * factor)) + more
        for count in range(most + 1):
            weight = max(_poisson(count, arrivals), LEAST_WEIGHT)
            batches = [()] if count == 0 else [_batch(prompts, first, count, limits) for first in range(len(prompts))]
            steps += [SampleStep(batch, decodes, mean_kv, weight / len(batches)) for batch in batches]
    # KV reads are told from the number of sequences only where their ratio varies.
    steps += [SampleStep((), max(1, round(point.sequences)), mean_kv * factor, LEAST_WEIGHT) for factor in (0.5, 2.0)]
    return steps


def _batch(prompts: list[int], first: int, count: int, limits: BatchLimits) -> tuple[Chunk, ...]:
    """`count` prompts from the first one on, evenly spread over the lengths, cut at the token budget."""
    stride = max(1, len(prompts) // count)
    room, chunks = limits.max_num_batched_tokens, []
    for index in range(count):
        chunk = min(prompts[(first + index * stride) % len(prompts)], room)
        room -= chunk
        if chunk:
            chunks.append((chunk, 0))
    return tuple(chunks)


def _poisson(count: int, mean: float) -> float:
    return math.exp(-mean + count * math.log(mean) - math.lgamma(count + 1))
