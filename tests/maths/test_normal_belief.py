"""A belief that evidence moves by how sure it is, and refutes at any factor."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.maths.normal_belief import DRIFT, FARTHEST, REFUTED, WIDEST, NormalBelief

PRIOR = NormalBelief(0.0, 0.15)
numbers = st.floats(allow_nan=True, allow_infinity=True)
beliefs = st.builds(NormalBelief, st.floats(-FARTHEST, FARTHEST), st.floats(0.01, WIDEST))


@pytest.mark.parametrize("factor", [1e-3, 0.05, 0.25, 4.0, 20.0, 1e3])
def test_one_measurement_overrules_a_confident_prior_at_any_factor(factor: float) -> None:
    after = PRIOR.measured(math.log(factor), 0.05)
    assert after.factor == pytest.approx(factor, rel=0.02)
    assert after.deviation < 0.06


def test_a_measurement_that_agrees_makes_it_surer_and_hardly_moves_it() -> None:
    after = PRIOR.measured(0.1, 0.15)
    assert 0.0 < after.mean < 0.1
    assert after.deviation < PRIOR.deviation


def test_old_evidence_never_counts_for_more_than_its_half_life() -> None:
    belief = PRIOR
    for _ in range(1000):
        belief = belief.measured(0.0, 0.15)
    assert belief.deviation > DRIFT
    for _ in range(12):
        belief = belief.measured(0.3, 0.15)
    assert belief.mean > 0.25, "an engine that becomes slower by a third is followed in minutes"


@given(beliefs, st.floats(-FARTHEST, FARTHEST), st.floats(0.01, 1.0))
def test_a_bound_moves_the_belief_to_its_own_side_only(belief: NormalBelief, bound: float, deviation: float) -> None:
    assert belief.at_least(bound, deviation).mean >= belief.mean - 1e-9
    assert belief.at_most(bound, deviation).mean <= belief.mean + 1e-9


@given(beliefs, numbers, st.floats(0.01, 1.0))
def test_it_stays_a_belief_whatever_is_reported(belief: NormalBelief, seen: float, deviation: float) -> None:
    for after in (belief.measured(seen, deviation), belief.at_least(seen, deviation), belief.at_most(seen, deviation)):
        assert math.isfinite(after.mean)
        assert abs(after.mean) <= 2.0 * FARTHEST
        assert 0.0 <= after.deviation <= WIDEST
        assert math.isfinite(after.factor)


def test_a_bound_that_is_already_kept_says_nothing() -> None:
    after = PRIOR.at_least(-1.0, 0.1)
    assert after.mean == pytest.approx(0.0, abs=1e-3)
    assert after.deviation >= PRIOR.deviation


@pytest.mark.parametrize("bound", [1.0, 3.0])
def test_a_bound_that_refutes_it_is_where_it_starts_anew(bound: float) -> None:
    assert PRIOR.at_least(bound, 0.1) == NormalBelief(bound, 0.1)
    assert PRIOR.at_most(-bound, 0.1) == NormalBelief(-bound, 0.1)


def test_its_intervals_cover_what_they_say() -> None:
    """Truths drawn from the prior and measured with noise lie in the 90 % interval nine times of ten."""
    draw, inside = random.Random(1), 0
    for _ in range(2000):
        truth, belief = draw.gauss(0.0, 0.35), NormalBelief(0.0, 0.35)
        for _ in range(3):
            belief = belief.measured(truth + draw.gauss(0.0, 0.15), 0.15)
        inside += abs(truth - belief.mean) < 1.645 * belief.deviation
    assert 0.87 < inside / 2000 < 0.96


def test_chance_alone_rarely_refutes() -> None:
    draw = random.Random(2)
    far = sum(PRIOR.refuted_by(draw.gauss(0.0, math.hypot(0.15, 0.15)), 0.15) for _ in range(10_000))
    assert far / 10_000 < 0.015
    assert REFUTED == 2.58
