"""Which runs count for the speed of the machine."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.speed import Reference, Speed, differs, reference, speed, unsteady

STEADY = speed(1.0, [1.0] * 30, 1.0)
REFERENCE = Reference(1.0, 1.0)


def test_a_run_at_the_reference_s_speed_counts() -> None:
    assert unsteady(STEADY, REFERENCE, 0.1) == ""


@pytest.mark.parametrize("milliseconds", [0.88, 1.12])
def test_a_faster_machine_is_as_unsteady_as_a_slower_one(milliseconds: float) -> None:
    found = unsteady(speed(1.0, [milliseconds] * 30, 1.0), REFERENCE, 0.1)
    assert found == f"{milliseconds:.2f} of the reference's time"
    assert unsteady(speed(1.0, [milliseconds] * 30, 1.0), REFERENCE, 0.15) == ""


def test_a_run_whose_mean_hides_a_change_does_not_count() -> None:
    changed = speed(1.0, [0.85] * 15 + [1.15] * 15, 1.0)
    assert unsteady(changed, REFERENCE, 0.1) == "the time changed by 1.35 within the run"


def test_the_first_runs_of_a_cell_are_judged_by_their_own_course() -> None:
    assert unsteady(speed(1.0, [7.0] * 30, 1.0), None) == ""
    assert unsteady(speed(1.0, [7.0] * 10 + [14.0] * 20, 1.0), None) != ""


@pytest.mark.parametrize("samples", [[], [1.0] * 5, [math.nan] * 30, [0.0] * 30, [-1.0] * 30, [math.inf] * 30])
def test_a_run_whose_speed_is_not_known_does_not_count(samples: list[float]) -> None:
    assert unsteady(speed(1.0, samples, 1.0), REFERENCE) == "its speed is not known"


def test_samples_that_are_no_times_are_left_out() -> None:
    assert unsteady(speed(1.0, [1.0, math.nan, -3.0, math.inf] * 10, 1.0), REFERENCE, 0.1) == ""


def test_what_the_host_takes_away_counts_as_slowness() -> None:
    assert speed(1.0, [1.0] * 30, 1.0, stolen_share=0.5).during_ms == 2.0
    assert math.isnan(speed(1.0, [1.0] * 30, 1.0, stolen_share=1.0).during_ms)


def test_the_reference_is_the_median_of_enough_runs() -> None:
    runs = [Speed(each, (each,), each) for each in (1.0, 1.2, 9.0, 1.1)]
    assert reference(runs[:3]) is None
    assert reference(runs) == Reference(pytest.approx(1.15), pytest.approx(1.15))
    assert reference([Speed(math.nan, (), math.nan)] * 9) is None


def test_the_rule_cannot_see_what_became_of_the_requests() -> None:
    seen = {field.name for field in dataclasses.fields(Speed)} | {field.name for field in dataclasses.fields(Reference)}
    assert not seen & {field.name for field in dataclasses.fields(Figures)}


@given(st.floats(), st.floats(), st.floats(0.0, 1.0))
def test_differing_knows_no_order(one: float, other: float, tolerance: float) -> None:
    assert differs(one, other, tolerance) is differs(other, one, tolerance)
