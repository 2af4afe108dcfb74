"""Conditions keep the time of their last change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.conditions import (
    MAX_MESSAGE_LENGTH,
    TRANSIENT,
    Condition,
    ConditionType,
    Status,
    conditions_of,
    merge_conditions,
    said_once,
    worst,
)

EARLIER, NOW = "2026-11-01T10:00:00Z", "2026-11-01T11:00:00Z"


def condition(kind: str = "Ready", status: str = "True", reason: str = "Serving", time: str = "") -> Condition:
    return Condition(kind, status, reason, "message", 3, time)


def test_an_unchanged_status_keeps_its_time_while_the_reason_moves_on() -> None:
    (merged,) = merge_conditions(
        [condition(status="False", time=EARLIER)], [condition(status="False", reason="New")], NOW
    )
    assert (merged.last_transition_time, merged.reason) == (EARLIER, "New")


def test_a_changed_status_takes_the_time_of_now() -> None:
    (merged,) = merge_conditions([condition(time=EARLIER)], [condition(status="Unknown")], NOW)
    assert merged.last_transition_time == NOW


def test_a_new_condition_takes_the_time_of_now() -> None:
    (merged,) = merge_conditions([], [condition()], NOW)
    assert merged.last_transition_time == NOW


def test_an_old_condition_without_time_takes_the_time_of_now() -> None:
    (merged,) = merge_conditions([condition(time="")], [condition()], NOW)
    assert merged.last_transition_time == NOW


def test_reconciling_and_stalled_are_present_only_while_true() -> None:
    new = [condition("Reconciling", "False"), condition("Stalled"), condition("Ready", "False")]
    assert [item.type for item in merge_conditions([condition("Reconciling")], new, NOW)] == ["Stalled", "Ready"]


def test_merging_again_changes_nothing() -> None:
    once = merge_conditions([], [condition(), condition("SLOMet", "Unknown")], EARLIER)
    assert merge_conditions(once, once, NOW) == once


def test_a_condition_survives_being_stored() -> None:
    stored = Condition(ConditionType.SLO_MET, Status.UNKNOWN, "WarmingUp", "few requests", 7, EARLIER)
    assert conditions_of({"conditions": [stored.to_dict()]}) == (stored,)
    assert {type(value) for value in stored.to_dict().values()} == {str, int}


def test_a_status_without_conditions_has_none() -> None:
    assert conditions_of({}) == conditions_of({"conditions": None}) == ()


def test_a_damaged_condition_is_read_as_unknown() -> None:
    assert conditions_of({"conditions": [{"type": "Ready"}]}) == (Condition("Ready", "Unknown", "", ""),)


def test_the_last_words_of_an_engine_are_cut_to_what_the_api_takes() -> None:
    message = Condition("Ready", "False", "EngineFailing", "x" * 5000).to_dict()["message"]
    assert len(message) == MAX_MESSAGE_LENGTH
    assert message.endswith("…")


def shown(*kinds: tuple[str, str, str]) -> str:
    found = worst(condition(*each) for each in kinds)
    return "" if found is None else found.reason


GOOD = (
    ("Ready", "True", "Serving"),
    ("SLOMet", "True", "ObjectiveMet"),
    ("ScalingActive", "True", "FollowingSLO"),
    ("MetricsAvailable", "True", "MetricsFresh"),
    ("CapacityAvailable", "True", "AllPlaced"),
    ("FastLoopActive", "True", "LimitsApplied"),
)
NOT_OURS = ("FastLoopActive", "False", "NotOurEngines")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ([], "Serving"),
        ([("Ready", "True", "Idle")], "Idle"),
        ([("Reconciling", "True", "RolloutUnderWay")], "RolloutUnderWay"),
        ([("SLOMet", "Unknown", "WarmingUp"), ("Reconciling", "True", "RolloutUnderWay")], "WarmingUp"),
        ([("SLOMet", "Unknown", "WarmingUp"), ("Ready", "Unknown", "EngineHung")], "EngineHung"),
        ([("ScalingActive", "False", "Pinned"), ("SLOMet", "Unknown", "WarmingUp")], "Pinned"),
        ([("ScalingActive", "False", "MetricsHold"), ("MetricsAvailable", "False", "MetricsStale")], "MetricsStale"),
        ([("FastLoopActive", "False", "PluginOff"), ("ScalingActive", "False", "Recommend")], "PluginOff"),
        ([NOT_OURS], "Serving"),
        ([NOT_OURS, ("SLOMet", "Unknown", "WarmingUp")], "WarmingUp"),
        ([NOT_OURS, ("ScalingActive", "False", "OtherAutoscaler")], "OtherAutoscaler"),
        ([NOT_OURS, ("ScalingActive", "False", "Recommend")], "Recommend"),
        ([NOT_OURS, ("ScalingActive", "False", "PinnedOutsideManifest")], "PinnedOutsideManifest"),
        ([("CapacityAvailable", "False", "InsufficientGPUs"), ("MetricsAvailable", "False", "X")], "InsufficientGPUs"),
        ([("SLOMet", "False", "BelowCapacity"), ("CapacityAvailable", "False", "InsufficientGPUs")], "BelowCapacity"),
        ([("Stalled", "True", "TimezoneUnknown"), ("SLOMet", "False", "BelowCapacity")], "TimezoneUnknown"),
        ([("Ready", "False", "EngineFailing"), ("Stalled", "True", "TimezoneUnknown")], "EngineFailing"),
        ([("Ready", "False", "NoReplicas"), ("MetricsAvailable", "False", "MetricsMissing")], "NoReplicas"),
        ([("Ready", "False", "NoReplicas"), ("SLOMet", "False", "ColdStart")], "NoReplicas"),
        ([("Ready", "False", "NoReplicas"), ("CapacityAvailable", "False", "NoMatchingNodes")], "NoMatchingNodes"),
        ([("Ready", "False", "NoReplicas"), ("Stalled", "True", "PodsForbidden"),
          ("CapacityAvailable", "False", "NoMatchingNodes")], "PodsForbidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_worst_condition_comes_first(changed: list[tuple[str, str, str]], reason: str) -> None:
    kinds = {kind: (kind, status, why) for kind, status, why in (*GOOD, *changed)}
    assert shown(*kinds.values()) == shown(*reversed(kinds.values())) == reason


def test_conditions_of_others_and_none_at_all_are_never_the_worst() -> None:
    assert shown() == ""
    assert shown(("Approved", "False", "Denied")) == ""
    assert shown(("Approved", "False", "Denied"), *GOOD) == "Serving"


@pytest.mark.parametrize("kind", ConditionType)
@pytest.mark.parametrize("status", [Status.FALSE, Status.UNKNOWN])
def test_every_condition_that_is_not_true_is_worse_than_serving(kind: ConditionType, status: Status) -> None:
    if status is Status.FALSE and kind in TRANSIENT:
        return
    assert shown(*(each for each in GOOD if each[0] != kind), (kind, status, "Bad")) == "Bad"


LONG = 'failed to pull and unpack image "example.com/vllm:1": failed to resolve reference: not found'
REMEDY = "correct engine.image"


def messages(*told: tuple[str, str, str]) -> list[str]:
    """The messages of these conditions, each a type, a status and a message, as they are published."""
    return [each.message for each in said_once([Condition(kind, status, "X", text) for kind, status, text in told])]


def test_a_long_text_stands_in_the_worst_condition_and_the_others_refer_to_it() -> None:
    told = ("Stalled", "True", f"h100: {LONG}; {REMEDY}"), ("Ready", "False", f"chat-0: {LONG}; {REMEDY}; 0 of 1")
    assert messages(*told) == ["h100: see Ready", f"chat-0: {LONG}; {REMEDY}; 0 of 1"]
    assert messages(*reversed(told)) == [f"chat-0: {LONG}; {REMEDY}; 0 of 1", "h100: see Ready"]


def test_what_only_one_condition_says_stays_next_to_a_reference() -> None:
    told = ("Ready", "False", f"{LONG}; {REMEDY}"), ("SLOMet", "False", f"95% were good; {LONG}; {REMEDY}; raise it")
    assert messages(*told)[1] == "95% were good; see Ready; raise it"


def test_short_texts_are_repeated() -> None:
    told = ("Ready", "False", "no replica is ready yet; wait"), ("MetricsAvailable", "False", "no replica is ready yet")
    assert messages(*told) == [message for _, _, message in told]


PARTS = (LONG, f"chat-0: {LONG}", f"a: b: {LONG}", LONG[:70], LONG[10:], REMEDY, "x", "", "a: b")


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=4).map("; ".join), max_size=4))
def test_no_text_is_lost_and_a_second_look_changes_nothing(texts: list[str]) -> None:
    kinds = ("Ready", "SLOMet", "CapacityAvailable", "MetricsAvailable")
    once = said_once([Condition(kind, "False", "X", text) for kind, text in zip(kinds, texts, strict=False)])
    assert [each.type for each in once] == list(kinds[: len(texts)])
    assert said_once(once) == once
    for part in (part for text in texts for part in text.split("; ")):
        said = part.removeprefix("chat-0: ").removeprefix("a: b: ")
        assert any(said in each.message for each in once)
