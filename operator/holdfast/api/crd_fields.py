"""Fields of our CRDs: which of them a served CRD lacks, and which of them an object did not keep. Pure.

The API server drops a field that its CRD lacks from most writes, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from holdfast.api.crd import LLMSERVICE, Definition, crd
from holdfast.api.llmservice import GROUP, VERSION

ITEMS = "[]"
_KEEPS_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_OBJECT_OF = "x-kubernetes-group-version-kind"

Fields = Mapping[str, "Fields"]
"""Names of the fields of an object, each with the fields inside it; a list has one, `ITEMS`."""

Schema = Mapping[str, Any]


@cache
def declared_fields(of: Definition = LLMSERVICE) -> Fields:
    """The fields of spec and status that this version of Holdfast knows."""
    properties = crd(of)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return {name: _fields(properties[name]) for name in ("spec", "status")}


def _fields(schema: Schema) -> Fields:
    """Keys of maps are no fields: no schema of ours has a map of objects."""
    found = {name: _fields(inner) for name, inner in schema.get("properties", {}).items()}
    return {**found, ITEMS: _fields(schema["items"])} if "items" in schema else found


def missing_fields(document: object, of: Definition = LLMSERVICE) -> tuple[str, ...] | None:
    """Return the paths of the fields that a served schema lacks, such as `spec.accelerators[].spot`, sorted.

    `document` is the OpenAPI v3 document of our API group and version. Fields inside a missing field are not listed,
    nor are those of a part that cannot be read. None if the document has no readable schema of the kind.
    """
    schemas = _mapping(_mapping(_mapping(document).get("components")).get("schemas"))
    found = [served for served in map(_mapping, schemas.values()) if _is_of(served, of.kind)]
    if len(found) != 1 or "spec" not in _mapping(found[0].get("properties")):
        return None
    return tuple(sorted(_missing(declared_fields(of), found[0], schemas, "")))


def _is_of(served: Schema, kind: str) -> bool:
    names = served.get(_OBJECT_OF)
    return isinstance(names, list) and {"group": GROUP, "version": VERSION, "kind": kind} in names


def _missing(fields: Fields, served: Schema, schemas: Schema, path: str) -> Iterator[str]:
    """Recursion follows our own fields, so it ends whatever is served."""
    known = served.get("properties", {})
    drops = served.get("type") == "object" and not served.get(_KEEPS_UNKNOWN) and "additionalProperties" not in served
    for name, inner in fields.items():
        if name == ITEMS:
            yield from _missing(inner, _resolved(served.get("items"), schemas), schemas, path + ITEMS)
        elif name in _mapping(known):
            yield from _missing(inner, _resolved(known[name], schemas), schemas, _joined(path, name))
        elif drops and isinstance(known, Mapping):
            yield _joined(path, name)


def _resolved(served: object, schemas: Schema) -> Schema:
    """A part of a schema with its reference followed, also one in an `allOf` of one; empty for a circle."""
    seen = set[str]()
    while True:
        part = _mapping(served)
        choices = part.get("allOf")
        reference = part.get("$ref")
        if isinstance(choices, list) and len(choices) == 1 and "properties" not in part:
            served = choices[0]
        elif isinstance(reference, str):
            if reference in seen:
                return {}
            seen.add(reference)
            served = schemas.get(reference.rpartition("/")[2])
        else:
            return part


def unstored_fields(applied: object, stored: object, of: Definition = LLMSERVICE) -> tuple[str, ...]:
    """Return the paths of our fields that an applied object sets and the stored one lacks, sorted.

    The CRD need not be the cause: see `missing_fields`. Lists of different lengths are not compared, because another
    writer changed them.
    """
    return tuple(sorted(set(_unstored(declared_fields(of), applied, stored, ""))))


def _unstored(fields: Fields, applied: object, stored: object, path: str) -> Iterator[str]:
    if ITEMS in fields and isinstance(applied, list) and isinstance(stored, list) and len(applied) == len(stored):
        for one, other in zip(applied, stored, strict=True):
            yield from _unstored(fields[ITEMS], one, other, path + ITEMS)
    if not isinstance(applied, Mapping) or not isinstance(stored, Mapping):
        return
    for name, inner in fields.items():
        if applied.get(name) is None:  # the API server drops a null as well
            continue
        if name in stored:
            yield from _unstored(inner, applied[name], stored[name], _joined(path, name))
        else:
            yield _joined(path, name)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}
