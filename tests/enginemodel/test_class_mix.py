"""What a replica carries of a mix of classes: the class whose objectives allow the least decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.service import ServiceSpec, Slo
from holdfast.enginemodel.class_mix import mean_ttft_seconds, shares_ahead
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate, StepLawModel
from tests.builders import accelerator, service

MIX = LengthMix.from_means(1000.0, 200.0, prompt_cv=1.0, output_cv=1.0)
OWN = Slo(1.0, 0.05, 0.99, 3600.0)
PREMIUM = Slo(0.3, 0.05, 0.99, 3600.0, name="premium", priority=10)
BULK = Slo(30.0, 0.2, 0.9, 3600.0, name="bulk", priority=-10)
H100 = accelerator("h100")


def spec(slo: Slo) -> ServiceSpec:
    return replace(service().spec, slo=slo, model_uri="Qwen/Qwen3-8B")


def rate(*classes: Slo, own: Slo = OWN) -> ReplicaRate:
    return StepLawModel().rate(spec(replace(own, classes=classes)), H100, MIX, 1.0)


def alone(slo: Slo) -> float:
    return rate(own=replace(slo, name="", priority=0)).rate_rps


def test_without_classes_the_answer_is_the_same_for_all_shares() -> None:
    found = rate()
    assert found.of_mix({"premium": 1.0}) is found
    assert (found.slo, found.by_class, found.name) == (None, (), "")


def test_where_shares_are_unknown_the_tightest_class_may_be_all_of_the_traffic() -> None:
    found = rate(PREMIUM, BULK)
    assert (found.rate_rps, found.name) == (alone(PREMIUM), "premium")


def test_a_class_that_starts_first_bounds_its_own_rate_and_not_that_of_all() -> None:
    found = rate(PREMIUM)
    few, many = (found.of_mix({"": 1.0 - share, "premium": share}) for share in (0.2, 0.95))
    assert (few.rate_rps, few.name) == (alone(OWN), ""), "one in five waits for one in five"
    assert many.rate_rps == pytest.approx(min(alone(PREMIUM) / 0.95, alone(OWN)))
    assert alone(PREMIUM) < many.rate_rps


def test_a_class_that_starts_last_bounds_the_rate_of_all() -> None:
    late = replace(PREMIUM, priority=-10)
    found = rate(late).of_mix({"": 0.8, "premium": 0.2})
    assert (found.rate_rps, found.name) == (alone(PREMIUM), "premium")


def test_the_tightest_tpot_paces_the_requests_of_all_classes() -> None:
    fast = replace(PREMIUM, ttft_seconds=1.0, tpot_seconds=0.015)
    found = rate(fast, BULK).of_mix({"": 0.5, "premium": 0.1, "bulk": 0.4})
    assert found.rate_rps <= alone(replace(BULK, tpot_seconds=0.015))
    assert found.rate_rps < alone(OWN)


def test_the_price_of_the_tightest_tpot_is_known_before_its_class_has_a_request() -> None:
    fast = replace(PREMIUM, ttft_seconds=1.0, tpot_seconds=0.01)
    found = rate(fast, BULK)
    assert found.of_mix({"": 1.0, "premium": 0.0}).slowed == alone(OWN) / alone(replace(OWN, tpot_seconds=0.01)) > 2.0
    assert rate(BULK).slowed == rate().slowed == 1.0, "no class is tighter than the service"
    assert rate(replace(fast, tpot_seconds=0.0001)).slowed == 1.0, "what cannot be met is said otherwise"


def test_no_size_is_made_for_a_class_with_next_to_no_requests() -> None:
    rare = replace(PREMIUM, priority=-10)
    found = rate(rare).of_mix({"": 0.995, "premium": 0.005})
    assert (found.rate_rps, found.name) == (pytest.approx(alone(OWN) / 0.995), "")


@pytest.mark.parametrize("tight", [{"tpot_seconds": 0.0001}, {"ttft_seconds": 0.0001}])
def test_a_class_that_no_load_would_meet_is_named_and_asks_for_no_replicas(tight: dict[str, float]) -> None:
    impossible = replace(PREMIUM, **tight)
    found = rate(BULK, impossible).of_mix({"": 0.5, "premium": 0.1, "bulk": 0.4})
    assert (found.feasible, found.name) == (False, "premium")
    assert found.rate_rps > 0.0
    if "ttft_seconds" in tight:
        assert found.rate_rps == pytest.approx(min(alone(OWN) / 0.6, alone(replace(BULK, tpot_seconds=0.05))))


@given(st.dictionaries(st.sampled_from(["", "premium", "bulk", "gone"]), st.floats(0.0, 1.0)))
def test_no_shares_make_a_rate_that_is_none(shares: dict[str, float]) -> None:
    ahead = shares_ahead(replace(OWN, classes=(PREMIUM, BULK)), shares)
    assert all(0.0 < share <= 3.0 for share in ahead.values())


def test_a_queue_of_a_patient_class_is_no_backlog() -> None:
    slo = replace(OWN, classes=(PREMIUM, BULK))
    assert mean_ttft_seconds(slo, {}) == mean_ttft_seconds(OWN, {"": 1.0}) == 1.0
    assert mean_ttft_seconds(slo, {"": 0.5, "bulk": 0.5}) == 15.5


def test_shares_of_a_renamed_class_make_no_request_late() -> None:
    slo = replace(OWN, classes=(BULK,))
    assert mean_ttft_seconds(slo, {"gone": 1.0}) == mean_ttft_seconds(slo, {"": 0.0, "gone": 1.0}) == 1.0
    assert mean_ttft_seconds(slo, {"bulk": 0.5, "gone": 0.5}) == 30.0
