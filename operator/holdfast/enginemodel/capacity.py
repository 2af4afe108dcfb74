"""What one replica can carry: the largest rate at which the objective still holds, and what binds it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.latency import slot_misses, tpot_misses, ttft_misses
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.steadystate import Array, Engine, Steady, steady_state
from holdfast.enginemodel.steplaw import StepLaw

LONE = 1e-6
COARSE = np.concatenate(([LONE], np.arange(1.0, 40.0) / 40.0))
FINE = np.arange(0.0, 21.0) / 20.0 / 40.0
"""Shares of the unstable rate that are looked at: a lone request and coarse steps, then within one of these."""

MORE_MISSES = 0.05
"""If objectives cannot be met, some requests are late without any load. Load may make this share late in addition."""


class Bottleneck(enum.StrEnum):
    """What keeps a replica from carrying more; an end-to-end objective counts as TPOT."""

    TTFT = "TTFT"
    TPOT = "TPOT"
    KV_CACHE = "KVCache"
    SEQUENCES = "Sequences"


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The largest rate that attains the objective, and the steady state at it.

    `feasible` is False, and `rate_rps` 0, where not even a lone request would meet the objectives often enough;
    `attainment` is the predicted share of good requests at the rate (at a lone request's where infeasible).
    `serving_rps` is the rate to size for in any case: where infeasible, the largest at which nearly as many requests
    are good as without load.
    """

    rate_rps: float
    bound_by: Bottleneck
    feasible: bool
    attainment: float
    utilisation: float
    step_seconds: float
    sequences: float
    kv_tokens: float
    ttft_seconds: float
    serving_rps: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits an engine runs with."""

    max_num_seqs: int
    max_num_batched_tokens: int


def capacity(
    law: StepLaw,
    mix: LengthMix,
    limits: BatchLimits,
    kv_tokens: float,
    slo: Slo,
    arrival_cv: float = 1.0,
    steps_ahead: int = 0,
) -> OperatingPoint:
    """The capacity of one replica by the closed form; about a millisecond, never raises.

    The share of misses is at most the sum of those of TTFT, TPOT and the wait for a slot, so the result errs low. The
    answer is the end of the unbroken range of rates from zero on at which that sum is within the budget: monotone in
    the objectives by construction.
    """
    engine = Engine(
        law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, max(kv_tokens, 0.0), arrival_cv, steps_ahead
    )
    most = engine.most_rate
    if not (0.0 < most < math.inf and kv_tokens >= mix.prompt_tokens):
        return _NOTHING
    misses = _misses(engine, COARSE * most, slo)
    within = misses.within(slo.budget_share)
    if within == 0:
        serving = max(1, misses.within(float(misses.total[0]) + MORE_MISSES))
        return replace(misses.described(0, feasible=False), serving_rps=float(misses.steady.rates[serving - 1]))
    start = COARSE[within - 1]
    misses = _misses(engine, np.clip(start + FINE, LONE, 1.0 - LONE) * most, slo)
    return misses.described(max(0, misses.within(slo.budget_share) - 1), feasible=True)


@dataclass(frozen=True, slots=True)
class _Misses:
    """Shares of requests that miss at each of ascending rates, by what makes them miss."""

    steady: Steady
    ttft_seconds: Array
    by_bound: dict[Bottleneck, Array]
    total: Array

    def within(self, share: float) -> int:
        """How many of the rates stand before the first one at which more than this share misses."""
        over = ~(self.total <= share)
        return int(over.argmax()) if over.any() else len(over)

    def described(self, index: int, *, feasible: bool) -> OperatingPoint:
        """The capacity that one of the rates is."""
        steady = self.steady
        rate_rps = float(steady.rates[index]) if feasible else 0.0
        return OperatingPoint(
            rate_rps=rate_rps,
            serving_rps=rate_rps,
            bound_by=max(self.by_bound, key=lambda bound: float(self.by_bound[bound][index])),
            feasible=feasible,
            attainment=min(1.0, max(0.0, 1.0 - float(self.total[index]))),
            utilisation=float(steady.utilisation[index]),
            step_seconds=float(steady.step_seconds[index]),
            sequences=float(steady.sequences[index]),
            kv_tokens=float(steady.kv_tokens[index]),
            ttft_seconds=float(self.ttft_seconds[index]),
        )


def _misses(engine: Engine, rates: Array, slo: Slo) -> _Misses:
    steady = steady_state(engine, rates)
    ttft, ttft_seconds = ttft_misses(engine, steady, slo.ttft_seconds)
    residence = engine.mix.output_tokens * steady.step_seconds
    left = np.maximum(slo.ttft_seconds - ttft_seconds, 0.0)
    by_bound = {
        Bottleneck.TTFT: ttft,
        Bottleneck.TPOT: tpot_misses(engine, steady, ttft_seconds, slo.tpot_seconds, slo.e2e_seconds),
        Bottleneck.SEQUENCES: slot_misses(steady, residence, left, float(engine.max_num_seqs), 1.0),
        Bottleneck.KV_CACHE: slot_misses(steady, residence, left, engine.kv_sequences, 1.0 + engine.kv_spread),
    }
    return _Misses(steady, ttft_seconds, by_bound, np.asarray(sum(by_bound.values())))


_NOTHING = OperatingPoint(0.0, Bottleneck.KV_CACHE, False, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
