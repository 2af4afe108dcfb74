"""The chart's admission policy; what an API server makes of it is tried in e2e/test_admission_policy.py."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from holdfast.api.pod_security import PRIVILEGES
from tests.chart.test_chart import CHART, URL, _helm, granted_to_the_operator, kinds, only, render

KIND = "ValidatingAdmissionPolicy"
# Kinds that nobody owns but the operator: its Events, and status that no other client writes.
_ELSEWHERE = {"events", "llmservices/status", "llmbenchmarks/status"}


def policy(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = only(render({**URL, **values}), KIND)["spec"]
    return found


def refused_privileges(found: dict[str, Any]) -> set[str]:
    messages = [each["message"] for each in found["validations"]]
    return {privilege for privilege in PRIVILEGES if any(f"that use {privilege};" in told for told in messages)}


def test_it_is_asked_about_everything_that_the_operator_may_write() -> None:
    (asked,) = policy()["matchConstraints"]["resourceRules"]
    granted = granted_to_the_operator().items()
    written = {key for key, verbs in granted if verbs & {"create", "patch", "update", "delete"}}
    assert set(asked["resources"]) == {resource for _, resource in written} - _ELSEWHERE
    assert set(asked["apiGroups"]) == {group for group, resource in written if resource not in _ELSEWHERE}


def test_it_is_about_the_account_of_the_release_alone() -> None:
    (condition,) = policy(serviceAccount={"name": "other"})["matchConditions"]
    assert condition["expression"] == "request.userInfo.username == 'system:serviceaccount:holdfast-system:other'"


def test_it_binds_every_namespace_and_denies() -> None:
    bound = only(render(URL), f"{KIND}Binding")["spec"]
    assert bound == {"policyName": "holdfast", "validationActions": ["Deny"]}
    assert policy()["failurePolicy"] == "Fail"


def test_what_is_granted_to_templates_is_not_refused() -> None:
    refused = refused_privileges(policy())
    assert refused == {
        "hostNetwork", "hostPID", "hostIPC", "hostPath", "hostProcess", "privileged", "serviceAccountName",
    }  # fmt: skip
    granted = policy(
        settings={**URL["settings"], "allowTemplate": ["hostPath"]}, extraArgs=["--allow-template=hostPID"]
    )
    assert refused_privileges(granted) == refused - {"hostPath", "hostPID"}


def test_a_watched_namespace_is_no_system_namespace() -> None:
    first = policy(watchNamespaces=["kube-llm"], admissionPolicy={"systemNamespaces": "kube-.*"})["validations"][0]
    assert '["kube-llm"]' in first["expression"]
    assert 'matches("^(kube-.*)$")' in first["expression"]


@pytest.mark.parametrize(("version", "there"), [("1.29.9", False), ("1.30.0", True), ("1.31.2-eks-1a2b", True)])
def test_it_is_left_out_where_the_cluster_does_not_know_it(version: str, there: bool) -> None:
    done = _helm("template", "holdfast", str(CHART), "--kube-version", version, values=URL)
    assert done.returncode == 0, done.stderr
    assert (KIND in kinds(tuple(each for each in yaml.safe_load_all(done.stdout) if each))) is there


def test_it_can_be_turned_off() -> None:
    assert not {KIND, f"{KIND}Binding"} & kinds(render({**URL, "admissionPolicy": {"enabled": False}}))
