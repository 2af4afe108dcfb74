"""Shares of requests that miss TTFT or TPOT in a steady state: means widened by the variances that matter."""

from __future__ import annotations

import math

import numpy as np

from holdfast.enginemodel.steadystate import Array, Engine, Steady

NODES = 9
"""Equally likely lengths that stand for a length distribution."""


def tpot_misses(engine: Engine, steady: Steady, tpot_seconds: float) -> Array:
    """Share of requests whose time per output token exceeds the objective.

    An answer of O tokens takes x = (O - 1) T_decode, and first the prompts C that came while its own was computed,
    both delayed by the prefill of whoever arrives meanwhile: a delay busy period with mean (x + E[C]) / (1 - rho_p)
    and variance rate E[w²] (x + E[C]) / (1 - rho_p)³ + Var[C] / (1 - rho_p)². The number of decoding sequences moves
    too: variance d / slackness, correlated over the mean residence / slackness, averaged over the answer's own.
    A lognormal carries the two moments.
    """
    outputs = lognormal_nodes(engine.mix.output_tokens, engine.mix.output_cv)[:, None]
    gaps = np.maximum(outputs - 1.0, 1.0)
    free = 1.0 - steady.prefill_utilisation
    carried_mean, carried_variance = _carried(engine, steady)
    work = gaps * steady.decode_step_seconds + carried_mean
    prefill = steady.rates * engine.prefill_dispersion * work / free**3 + carried_variance / free**2
    elapsed = outputs / engine.mix.output_tokens * steady.slackness
    crowd = sequences_variance(engine, steady) * (_per_sequence_seconds(engine) / free) ** 2 * _averaged(elapsed)
    missed = lognormal_tail(work / free / gaps, prefill / gaps**2 + crowd, tpot_seconds)
    return np.asarray(np.where(outputs >= 2.0, missed, 0.0).mean(axis=0))


def _carried(engine: Engine, steady: Steady) -> tuple[Array, Array]:
    """Mean and variance of the prefill work that arrives during the step in which a request's prompt ends."""
    prompts = lognormal_nodes(engine.mix.computed_tokens, engine.mix.computed_cv)[:, None]
    own = _prompt_seconds(engine, np.minimum(prompts, float(engine.max_num_batched_tokens)))
    biased, beside = _biased_step(engine, steady)
    step = steady.decode_step_seconds + own.mean() + steady.prefill_utilisation * biased
    arriving = steady.rates * engine.prefill_dispersion
    mean = steady.prefill_utilisation * step
    return mean, arriving * step + steady.prefill_utilisation**2 * (own.var() + beside)


def ttft_misses(engine: Engine, steady: Steady, ttft_seconds: float) -> Array:
    """Share of requests whose first token comes later than the objective.

    The step under way ends first (length-biased), then one step per chunk, each with the decodes, the own prompt and
    what arrived beside it; prompts beyond the token budget wait in a queue with an exponential tail.
    """
    prompts = lognormal_nodes(engine.mix.computed_tokens, engine.mix.computed_cv)[:, None]
    mean, variance = _first_token(engine, steady, prompts)
    return np.asarray(lognormal_tail(mean, variance, ttft_seconds).mean(axis=0))


def mean_ttft(engine: Engine, steady: Steady) -> Array:
    """Mean time to the first token."""
    prompts = lognormal_nodes(engine.mix.computed_tokens, engine.mix.computed_cv)[:, None]
    return np.asarray(_first_token(engine, steady, prompts)[0].mean(axis=0))


def slot_misses(engine: Engine, steady: Steady, ttft_seconds: float, slots: float, spread: float) -> Array:
    """Share of requests that wait too long for one of `slots` sequences.

    All slots are taken with the probability of a normal with the variance of the sequences times `spread`; slots come
    free at rate slots / residence, of which the arrivals leave (slots - d) / residence.
    """
    deviation = np.sqrt(sequences_variance(engine, steady) * spread) + 1e-9
    waits = normal_tail((slots - steady.sequences) / deviation)
    residence = engine.mix.output_tokens * steady.step_seconds
    left = np.maximum(ttft_seconds - mean_ttft(engine, steady), 0.0)
    return np.asarray(waits * np.exp(-np.maximum(slots - steady.sequences, 0.0) * left / residence))


def sequences_variance(engine: Engine, steady: Steady) -> Array:
    """Variance of the number of decoding sequences; Poisson, widened where more of them slow each other down."""
    burst = 0.5 * (1.0 + engine.arrival_cv**2)
    return np.asarray(burst * steady.sequences / np.maximum(steady.slackness, 1e-9))


def _first_token(engine: Engine, steady: Steady, prompts: Array) -> tuple[Array, Array]:
    """Mean and variance of TTFT by prompt length (rows) and rate (columns)."""
    biased, beside = _biased_step(engine, steady)
    budget = np.maximum(engine.max_num_batched_tokens - steady.sequences, 1.0)
    chunks = np.maximum(1.0, prompts / budget + 0.5)
    queue_mean, queue_variance = _queue(engine, steady, budget, prompts)
    crowd = sequences_variance(engine, steady) * _per_sequence_seconds(engine) ** 2
    own = chunks * steady.decode_step_seconds + _prompt_seconds(engine, prompts)
    mean = 0.5 * biased + own + steady.prefill_utilisation * biased + queue_mean
    return mean, biased**2 / 12.0 + beside + crowd + queue_variance


def _biased_step(engine: Engine, steady: Steady) -> tuple[Array, Array]:
    """Mean length of the step an arrival falls into, and the variance of the work that arrives during it."""
    arriving = steady.rates * engine.prefill_dispersion
    biased = steady.step_seconds + arriving
    return biased, arriving * biased


def _prompt_seconds(engine: Engine, prompts: Array) -> Array:
    """Prefill work of prompts of these lengths."""
    pairs = engine.mix.prefill_pairs / max(engine.mix.computed_squared, 1e-12)
    return np.asarray(engine.law.c1 * prompts + engine.law.c4 * pairs * prompts**2)


def _queue(engine: Engine, steady: Steady, budget: Array, prompts: Array) -> tuple[Array, Array]:
    """Mean and variance of the wait for earlier prompts that exceed the budget of one step.

    The backlog Q has P(Q > q) = u exp(-theta q), u the share of the full-budget rate in use and theta the Lundberg
    exponent of tokens arriving in full steps; only what exceeds the room beside the own prompt delays it.
    """
    prefill_token = engine.prefill_seconds / max(engine.mix.computed_tokens, 1e-12)
    full_step = steady.decode_step_seconds + prefill_token * budget
    used = np.minimum(steady.rates * engine.mix.computed_tokens * full_step / budget, 0.999)
    burst = engine.mix.computed_squared + (engine.arrival_cv**2 - 1.0) * engine.mix.computed_tokens**2
    exponent = 2.0 * (1.0 - used) * budget / (steady.rates * full_step * max(burst, 1e-12))
    beyond = used * np.exp(-exponent * np.maximum(budget - prompts, 0.0))
    second_per_backlog = full_step / budget / exponent
    mean = second_per_backlog * beyond
    return mean, np.maximum(2.0 * second_per_backlog * mean - mean**2, 0.0)


def _per_sequence_seconds(engine: Engine) -> float:
    """What one more decoding sequence adds to a step."""
    return engine.law.c2 + engine.law.c3 * engine.kv_per_sequence


def _averaged(elapsed: Array) -> Array:
    """Variance left of an exponentially correlated signal averaged over `elapsed` correlation times."""
    x = np.maximum(elapsed, 1e-6)
    return np.asarray(np.where(x < 1e-2, 1.0 - x / 3.0, 2.0 * (x - 1.0 + np.exp(-x)) / x**2))


def lognormal_nodes(mean: float, cv: float) -> Array:
    """Midpoint quantiles of a lognormal, scaled to its mean: NODES equally likely values."""
    if cv <= 1e-6:
        return np.full(NODES, mean)
    sigma = math.sqrt(math.log1p(cv * cv))
    values = np.exp(sigma * _NODE_QUANTILES)
    return np.asarray(values * (mean / values.mean()))


def lognormal_tail(mean: Array, variance: Array, bound: float) -> Array:
    """P(X > bound) of a lognormal with these moments."""
    square = np.log1p(variance / mean**2)
    sigma = np.sqrt(np.maximum(square, 1e-12))
    return normal_tail((math.log(bound) - np.log(mean) + 0.5 * square) / sigma)


def normal_tail(z: Array) -> Array:
    """P(Z > z) of a standard normal, by Page's logistic approximation (within 2e-4)."""
    clipped = np.clip(z, -8.0, 8.0)
    return np.asarray(1.0 / (1.0 + np.exp(1.5976 * clipped + 0.070565992 * clipped**3)))


_NODE_QUANTILES = np.array([-1.5932, -0.9674, -0.5895, -0.2822, 0.0, 0.2822, 0.5895, 0.9674, 1.5932])
"""Standard normal quantiles at (i + 1/2) / 9."""
