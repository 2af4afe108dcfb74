"""The status as it is stored: rounded, readable, without what is not known."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.conditions import Condition
from holdfast.api.status import (
    CapacityStatus,
    ConditionStatus,
    CostStatus,
    DecisionStatus,
    LLMServiceStatus,
    PlacementStatus,
    ReplicaCounts,
    SLOStatus,
    attainment,
    duration,
)


def test_numbers_are_rounded_to_what_a_person_acts_on() -> None:
    slo = SLOStatus(
        attainment=0.98765, budget_remaining=0.4162, arrival_rps=41.27, ttft_p95_seconds=0.4123, window_seconds=3600
    )
    assert slo.to_dict() == {
        "attainment": "98.8%",
        "budgetRemaining": "42%",
        "arrivalRps": 41.0,
        "ttftP95": "410ms",
        "window": "1h",
    }


def test_what_is_not_known_is_left_out() -> None:
    status = LLMServiceStatus(slo=SLOStatus(attainment=math.nan, good_rps=math.inf), capacity=CapacityStatus())
    assert status.to_dict() == {
        "observedGeneration": -1,
        "conditions": [],
        "replicas": {"desired": 0, "ready": 0, "starting": 0, "draining": 0},
        "placements": [],
    }


def test_zero_is_known_and_stays() -> None:
    status = LLMServiceStatus(cost=CostStatus(per_hour=0.0), replicas=ReplicaCounts())
    assert status.to_dict()["cost"] == {"perHour": 0.0}


def test_a_whole_status_is_plain_json() -> None:
    status = LLMServiceStatus(
        observed_generation=4,
        conditions=(ConditionStatus.of(Condition("Ready", "True", "Serving", "m", 4, "2026-11-01T10:00:00Z")),),
        placements=(PlacementStatus(accelerator="h100", desired=4, ready=3, cost_per_hour=11.804),),
        last_decision=DecisionStatus(
            time="2026-11-01T10:00:00Z", action="ScaleUp", reason="BacklogToDrain", message="m"
        ),
    )
    stored = json.loads(json.dumps(status.to_dict()))
    assert stored["placements"] == [{"accelerator": "h100", "desired": 4, "ready": 3, "costPerHour": 11.8}]
    assert stored["conditions"][0]["lastTransitionTime"] == "2026-11-01T10:00:00Z"
    assert LLMServiceStatus.model_fields.keys() >= {"last_decision", "recommendation"}


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100%"), (0.99, "99%"), (0.9987, "99.87%"), (0.873, "87%"), (0.999999, "99.9999%"), (0.0, "0%")],
)
def test_attainment_keeps_two_digits_of_what_is_missing(share: float, text: str) -> None:
    assert attainment(share) == text


@given(st.floats(0, 1))
def test_one_bad_request_in_a_million_never_reads_as_all_good(share: float) -> None:
    text = attainment(share)
    assert text is not None
    assert len(text) <= 16
    assert (text == "100%") == (share > 1 - 5e-9)


@given(st.floats())
def test_any_duration_is_written_or_left_out(seconds: float) -> None:
    text = duration(seconds)
    assert text is None or (text[0].isdigit() and len(text) <= 16)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7976931348623157e308])
def test_what_is_not_finite_is_left_out(value: float) -> None:
    slo = SLOStatus(good_rps=value, ttft_p50_seconds=value, attainment=value)
    assert slo.to_dict() == {}
    assert CostStatus(per_hour=value).to_dict().get("perHour", 0) < math.inf


@given(st.floats(0.1, 1e5), st.floats(-0.004, 0.004))
def test_noise_below_the_rounding_rarely_changes_what_is_stored(rate: float, noise: float) -> None:
    stored = SLOStatus(arrival_rps=rate).to_dict()["arrivalRps"]
    assert stored == pytest.approx(rate, rel=0.051)
    assert SLOStatus(arrival_rps=rate * (1 + noise)).to_dict()["arrivalRps"] == pytest.approx(stored, rel=0.11)


@given(st.floats(0, 1), st.floats(-1e6, 1e6), st.floats(0, 1e7))
def test_every_text_fits_the_schema(share: float, budget: float, seconds: float) -> None:
    slo = SLOStatus(attainment=share, budget_remaining=budget, ttft_p99_seconds=seconds, tpot_p50_seconds=seconds / 1e6)
    assert all(len(text) <= 16 for text in slo.to_dict().values())
