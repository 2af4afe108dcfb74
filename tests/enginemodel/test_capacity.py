"""Closed-form capacity: what must hold whatever the numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import LONE, BatchLimits, Bottleneck, OperatingPoint, _misses, capacity
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steadystate import Engine
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.enginemodel.working import working_point

SLO = Slo(ttft_seconds=0.5, tpot_seconds=0.03, objective=0.99, window_seconds=3600)
LIMITS = BatchLimits(1024, 8192)
CHAT = LengthMix.from_means(1000, 200)
H100 = engine_prior("Qwen/Qwen3-8B", "h100")


def chat_capacity(
    slo: Slo = SLO, limits: BatchLimits = LIMITS, kv_tokens: float = 395_000, mix: LengthMix = CHAT
) -> OperatingPoint:
    return capacity(H100.law, mix, limits, kv_tokens, slo)


laws = st.builds(
    StepLaw, st.floats(1e-4, 0.2), st.floats(0, 1e-3), st.floats(0, 1e-3), st.floats(0, 1e-6), st.floats(0, 1e-7)
)
mixes = st.builds(
    lambda p, o, cached, pcv, ocv: LengthMix.from_means(p, o, cached_share=cached, prompt_cv=pcv, output_cv=ocv),
    st.floats(1, 50_000),
    st.floats(1, 10_000),
    st.floats(0, 0.99),
    st.floats(0, 3),
    st.floats(0, 3),
)
limits = st.builds(BatchLimits, st.integers(1, 2048), st.integers(2048, 32_768))
slos = st.builds(Slo, st.floats(0.001, 60), st.floats(0.0005, 2), st.floats(0.5, 0.9999), st.just(3600.0))


def test_a_usual_service_is_bound_by_tpot() -> None:
    found = chat_capacity()
    assert found.feasible
    assert found.bound_by is Bottleneck.TPOT
    assert 10 < found.rate_rps < 25
    assert found.attainment >= SLO.objective


def test_a_tight_ttft_binds() -> None:
    found = chat_capacity(Slo(0.1, 0.5, 0.99, 3600))
    assert found.bound_by is Bottleneck.TTFT


def test_an_end_to_end_objective_leaves_less() -> None:
    bounded = chat_capacity(replace(SLO, e2e_seconds=15.0))
    assert 0 < bounded.rate_rps < chat_capacity().rate_rps
    assert bounded.bound_by is Bottleneck.TPOT


def test_few_sequences_bind() -> None:
    found = chat_capacity(Slo(2.0, 0.1, 0.99, 3600), BatchLimits(16, 8192))
    assert found.bound_by is Bottleneck.SEQUENCES
    assert found.sequences < 16


def test_a_small_kv_cache_binds() -> None:
    found = chat_capacity(Slo(2.0, 0.1, 0.99, 3600), kv_tokens=40_000)
    assert found.bound_by is Bottleneck.KV_CACHE
    assert found.kv_tokens < 40_000


def test_a_tpot_below_the_lone_step_is_infeasible() -> None:
    found = chat_capacity(replace(SLO, tpot_seconds=H100.law.c0 / 2))
    assert not found.feasible
    assert found.rate_rps == 0
    assert found.bound_by is Bottleneck.TPOT


def test_a_ttft_below_the_lone_prefill_is_infeasible() -> None:
    found = chat_capacity(replace(SLO, ttft_seconds=0.005))
    assert not found.feasible
    assert found.bound_by is Bottleneck.TTFT


@pytest.mark.parametrize("kv_tokens", [0, -5, 500, math.nan])
def test_without_room_for_one_prompt_there_is_no_capacity(kv_tokens: float) -> None:
    found = chat_capacity(kv_tokens=kv_tokens)
    assert found.rate_rps == 0
    assert not found.feasible
    assert found.bound_by is Bottleneck.KV_CACHE


@pytest.mark.parametrize("law", [StepLaw(0.0, 7e-6, 0.0, 0.0, 0.0), StepLaw(0.0, 0.0, 0.0, 0.0, 1e-9)])
@pytest.mark.parametrize("e2e", [None, 1.0])
def test_a_law_that_gives_decodes_no_time_has_a_capacity_all_the_same(law: StepLaw, e2e: float | None) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = capacity(law, CHAT, LIMITS, 395_000, replace(SLO, e2e_seconds=e2e))
    assert found.feasible
    assert math.isfinite(found.rate_rps)
    assert found.attainment >= SLO.objective


@settings(max_examples=75)
@given(laws, mixes, limits, st.floats(0, 1e7), slos)
def test_capacity_is_always_finite_and_named(
    law: StepLaw, mix: LengthMix, batch: BatchLimits, kv_tokens: float, slo: Slo
) -> None:
    found = capacity(law, mix, batch, kv_tokens, slo)
    assert math.isfinite(found.rate_rps)
    assert found.rate_rps >= 0
    assert found.feasible == (found.rate_rps > 0)
    assert 0 <= found.attainment <= 1
    assert 0 <= found.utilisation < 1


@settings(max_examples=75)
@given(laws, mixes, limits, slos, st.floats(1, 4), st.floats(1, 4))
def test_looser_objectives_never_carry_less(
    law: StepLaw, mix: LengthMix, batch: BatchLimits, slo: Slo, more_ttft: float, more_tpot: float
) -> None:
    looser = replace(slo, ttft_seconds=slo.ttft_seconds * more_ttft, tpot_seconds=slo.tpot_seconds * more_tpot)
    tight = capacity(law, mix, batch, 500_000, slo).rate_rps
    assert capacity(law, mix, batch, 500_000, looser).rate_rps >= tight * (1 - 1e-9)
    assert capacity(law, mix, batch, 500_000, replace(slo, objective=slo.objective / 2 + 0.25)).rate_rps >= min(
        tight, tight if slo.objective >= 0.5 else 0
    ) * (1 - 1e-9)


@given(st.floats(1.0, 3.0))
def test_a_slower_engine_never_carries_more(gain: float) -> None:
    slower = capacity(H100.law.scaled(gain), CHAT, LIMITS, 395_000, SLO)
    assert slower.rate_rps <= chat_capacity().rate_rps * (1 + 1e-6)


def test_burstier_arrivals_leave_less() -> None:
    bursty = capacity(H100.law, CHAT, LIMITS, 395_000, SLO, arrival_cv=4.0)
    assert bursty.rate_rps < chat_capacity().rate_rps


def attainment(rate_rps: float) -> float:
    """Share of good requests at a rate, 0 at or beyond the rate at which the engine is unstable."""
    engine = Engine(H100.law, CHAT, LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, 395_000, 1.0)
    if not rate_rps < engine.most_rate:
        return 0.0
    rate = max(rate_rps, engine.most_rate * LONE)
    return max(0.0, 1.0 - float(_misses(engine, np.array([rate]), SLO).total[0]))


def test_attainment_falls_from_one_to_nothing_with_the_rate() -> None:
    found = chat_capacity()
    shares = [attainment(factor * found.rate_rps) for factor in (0.0, 0.5, 0.99, 1.1, 1.5, 10.0)]
    assert shares[0] > 0.999
    assert shares[2] >= SLO.objective
    assert shares[3] < SLO.objective
    assert shares[-1] == 0.0
    assert shares == sorted(shares, reverse=True)


def test_no_attainment_is_predicted_for_a_rate_that_is_no_number() -> None:
    assert attainment(math.nan) == 0.0


def test_the_working_point_is_near_what_the_scheduler_loop_carries() -> None:
    mix = LengthMix.from_pairs([(512, 128)])
    slo = Slo(0.5, 0.03, 0.95, 3600)
    rate = working_point(H100.timer, mix, LIMITS, 395_000, slo).capacity.rate_rps
    loop = SchedulerLimits(1024, 8192, 395_000)

    def attainment(offered: float) -> float:
        # Evenly jittered arrivals: a low-discrepancy stand-in for Poisson that needs few requests.
        gaps = [-math.log(((index * 0.6180339887) % 1.0) * 0.998 + 0.001) / offered for index in range(1, 1200)]
        arrivals = [Arrival(sum(gaps[:index]), 512, 128) for index in range(len(gaps))]
        outcomes = replay(arrivals, loop, H100.timer)[200:]
        return sum(outcome.good(slo) for outcome in outcomes) / len(outcomes)

    assert attainment(0.75 * rate) >= slo.objective
    assert attainment(1.3 * rate) < slo.objective
