"""What of a live object counts as ours."""

from typing import Any

import kopf
import pytest

from holdfast.rendered.live import RENDERING, SCALING, Live

FIELDS = {"f:spec": {"f:ports": {}, "f:selector": {}}}


def entry(manager: str = RENDERING, fields: Any = FIELDS, operation: str = "Apply", **more: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsV1": fields, "apiVersion": "v1"} | more


def body(*entries: dict[str, Any], uid: str = "u1", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "chat", "uid": uid, "managedFields": list(entries)}} | more


def state(*entries: dict[str, Any], **more: Any) -> str:
    return Live.of("Service", body(*entries, **more)).state


def test_what_others_own_and_when_is_no_part_of_the_state() -> None:
    alone = state(entry())
    other = entry("kubectl-edit", {"f:metadata": {"f:annotations": {}}}, "Update")
    assert state(other, entry(time="2026-11-21T04:00:00Z"), status={"x": 1}) == alone
    # The same name with another operation is another manager to the API server.
    assert state(entry(), entry(RENDERING, {"f:status": {}}, "Update")) == alone


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(body(entry(fields={"f:spec": {"f:ports": {}}})), id="a field was taken over"),
        pytest.param(body(entry(), uid="u2"), id="it was made anew"),
        pytest.param(body(), id="managedFields were wiped"),
        pytest.param(body(entry(), entry(SCALING, FIELDS)), id="a creation was cut short"),
    ],
)
def test_what_must_be_put_right_changes_the_state(other: dict[str, Any]) -> None:
    assert Live.of("Service", other).state != state(entry())


def test_the_scaling_manager_may_hold_the_size_and_nothing_else() -> None:
    size = {"f:spec": {"f:replicas": {}}}
    assert not Live.of("Deployment", body(entry(), entry(SCALING, size))).half_made
    assert Live.of(
        "Deployment", body(entry(), entry(SCALING, {"f:spec": {"f:replicas": {}, "f:paused": {}}}))
    ).half_made


def test_a_watch_event_and_an_answer_of_the_same_object_are_the_same() -> None:
    plain = body(entry(), entry(SCALING, FIELDS))
    assert Live.of("Service", kopf.Body(plain)) == Live.of("Service", plain)  # type: ignore[arg-type, typeddict-item]


@pytest.mark.parametrize("meta", [{}, {"managedFields": None, "ownerReferences": None}, {"managedFields": [{}]}])
def test_an_object_that_says_little_is_no_error(meta: dict[str, Any]) -> None:
    assert Live.of("Service", {"metadata": meta}).owners == ()
