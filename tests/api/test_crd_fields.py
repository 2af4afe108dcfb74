"""What a served CRD lacks is named by its path; what cannot be read accuses nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.crd import DEFINITIONS, LLMBENCHMARK, LLMSERVICE, Definition
from holdfast.api.crd_fields import missing_fields, unstored_fields
from tests.api.served import META, document, part
from tests.api.test_crd import BENCHMARK_NODES, NODES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "$ref", "allOf", "spec", "slo", "ttft", "components"]),
            inner,
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("of", DEFINITIONS, ids=lambda of: of.kind)
def test_our_own_crd_lacks_nothing(of: Definition) -> None:
    assert missing_fields(document(), of) == ()


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        (("LLMService.spec.slo.e2e",), ("spec.slo.e2e",)),
        (("LLMService.spec.accelerators[].spot",), ("spec.accelerators[].spot",)),
        (("LLMService.spec.engine",), ("spec.engine",)),
        (("LLMService.status.cost.perHour",), ("status.cost.perHour",)),
        (("LLMService.spec.target", "LLMService.spec.budget"), ("spec.budget", "spec.target")),
        (("LLMBenchmark.spec.revision",), ()),
    ],
)
def test_a_missing_field_is_named_once_by_its_path(without: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert missing_fields(document(*without)) == expected


def test_each_kind_is_compared_with_its_own_schema() -> None:
    assert missing_fields(document("LLMBenchmark.spec.revision"), LLMBENCHMARK) == ("spec.revision",)


def test_a_part_without_any_field_lacks_all_of_ours() -> None:
    served = document()
    part(served, "LLMService.spec")["properties"]["slo"] = {"type": "object"}
    found = missing_fields(served)
    assert found is not None
    assert {"spec.slo.ttft", "spec.slo.tpot", "spec.slo.objective"} <= set(found)
    assert all(path.startswith("spec.slo.") for path in found)


@pytest.mark.parametrize("more", [{"x-kubernetes-preserve-unknown-fields": True}, {"additionalProperties": True}])
def test_a_part_that_keeps_unknown_fields_lacks_none(more: dict[str, Any]) -> None:
    served = document("LLMService.spec.slo.e2e", "LLMService.spec.engine")
    part(served, "LLMService.spec.slo").update(more)
    assert missing_fields(served) == ("spec.engine",)


def referring(served: dict[str, Any], *, through: Any, name: str = "Slo") -> dict[str, Any]:
    """The same with the schema of `spec.slo` behind a reference."""
    fields = part(served, "LLMService.spec")["properties"]
    served["components"]["schemas"][name] = fields["slo"]
    fields["slo"] = through
    return served


@pytest.mark.parametrize(
    "through",
    [
        {"$ref": "#/components/schemas/Slo"},
        {"description": "objectives", "allOf": [{"$ref": "#/components/schemas/Slo"}]},
    ],
)
def test_references_are_followed(through: Any) -> None:
    assert missing_fields(referring(document("LLMService.spec.slo.e2e"), through=through)) == ("spec.slo.e2e",)


@pytest.mark.parametrize("schema", [{"$ref": "#/components/schemas/Slo"}, {"allOf": [{"$ref": "Slo"}]}])
def test_a_reference_to_itself_ends_and_accuses_nobody(schema: Any) -> None:
    served = referring(document("LLMService.spec.engine"), through={"$ref": "#/components/schemas/Slo"})
    served["components"]["schemas"]["Slo"] = schema
    assert missing_fields(served) == ("spec.engine",)


NONSENSE = [None, 7, "x", [], {}, {"type": "object", "properties": 7}, {"type": 7}, {"$ref": 7}, {"$ref": "#/nowhere"}]


@pytest.mark.parametrize("schema", [*NONSENSE, {"allOf": []}, {"allOf": [None]}, {"allOf": 7}, {"type": "array"}])
def test_a_part_that_cannot_be_read_accuses_nobody(schema: Any) -> None:
    served = document("LLMService.spec.engine")
    part(served, "LLMService.spec")["properties"]["slo"] = schema
    part(served, "LLMService.spec.accelerators[]")["properties"]["tolerations"] = schema
    assert missing_fields(served) == ("spec.engine",)


def of_schemas(schemas: Any) -> dict[str, Any]:
    return {"components": {"schemas": schemas}}


SERVED = part(document(), "LLMService")


@pytest.mark.parametrize(
    "nonsense",
    [
        *(None, 7, "x", [], {}, {"components": None}, {"components": []}, of_schemas(None), of_schemas([SERVED])),
        *(of_schemas({"a": None}), of_schemas({"a": SERVED, "b": SERVED}), of_schemas({META: {"type": "object"}})),
        *(of_schemas({"a": {**SERVED, "x-kubernetes-group-version-kind": odd}}) for odd in (None, {}, [], [None], 7)),
        *(of_schemas({"a": {**SERVED, "properties": odd}}) for odd in (None, {}, [], {"status": {}}, 7)),
    ],
)
def test_a_document_without_one_readable_schema_is_unknown(nonsense: Any) -> None:
    assert missing_fields(nonsense) is None


def with_properties(schema: dict[str, Any], names: Sequence[str], odd: Any) -> dict[str, Any]:
    """The same with other properties at a path."""
    if not names:
        return {**schema, "properties": odd}
    inner = with_properties(schema["properties"][names[0]], names[1:], odd)
    return {**schema, "properties": {**schema["properties"], names[0]: inner}}


@given(JSON, st.sampled_from([(), ("spec",), ("spec", "slo"), ("status", "capacity")]))
def test_whatever_is_served_only_fields_of_ours_are_named(odd: Any, where: Sequence[str]) -> None:
    assert missing_fields(odd) is None
    found = missing_fields(of_schemas({"a": with_properties(SERVED, where, odd)}))
    assert set(found or ()) <= {path.removeprefix(".") for path in NODES}


def test_no_map_of_ours_holds_objects_whose_fields_could_be_missing() -> None:
    for nodes in (NODES, BENCHMARK_NODES):
        assert [path for path, node in nodes.items() if "properties" in node.get("additionalProperties", {})] == []


FIRST, SECOND = {"name": "h100", "spot": True}, {"name": "l40s"}


@pytest.mark.parametrize(
    ("applied", "stored", "expected"),
    [
        ({"slo": {"ttft": "1s"}}, {"slo": {"ttft": "1s"}}, ()),
        ({"slo": {"ttft": "1s", "e2e": "9s"}}, {"slo": {"ttft": "1s"}}, ("spec.slo.e2e",)),
        ({"slo": {"ttft": "1s"}}, {"slo": {"ttft": "2s", "e2e": "9s"}}, ()),
        ({"engine": {"plugin": "Disabled"}}, {}, ("spec.engine",)),
        ({"engine": {"plugin": "Disabled"}}, {"engine": {}}, ("spec.engine.plugin",)),
        ({"replicas": None}, {}, ()),
        ({"priority": 0}, {}, ("spec.priority",)),
        ({"misspelt": 1}, {}, ()),
        ({"accelerators": [FIRST, FIRST]}, {"accelerators": [SECOND, SECOND]}, ("spec.accelerators[].spot",)),
        ({"accelerators": [FIRST, SECOND]}, {"accelerators": [FIRST, SECOND]}, ()),
        ({"accelerators": [FIRST]}, {"accelerators": [SECOND, SECOND]}, ()),
        ({"accelerators": {"name": "h100"}}, {"accelerators": [SECOND]}, ()),
        ({"accelerators": [{"nodeSelector": {"zone": "a"}}]}, {"accelerators": [{"nodeSelector": {}}]}, ()),
        ({"slo": "fast"}, {"slo": {}}, ()),
        ({"slo": {"ttft": "1s"}}, {"slo": None}, ()),
        *((odd, {"slo": {}}, ()) for odd in (None, 7, "x", [], [{"slo": {"ttft": "1s"}}], {})),
        *(({"slo": {"ttft": "1s"}}, odd, ()) for odd in (None, 7, "x", [])),
    ],
)
def test_fields_that_an_object_did_not_keep_are_named(applied: Any, stored: Any, expected: tuple[str, ...]) -> None:
    assert unstored_fields({"spec": applied}, {"spec": stored}, LLMSERVICE) == expected
