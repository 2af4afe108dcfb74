"""Requests through one replica, offline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import Slo
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw

LAW = StepLaw(c0=0.01, c1=1e-4, c2=0.0, c3=0.0, c4=0.0)
LIMITS = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=100_000)


def test_a_lone_request_takes_its_prefill_and_one_step_per_token() -> None:
    [outcome] = replay([Arrival(5.0, 100, 11)], LIMITS, LAW)
    assert outcome.ttft_seconds == pytest.approx(0.01 + 100e-4)
    assert outcome.tpot_seconds == pytest.approx(0.01)
    assert outcome.e2e_seconds == pytest.approx(0.02 + 10 * 0.01)


def test_the_tpot_of_a_single_token_is_zero() -> None:
    [outcome] = replay([Arrival(0.0, 10, 1)], LIMITS, LAW)
    assert outcome.tpot_seconds == 0.0
    assert outcome.e2e_seconds == outcome.ttft_seconds


def test_an_arrival_during_a_step_waits_for_its_end() -> None:
    first, second = replay([Arrival(0.0, 100, 2), Arrival(0.001, 100, 2)], LIMITS, LAW)
    assert second.ttft_seconds == pytest.approx(0.02 - 0.001 + 0.02)
    assert first.tpot_seconds == pytest.approx(0.02)


def test_rejected_requests_are_never_good() -> None:
    limits = SchedulerLimits(64, 512, 100_000, max_num_queued_reqs=1)
    outcomes = replay([Arrival(0.0, 100, 5), Arrival(0.001, 100, 5)], limits, LAW)
    assert [outcome.ttft_seconds < math.inf for outcome in outcomes] == [True, False]
    assert not outcomes[1].good(Slo(100.0, 100.0, 0.99, 3600))


def test_prompts_of_the_step_under_way_still_count_as_queued() -> None:
    # As in vLLM, where the API server hears of a prompt's end with its first token.
    limits = SchedulerLimits(64, 512, 100_000, max_num_queued_tokens=100)
    times = (0.0, 0.0199, 0.0201)  # the first step takes 20 ms
    outcomes = replay([Arrival(at, 100, 5) for at in times], limits, LAW)
    assert [outcome.ttft_seconds < math.inf for outcome in outcomes] == [True, False, True]


def test_the_end_to_end_objective_counts_where_it_is_set() -> None:
    [outcome] = replay([Arrival(0.0, 100, 101)], LIMITS, LAW)
    assert outcome.good(Slo(0.1, 0.02, 0.99, 3600))
    assert not outcome.good(Slo(0.1, 0.02, 0.99, 3600, e2e_seconds=0.5))


def test_nothing_in_gives_nothing_out() -> None:
    assert replay([], LIMITS, LAW) == []


arrivals = st.lists(
    st.builds(Arrival, st.floats(0, 5), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)), max_size=40
)


@given(arrivals)
def test_every_request_gets_one_outcome_and_time_runs_forward(given_arrivals: list[Arrival]) -> None:
    outcomes = replay(given_arrivals, LIMITS, LAW)
    assert [outcome.arrival for outcome in outcomes] == sorted(given_arrivals, key=lambda arrival: arrival.at)
    for outcome in outcomes:
        assert 0 < outcome.ttft_seconds <= outcome.e2e_seconds
        assert outcome.tpot_seconds * (outcome.arrival.output_tokens - 1) == pytest.approx(
            outcome.e2e_seconds - outcome.ttft_seconds
        )


@given(arrivals)
def test_the_same_requests_give_the_same_outcomes(given_arrivals: list[Arrival]) -> None:
    assert replay(given_arrivals, LIMITS, LAW) == replay(given_arrivals, LIMITS, LAW)
