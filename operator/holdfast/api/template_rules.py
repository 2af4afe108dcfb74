"""What a pod template overlay may say: owned fields are refused always, privileges unless the operator allows them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import WithJsonSchema

from holdfast.api.rules import Checked, Rule

LABEL_PREFIX = "holdfast.dev/"
ENGINE_CONTAINER = "vllm"
OWNED_POD_FIELDS = {
    "terminationGracePeriodSeconds": "set engine.shutdownTimeout, from which it is computed",
    "restartPolicy": "remove it; replicas always restart",
}
OWNED_CONTAINER_FIELDS = {
    "command": "remove it; the operator starts vLLM through its launcher",
    "args": "use engine.args",
    "image": "use engine.image",
    "ports": "remove it; the engine listens on port 8000",
    "livenessProbe": "remove it; the operator sets the probes",
    "readinessProbe": "remove it; the operator sets the probes",
    "startupProbe": "remove it; the operator sets the probes",
    "lifecycle": "remove it; the operator drains replicas through it",
}


@dataclass(frozen=True, slots=True)
class TemplateAllowances:
    """Privileges that the operator's settings grant to pod templates; none by default."""

    service_account_name: bool = False
    host_path: bool = False
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    privileged: bool = False


_ALLOWANCE_FIELDS = {
    "serviceAccountName": "service_account_name",
    "hostPath": "host_path",
    "hostNetwork": "host_network",
    "hostPID": "host_pid",
    "hostIPC": "host_ipc",
    "privileged": "privileged",
}


def allowances(names: Collection[str]) -> TemplateAllowances:
    """The allowances named as in a pod template, such as hostPath; ValueError names an unknown one."""
    unknown = sorted(set(names) - set(_ALLOWANCE_FIELDS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a known privilege: use one of {', '.join(_ALLOWANCE_FIELDS)}")
    return TemplateAllowances(**{_ALLOWANCE_FIELDS[name]: True for name in names})


NO_ALLOWANCES = TemplateAllowances()


def validate_template(template: Mapping[str, Any], allow: TemplateAllowances = NO_ALLOWANCES) -> list[str]:
    """Every problem of a pod template overlay as `field: remedy`, empty when there is none."""
    return [*_owned_fields(template), *_privileges(_mapping(template.get("spec")), allow)]


def _owned_fields(template: Mapping[str, Any]) -> Iterator[str]:
    for rule in OWNERSHIP_RULES:
        if not rule.holds(template):
            yield f"template{rule.field}: {rule.message}"


def _privileges(spec: Mapping[str, Any], allow: TemplateAllowances) -> Iterator[str]:
    switches = (("hostNetwork", allow.host_network), ("hostPID", allow.host_pid), ("hostIPC", allow.host_ipc))
    for field, allowed in switches:
        if spec.get(field) and not allowed:
            yield refusal(f"template.spec.{field}", field)
    for field in ("serviceAccountName", "serviceAccount"):
        # Null and an empty name too: they mean the namespace's default account.
        if field in spec and not allow.service_account_name:
            yield refusal(f"template.spec.{field}", "serviceAccountName")
    for volume in _mappings(spec.get("volumes")):
        if "hostPath" in volume and not allow.host_path:
            yield refusal(f"template.spec.volumes[{volume.get('name')}].hostPath", "hostPath")
    yield from _container_privileges(spec, allow)


def _container_privileges(spec: Mapping[str, Any], allow: TemplateAllowances) -> Iterator[str]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in _mappings(spec.get(kind)):
            place = f"template.spec.{kind}[{container.get('name')}]"
            if not allow.privileged:
                for field in _raised_privileges(_mapping(container.get("securityContext"))):
                    yield refusal(f"{place}.securityContext.{field}", "privileged")
            if not allow.host_network and any("hostPort" in port for port in _mappings(container.get("ports"))):
                yield refusal(f"{place}.ports.hostPort", "hostNetwork")


def _raised_privileges(security: Mapping[str, Any]) -> Iterator[str]:
    yield from (field for field in ("privileged", "allowPrivilegeEscalation") if security.get(field))
    if _mapping(security.get("capabilities")).get("add"):
        yield "capabilities.add"
    if security.get("procMount", "Default") != "Default":
        yield "procMount"


def refusal(field: str, privilege: str) -> str:
    """The problem of a field that needs a privilege, with both remedies."""
    return (
        f"{field}: the operator does not allow it; remove it, or start the operator with --allow-template={privilege}"
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def _own_prefix(field: str) -> Rule:
    path = f"self.metadata.{field}"
    return Rule(
        f"!has(self.metadata) || !has({path}) || {path}.all(key, !key.startsWith('{LABEL_PREFIX}'))",
        f"metadata.{field} with the prefix {LABEL_PREFIX} are reserved for the operator: use another prefix",
        lambda template: (
            not any(key.startswith(LABEL_PREFIX) for key in _mapping(_mapping(template.get("metadata")).get(field)))
        ),
        f".metadata.{field}",
    )


def _pod_field(field: str, remedy: str) -> Rule:
    return Rule(
        f"!has(self.spec) || !has(self.spec.{field})",
        f"spec.{field} is set by the operator: {remedy}",
        lambda template: field not in _mapping(template.get("spec")),
        f".spec.{field}",
    )


def _container_field(field: str, remedy: str) -> Rule:
    return Rule(
        f"!has(self.spec) || !has(self.spec.containers)"
        f" || self.spec.containers.all(c, c.name != '{ENGINE_CONTAINER}' || !has(c.{field}))",
        f"field {field} of the container {ENGINE_CONTAINER} is set by the operator: {remedy}",
        lambda template: (
            not any(
                field in container
                for container in _mappings(_mapping(template.get("spec")).get("containers"))
                if container.get("name") == ENGINE_CONTAINER
            )
        ),
        ".spec.containers",
    )


OWNERSHIP_RULES: tuple[Rule, ...] = (
    _own_prefix("labels"),
    _own_prefix("annotations"),
    *(_pod_field(field, remedy) for field, remedy in OWNED_POD_FIELDS.items()),
    *(_container_field(field, remedy) for field, remedy in OWNED_CONTAINER_FIELDS.items()),
)

_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXTS: dict[str, Any] = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 4096},
}
_STRINGS: dict[str, Any] = {"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 16384}}
_OBJECTS: dict[str, Any] = {"type": "array", "maxItems": 64, "items": _OPEN}
# Only what the rules look at has a type; everything else of a pod template passes through as it is.
_CONTAINER: dict[str, Any] = {
    **_OPEN,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "maxLength": 63},
        "image": {"type": "string", "maxLength": 512},
        "command": _STRINGS,
        "args": _STRINGS,
        "ports": _OBJECTS,
        **{field: _OPEN for field in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")},
    },
}
_SCHEMA: dict[str, Any] = {
    **_OPEN,
    "properties": {
        "metadata": {**_OPEN, "properties": {"labels": _TEXTS, "annotations": _TEXTS}},
        "spec": {
            **_OPEN,
            "properties": {
                "terminationGracePeriodSeconds": {"type": "integer"},
                "restartPolicy": {"type": "string", "maxLength": 16},
                "containers": {
                    "type": "array",
                    "maxItems": 16,
                    "items": _CONTAINER,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            },
        },
    },
}

PodTemplate = Annotated[dict[str, Any], WithJsonSchema(_SCHEMA), Checked(*OWNERSHIP_RULES)]
