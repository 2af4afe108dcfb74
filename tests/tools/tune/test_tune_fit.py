"""The few unknowns of an engine that trials tell: found where they can be, and never made worse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.tools.tune.fit import least_squares

UNKNOWN = st.floats(-2.0, 2.0)


@given(st.lists(UNKNOWN, min_size=3, max_size=3), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_what_is_measured_exactly_is_found(truth: list[float], seed: int) -> None:
    seen = np.random.default_rng(seed).uniform(-1.0, 1.0, (3, 3)) + 3.0 * np.eye(3)
    found = least_squares(lambda at: seen @ (at - np.array(truth)), np.zeros(3))
    assert found == pytest.approx(truth, abs=1e-3)


def test_a_curved_misfit_is_followed_with_shorter_strides() -> None:
    found = least_squares(lambda at: np.array([np.expm1(3.0 * (at[0] - 1.0)), 0.1 * at[1]]), np.array([-1.0, 0.5]))
    assert found == pytest.approx([1.0, 0.0], abs=0.01)


def test_what_changes_nothing_stays_as_it_was() -> None:
    start = np.array([0.3, -0.2])
    assert (least_squares(lambda at: np.ones(4), start) == start).all()
