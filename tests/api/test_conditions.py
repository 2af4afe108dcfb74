"""Conditions keep the time of their last change."""

from holdfast.api.conditions import (
    MAX_MESSAGE_LENGTH,
    Condition,
    ConditionType,
    Status,
    conditions_of,
    merge_conditions,
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
