"""The cap on queued prompt tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.domain.service import Slo
from holdfast.enginemodel.admission import queued_tokens
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix, lognormal_nodes
from holdfast.enginemodel.prior import engine_prior
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.working import working_point

L40S = engine_prior("Qwen/Qwen3-8B", "l40s")
SLO = Slo(2.0, 0.1, 0.95, 3600)
CHAT = LengthMix.from_means(1155.0, 211.0)
mixes = st.builds(
    lambda p, o, cached, cv: LengthMix.from_means(p, o, cached_share=cached, prompt_cv=cv),
    st.floats(20.0, 5000.0),
    st.floats(2.0, 800.0),
    st.floats(0.0, 0.99),
    st.floats(0.0, 2.0),
)


def cap(slo: Slo = SLO, mix: LengthMix = CHAT, sequences: int = 256) -> float:
    limits = BatchLimits(sequences, 2048)
    point = working_point(L40S.timer, mix, limits, L40S.kv_tokens, slo, start=L40S.law)
    return queued_tokens(point, mix, limits, L40S.kv_tokens, slo) if point.capacity.feasible else math.nan


@settings(max_examples=25)
@given(mixes, st.floats(0.2, 10.0), st.floats(0.03, 0.5), st.integers(1, 512))
def test_a_cap_is_positive_and_finite_whatever_the_mix(
    mix: LengthMix, ttft: float, tpot: float, sequences: int
) -> None:
    tokens = cap(Slo(ttft, tpot, 0.95, 3600), mix, sequences)
    assume(not math.isnan(tokens))
    assert 0.0 < tokens < math.inf


def test_a_long_ttft_allows_what_drains_within_it_and_no_more() -> None:
    fastest = 2048 / L40S.timer.step_seconds(((2048, 0),), 0, 0.0)
    assert cap(replace(SLO, ttft_seconds=8.0)) < 8.0 * fastest


def test_cached_prompts_count_whole() -> None:
    cached = LengthMix.from_means(1155.0, 211.0, cached_share=0.5)
    longest = lognormal_nodes(1155.0, 1.0, 500)[-6]
    assert cap(mix=cached) > longest


def test_a_stricter_objective_refuses_less() -> None:
    assert cap(replace(SLO, objective=0.99)) >= cap(replace(SLO, objective=0.9))


def test_a_cap_refuses_next_to_nothing_below_capacity() -> None:
    limits = BatchLimits(256, 2048)
    point = working_point(L40S.timer, CHAT, limits, L40S.kv_tokens, SLO, start=L40S.law)
    rate = 0.8 * point.capacity.rate_rps
    # Evenly jittered arrivals and lengths: a low-discrepancy stand-in for Poisson and a lognormal.
    jitter = [[(index * step) % 1.0 for step in (0.6180339887, 0.7548776662)] for index in range(1, 800)]
    at, arrivals = 0.0, []
    for one, other in jitter:
        at -= math.log(0.999 * one + 0.0005) / rate
        arrivals.append(Arrival(at, round(-1155.0 * math.log(0.999 * other + 0.0005)) + 1, 211))
    loop = SchedulerLimits(256, 2048, L40S.kv_tokens, max_num_queued_tokens=round(cap()))
    refused = sum(math.isinf(outcome.ttft_seconds) for outcome in replay(arrivals, loop, L40S.timer))
    assert refused <= 0.01 * len(arrivals)


@pytest.mark.parametrize("sequences", [4, 8, 16])
def test_where_answers_must_end_first_fewer_prompts_may_wait(sequences: int) -> None:
    assert cap(replace(SLO, tpot_seconds=0.2), sequences=sequences) < cap()
