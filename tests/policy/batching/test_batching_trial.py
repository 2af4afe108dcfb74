"""A replica on trial beside the others: chance alone seldom rejects it, a real difference does soon."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import BatchingLimits
from holdfast.policy.batching.controller import LEAST_MISSED, TRIAL_SECONDS, Trial
from holdfast.policy.estimate.slo_budget import NONE, Verdicts

LOOK_SECONDS = 15.0
sides = st.builds(Verdicts, st.floats(allow_nan=True), st.floats(allow_nan=True))


def judged(requests: float, bad: float) -> Verdicts:
    return Verdicts(float(requests - bad), float(bad))


def on_trial(canary: Verdicts = NONE, rest: Verdicts = NONE) -> Trial:
    return Trial("h100", BatchingLimits(), BatchingLimits(None, 1024), 0.0, 0.0, canary, rest)


def is_kept(seed: int, canary_misses: float, rest_misses: float, rate: float = 5.0, replicas: int = 4) -> bool:
    """How a trial ends among replicas that answer `rate` requests/s each."""
    chance = random.Random(seed)
    trial, seconds = on_trial(), 0.0

    def side(count: int, misses: float) -> Verdicts:
        return judged(count, sum(chance.random() < misses for _ in range(count)))

    while seconds < TRIAL_SECONDS and not trial.misses_more(is_over=False):
        each = round(rate * LOOK_SECONDS)
        trial = trial.with_more(side(each, canary_misses), side(each * (replicas - 1), rest_misses))
        seconds += LOOK_SECONDS
    return not trial.misses_more(is_over=seconds >= TRIAL_SECONDS)


def kept(canary_misses: float, rest_misses: float, rate: float = 5.0) -> float:
    """The share of trials whose limits are kept."""
    return sum(is_kept(seed, canary_misses, rest_misses, rate) for seed in range(40)) / 40


@pytest.mark.parametrize(("canary", "rest"), [(0.0, 0.0), (0.02, 0.02), (0.05, 0.05), (0.01, 0.05)])
def test_a_replica_that_misses_no_more_is_kept(canary: float, rest: float) -> None:
    assert kept(canary, rest) >= 0.9


@pytest.mark.parametrize(("canary", "rest"), [(0.05, 0.01), (0.1, 0.03), (0.5, 0.05), (0.05, 0.0)])
def test_a_replica_that_misses_far_more_goes_back(canary: float, rest: float) -> None:
    assert kept(canary, rest) <= 0.1


@pytest.mark.parametrize(("canary", "rest", "most"), [(0.03, 0.005, 0.2), (0.05, 0.01, 0.2), (0.02, 0.02, 1.0)])
def test_few_requests_at_the_end_speak_for_no_limits_that_miss_far_more(
    canary: float, rest: float, most: float
) -> None:
    share = kept(canary, rest, rate=0.2)
    assert share <= most
    assert canary != rest or share >= 0.85


def test_a_few_misses_decide_nothing_and_many_do_at_once() -> None:
    assert not on_trial(judged(100.0, 5.0), judged(300.0, 0.0)).misses_more(is_over=False)
    assert on_trial(judged(100.0, 6.0), judged(300.0, 0.0)).misses_more(is_over=False)
    assert on_trial(judged(300.0, 3.0), judged(900.0, 0.0)).misses_more(is_over=True)


@given(sides, sides)
def test_whatever_is_seen_only_possible_requests_count(canary: Verdicts, rest: Verdicts) -> None:
    trial = on_trial().with_more(canary, rest)
    assert trial in (on_trial(), on_trial(canary, rest))
    assert not trial.misses_more(is_over=False) or trial.canary.bad > LEAST_MISSED


@given(
    st.floats(1.0, 1e6),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
    st.floats(1.0, 1e6),
    st.floats(0.0, 1.0),
    st.booleans(),
)
def test_more_misses_of_the_canary_never_speak_for_it(
    asked: float, few: float, more: float, others: float, missed: float, is_over: bool
) -> None:
    rest, less = judged(others, missed * others), min(few, more)
    one, other = (on_trial(judged(asked, m * asked), rest).misses_more(is_over) for m in (less, max(few, more)))
    assert one <= other
