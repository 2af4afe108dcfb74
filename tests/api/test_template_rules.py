"""A pod template gets no privilege that the operator's settings do not grant."""

from typing import Any

import pytest

from holdfast.api.llmservice import LLMService
from holdfast.api.pod_security import PRIVILEGES, needs
from holdfast.api.template_rules import validate_template
from holdfast.render.pod_template import pod_template
from holdfast.render.settings import RenderSettings
from holdfast.rendered.context import Objectives
from tests.api.refusals import changed


def container(kind: str = "containers", **security: Any) -> dict[str, Any]:
    return {"spec": {kind: [{"name": "x", "securityContext": security}]}}


NEEDS = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID", "hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC", "hostIPC"),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"serviceAccount": "admin"}}, "spec.serviceAccount", "serviceAccountName"),
    ({"spec": {"serviceAccountName": None}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"serviceAccountName": ""}}, "spec.serviceAccountName", "serviceAccountName"),
    ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "spec.volumes[v].hostPath", "hostPath"),
    *(
        (
            {"spec": {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {}}, {source: {}}]}}]}},
            f"spec.volumes[v].projected.sources.{source}",
            "serviceAccountName",
        )
        for source in ("serviceAccountToken", "podCertificate")
    ),
    (container(privileged=True), "spec.containers[x].securityContext.privileged", "privileged"),
    (container("initContainers", privileged=True), "spec.initContainers[x].securityContext", "privileged"),
    (container("ephemeralContainers", privileged=True), "spec.ephemeralContainers[x].securityContext", "privileged"),
    (container(allowPrivilegeEscalation=True), "allowPrivilegeEscalation", "privileged"),
    (container(capabilities={"add": ["SYS_ADMIN"]}), "capabilities.add", "privileged"),
    (container(procMount="Unmasked"), "procMount", "privileged"),
    ({"spec": {"containers": [{"name": "x", "ports": [{"hostPort": 80}]}]}}, "ports.hostPort", "hostNetwork"),
]


@pytest.mark.parametrize(("template", "field", "allowance"), NEEDS)
def test_a_privilege_is_refused_with_field_and_remedy(template: dict[str, Any], field: str, allowance: str) -> None:
    (problem,) = validate_template(template)
    assert field in problem
    assert problem.endswith(f"--allow-template={allowance}")


@pytest.mark.parametrize(("template", "_field", "allowance"), NEEDS)
def test_a_granted_privilege_passes_and_no_other_grant_helps(
    template: dict[str, Any], _field: str, allowance: str
) -> None:
    assert validate_template(template, [allowance]) == []
    assert len(validate_template(template, set(PRIVILEGES) - {allowance})) == 1


def test_every_problem_is_named_at_once() -> None:
    template = {"spec": {"hostPID": True, "hostIPC": True, "restartPolicy": "Never"}}
    assert len(validate_template(template)) == 3


def test_owned_fields_are_refused_whatever_is_allowed() -> None:
    template = {"spec": {"containers": [{"name": "vllm", "command": ["sh"]}]}}
    (problem,) = validate_template(template, PRIVILEGES)
    assert "command of the container vllm" in problem


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"spec": {"volumes": None}},
        {"spec": {"containers": [{"name": "logs", "securityContext": None}]}},
        {"spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}},
        {"spec": {"securityContext": {"runAsUser": 1001, "seccompProfile": {"type": "Localhost"}}}},
        container(runAsNonRoot=None, allowPrivilegeEscalation=None, readOnlyRootFilesystem=False),
        {"spec": {"hostNetwork": False, "volumes": [{"name": "v", "emptyDir": {}}]}},
        container(privileged=False, capabilities={"drop": ["ALL"]}),
    ],
)
def test_harmless_or_odd_templates_are_no_problem(template: dict[str, Any]) -> None:
    assert validate_template(template) == []


def engine(**security: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "vllm", "securityContext": security}]}}


def pod(**security: Any) -> dict[str, Any]:
    return {"spec": {"securityContext": security}}


def probed(**handler: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "x", **handler}]}}


PROFILE = {"type": "Unconfined"}
# Source: the controls of PodSecurity's level `baseline`, version 1.36.
BASELINE = [
    (pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "spec.securityContext.sysctls[kernel.msgmax]", "sysctls"),
    (pod(seLinuxOptions={"type": "spc_t"}), "spec.securityContext.seLinuxOptions.type", "seLinuxOptions"),
    (pod(seLinuxOptions={"user": "system_u"}), "spec.securityContext.seLinuxOptions.user", "seLinuxOptions"),
    (container(seLinuxOptions={"role": "r"}), "[x].securityContext.seLinuxOptions.role", "seLinuxOptions"),
    (pod(seccompProfile=PROFILE), "spec.securityContext.seccompProfile.type", "seccompProfile"),
    (container("initContainers", seccompProfile=PROFILE), "[x].securityContext.seccompProfile", "seccompProfile"),
    (pod(appArmorProfile=PROFILE), "spec.securityContext.appArmorProfile.type", "appArmorProfile"),
    (container(appArmorProfile=PROFILE), "[x].securityContext.appArmorProfile.type", "appArmorProfile"),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/vllm": "unconfined"}}},
        "metadata.annotations[container.apparmor.security.beta.kubernetes.io/vllm]",
        "appArmorProfile",
    ),
    (pod(windowsOptions={"hostProcess": True}), "spec.securityContext.windowsOptions.hostProcess", "hostProcess"),
    (container(windowsOptions={"hostProcess": True}), "securityContext.windowsOptions.hostProcess", "hostProcess"),
    (probed(readinessProbe={"httpGet": {"host": "169.254.169.254"}}), "[x].readinessProbe.httpGet.host", "hostNetwork"),
    (probed(livenessProbe={"tcpSocket": {"host": "10.0.0.1"}}), "[x].livenessProbe.tcpSocket.host", "hostNetwork"),
    (probed(lifecycle={"preStop": {"httpGet": {"host": "::1"}}}), "lifecycle.preStop.httpGet.host", "hostNetwork"),
    (probed(lifecycle={"postStart": {"tcpSocket": {"host": "::1"}}}), "lifecycle.postStart.tcpSocket", "hostNetwork"),
]
PROTECTIONS = [
    (pod(runAsUser=0), "spec.securityContext.runAsUser", "root"),
    (container(runAsUser=0), "[x].securityContext.runAsUser", "root"),
    (container("initContainers", runAsUser=0), "initContainers[x].securityContext.runAsUser", "root"),
    (engine(runAsUser=0), "[vllm].securityContext.runAsUser", "root"),
    (pod(runAsNonRoot=False), "spec.securityContext.runAsNonRoot", "root"),
    (pod(runAsNonRoot=None), "spec.securityContext.runAsNonRoot", "root"),
    (container(runAsNonRoot=False), "[x].securityContext.runAsNonRoot", "root"),
    (engine(runAsNonRoot=None), "[vllm].securityContext.runAsNonRoot", "root"),
    (pod(seccompProfile=None), "spec.securityContext.seccompProfile", "seccompProfile"),
    (pod(seccompProfile={"type": None}), "spec.securityContext.seccompProfile.type", "seccompProfile"),
    (engine(allowPrivilegeEscalation=None), "[vllm].securityContext.allowPrivilegeEscalation", "privileged"),
    (engine(readOnlyRootFilesystem=None), "[vllm].securityContext.readOnlyRootFilesystem", "privileged"),
    (engine(readOnlyRootFilesystem=False), "[vllm].securityContext.readOnlyRootFilesystem", "privileged"),
    (engine(capabilities=None), "[vllm].securityContext.capabilities.drop", "privileged"),
    (engine(capabilities={"drop": None}), "[vllm].securityContext.capabilities.drop", "privileged"),
    (engine(capabilities={"drop": []}), "[vllm].securityContext.capabilities.drop", "privileged"),
    ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken", "serviceAccountName"),
    ({"spec": {"automountServiceAccountToken": None}}, "spec.automountServiceAccountToken", "serviceAccountName"),
]


@pytest.mark.parametrize(("template", "field", "privilege"), [*BASELINE, *PROTECTIONS])
def test_a_control_of_pod_security_is_refused_unless_its_privilege_is_granted(
    template: dict[str, Any], field: str, privilege: str
) -> None:
    (problem,) = validate_template(template, set(PRIVILEGES) - {privilege})
    assert field in problem
    assert problem.endswith(f"--allow-template={privilege}")
    assert validate_template(template, [privilege]) == []


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": None}, "template.spec:"),
        ({"spec": {"securityContext": None}}, "template.spec.securityContext:"),
        ({"spec": {"containers": None}}, "template.spec.containers:"),
        ({"spec": {"containers": "nonsense"}}, "template.spec.containers:"),
        ({"spec": {"containers": [{"image": "nameless"}]}}, "template.spec.containers:"),
        ({"spec": {"containers": [{"name": "vllm", "securityContext": None}]}}, "[vllm].securityContext:"),
        ({"spec": {"nodeName": "gpu-7"}}, "template.spec.nodeName:"),
        ({"spec": {"priorityClassName": "system-node-critical"}}, "template.spec.priorityClassName:"),
    ],
)
def test_what_takes_away_several_protections_or_the_scheduler_is_refused_always(
    template: dict[str, Any], field: str
) -> None:
    (problem,) = validate_template(template, PRIVILEGES)
    assert field in problem


def rendered() -> dict[str, Any]:
    service = LLMService.parse(changed({}))
    (accelerator,), settings = service.spec.accelerators, RenderSettings({})
    return pod_template(service, accelerator, Objectives(0.5, 0.03), None, settings, scraped_by_annotation=False)


def test_no_rendered_protection_can_be_removed_by_null() -> None:
    spec = rendered()["spec"]
    ids = {"runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy"}
    nulls = [pod(**{field: None}) for field in spec["securityContext"].keys() - ids]
    nulls += [engine(**{field: None}) for field in spec["containers"][0]["securityContext"]]
    assert len(nulls) == 6
    assert all(validate_template(template) for template in nulls)


def test_what_the_operator_renders_needs_no_privilege() -> None:
    assert {privilege for _, privilege in needs(rendered())} == {"serviceAccountName"}
