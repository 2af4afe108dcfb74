"""The parts of pods that users write: structural schemas of finite depth, and the same check for the operator.

A schema that keeps unknown fields takes objects of any depth, and one that is nested thousands of levels deep breaks
`kubectl get` for the whole cluster. The types are those of Kubernetes 1.36 (scripts/make_pod_schema.py).
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from holdfast.api.rules import BrokenRule, JsonSchema

UNKNOWN_FIELD = "unknown field: remove it or check its spelling"
INT_OR_STRING = "x-kubernetes-int-or-string"
MOST_WHOLE = 2**63 - 1
"""The largest whole number of the API server."""

# Where a null in an overlay removes what the operator renders; everywhere else the API server drops it.
_NULLABLE = frozenset({"PodSpec", "PodSecurityContext", "Container", "SecurityContext", "Capabilities"})
_MOST_FAULTS = 5
# resource.ParseQuantity of Kubernetes
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "object": (Mapping, "must be an object: write fields below it"),
    "array": ((list, tuple), "must be a list: begin each item with a dash"),
    "string": (str, "must be a string: put it in quotes"),
    "boolean": (bool, "must be true or false: write it without quotes"),
    "integer": (int, "must be a whole number: write it without quotes"),
}


@cache
def _types() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("holdfast.api").joinpath("data/pod_types.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return found


def schema_of(name: str) -> JsonSchema:
    """The structural schema of a type of Kubernetes, such as PodSpec, with every type in it written out."""
    nullable = {"nullable": True} if name in _NULLABLE else {}
    return {
        "type": "object",
        "properties": {field: _schema(kind) | nullable for field, kind in _types()[name].items()},
    }


def _schema(kind: Any) -> JsonSchema:
    match kind:
        case [item]:
            return {"type": "array", "items": _schema(item)}
        case {"*": item}:
            return {"type": "object", "additionalProperties": _schema(item)}
        case "int-or-string":
            return {INT_OR_STRING: True}
    return schema_of(kind) if kind in _types() else {"type": kind}


def faults(value: Any, schema: Mapping[str, Any], field: str = "") -> Iterator[tuple[str, str]]:
    """Every field below a value that the schema does not allow, with the remedy."""
    if INT_OR_STRING in schema:
        if not (_is_of("integer", value) or isinstance(value, str)):
            yield field, "must be a whole number or a string: put other numbers in quotes"
        return
    if not _is_of(schema["type"], value):
        yield field, _TYPES[schema["type"]][1]
    elif isinstance(value, Mapping):
        yield from _faults_of_fields(value, schema, field)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from faults(item, schema["items"], f"{field}[{index}]")


def _is_of(kind: str, value: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind][0]) and not (isinstance(value, int) and abs(value) > MOST_WHOLE)


def _faults_of_fields(value: Mapping[str, Any], schema: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        inner = _inner(name, schema)
        if inner is None:
            yield f"{field}.{name}", UNKNOWN_FIELD
        elif isinstance(item, str) and INT_OR_STRING in inner and "additionalProperties" in schema:
            yield from _faults_of_quantity(item, f"{field}.{name}")
        elif item is not None:
            yield from faults(item, inner, f"{field}.{name}")


def _faults_of_quantity(value: str, field: str) -> Iterator[tuple[str, str]]:
    """Maps of numbers or strings hold amounts of resources."""
    if not _QUANTITY.fullmatch(value):
        yield field, f"{value[:32]!r} is no amount of a resource: write a number and a unit, such as 80Gi, 500m or 2"


def _stored(value: Any, schema: Mapping[str, Any]) -> Any:
    """As the API server stores it: without the nulls of fields for which null says nothing."""
    if isinstance(value, list | tuple) and "items" in schema:
        return [_stored(item, schema["items"]) for item in value]
    if not isinstance(value, Mapping):
        return value
    inner = {name: _inner(name, schema) for name in value}
    return {
        name: _stored(item, inner[name] or {})
        for name, item in value.items()
        if item is not None or inner[name] is None or inner[name].get("nullable")
    }


def _inner(name: str, schema: Mapping[str, Any]) -> Any:
    """The schema of a field; None where it has no such field."""
    return schema.get("properties", {}).get(name, schema.get("additionalProperties"))


class Shaped:
    """Annotation of a part of a pod: `Annotated[dict[str, Any], Shaped(schema)]`."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the shape after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """The schema itself."""
        return self._schema

    def _check(self, value: Any) -> Any:
        value = _stored(value, self._schema)
        found = list(islice(faults(value, self._schema), _MOST_FAULTS))
        if found:
            (field, remedy), *others = found
            raise BrokenRule("; ".join([remedy, *(f"{field[1:]}: {each}" for field, each in others)]), field)
        return value
