"""How many prompt tokens may be queued in an engine: few enough for TTFT, enough not to refuse what it can carry.

vLLM counts the whole prompt of every request that has no first token yet (`OutputProcessor.get_num_queued_tokens`),
cached and already computed parts included, and compares before it adds the new one (`AsyncLLM.check_admission`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from holdfast.domain.service import Slo
from holdfast.domain.typical_lengths import TYPICAL_OUTPUT_TOKENS, TYPICAL_PROMPT_TOKENS
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.latency import first_token
from holdfast.enginemodel.mix import LengthMix, lognormal_nodes
from holdfast.enginemodel.prior import EnginePrior
from holdfast.enginemodel.steadystate import TAIL_NODES, Array, Engine, Steady, steady_state
from holdfast.enginemodel.working import WorkingPoint, working_point

SHARE_OF_TTFT = 0.8
"""Share of the TTFT objective that a queue may take to prefill; the rest is the request's own prompt and step."""

SHARE_OF_BUDGET = 0.5
"""Share of the error budget that refusals may take from an engine at its capacity."""

BINS = 1024

TYPICAL_MIX = LengthMix.from_means(TYPICAL_PROMPT_TOKENS, TYPICAL_OUTPUT_TOKENS)


@lru_cache(maxsize=1024)
def prior_tokens(prior: EnginePrior, limits: BatchLimits, slo: Slo, mix: LengthMix = TYPICAL_MIX) -> int | None:
    """The cap on queued prompt tokens of a prior's engine; None where it cannot meet the objectives even alone.

    Each API server has the cap, and vLLM starts one for each data-parallel engine: what a pipeline adds is its own.

    Two digits, because that is what a prior is good for.
    """
    point = working_point(prior.timer, mix, limits, prior.kv_tokens, slo, start=prior.law)
    if not point.capacity.feasible:
        return None
    tokens = prior.pipeline * queued_tokens(point, mix, limits, prior.kv_tokens, slo)
    return _two_digits(tokens) if math.isfinite(tokens) and tokens >= 1.0 else None


def _two_digits(value: float) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return max(1, round(value / step) * step)


def queued_tokens(point: WorkingPoint, mix: LengthMix, limits: BatchLimits, kv_tokens: float, slo: Slo) -> float:
    """The cap on queued prompt tokens for an engine that works at a feasible capacity.

    What can be prefilled within TTFT, but never so few that the queue of an ordinary moment is refused.
    """
    engine = Engine(
        point.law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, kv_tokens, steps_ahead=point.steps_ahead
    )
    steady = steady_state(engine, np.array([point.capacity.rate_rps]))
    computed = lognormal_nodes(mix.computed_tokens, mix.computed_cv, TAIL_NODES)
    whole = mix.prompt_tokens / mix.computed_tokens
    usual = _usually_queued(engine, steady, computed, SHARE_OF_BUDGET * slo.budget_share) * whole
    drained = SHARE_OF_TTFT * slo.ttft_seconds * _drain_rate(engine, steady, slo) * whole
    return max(drained, usual)


def _drain_rate(engine: Engine, steady: Steady, slo: Slo) -> float:
    """Computed prompt tokens per second that leave a queue while the engine still keeps the TPOT objective.

    Steps are full then. Where TPOT holds even with every slot taken, prompts also wait for answers to end.
    """
    room = max(engine.max_num_batched_tokens - float(steady.sequences[0]), 1.0)
    token_seconds = engine.prefill_seconds / engine.mix.computed_tokens
    prefilled = room / (float(steady.decode_step_seconds[0]) + token_seconds * room)
    crowded_step = engine.law.c0 + engine.sequences * engine.work_seconds / engine.mix.output_tokens
    if crowded_step > slo.tpot_seconds:
        return prefilled
    return min(prefilled, engine.most_rate * engine.mix.computed_tokens)


def _usually_queued(engine: Engine, steady: Steady, prompts: Array, exceeded: float) -> float:
    """Computed tokens queued at a time, exceeded for the given share of arrivals.

    Prompts come independently and stay until their first token, whatever the others do: their sum is compound Poisson,
    its distribution the exponential of the prompts' own in the frequency domain.
    """
    seconds = first_token(engine, steady, prompts[:, None])[0][:, 0]
    present = float(steady.rates[0]) * seconds / TAIL_NODES
    reach = present @ prompts + 10.0 * np.sqrt(present @ prompts**2) + 2.0 * prompts[-1]
    width = reach / BINS
    density = np.bincount(np.ceil(prompts / width).astype(int), present, BINS)
    probability = np.fft.irfft(np.exp(np.fft.rfft(density) - density.sum()), BINS)
    return float(width * min(np.searchsorted(np.cumsum(probability), 1.0 - exceeded) + 1, BINS))
