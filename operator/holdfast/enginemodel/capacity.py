"""What one replica can carry: the largest rate at which the objective still holds, and what binds it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.latency import mean_ttft, slot_misses, tpot_misses, ttft_misses
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.steadystate import Array, Engine, Steady, steady_state
from holdfast.enginemodel.steplaw import StepLaw

GRID = np.linspace(0.0, 1.0, 49)[1:-1]
REFINED = np.linspace(0.0, 1.0, 17)[1:]
LONE = 1e-6
"""Shares of the unstable rate that are looked at: coarse, then within one interval; and a lone request's."""


class Bound(enum.StrEnum):
    """What keeps a replica from carrying more."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    KV_CACHE = "KVCache"
    SEQUENCES = "Sequences"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest rate that attains the objective, and the steady state at it.

    `feasible` is False, and `rate_rps` 0, where not even a lone request would meet the objectives often enough;
    `attainment` is the predicted share of good requests at the rate (at a lone request's where infeasible).
    """

    rate_rps: float
    bound_by: Bound
    feasible: bool
    attainment: float
    utilisation: float
    step_seconds: float
    sequences: float
    kv_tokens: float
    ttft_seconds: float


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits an engine runs with."""

    max_num_seqs: int
    max_num_batched_tokens: int


def capacity(
    law: StepLaw, mix: LengthMix, limits: BatchLimits, kv_tokens: float, slo: Slo, arrival_cv: float = 1.0
) -> Capacity:
    """The capacity of one replica by the closed form; about half a millisecond, never raises on finite input.

    The share of misses is at most the sum of those of TTFT, TPOT and the wait for a slot, so the result errs low. The
    answer is the end of the unbroken range of rates from zero on at which that sum is within the budget: monotone in
    the objectives by construction.
    """
    engine = Engine(law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, max(kv_tokens, 0.0), arrival_cv)
    most = engine.most_rate
    if not (0.0 < most < math.inf and kv_tokens >= mix.prompt_tokens):
        return _nothing(Bound.KV_CACHE)
    lone = _misses(engine, np.array([most * LONE]), slo)
    if not lone.total[0] <= slo.budget_share:
        return _described(engine, most * LONE, slo, feasible=False)
    coarse = _last_within(engine, GRID * most, slo)
    start = coarse * GRID[0] * most
    refined = start + REFINED * GRID[0] * most
    finer = _last_within(engine, np.minimum(refined, most * (1 - 1e-6)), slo)
    rate = refined[finer - 1] if finer else max(start, most * LONE)
    return _described(engine, float(min(rate, most * (1 - 1e-6))), slo, feasible=True)


def predicted_attainment(
    law: StepLaw,
    mix: LengthMix,
    limits: BatchLimits,
    kv_tokens: float,
    slo: Slo,
    rate_rps: float,
    arrival_cv: float = 1.0,
) -> float:
    """Share of good requests at a rate, 0 at or beyond the rate at which the engine is unstable."""
    engine = Engine(law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, max(kv_tokens, 0.0), arrival_cv)
    if not (kv_tokens >= mix.prompt_tokens and rate_rps < engine.most_rate):
        return 0.0
    rate = max(rate_rps, engine.most_rate * LONE)
    return max(0.0, 1.0 - float(_misses(engine, np.array([rate]), slo).total[0]))


@dataclass(frozen=True, slots=True)
class _Misses:
    """Shares of requests that miss, by what makes them miss."""

    ttft: Array
    tpot: Array
    sequences: Array
    kv_cache: Array
    steady: Steady

    @property
    def total(self) -> Array:
        return self.ttft + self.tpot + self.sequences + self.kv_cache

    @property
    def worst(self) -> Bound:
        by_bound = {
            Bound.TTFT: self.ttft[0],
            Bound.TPOT: self.tpot[0],
            Bound.SEQUENCES: self.sequences[0],
            Bound.KV_CACHE: self.kv_cache[0],
        }
        return max(by_bound, key=lambda bound: float(by_bound[bound]))


def _misses(engine: Engine, rates: Array, slo: Slo) -> _Misses:
    steady = steady_state(engine, rates)
    kv_spread = 1.0 + engine.mix.output_cv**2
    return _Misses(
        ttft=ttft_misses(engine, steady, slo.ttft_seconds),
        tpot=tpot_misses(engine, steady, slo.tpot_seconds),
        sequences=slot_misses(engine, steady, slo.ttft_seconds, float(engine.max_num_seqs), 1.0),
        kv_cache=slot_misses(engine, steady, slo.ttft_seconds, engine.kv_sequences, kv_spread),
        steady=steady,
    )


def _last_within(engine: Engine, rates: Array, slo: Slo) -> int:
    """How many of the ascending rates stand before the first one that misses too often."""
    over = ~(_misses(engine, rates, slo).total <= slo.budget_share)
    return int(over.argmax()) if over.any() else len(rates)


def _described(engine: Engine, rate: float, slo: Slo, *, feasible: bool) -> Capacity:
    misses = _misses(engine, np.array([rate]), slo)
    steady = misses.steady
    return Capacity(
        rate_rps=rate if feasible else 0.0,
        bound_by=misses.worst,
        feasible=feasible,
        attainment=max(0.0, 1.0 - float(misses.total[0])),
        utilisation=float(steady.utilisation[0]),
        step_seconds=float(steady.step_seconds[0]),
        sequences=float(steady.sequences[0]),
        kv_tokens=float(steady.kv_tokens[0]),
        ttft_seconds=float(mean_ttft(engine, steady)[0]),
    )


def _nothing(bound: Bound) -> Capacity:
    return Capacity(0.0, bound, False, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
