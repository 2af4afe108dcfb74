"""The controls that a pod template is held to: the level `baseline` of PodSecurity, and the protections we render.

Source: k8s.io/pod-security-admission v0.36.3, policy/check_*.go. Stricter than it: no added capability, no privilege
escalation, no other service account, and no value of procMount for pods in a user namespace.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

ENGINE_CONTAINER = "vllm"
CONTAINER_KINDS = ("initContainers", "containers", "ephemeralContainers")
PRIVILEGES = (
    "hostPath",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "privileged",
    "root",
    "sysctls",
    "seLinuxOptions",
    "seccompProfile",
    "appArmorProfile",
    "hostProcess",
    "serviceAccountName",
)
"""What `--allow-template` may name, each as the field that needs it; `root` is runAsUser 0."""

# The value that keeps each protection, and the privilege that any other value needs.
_PROTECTIONS = {
    "runAsNonRoot": (True, "root"),
    "allowPrivilegeEscalation": (False, "privileged"),
    "readOnlyRootFilesystem": (True, "privileged"),
}
# Other containers have only what they inherit from the pod, so a null takes nothing away there.
_OF_EVERY_CONTAINER = ("runAsNonRoot", "allowPrivilegeEscalation")
_SELINUX_TYPES = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_PROFILE_TYPES = ("RuntimeDefault", "Localhost")
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
# Of the pod's account, in a projected volume.
_CREDENTIALS = ("serviceAccountToken", "podCertificate")
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"

Need = tuple[str, str]
"""A field of the template, and the privilege that it needs."""


def needs(template: Mapping[str, Any]) -> Iterator[Need]:
    """Every field of an overlay that needs a privilege, or that takes away a protection."""
    for name, value in mapping(mapping(template.get("metadata")).get("annotations")).items():
        if name.startswith(_APPARMOR_ANNOTATION) and not _is_safe_annotation(value):
            yield f"metadata.annotations[{name}]", "appArmorProfile"
    spec = mapping(template.get("spec"))
    yield from _pod_needs(spec)
    for kind in CONTAINER_KINDS:
        for container in mappings(spec.get(kind)):
            place = f"spec.{kind}[{container.get('name')}]"
            is_engine = kind == "containers" and container.get("name") == ENGINE_CONTAINER
            for field, privilege in _container_needs(container, is_engine):
                yield f"{place}.{field}", privilege


def removals(template: Mapping[str, Any]) -> Iterator[str]:
    """Every field whose value removes or replaces a part that holds several protections: refused always."""
    spec = template.get("spec", {})
    if not isinstance(spec, Mapping):
        yield "spec"
        return
    if not isinstance(spec.get("securityContext", {}), Mapping):
        yield "spec.securityContext"
    containers = spec.get("containers", [])
    if not isinstance(containers, list | tuple) or not all(_is_named(each) for each in containers):
        yield "spec.containers"
    for container in mappings(containers):
        if container.get("name") == ENGINE_CONTAINER and not isinstance(container.get("securityContext", {}), Mapping):
            yield f"spec.containers[{ENGINE_CONTAINER}].securityContext"


def mapping(value: Any) -> Mapping[str, Any]:
    """The value, empty if it is no object."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, none if it is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def engines(template: Any) -> list[Mapping[str, Any]]:
    """The containers of a pod template overlay that change the engine's."""
    containers = mappings(mapping(mapping(template).get("spec")).get("containers"))
    return [each for each in containers if each.get("name") == ENGINE_CONTAINER]


def _pod_needs(spec: Mapping[str, Any]) -> Iterator[Need]:
    yield from ((f"spec.{field}", field) for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field))
    # Null and an empty name too: they mean the namespace's default account.
    yield from ((f"spec.{field}", "serviceAccountName") for field in ("serviceAccountName", "serviceAccount")
                if field in spec)  # fmt: skip
    if spec.get("automountServiceAccountToken", False) is not False:
        yield "spec.automountServiceAccountToken", "serviceAccountName"
    for volume in mappings(spec.get("volumes")):
        place = f"spec.volumes[{volume.get('name')}]"
        if "hostPath" in volume:
            yield f"{place}.hostPath", "hostPath"
        for source in mappings(mapping(volume.get("projected")).get("sources")):
            held = (field for field in _CREDENTIALS if field in source)
            yield from ((f"{place}.projected.sources.{field}", "serviceAccountName") for field in held)
    security = mapping(spec.get("securityContext"))
    for sysctl in mappings(security.get("sysctls")):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"spec.securityContext.sysctls[{sysctl.get('name')}]", "sysctls"
    if security.get("seccompProfile", {}) is None:
        yield "spec.securityContext.seccompProfile", "seccompProfile"
    found = (*_changed(security, ("runAsNonRoot",)), *_security_needs(security))
    yield from ((f"spec.securityContext.{field}", privilege) for field, privilege in found)


def _container_needs(container: Mapping[str, Any], is_engine: bool) -> Iterator[Need]:
    security = mapping(container.get("securityContext"))
    needed = [*(_lost_by_engine(security) if is_engine else _changed(security, _OF_EVERY_CONTAINER, None))]
    if security.get("privileged"):
        needed.append(("privileged", "privileged"))
    if mapping(security.get("capabilities")).get("add"):
        needed.append(("capabilities.add", "privileged"))
    if security.get("procMount") not in (None, "Default"):
        needed.append(("procMount", "privileged"))
    for field, privilege in (*needed, *_security_needs(security)):
        yield f"securityContext.{field}", privilege
    if any(port.get("hostPort") for port in mappings(container.get("ports"))):
        yield "ports.hostPort", "hostNetwork"
    yield from ((f"{field}.host", "hostNetwork") for field in _handlers_with_host(container))


def _security_needs(security: Mapping[str, Any]) -> Iterator[Need]:
    """What pods and containers have in common."""
    if security.get("runAsUser") == 0:
        yield "runAsUser", "root"
    for field in ("seccompProfile", "appArmorProfile"):
        profile = mapping(security.get(field))
        if "type" in profile and profile["type"] not in _PROFILE_TYPES:
            yield f"{field}.type", field
    labels = mapping(security.get("seLinuxOptions"))
    yield from ((f"seLinuxOptions.{field}", "seLinuxOptions") for field in ("user", "role") if labels.get(field))
    if labels.get("type") not in _SELINUX_TYPES:
        yield "seLinuxOptions.type", "seLinuxOptions"
    if mapping(security.get("windowsOptions")).get("hostProcess"):
        yield "windowsOptions.hostProcess", "hostProcess"


def _lost_by_engine(security: Mapping[str, Any]) -> Iterator[Need]:
    yield from _changed(security, _PROTECTIONS)
    dropped = mapping(security.get("capabilities", {})).get("drop", ["ALL"])
    if security.get("capabilities", {}) is None or not isinstance(dropped, list | tuple) or "ALL" not in dropped:
        yield "capabilities.drop", "privileged"


def _changed(security: Mapping[str, Any], fields: Iterable[str], *harmless: None) -> Iterator[Need]:
    """The protections that have another value than ours."""
    for field in fields:
        value, privilege = _PROTECTIONS[field]
        if security.get(field, value) not in (value, *harmless):
            yield field, privilege


def _handlers_with_host(container: Mapping[str, Any]) -> Iterator[str]:
    """Probes and hooks that the kubelet, on the node's network, sends to an address of the user's choice."""
    lifecycle = mapping(container.get("lifecycle"))
    handlers = {field: container.get(field) for field in ("livenessProbe", "readinessProbe", "startupProbe")}
    handlers |= {f"lifecycle.{field}": lifecycle.get(field) for field in ("postStart", "preStop")}
    for field, handler in handlers.items():
        for action in ("httpGet", "tcpSocket"):
            if mapping(mapping(handler).get(action)).get("host"):
                yield f"{field}.{action}"


def _is_safe_annotation(value: Any) -> bool:
    return value in ("", "runtime/default") or str(value).startswith("localhost/")


def _is_named(container: Any) -> bool:
    return isinstance(container, Mapping) and bool(container.get("name")) and isinstance(container["name"], str)
