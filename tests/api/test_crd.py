"""The generated CRD is the committed one and keeps to what Kubernetes demands of a structural schema."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.api import crd
from holdfast.api.llmservice import LLMServiceSpec

ROOT = Path(__file__).parents[2]
VERSION = crd.crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
BENCHMARK_VERSION = crd.crd(crd.LLMBENCHMARK)["spec"]["versions"][0]
BENCHMARK_SCHEMA = BENCHMARK_VERSION["schema"]["openAPIV3Schema"]
# Parts that users write as in a pod: types of Kubernetes, which only rules need bounds of.
_PARTS = r"(\.prefill)?(\.accelerators\[\]|\.engine|\.router)?"
IN_PODS = re.compile(rf"\.spec{_PARTS}\.(template|env\[\]|tolerations\[\]|resources)\.")


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema, with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def nodes_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every schema of spec and status, by its path."""
    return dict(nodes({"properties": {key: schema["properties"][key] for key in ("spec", "status")}}))


NODES = nodes_of(SCHEMA)
BENCHMARK_NODES = nodes_of(BENCHMARK_SCHEMA)
BOTH = pytest.mark.parametrize("nodes", [NODES, BENCHMARK_NODES], ids=["services", "benchmarks"])
Nodes = dict[str, dict[str, Any]]


@pytest.mark.parametrize("folder", ["crds", "charts/holdfast/files/crds"])
def test_the_committed_crds_are_the_generated_ones(folder: str) -> None:
    committed = {path.name: path.read_text() for path in (ROOT / folder).glob("*.yaml")}
    assert committed == crd.files(), "outdated: run `make generate`"


@pytest.mark.parametrize("of", crd.DEFINITIONS, ids=lambda of: of.kind)
def test_the_yaml_is_the_dictionary(of: crd.Definition) -> None:
    assert yaml.safe_load(crd.crd_yaml(of)) == crd.crd(of)


@BOTH
def test_every_schema_has_a_type_or_is_free_form(nodes: Nodes) -> None:
    untyped = [path for path, node in nodes.items() if "type" not in node and "x-kubernetes-int-or-string" not in node]
    assert untyped == [""]


@BOTH
@pytest.mark.parametrize("keyword", ["$ref", "$defs", "anyOf", "oneOf", "allOf", "title", "const", "nullable"])
def test_no_schema_has_a_keyword_that_structural_schemas_lack(keyword: str, nodes: Nodes) -> None:
    found = [path for path, node in nodes.items() if keyword in node]
    assert [path for path in found if keyword != "nullable" or not IN_PODS.match(path)] == []


def test_no_part_takes_an_object_of_any_depth() -> None:
    texts = crd.files().values()
    assert not any("preserve-unknown-fields" in text for text in texts)
    assert max(path.count(".") + path.count("[]") for path in (*NODES, *BENCHMARK_NODES)) <= 20


@pytest.mark.parametrize("of", crd.DEFINITIONS, ids=lambda of: of.kind)
def test_kubectl_can_apply_the_crd(of: crd.Definition) -> None:
    annotation = json.dumps(crd.crd(of), separators=(",", ":"))
    assert len(annotation) < 200_000, "kubectl keeps it in an annotation; all annotations have at most 256 KiB"


@BOTH
def test_exclusive_bounds_are_flags(nodes: Nodes) -> None:
    assert {node["exclusiveMinimum"] for node in nodes.values() if "exclusiveMinimum" in node} == {True}


@BOTH
def test_every_string_list_and_map_is_bounded_so_that_rules_have_a_bounded_cost(nodes: Nodes) -> None:
    bounds = {"string": ("maxLength", "enum"), "array": ("maxItems",)}
    unbounded = [path for path, node in nodes.items() for bound in [bounds.get(node.get("type", ""))]
                 if bound and not any(key in node for key in bound)]  # fmt: skip
    unbounded += [
        path for path, node in nodes.items() if "additionalProperties" in node and "maxProperties" not in node
    ]
    assert [path for path in unbounded if not IN_PODS.match(path)] == []


@BOTH
def test_every_field_says_what_it_is_for(nodes: Nodes) -> None:
    silent = [
        path
        for path, node in nodes.items()
        if path and not path.endswith("[]") and "description" not in node and not IN_PODS.match(path)
    ]
    assert silent == []


def test_every_rule_has_a_message_with_a_remedy() -> None:
    everything = [SCHEMA, *NODES.values(), BENCHMARK_SCHEMA, *BENCHMARK_NODES.values()]
    rules = [rule for node in everything for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) > 40
    assert [rule["rule"] for rule in rules if len(rule["message"]) < 30] == []
    assert max(len(rule["message"]) for rule in rules) <= 2048


@BOTH
def test_a_status_that_nobody_wrote_says_only_that_nobody_looked(nodes: Nodes) -> None:
    """kstatus takes an object without a status for finished, and one of an older generation for not."""
    found = {path: node["default"] for path, node in nodes.items() if path.startswith(".status") and "default" in node}
    assert found == {".status": {"observedGeneration": -1}}


def test_an_object_left_out_has_the_defaults_of_its_fields() -> None:
    assert NODES[".spec.scaling"]["default"] == {"min": 1, "max": 10, "minOnDemand": 0}
    assert "default" not in NODES[".spec.budget"]


def test_named_lists_merge_by_name() -> None:
    keys = {
        path: node["x-kubernetes-list-map-keys"] for path, node in NODES.items() if "x-kubernetes-list-map-keys" in node
    }
    assert keys[".spec.accelerators"] == ["name"]
    assert keys[".status.conditions"] == ["type"]
    for path, (key,) in keys.items():
        assert key in NODES[f"{path}[]"]["required"], path


def test_fields_of_later_versions_are_absent() -> None:
    assert [path for path in [".adopt"] if f".spec{path}" in NODES] == []


def test_scale_reads_the_replicas_people_set() -> None:
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    assert ".spec.replicas" in NODES
    assert ".status.replicas.ready" in NODES


@pytest.mark.parametrize(
    ("version", "nodes"), [(VERSION, NODES), (BENCHMARK_VERSION, BENCHMARK_NODES)], ids=["services", "benchmarks"]
)
def test_columns_show_fields_that_exist(version: dict[str, Any], nodes: Nodes) -> None:
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[")[0]
        assert path in nodes or path == ".metadata.creationTimestamp", column["name"]


def test_required_fields_are_the_four_facts() -> None:
    assert NODES[".spec"]["required"] == ["slo"]  # and model and accelerators, by rules that let a target stand in
    assert NODES[".spec.model"]["required"] == ["uri"]
    assert NODES[".spec.slo"]["required"] == ["ttft", "tpot"]
    assert NODES[".spec.accelerators[]"]["required"] == ["name"]


def test_a_benchmark_needs_a_target_and_has_no_size_to_scale() -> None:
    assert BENCHMARK_NODES[".spec"]["required"] == ["target"]
    assert set(BENCHMARK_VERSION["subresources"]) == {"status"}


def test_names_are_spelled_as_pydantic_reads_them() -> None:
    assert set(NODES[".spec"]["properties"]) == {field.alias for field in LLMServiceSpec.model_fields.values()}
