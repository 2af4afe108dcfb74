"""Shares of requests that miss TTFT or TPOT in a steady state: means widened by the variances that matter."""

from __future__ import annotations

import numpy as np

from holdfast.enginemodel.mix import BIN_WEIGHTS, lognormal_bins
from holdfast.enginemodel.steadystate import Array, Engine, Steady

INSTANT_SECONDS = 1e-12
"""In place of zero: a law fitted to few steps may say that decodes take no time."""


def tpot_misses(engine: Engine, steady: Steady, ttft: Array, tpot_seconds: float, e2e_seconds: float | None) -> Array:
    """Share of requests whose time per output token, or end-to-end time after the mean TTFT, exceeds the objective.

    An answer of O tokens takes x = (O - 1) T_decode, and first the prompts C that came while its own was computed,
    both delayed by the prefill of later arrivals: a delay busy period with mean (x + E[C]) / (1 - rho_p)
    and variance rate E[w²] (x + E[C]) / (1 - rho_p)³ + Var[C] / (1 - rho_p)². The number of decoding sequences moves
    too, correlated over the mean residence / slackness and averaged over the answer's own; and an answer meets more
    of them than the mean over time, by variance / mean. The same arrivals cause both deviations, which therefore add.
    A lognormal carries the two moments; where prefill is rare and heavy it does not know the tail, and one single
    prompt longer than what the objective leaves decides (`_heavy_prompts`).
    """
    outputs = engine.mix.output_bins[:, None]
    gaps = np.maximum(outputs - 1.0, 1.0)
    free = 1.0 - steady.prefill_utilisation
    carried_mean, carried_variance = _carried(engine, steady)
    work = gaps * steady.decode_step_seconds + carried_mean
    prefill = steady.prefill_noise * work / free**3 + carried_variance / free**2
    elapsed = outputs / engine.mix.output_tokens * steady.slackness
    crowd = steady.crowd_variance / free**2 * _averaged(elapsed)
    met = engine.sequence_seconds / free * steady.sequences_variance / np.maximum(steady.sequences, 1.0)
    deviation = np.sqrt(prefill) / gaps + np.sqrt(crowd)
    mean = work / free / gaps + met
    spare = gaps * (tpot_seconds - mean) * free
    heavy = _heavy_prompts(engine, steady.rates * work / free, spare)
    missed = np.maximum(lognormal_tail(mean, deviation**2, tpot_seconds), heavy)
    missed = np.minimum(missed, _full_step_misses(engine, steady, met * free, crowd * free**2, tpot_seconds))
    if e2e_seconds is not None:
        missed = np.maximum(missed, lognormal_tail(ttft + gaps * mean, (gaps * deviation) ** 2, e2e_seconds))
    return np.asarray(BIN_WEIGHTS @ np.where(outputs >= 2.0, missed, 0.0))


def _heavy_prompts(engine: Engine, arrivals: Array, spare_seconds: Array) -> Array:
    """P(at least one of Poisson(`arrivals`) prompts takes longer than the spare time)."""
    work = engine.prompt_work
    longer = 1.0 - np.searchsorted(work, spare_seconds) / len(work)
    return np.asarray(-np.expm1(-arrivals * longer))


def _full_step_misses(engine: Engine, steady: Steady, met: Array, crowd: Array, tpot_seconds: float) -> Array:
    """Share of requests that would miss if every one of their steps were as full as the token budget allows."""
    prefill_token = engine.prefill_seconds / max(engine.mix.computed_tokens, 1e-12)
    spare = tpot_seconds - prefill_token * np.maximum(engine.max_num_batched_tokens - steady.sequences, 0.0)
    missed = lognormal_tail(steady.decode_step_seconds + met, crowd, np.maximum(spare, INSTANT_SECONDS))
    return np.asarray(np.where(spare > 0.0, missed, 1.0))


def _carried(engine: Engine, steady: Steady) -> tuple[Array, Array]:
    """Mean and variance of the prefill work that arrives during the step in which a request's prompt ends."""
    prompts = lognormal_bins(engine.mix.computed_tokens, engine.mix.computed_cv)
    own = engine.prompt_seconds(np.minimum(prompts, float(engine.max_num_batched_tokens)))
    biased, beside = _biased_step(steady)
    own_mean = float(BIN_WEIGHTS @ own)
    own_variance = float(BIN_WEIGHTS @ (own - own_mean) ** 2)
    step = steady.decode_step_seconds + own_mean + steady.prefill_utilisation * biased
    mean = steady.prefill_utilisation * step
    return mean, steady.prefill_noise * step + steady.prefill_utilisation**2 * (own_variance + beside)


def ttft_misses(engine: Engine, steady: Steady, ttft_seconds: float) -> tuple[Array, Array]:
    """Share of requests whose first token comes later than the objective, and the mean TTFT.

    The step under way ends first (length-biased), then the launched steps, then one step per chunk, each with the
    decodes, the own prompt and other new prompts; prompts beyond the token budget wait in a queue with an exponential
    tail. Behind one heavy prompt of work w, which is met with probability rate x w, the wait is uniform up
    to w: rate E[(w - spare)+] more.
    """
    prompts = lognormal_bins(engine.mix.computed_tokens, engine.mix.computed_cv)[:, None]
    mean, variance = first_token(engine, steady, prompts)
    spare = ttft_seconds - (mean - 0.5 * steady.prefill_noise)
    behind = np.where(spare > 0.0, steady.rates * _mean_excess(engine, spare), 1.0)
    missed = np.minimum(1.0, lognormal_tail(mean, variance, ttft_seconds) + behind)
    return BIN_WEIGHTS @ missed, BIN_WEIGHTS @ mean


def _mean_excess(engine: Engine, spare_seconds: Array) -> Array:
    """E[(w - spare)+] of the prefill work w of a prompt."""
    work = engine.prompt_work
    beyond = np.append(np.cumsum(work[::-1])[::-1], 0.0)
    first = np.searchsorted(work, spare_seconds)
    return np.asarray((beyond[first] - (len(work) - first) * spare_seconds) / len(work))


def slot_misses(steady: Steady, residence: Array, left_seconds: Array, slots: float, spread: float) -> Array:
    """Share of requests that wait longer than `left_seconds` for one of `slots` sequences.

    All slots are taken with the probability of a normal with the variance of the sequences times `spread`; slots come
    free at rate slots / residence, and the arrivals leave (slots - d) / residence of them.
    """
    deviation = np.sqrt(steady.sequences_variance * spread) + 1e-9
    free, held = np.maximum(slots - steady.sequences, 0.0), np.maximum(residence, INSTANT_SECONDS)
    return np.asarray(normal_tail((slots - steady.sequences) / deviation) * np.exp(-free * left_seconds / held))


def first_token(engine: Engine, steady: Steady, prompts: Array) -> tuple[Array, Array]:
    """Mean and variance of TTFT by prompt length (rows) and rate (columns)."""
    biased, beside = _biased_step(steady)
    budget = np.maximum(engine.max_num_batched_tokens - steady.sequences, 1.0)
    chunks = np.maximum(1.0, prompts / budget + 0.5)
    queue_mean, queue_variance = _queue(engine, steady, budget, prompts)
    own = chunks * steady.decode_step_seconds + engine.prompt_seconds(prompts)
    launched = engine.steps_ahead * steady.step_seconds
    mean = 0.5 * biased + launched + own + steady.prefill_utilisation * biased + queue_mean
    ahead = steady.prefill_noise * launched
    return mean, biased**2 / 12.0 + ahead + beside + steady.crowd_variance + queue_variance


def _biased_step(steady: Steady) -> tuple[Array, Array]:
    """Mean length of the step an arrival falls into, and the variance of the work that arrives during it."""
    biased = steady.step_seconds + steady.prefill_noise
    return biased, steady.prefill_noise * biased


def _queue(engine: Engine, steady: Steady, budget: Array, prompts: Array) -> tuple[Array, Array]:
    """Mean and variance of the wait for earlier prompts that exceed the budget of one step.

    The backlog Q has P(Q > q) = u exp(-theta q), u the share of the full-budget rate in use and theta the Lundberg
    exponent of tokens arriving in full steps; only what exceeds the room next to the own prompt delays it.
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


def _averaged(elapsed: Array) -> Array:
    """Variance left of an exponentially correlated signal averaged over `elapsed` correlation times."""
    x = np.maximum(elapsed, 1e-6)
    return np.asarray(np.where(x < 1e-2, 1.0 - x / 3.0, 2.0 * (x - 1.0 + np.exp(-x)) / x**2))


def lognormal_tail(mean: Array, variance: Array, bound: Array | float) -> Array:
    """P(X > bound) of a lognormal with these moments."""
    mean = np.maximum(mean, INSTANT_SECONDS)
    square = np.log1p(variance / mean**2)
    sigma = np.sqrt(np.maximum(square, 1e-12))
    return normal_tail((np.log(bound) - np.log(mean) + 0.5 * square) / sigma)


def normal_tail(z: Array) -> Array:
    """P(Z > z) of a standard normal, by Page's logistic approximation (within 2e-4)."""
    clipped = np.clip(z, -8.0, 8.0)
    return np.asarray(1.0 / (1.0 + np.exp(1.5976 * clipped + 0.070565992 * clipped**3)))
