"""Take the types of pods out of Kubernetes' OpenAPI, for the free-form parts of the CRDs.

    python scripts/make_pod_schema.py --kubernetes FOLDER_OF_THE_SOURCES

Reads `api/openapi-spec/v3/api__v1_openapi.json`; writes each type once, fields by name. The same input gives the same
bytes. Left out is what no pod template may have: ephemeralContainers, and metadata of a
claim other than labels and annotations.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PACKAGE_FILE = Path(__file__).parents[1] / "operator/holdfast/api/data/pod_types.json"
SPECIFICATION = "api/openapi-spec/v3/api__v1_openapi.json"
ROOTS = ("PodSpec", "ResourceRequirements", "Toleration", "EnvVar")
LEFT_OUT = {"ephemeralContainers"}
META: dict[str, tuple[str, ...]] = {
    "LabelSelector": (),
    "LabelSelectorRequirement": (),
    "ObjectMeta": ("annotations", "labels"),
}
"""Types of the package `meta`, with the fields that are kept; none named: all."""

SCALARS = {"Quantity": "int-or-string", "IntOrString": "int-or-string", "Time": "string"}

Json = dict[str, Any]


def pod_types(schemas: Json) -> Json:
    """Every type that a pod is made of: fields by name, each a scalar, a type, a list [x] or a map {"*": x}."""
    by_name = {name.rsplit(".", 1)[1]: schema for name, schema in schemas.items() if ".core.v1." in name}
    by_name |= {name: schemas[f"io.k8s.apimachinery.pkg.apis.meta.v1.{name}"] for name in META}
    types: Json = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in types:
            fields = by_name[name].get("properties", {})
            kept = META.get(name) or fields.keys() - LEFT_OUT
            types[name] = {field: _kind(fields[field]) for field in sorted(kept)}
            waiting += [used for kind in types[name].values() for used in _used(kind) if used in by_name]
    return dict(sorted(types.items()))


def _kind(schema: Json) -> Any:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", [])), None)
    if reference:
        name = reference.rsplit(".", 1)[1]
        return SCALARS.get(name, name)
    if schema["type"] == "array":
        return [_kind(schema["items"])]
    if schema["type"] == "object":
        return {"*": _kind(schema["additionalProperties"])}
    return schema["type"]


def _used(kind: Any) -> list[str]:
    inner = kind[0] if isinstance(kind, list) else kind["*"] if isinstance(kind, dict) else kind
    return [inner] if isinstance(inner, str) else _used(inner)


def text(kubernetes: Path) -> str:
    """The package file from the folder of Kubernetes' sources."""
    specification = json.loads((kubernetes / SPECIFICATION).read_text(encoding="utf-8"))
    return json.dumps(pod_types(specification["components"]["schemas"]), indent=1) + "\n"


def main() -> int:
    """Write the package file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubernetes", type=Path, required=True, help="folder of the sources of Kubernetes")
    PACKAGE_FILE.parent.mkdir(exist_ok=True)
    PACKAGE_FILE.write_text(text(parser.parse_args().kubernetes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
