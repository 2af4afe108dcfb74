"""A replica on trial beside the others: chance alone seldom decides, a real difference does soon."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.policy.batching.canary_test import LEAST_JUDGED, LEAST_SECONDS, MOST_SECONDS, Evidence, Outcome
from holdfast.policy.estimate.slo_budget import Verdicts

LOOK_SECONDS = 15.0
sides = st.builds(Verdicts, st.floats(allow_nan=True), st.floats(allow_nan=True))


def judged(requests: float, bad: float) -> Verdicts:
    return Verdicts(float(requests - bad), float(bad))


def tried(seed: int, canary_misses: float, rest_misses: float, rate: float = 5.0, replicas: int = 4) -> Outcome:
    """How a trial ends among replicas that answer `rate` requests/s each."""
    chance = random.Random(seed)
    evidence, seconds = Evidence(), 0.0

    def side(count: int, misses: float) -> Verdicts:
        return judged(count, sum(chance.random() < misses for _ in range(count)))

    while (outcome := evidence.outcome(seconds)) is Outcome.OPEN:
        each = round(rate * LOOK_SECONDS)
        evidence = evidence.weighed(side(each, canary_misses), side(each * (replicas - 1), rest_misses))
        seconds += LOOK_SECONDS
    return outcome


def share(outcome: Outcome, canary_misses: float, rest_misses: float) -> float:
    return sum(tried(seed, canary_misses, rest_misses) is outcome for seed in range(40)) / 40


@pytest.mark.parametrize(("canary", "rest"), [(0.0, 0.0), (0.02, 0.02), (0.05, 0.05), (0.01, 0.05)])
def test_a_replica_that_misses_no_more_is_kept(canary: float, rest: float) -> None:
    assert share(Outcome.KEEP, canary, rest) >= 0.9


@pytest.mark.parametrize(("canary", "rest"), [(0.05, 0.01), (0.1, 0.03), (0.5, 0.05), (0.05, 0.0)])
def test_a_replica_that_misses_far_more_goes_back(canary: float, rest: float) -> None:
    assert share(Outcome.RETURN, canary, rest) >= 0.9


def test_one_burst_of_misses_decides_nothing() -> None:
    evidence = Evidence().weighed(judged(100.0, 100.0), judged(300.0, 0.0))
    assert evidence.outcome(LEAST_SECONDS) is Outcome.OPEN


def test_a_replica_that_served_too_little_goes_back_in_the_end() -> None:
    few = Evidence(0.0, LEAST_JUDGED - 1.0)
    assert few.outcome(MOST_SECONDS - 1.0) is Outcome.OPEN
    assert few.outcome(MOST_SECONDS) is Outcome.RETURN


def test_the_first_minutes_keep_nothing() -> None:
    assert Evidence(-100.0, 1e6).outcome(LEAST_SECONDS - 1.0) is Outcome.OPEN


@given(sides, sides)
def test_whatever_is_seen_evidence_stays_finite(canary: Verdicts, rest: Verdicts) -> None:
    evidence = Evidence().weighed(canary, rest)
    assert math.isfinite(evidence.log_ratio)
    assert abs(evidence.log_ratio) <= 1.0


@given(st.floats(1.0, 1e6), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(1.0, 1e6), st.floats(0.0, 1.0))
def test_more_misses_of_the_canary_never_speak_for_it(
    asked: float, few: float, more: float, others: float, missed: float
) -> None:
    rest, less = judged(others, missed * others), min(few, more)
    one, other = (Evidence().weighed(judged(asked, m * asked), rest).log_ratio for m in (less, max(few, more)))
    assert one <= other + 1e-9
