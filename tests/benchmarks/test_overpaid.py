"""What is overpaid is split by cause: every step follows from one decision and from what truly came."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.overpaid import AHEAD_SECONDS, CAUSES, Truth, paid, sizes
from holdfast.api.reasons import Reason
from holdfast.domain.decision import (
    Action,
    Candidate,
    CapacityView,
    Decision,
    Explanation,
    PlacementTarget,
    SloView,
    Verdict,
)
from holdfast.domain.service import ServiceKey

TRUE = Truth(np.arange(0.0, 601.0), np.arange(601.0) * 2.5, np.arange(601.0) * 10.0)
"""10 req/s, which keep two and a half engines at their capacity."""

DECISION = Decision(
    ServiceKey("default", "chat"),
    generation=1,
    verdict=Verdict(Action.HOLD, Reason.DOWN_HOLD, "", (PlacementTarget("l40s", 8),)),
    conditions=(),
    slo=SloView(arrival_rps=11.5),
    capacity=CapacityView("l40s", 3.0, "TPOT", 0.8),
    explanation=Explanation(
        forecast_rps=14.0,
        wanted_replicas=6,
        candidates=(Candidate("l40s", 5, 3.0, None, ""), Candidate("h100", 2, 9.0, None, "dearer")),
    ),
)


def test_each_cause_adds_to_the_one_before_it() -> None:
    assert dict(zip(CAUSES, sizes(DECISION, 0.0, TRUE, least=1), strict=True)) == {
        "whole replicas": 3,
        "capacity": 4,
        "level": 4,
        "headroom": 5,
        "letting go": 6,
        "hold": 8,
    }


def test_before_anything_is_known_all_of_a_size_is_the_load() -> None:
    blind = replace(DECISION, slo=SloView(), explanation=Explanation(wanted_replicas=8))
    assert sizes(blind, 0.0, TRUE, least=1) == (8,) * len(CAUSES)


def test_no_size_is_below_the_minimum() -> None:
    assert min(sizes(DECISION, 0.0, TRUE, least=4)) == 4


@pytest.mark.parametrize("now", [0.0, 400.0, 600.0 - AHEAD_SECONDS, 599.0])
def test_the_true_load_is_that_of_the_time_ahead_up_to_the_end(now: float) -> None:
    assert TRUE.rate_rps(now) == pytest.approx(10.0)
    assert TRUE.needed(now) == pytest.approx(2.5)


def test_hours_are_sizes_by_the_time_until_the_next_decision() -> None:
    hours = paid([(0.0, DECISION), (1800.0, DECISION)], TRUE, 1, 3600.0)
    assert hours[-1] == pytest.approx(8.0)
    assert hours[0] == pytest.approx(3.0)
