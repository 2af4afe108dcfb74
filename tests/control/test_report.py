"""What people read in status."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import FIGURES, condition_news, figures, invalid_status, is_warning, status_of
from holdfast.domain.decision import (
    Action,
    BatchView,
    Candidate,
    CapacityView,
    ClassView,
    Explanation,
    SloView,
    Verdict,
)
from holdfast.domain.engine import EngineFacts
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Concurrency, LatencyQuantiles
from holdfast.observe.objects.cluster import Invalid
from tests.control.parts import decision, llmservice, parts

NONE = BatchingStatus()


def test_status_says_what_runs_and_what_it_costs() -> None:
    part = parts(ready={"h100": 2}, sizes={"h100": 2})
    decided = replace(decision(part, Action.HOLD, h100=2), slo=SloView(attainment=0.995, good_rps=2.0, arrival_rps=2.1))
    status = status_of(part, decided, NONE, {}, now=0.0)
    assert status["replicas"] == {"desired": 2, "ready": 2, "starting": 0, "draining": 0, "summary": "2/2"}
    assert status["reason"] == "Serving"
    assert status["cost"]["perHour"] == 6.0
    assert status["cost"]["perThousandGoodRequests"] == 0.83
    assert status["url"] == "http://chat.prod.svc:8000"
    assert status["slo"]["attainment"] == "99.5%"


def test_status_says_how_each_class_did() -> None:
    part = parts(ready={"h100": 2}, sizes={"h100": 2})
    premium = ClassView("premium", 0.999, 0.9965, -2.5, 2000.0)
    classes = (ClassView("", 0.99, 1.0, 1.0, 9.0), premium, ClassView("bulk", 0.9))
    decided = replace(decision(part, Action.HOLD, h100=2), slo=SloView(0.9965, classes=classes, hardest="premium"))
    found = {"objective": "99.9%", "attainment": "99.65%", "budgetRemaining": "-250%", "requests": 2000.0}
    said = [{"name": "premium", **found}, {"name": "bulk", "objective": "90%", "requests": 0.0}]
    assert status_of(part, decided, NONE, {}, now=0.0)["slo"]["hardestClass"] == "premium"
    assert status_of(part, decided, NONE, {}, now=0.0)["slo"]["classes"] == said
    assert figures(part, decided)["slo"]["classes"] == said


def test_status_says_how_much_batch_work_is_left() -> None:
    part = parts(ready={"h100": 2}, sizes={"h100": 2})
    batch = (BatchView("nightly", 120.0, 0.5, 3600.0), BatchView("rest", None, 0.0, None))
    decided = replace(decision(part, Action.HOLD, h100=2), slo=SloView(batch=batch))
    said = [{"name": "nightly", "unfinished": 120.0, "donePerMinute": 30.0}, {"name": "rest", "donePerMinute": 0.0}]
    assert status_of(part, decided, NONE, {}, now=0.0)["slo"]["batch"] == said


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    status = status_of(part, decision(part, Action.HOLD, h100=1), NONE, {}, now=0.0)
    assert "attainment" not in status["slo"]
    assert "capacity" not in status
    assert "perMillionTokens" not in status["cost"]


def test_status_says_what_the_engines_of_each_accelerator_report_of_themselves() -> None:
    part = parts(ready={"h100": 2}, sizes={"h100": 2})
    facts = EngineFacts(
        kv_tokens=463_459.0,
        dtype="bfloat16",
        quantization="fp8",
        max_model_len=32_768,
        speculative_tokens=3,
        accepted_drafts=1.2345,
        front_end="Python",
        front_end_lag_seconds=0.02,
    )
    decided = replace(decision(part, Action.HOLD, h100=2), engines=(("h100", facts), ("l40s", EngineFacts())))
    (placement,) = status_of(part, decided, NONE, {}, now=0.0)["placements"]
    assert placement["engine"] == {
        "kvCacheTokens": 463_000.0,
        "maxModelLen": 32_768,
        "dtype": "bfloat16",
        "quantization": "fp8",
        "speculativeTokens": 3,
        "acceptedDraftTokens": 1.23,
        "frontEnd": "Python",
        "frontEndLag": "20ms",
    }
    silent = replace(decided, engines=(("h100", EngineFacts()),))
    assert "engine" not in status_of(part, silent, NONE, {}, now=0.0)["placements"][0]


NUMBERS = st.none() | st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])
QUANTILES = st.builds(LatencyQuantiles, NUMBERS, NUMBERS, NUMBERS)
SLOS = st.builds(
    SloView,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    QUANTILES,
    QUANTILES,
    concurrency=st.builds(Concurrency, NUMBERS, NUMBERS, NUMBERS),
    source=st.sampled_from(["exact", "engine", "bounds"]),
)
CAPACITIES = st.builds(
    CapacityView, st.just("h100"), st.floats(), st.sampled_from(["TTFT", "KVCache"]), st.floats(0.0, 1.0)
)


@given(SLOS, st.none() | CAPACITIES, st.integers(0, 3), st.booleans())
def test_figures_are_those_of_the_whole_status_whatever_the_numbers(
    slo: SloView, capacity: CapacityView | None, ready: int, priced: bool
) -> None:
    service = llmservice(accelerators=[{"name": "h100", **({"costPerHour": 3.0} if priced else {})}])
    part = parts(service, ready={"h100": ready}, sizes={"h100": ready})
    made = replace(decision(part, Action.HOLD, h100=ready), slo=slo, capacity=capacity)
    whole = status_of(part, made, NONE, {}, now=0.0)
    assert figures(part, made) == {name: whole[name] for name in FIGURES & whole.keys()}


def test_status_says_how_many_requests_are_held_at_once_and_nothing_where_no_engine_reports_them() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    made = replace(decision(part, Action.HOLD, h100=1), slo=SloView(concurrency=Concurrency(25.4, 31.0, None)))
    told = status_of(part, made, NONE, {}, now=0.0)["slo"]
    assert (told["concurrencyP50"], told["concurrencyP90"]) == (25.0, 31.0)
    assert "concurrencyP99" not in told
    silent = replace(made, slo=SloView())
    assert not [name for name in status_of(part, silent, NONE, {}, now=0.0)["slo"] if "oncurrency" in name]


def test_a_hold_does_not_displace_the_last_change() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    first = status_of(part, decision(part, Action.SCALE_UP, h100=2), NONE, {}, now=0.0)
    second = status_of(part, decision(part, Action.HOLD, h100=2), NONE, first, now=60.0)
    assert second["lastDecision"] == first["lastDecision"]


def test_a_pin_that_is_gone_is_no_reason_any_more() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    up, hold = decision(part, Action.SCALE_UP, h100=2), decision(part, Action.HOLD, h100=2)
    pinned = replace(up, verdict=replace(up.verdict, reason=Reason.PINNED))
    first = status_of(part, pinned, NONE, {}, now=0.0)
    held = replace(hold, verdict=replace(hold.verdict, reason=Reason.PINNED))
    assert status_of(part, held, NONE, first, now=30.0)["lastDecision"] == first["lastDecision"]
    after = status_of(part, hold, NONE, first, now=60.0)["lastDecision"]
    assert (after["action"], after["reason"]) == ("Hold", str(hold.verdict.reason))


def test_a_hold_whose_figures_move_writes_nothing() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    first = decision(part, Action.HOLD, h100=1)
    moved = replace(
        first,
        verdict=replace(first.verdict, message="1.2 req/s expected"),
        explanation=Explanation(forecast_rps=1.2),
    )
    old = status_of(part, first, NONE, {}, now=0.0)
    assert status_of(part, moved, NONE, old, now=60.0) == old
    other = replace(first, verdict=replace(first.verdict, reason=Reason.DOWN_HOLD))
    assert status_of(part, other, NONE, old, now=60.0)["lastDecision"]["reason"] == "DownHold"


def test_a_change_carries_its_inputs_and_a_hold_does_not_touch_them() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    behind = Explanation(forecast_rps=29.0, candidates=(Candidate("h100", 4, 8.9, None),), guards=("AtMaximum: 4",))
    up = replace(decision(part, Action.SCALE_UP, h100=4), explanation=behind)
    first = status_of(part, up, NONE, {}, now=0.0)
    assert first["lastDecision"]["inputs"]["forecastRps"] == 29.0
    assert first["lastDecision"]["candidates"][0]["replicas"] == 4
    assert first["lastDecision"]["guards"] == ["AtMaximum: 4"]
    assert (
        status_of(part, decision(part, Action.HOLD, h100=4), NONE, first, now=60.0)["lastDecision"]
        == (first["lastDecision"])
    )


def test_what_is_recommended_keeps_the_time_since_when_it_has_been_so() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    free = Verdict(Action.SCALE_UP, Reason.FORECAST_ABOVE_CAPACITY, "1 -> 2 replicas")
    first = replace(decision(part, Action.HOLD, h100=1), recommendation=free)
    more = replace(first, recommendation=replace(free, message="1 -> 3 replicas"))
    old = status_of(part, first, NONE, {}, now=0.0)
    new = status_of(part, more, NONE, old, now=60.0)
    assert new["recommendation"]["time"] == old["recommendation"]["time"]
    assert new["recommendation"]["message"] == "1 -> 3 replicas"
    assert "inputs" not in new["lastDecision"]


def test_remarks_about_the_pods_stand_in_ready() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    status = status_of(part, decision(part, Action.HOLD, h100=1), NONE, {}, 0.0, ("h100: no admission limit",))
    assert status["conditions"][0]["message"] == "1 of 1 replica is ready; h100: no admission limit"


def test_a_second_change_of_the_same_kind_is_a_new_decision() -> None:
    part = parts(ready={"h100": 1}, sizes={"h100": 1})
    decided = decision(part, Action.SCALE_UP, h100=2)
    first = status_of(part, decided, NONE, {}, now=0.0)
    more = replace(decided, verdict=Verdict(Action.SCALE_UP, Reason.FORECAST_ABOVE_CAPACITY, "2 -> 4 replicas"))
    second = status_of(part, more, NONE, first, now=60.0)
    assert second["lastDecision"]["time"] != first["lastDecision"]["time"]


def test_a_condition_keeps_its_transition_time_until_its_status_changes() -> None:
    part = parts()
    decided = decision(part, Action.HOLD, h100=1)
    first = status_of(part, decided, NONE, {}, now=0.0)
    second = status_of(part, decided, NONE, first, now=600.0)
    assert second["conditions"] == first["conditions"]
    assert condition_news(first, second) == []
    assert [item["type"] for item in condition_news({}, first)] == ["Ready"]


@pytest.mark.parametrize(
    ("status", "reason", "known", "warns"),
    [
        ("False", "NoReplicas", {}, False),
        ("False", "MetricsMissing", {}, False),
        ("False", "MetricsHold", {}, False),
        ("False", "SecretMissing", {}, True),
        ("False", "InsufficientGPUs", {}, True),
        ("False", "NoReplicas", {"conditions": [], "replicas": {"ready": 1}}, True),
        ("False", "MetricsMissing", {"conditions": [], "replicas": {"ready": 1}}, True),
        ("False", "MetricsMissing", {"conditions": [], "replicas": {"ready": 0}}, False),
        ("False", "MetricsStale", {"conditions": [], "replicas": {"ready": 0}}, True),
        ("True", "Serving", {}, False),
        ("Unknown", "SLOUnknown", {}, False),
    ],
)
def test_what_every_first_replica_lacks_is_told_without_a_warning(
    status: str, reason: str, known: dict[str, Any], warns: bool
) -> None:
    assert is_warning({"type": "Any", "status": status, "reason": reason}, known) is warns


def test_an_object_that_is_not_understood_keeps_what_was_known_and_says_so() -> None:
    entry = Invalid(ServiceKey("prod", "chat"), 2, "slo.ttft: must be a duration")
    status = invalid_status(entry, {"url": "http://x", "observedGeneration": 1}, now=0.0)
    assert status["url"] == "http://x"
    assert status["observedGeneration"] == 2
    assert status["reason"] == "Invalid"
    assert {(item["type"], item["reason"]) for item in status["conditions"]} == {
        ("Ready", "Invalid"),
        ("Stalled", "Invalid"),
    }


def test_a_tls_service_is_reached_by_https() -> None:
    service = LLMService.parse(
        {
            "metadata": {"name": "chat", "namespace": "prod"},
            "spec": {
                "model": {"uri": "m"},
                "slo": {"ttft": "1s", "tpot": "50ms"},
                "accelerators": [{"name": "h100"}],
                "engine": {"tlsSecretRef": {"name": "cert"}},
            },
        }
    )
    part = parts(service)
    assert status_of(part, decision(part, Action.HOLD, h100=1), NONE, {}, 0.0)["url"].startswith("https://")
