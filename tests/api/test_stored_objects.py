"""A manifest means to the types what it means to the API server: nulls, numbers, names of fields."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from holdfast.api.llmbenchmark import LLMBenchmark, LLMBenchmarkSpec
from holdfast.api.llmservice import InvalidLLMService, LLMService, LLMServiceSpec
from holdfast.api.rules import ApiModel
from tests.api import benchmark_refusals
from tests.api.refusals import MINIMAL, changed


def service(path: str, value: Any) -> dict[str, Any]:
    """The minimal object with a value at a path, such as `slo.window`; a number is an index."""
    body: Any = copy.deepcopy(MINIMAL)
    *holders, last = path.split(".")
    part = body["spec"]
    for name in holders:
        part = part[int(name)] if name.isdigit() else part.setdefault(name, {})
    part[last] = value
    return body  # type: ignore[no-any-return]


LEFT_OUT = [
    *("target", "scaling", "engine", "batching", "rollout", "budget", "priority", "overload", "template"),
    *("slo.objective", "slo.window", "scaling.min", "scaling.schedules", "rollout.maxSurge", "engine.env"),
    *("accelerators.0.count", "accelerators.0.tolerations", "accelerators.0.spot", "accelerators.0.nodeSelector.zone"),
    *("template.metadata.labels", "template.spec.nodeName", "template.spec.restartPolicy"),
]


@pytest.mark.parametrize("path", LEFT_OUT)
def test_a_null_is_a_field_that_is_left_out(path: str) -> None:
    holder, _, _ = path.rpartition(".")
    without = service(holder, {}) if holder.partition(".")[0] in ("scaling", "rollout", "engine") else changed({})
    given, left_out = (LLMService.parse(body).spec for body in (service(path, None), without))
    written = {"template"}  # a part of a pod that is empty, and one that is not there
    assert given.model_dump(exclude=written) == left_out.model_dump(exclude=written)


def test_a_null_of_the_count_leaves_it_to_parallelism() -> None:
    body = service("accelerators.0.count", None)
    body["spec"]["accelerators"][0]["parallelism"] = {"tensor": 4}
    assert LLMService.parse(body).spec.accelerators[0].count == 4


def test_a_null_that_removes_what_is_rendered_stays() -> None:
    template = {"spec": {"securityContext": {"runAsUser": None}, "containers": [{"name": "vllm", "workingDir": None}]}}
    assert LLMService.parse(service("template", template)).spec.template == template


def test_a_null_of_the_engines_command_is_left_out() -> None:
    spec = LLMService.parse(service("template.spec.containers", [{"name": "vllm", "command": None}])).spec
    assert spec.template == {"spec": {"containers": [{"name": "vllm"}]}}


@pytest.mark.parametrize("path", ["engine.plugIn", "scaling.least", "template.spec.tolerationz", "model.max_model_len"])
@pytest.mark.parametrize("value", [None, 3])
def test_an_unknown_field_is_told_whatever_it_holds(path: str, value: Any) -> None:
    with pytest.raises(InvalidLLMService, match="check its spelling"):
        LLMService.parse(service(path, value))


@pytest.mark.parametrize("path", ["slo", "slo.ttft", "model", "model.uri", "accelerators", "accelerators.0.name"])
def test_a_null_of_a_required_field_is_a_missing_one(path: str) -> None:
    with pytest.raises(InvalidLLMService, match="is required"):
        LLMService.parse(service(path, None))


@pytest.mark.parametrize("path", ["scaling.max", "model.maxModelLen", "rollout.maxSurge", "priority", "replicas"])
def test_a_whole_number_with_a_point_is_that_number(path: str) -> None:
    assert LLMService.parse(service(path, 3.0)).spec == LLMService.parse(service(path, 3)).spec


@pytest.mark.parametrize("value", [3.5, math.nan, math.inf, -math.inf, 1e30, "3", True, [3], {}])
@pytest.mark.parametrize("path", ["scaling.max", "model.maxModelLen", "rollout.maxSurge", "priority", "replicas"])
def test_what_is_no_whole_number_is_refused(path: str, value: Any) -> None:
    with pytest.raises(InvalidLLMService, match=path):
        LLMService.parse(service(path, value))


def test_amounts_and_ports_of_pods_may_have_a_point_where_they_are_whole() -> None:
    ports = {"spec": {"containers": [{"name": "logs", "ports": [{"containerPort": 9.0}]}]}}
    body = service("engine.resources.limits.cpu", 1.0)
    body["spec"]["template"] = ports
    spec = LLMService.parse(body).spec
    assert repr(spec.engine.resources["limits"]["cpu"]) == "1"
    assert repr(spec.template["spec"]["containers"][0]["ports"][0]["containerPort"]) == "9"  # type: ignore[index]


def models(model: type[BaseModel], known: set[type[BaseModel]] | None = None) -> set[type[BaseModel]]:
    """A type of the API and all those in it."""
    known = {model} if known is None else known
    for field in model.model_fields.values():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, ApiModel) and part not in known:
                known.add(part)
                models(part, known)
    return known


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


FIELDS = [
    (model, name)
    for model in sorted({*models(LLMServiceSpec), *models(LLMBenchmarkSpec)}, key=lambda each: each.__name__)
    for name, field in model.model_fields.items()
    if {int, float, bool} & set(_parts(field.annotation))
]


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=[f"{model.__name__}.{name}" for model, name in FIELDS])
def test_no_number_and_no_truth_value_is_read_from_a_value_of_another_type(model: type[BaseModel], name: str) -> None:
    field = model.model_fields[name]
    adapter = TypeAdapter(_annotated(field))
    for value in ("1", True) if bool not in set(_parts(field.annotation)) else ("true", 1):
        if str in set(_parts(field.annotation)) and isinstance(value, str):
            continue
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


def _annotated(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def test_all_numbers_of_the_api_were_looked_at() -> None:
    assert len(FIELDS) >= 25


def test_a_revision_that_is_true_is_refused() -> None:
    with pytest.raises(ValueError, match="revision"):
        LLMBenchmark.parse(benchmark_refusals.benchmark({"revision": True}))
