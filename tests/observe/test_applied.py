"""What an applied manifest sets, by the API server's own account as recorded from version 1.36."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.api.crd import LLMSERVICE
from holdfast.observe.objects.applied import LAST_APPLIED, applier_without_pin, fields_not_stored

Entry = dict[str, Any]
MODEL, PIN = {"f:model": {}}, {"f:replicas": {}}
KUBECTL, FLUX = "kubectl apply", "kustomize-controller"


def entry(manager: str, operation: str, fields: Any, time: str = "2026-11-27T02:31:36Z", **more: str) -> Entry:
    return {"manager": manager, "operation": operation, "time": time, "fieldsV1": {"f:spec": fields}, **more}


def body(pinned: Any, *entries: Any, applied: Any = None) -> dict[str, Any]:
    """An object that is pinned, its managedFields, and the spec of the last client-side apply (or its very text)."""
    meta: dict[str, Any] = {"name": "chat", "managedFields": list(entries)}
    if applied is not None:
        text = applied if isinstance(applied, str) else json.dumps({"spec": applied})
        meta["annotations"] = {LAST_APPLIED: text}
    return {"metadata": meta, "spec": {"model": {}, **({} if pinned is None else {"replicas": pinned})}}


CLIENT = entry("kubectl-client-side-apply", "Update", MODEL)
SERVER = entry(FLUX, "Apply", MODEL)
SCALED = {key: value for key, value in entry("kubectl", "Update", PIN, subresource="scale").items() if key != "time"}
PATCHED = entry("kubectl-patch", "Update", PIN)
STATUS = entry("holdfast-status", "Apply", MODEL, subresource="status")
RECORDED: dict[str, tuple[dict[str, Any], str]] = {
    "not pinned": (body(None, SERVER), ""),
    "client-side, scaled: nobody owns the field": (body(3, CLIENT, applied={}), KUBECTL),
    "client-side, the manifest sets it": (body(2, CLIENT, applied={"replicas": 2}), ""),
    "client-side, the manifest sets another": (body(3, SCALED, CLIENT, applied={"replicas": 2}), KUBECTL),
    "client-side, patched": (body(4, CLIENT, PATCHED, applied={}), KUBECTL),
    "server-side, scaled: nobody owns the field": (body(3, SERVER), FLUX),
    "server-side, the manifest sets it": (body(2, entry(FLUX, "Apply", MODEL | PIN)), ""),
    "server-side, the manifest set another before": (body(3, SERVER, SCALED), FLUX),
    "server-side, patched": (body(4, SERVER, PATCHED), FLUX),
    "a manifest of its own sets it": (body(2, SERVER, entry("pinner", "Apply", PIN)), ""),
    "Helm 3": (body(3, entry("helm", "Update", MODEL)), "helm"),
    "Helm 3, the chart sets it": (body(3, entry("helm", "Update", MODEL | PIN)), ""),
    "the newest applier is named": (body(3, SERVER, entry("argocd", "Apply", MODEL, "2026-12-01T00:00:00Z")), "argocd"),
    "created, nobody applied it": (body(3, entry("kubectl-create", "Update", MODEL)), ""),
    "only our status is applied": (body(3, STATUS), ""),
    "an applier of labels only": (body(3, {**SERVER, "fieldsV1": {"f:metadata": {}}}), ""),
    "pinned to none": (body(0, SERVER), FLUX),
}


@pytest.mark.parametrize(("seen", "expected"), RECORDED.values(), ids=RECORDED.keys())
def test_a_pin_is_looked_for_in_what_was_applied(seen: dict[str, Any], expected: str) -> None:
    assert applier_without_pin(seen) == expected


MISSING = [None, {}, {"manager": None}, {**SERVER, "fieldsV1": None}, {**SERVER, "fieldsV1": {"f:spec": None}}, 7]


@pytest.mark.parametrize("odd", MISSING)
def test_an_object_that_does_not_say_who_applied_it_accuses_nobody(odd: Any) -> None:
    assert applier_without_pin(body(3, odd)) == ""
    assert applier_without_pin(body(3, odd, SERVER)) == FLUX


@pytest.mark.parametrize("meta", [{}, {"managedFields": None}, {"managedFields": [], "annotations": None}, None])
def test_managed_fields_may_be_missing(meta: Any) -> None:
    assert applier_without_pin({"metadata": meta, "spec": {"replicas": 3}}) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "[" * 100_000])
def test_an_annotation_that_is_no_manifest_accuses_nobody(text: str) -> None:
    assert applier_without_pin(body(3, applied=text)) == ""


@pytest.mark.parametrize("text", ['{"spec": null}', "{}", '{"spec": []}', '{"spec": {"replicas": null}}'])
def test_a_manifest_without_a_readable_size_sets_none(text: str) -> None:
    assert applier_without_pin(body(3, applied=text)) == KUBECTL


def applied_spec(text: Any, **stored: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": {LAST_APPLIED: text}}, "spec": {"slo": {"ttft": "1s"}, **stored}}


LOST = json.dumps({"spec": {"slo": {"ttft": "1s", "e2e": "9s"}, "priority": 3}})


def test_fields_of_the_applied_manifest_that_are_not_stored_are_named() -> None:
    assert fields_not_stored(applied_spec(LOST, priority=4), LLMSERVICE) == ("spec.slo.e2e",)
    assert fields_not_stored(applied_spec(LOST), LLMSERVICE) == ("spec.priority", "spec.slo.e2e")


def test_a_huge_manifest_names_only_fields_of_ours() -> None:
    spec = {"priority": 3, "engine": {"env": [{"name": f"V{number}"} for number in range(5000)]}}
    spec |= {f"unknown{number}": number for number in range(5000)}
    assert fields_not_stored(applied_spec(json.dumps({"spec": spec})), LLMSERVICE) == ("spec.engine", "spec.priority")


@pytest.mark.parametrize(
    "text",
    [
        *(None, 7, "", "{", "[]", "null", "7", "[" * 100_000, '{"spec": null}', "{}", '{"spec": []}'),
        '{"spec": {"slo": [1]}}',
        '{"spec": {"slo":' * 500 + "1" + "}" * 1000,
    ],
)
def test_an_annotation_that_is_no_manifest_lost_nothing(text: Any) -> None:
    assert fields_not_stored(applied_spec(text), LLMSERVICE) == ()


@pytest.mark.parametrize("meta", [{}, {"annotations": None}, {"annotations": 7}, None])
def test_an_object_that_nobody_applied_lost_nothing(meta: Any) -> None:
    assert fields_not_stored({"metadata": meta, "spec": {}}, LLMSERVICE) == ()
