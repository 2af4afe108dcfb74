"""Ids of pods on a platform that assigns them, such as OpenShift, which an admission policy imitates here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.kubectl import Json, Kubectl, KubectlError
from holdfast.render import RenderSettings
from tests.api.refusals import changed
from tests.chart.test_chart import TRIAL, pod_spec
from tests.chart.test_chart import render as render_chart
from tests.render.test_platform_ids import ASSIGNED, OURS, benchmarks, engines

pytestmark = pytest.mark.cluster

_POLICY = "imitates-restricted-v2"
_UID_RANGE = {"openshift.io/sa.scc.uid-range": "1000660000/10000"}


def _in_range(field: str, whose: str) -> str:
    absent = f"!has({whose}.securityContext) || !has({whose}.securityContext.{field})"
    value = f"{whose}.securityContext.{field}"
    return f"{absent} || ({value} >= variables.first && {value} < variables.first + variables.size)"


def _policy(namespace: str) -> list[Json]:
    """What restricted-v2 says of ids: in pods of one namespace they are absent, or in its range."""
    given = "namespaceObject.metadata.annotations['openshift.io/sa.scc.uid-range'].split('/')"
    rules = {field: _in_range(field, "object.spec") for field in ("runAsUser", "runAsGroup", "fsGroup")}
    rules |= {
        f"container {field}": f"variables.containers.all(c, {_in_range(field, 'c')})"
        for field in ("runAsUser", "runAsGroup")
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "variables": [
            {"name": "first", "expression": f"int({given}[0])"},
            {"name": "size", "expression": f"int({given}[1])"},
            {
                "name": "containers",
                "expression": "object.spec.containers"
                " + (has(object.spec.initContainers) ? object.spec.initContainers : [])",
            },
        ],
        "validations": [
            {"expression": rule, "message": f"{field}: must be in the ranges: [1000660000, 1000669999]"}
            for field, rule in rules.items()
        ],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {
        "policyName": _POLICY,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    kind, version = "ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": _POLICY}, "spec": spec},
        {"apiVersion": version, "kind": f"{kind}Binding", "metadata": {"name": _POLICY}, "spec": binding},
    ]


@pytest.fixture(scope="module")
def openshift(place: Kubectl) -> Iterator[Kubectl]:
    """A namespace whose policy is in force."""
    place.patch("namespace", place.namespace, {"metadata": {"annotations": _UID_RANGE}})
    place.apply(_policy(place.namespace))
    foreign = {"securityContext": {"runAsUser": 7}, "containers": [{"name": "any", "image": "any"}]}
    place.wait_until(lambda: "must be in the ranges" in _refusal(place, foreign), 60, "the policy")
    yield place
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        place.delete(kind, _POLICY)


def _refusal(namespace: Kubectl, pod: Json) -> str:
    """The API server's answer to a pod, empty where it takes it."""
    # Objects that a pod names and that this cluster does not have make no difference to ids.
    known = {name: value for name, value in pod.items() if name not in ("priorityClassName", "runtimeClassName")}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "pod-"},
        "spec": {**known, "serviceAccountName": "default"},
    }
    try:
        namespace.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(body))
    except KubectlError as error:
        return str(error)
    return ""


def _of_chart(settings: RenderSettings) -> list[Json]:
    objects = render_chart({**TRIAL, "settings": {"platformAssignsIds": settings.platform_assigns_ids}})
    return [pod_spec(objects, name) for name in ("holdfast", "holdfast-prometheus")]


def _pods(settings: RenderSettings) -> list[Json]:
    """Operator, trial Prometheus, engines on two accelerators, activator, and two benchmarks."""
    return _of_chart(settings) + [found["spec"] for found in (*engines(settings), *benchmarks(settings))]


def test_no_pod_may_start_with_the_usual_ids(openshift: Kubectl) -> None:
    answers = [_refusal(openshift, pod) for pod in _pods(OURS)]
    assert len(answers) >= 7
    assert all("must be in the ranges" in answer for answer in answers), answers


def test_every_pod_may_start_where_the_platform_assigns_ids(openshift: Kubectl) -> None:
    assert [_refusal(openshift, pod) for pod in _pods(ASSIGNED)] == [""] * len(_pods(OURS))


def test_ids_within_the_range_may_be_named(openshift: Kubectl) -> None:
    (pod, *_) = [found["spec"] for found in engines(OURS)]
    chosen: dict[str, Any] = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 1000660003)
    assert _refusal(openshift, {**pod, "securityContext": {**pod["securityContext"], **chosen}}) == ""


def _stored_template(api: Kubectl, service: Json, *flags: str) -> Any:
    api.run("apply", *flags, "-f", "-", stdin=yaml.safe_dump(service))
    return api.get_json("llms", "chat")["spec"]["template"]


def test_nulls_stay_with_server_side_apply_and_are_dropped_by_the_client(api: Kubectl, namespace: Kubectl) -> None:
    """Why `--platform-assigns-ids` is the way to leave ids to the platform, and what Ready says about nulls."""
    nulls = {"spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}}
    service = changed({"template": nulls})
    edited = changed({"template": nulls, "priority": 1})
    namespace.create(service)
    assert namespace.get_json("llms", "chat")["spec"]["template"] == nulls
    assert _stored_template(namespace, edited) == {"spec": {"securityContext": {}}}
    namespace.delete("llms", "chat")
    for body in (service, edited, edited):
        assert _stored_template(namespace, body, "--server-side") == nulls
