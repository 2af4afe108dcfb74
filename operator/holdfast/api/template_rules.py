"""What a pod template overlay may say: owned fields are refused always, privileges unless the operator allows them."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from holdfast.api.engine_environment import environment_rules
from holdfast.api.pod_schema import Shaped, schema_of
from holdfast.api.pod_security import ENGINE_CONTAINER, engines, mapping, mappings, needs, removals
from holdfast.api.rules import Checked, JsonSchema, Rule

LABEL_PREFIX = "holdfast.dev/"
OWNED_POD_FIELDS = {
    "terminationGracePeriodSeconds": "set engine.shutdownTimeout, from which it is computed",
    "restartPolicy": "remove it; replicas always restart",
    "nodeName": "use accelerators[].nodeSelector; the scheduler chooses the node",
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


NO_PRIVILEGES: frozenset[str] = frozenset()


def validate_template(template: Mapping[str, Any], allowed: Collection[str] = NO_PRIVILEGES) -> list[str]:
    """Every problem of a pod template overlay as `field: remedy`; `allowed` are names of `PRIVILEGES`."""
    broken = (f"template{rule.field}: {rule.message}" for rule in OWNERSHIP_RULES if not rule.holds(template))
    removed = (f"template.{field}: {_REMOVED}" for field in removals(template))
    needed = (refusal(f"template.{field}", name) for field, name in needs(template) if name not in allowed)
    return [*broken, *removed, *needed]


def refusal(field: str, privilege: str) -> str:
    """The problem of a field that needs a privilege, with both remedies."""
    return (
        f"{field}: the operator does not allow it; remove it, or start the operator with --allow-template={privilege}"
    )


def _own_prefix(field: str) -> Rule:
    path = f"self.metadata.{field}"
    return Rule(
        f"!has(self.metadata) || !has({path}) || {path}.all(key, !key.startsWith('{LABEL_PREFIX}'))",
        f"metadata.{field} with the prefix {LABEL_PREFIX} are reserved for the operator: use another prefix",
        lambda template: (
            not any(key.startswith(LABEL_PREFIX) for key in mapping(mapping(template.get("metadata")).get(field)))
        ),
        f".metadata.{field}",
    )


def _pod_field(field: str, remedy: str) -> Rule:
    return Rule(
        f"!has(self.spec) || !has(self.spec.{field})",
        f"spec.{field} is set by the operator: {remedy}",
        lambda template: field not in mapping(template.get("spec")),
        f".spec.{field}",
    )


def _container_field(field: str, remedy: str) -> Rule:
    return Rule(
        f"!has(self.spec) || !has(self.spec.containers)"
        f" || self.spec.containers.all(c, c.name != '{ENGINE_CONTAINER}' || !has(c.{field}))",
        f"field {field} of the container {ENGINE_CONTAINER} is set by the operator: {remedy}",
        lambda template: not any(field in container for container in engines(template)),
        ".spec.containers",
    )


def _variable(rule: Rule) -> Rule:
    """A rule of one environment variable, for all of the engine's."""
    return Rule(
        f"!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, c.name != '{ENGINE_CONTAINER}'"
        f" || !has(c.env) || c.env.all(e, !has(e.name) || {rule.cel}))",
        f"env of the container {ENGINE_CONTAINER}: {rule.message}",
        lambda template: all(
            rule.holds(variable) for container in engines(template) for variable in mappings(container.get("env"))
        ),
        ".spec.containers",
    )


_REMOVED = "it removes protections that the operator sets; set single fields below it, with the name of each container"
_PRIORITY_OF_THE_SYSTEM = Rule(
    "!has(self.spec) || !has(self.spec.priorityClassName) || !self.spec.priorityClassName.startsWith('system-')",
    "spec.priorityClassName may not be a class of the system: use a PriorityClass of your own",
    lambda template: not str(mapping(template.get("spec")).get("priorityClassName")).startswith("system-"),
    ".spec.priorityClassName",
)
OWNERSHIP_RULES: tuple[Rule, ...] = (
    _own_prefix("labels"),
    _own_prefix("annotations"),
    *(_pod_field(field, remedy) for field, remedy in OWNED_POD_FIELDS.items()),
    _PRIORITY_OF_THE_SYSTEM,
    *(_container_field(field, remedy) for field, remedy in OWNED_CONTAINER_FIELDS.items()),
    *map(_variable, environment_rules("e")),
)

_TEXTS: dict[str, Any] = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 4096},
}
_STRINGS: dict[str, Any] = {"type": "array", "maxItems": 256, "items": {"type": "string", "maxLength": 16384}}
_SHORT: dict[str, Any] = {"type": "string", "maxLength": 253}


def _with(schema: JsonSchema, **properties: JsonSchema) -> JsonSchema:
    return {**schema, "properties": {**schema["properties"], **properties}}


def _template_schema() -> JsonSchema:
    """The types of a pod; what rules look at has bounds, so that they have a bounded cost."""
    container, pod = schema_of("Container"), schema_of("PodSpec")
    bounded = {"name": {"type": "string", "maxLength": 63}, "image": {"type": "string", "maxLength": 512}}
    ports = {"maxItems": 64, **container["properties"]["ports"]}
    variable = _with(schema_of("EnvVar"), name=_SHORT, value={"type": "string", "maxLength": 131072})
    env = {**container["properties"]["env"], "maxItems": 1024, "items": variable}
    engine = _with(container, **bounded, command=_STRINGS, args=_STRINGS, ports=ports, env=env)
    containers = {
        "type": "array",
        "maxItems": 16,
        "items": {**engine, "required": ["name"]},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    names = {field: _SHORT for field in ("restartPolicy", "nodeName", "priorityClassName")}
    grace = {"terminationGracePeriodSeconds": {"type": "integer"}}
    metadata = {"labels": _TEXTS, "annotations": _TEXTS, "creationTimestamp": {"type": "string"}}
    spec = _with(pod, containers=containers, **names, **grace)
    return {"type": "object", "properties": {"metadata": {"type": "object", "properties": metadata}, "spec": spec}}


PodTemplate = Annotated[dict[str, Any], Shaped(_template_schema()), Checked(*OWNERSHIP_RULES)]
