"""The OpenAPI document in which an API server shows our CRDs, as recorded from version 1.36."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from holdfast.api.crd import DEFINITIONS, crd
from holdfast.api.llmservice import GROUP, VERSION

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def document(*without: str) -> dict[str, Any]:
    """Both CRDs, without these fields, such as `LLMService.spec.slo.e2e`."""
    made: dict[str, Any] = json.loads(_complete())
    for path in without:
        holder, _, name = path.rpartition(".")
        del part(made, holder)["properties"][name]
    return made


@cache
def _complete() -> str:
    schemas: dict[str, Any] = {META: {"type": "object", "properties": {"name": {"type": "string"}}}}
    for of in DEFINITIONS:
        served = crd(of)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        served["properties"]["metadata"] = {"allOf": [{"$ref": f"#/components/schemas/{META}"}]}
        names = {"group": GROUP, "version": VERSION, "kind": of.kind}
        schemas[f"dev.holdfast.{VERSION}.{of.kind}"] = {**served, "x-kubernetes-group-version-kind": [names]}
    return json.dumps({"openapi": "3.0.0", "paths": {}, "components": {"schemas": schemas}})


def part(made: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema at a path, such as `LLMService.spec.accelerators[]`."""
    kind, *names = path.split(".")
    found: dict[str, Any] = made["components"]["schemas"][f"dev.holdfast.{VERSION}.{kind}"]
    for name in names:
        found = found["properties"][name.removesuffix("[]")]
        found = found["items"] if name.endswith("[]") else found
    return found
