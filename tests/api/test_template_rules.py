"""A pod template gets no privilege that the operator's settings do not grant."""

from typing import Any

import pytest

from holdfast.api.template_rules import TemplateAllowances, allowances, validate_template


def container(kind: str = "containers", **security: Any) -> dict[str, Any]:
    return {"spec": {kind: [{"name": "x", "securityContext": security}]}}


PRIVILEGES = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID", "hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC", "hostIPC"),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"serviceAccount": "admin"}}, "spec.serviceAccount", "serviceAccountName"),
    ({"spec": {"serviceAccountName": None}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"serviceAccountName": ""}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "spec.volumes[v].hostPath", "hostPath"),
    (container(privileged=True), "spec.containers[x].securityContext.privileged", "privileged"),
    (container("initContainers", privileged=True), "spec.initContainers[x].securityContext", "privileged"),
    (container("ephemeralContainers", privileged=True), "spec.ephemeralContainers[x].securityContext", "privileged"),
    (container(allowPrivilegeEscalation=True), "allowPrivilegeEscalation", "privileged"),
    (container(capabilities={"add": ["SYS_ADMIN"]}), "capabilities.add", "privileged"),
    (container(procMount="Unmasked"), "procMount", "privileged"),
    ({"spec": {"containers": [{"name": "x", "ports": [{"hostPort": 80}]}]}}, "ports.hostPort", "hostNetwork"),
]


@pytest.mark.parametrize(("template", "field", "allowance"), PRIVILEGES)
def test_a_privilege_is_refused_with_field_and_remedy(template: dict[str, Any], field: str, allowance: str) -> None:
    (problem,) = validate_template(template)
    assert field in problem
    assert problem.endswith(f"--allow-template={allowance}")


@pytest.mark.parametrize(("template", "_field", "allowance"), PRIVILEGES)
def test_a_granted_privilege_passes_and_no_other_grant_helps(
    template: dict[str, Any], _field: str, allowance: str
) -> None:
    names = {name for _, _, name in PRIVILEGES}
    assert validate_template(template, allowances([allowance])) == []
    assert len(validate_template(template, allowances(names - {allowance}))) == 1


def test_every_problem_is_named_at_once() -> None:
    template = {"spec": {"hostPID": True, "hostIPC": True, "restartPolicy": "Never"}}
    assert len(validate_template(template)) == 3


def test_owned_fields_are_refused_whatever_is_allowed() -> None:
    template = {"spec": {"containers": [{"name": "vllm", "command": ["sh"]}]}}
    (problem,) = validate_template(template, TemplateAllowances(*[True] * 6))
    assert "command of the container vllm" in problem


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": None},
        {"spec": {"containers": None, "volumes": None}},
        {"spec": {"containers": [{"name": "vllm", "securityContext": None}]}},
        {"spec": {"containers": "nonsense"}},
        {"spec": {"hostNetwork": False, "volumes": [{"name": "v", "emptyDir": {}}]}},
        container(privileged=False, capabilities={"drop": ["ALL"]}),
    ],
)
def test_harmless_or_odd_templates_are_no_problem(template: dict[str, Any]) -> None:
    assert validate_template(template) == []


def test_an_unknown_allowance_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'root' is not a known privilege: use one of serviceAccountName, hostPath"):
        allowances(["root"])
