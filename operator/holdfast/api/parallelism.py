"""How the GPUs of a replica share its work: the field `accelerators[].parallelism`, and its rules."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, StrictInt

from holdfast.api.pod_security import ENGINE_CONTAINER, mapping, mappings
from holdfast.api.rules import ApiModel, BrokenRule, JsonSchema, Rule

MAX_GPUS = 64


def _cel_product(name: str) -> str:
    return f"{name}.tensor * {name}.pipeline * {name}.data"


def cel_gpus(name: str) -> str:
    """CEL for the GPUs of a replica on an accelerator: its count, else the product, else one."""
    product = _cel_product(f"{name}.parallelism")
    return f"(has({name}.count) ? {name}.count : has({name}.parallelism) ? {product} : 1)"


def require_gpus_said_once(spec: Any) -> None:
    """Raise BrokenRule where engine.resources or a template asks for other GPUs than the accelerator has.

    The operator alone checks it: the two numbers are of any form that Kubernetes takes.
    """
    for number, accelerator in enumerate(spec.accelerators):
        for place, resources in _resources(spec, accelerator, f".accelerators[{number}]"):
            for kind in ("requests", "limits"):
                asked = mapping(resources.get(kind)).get(accelerator.resource)
                if asked is not None and str(asked) != str(accelerator.gpus_per_pod):
                    raise BrokenRule(
                        f"{accelerator.resource}: {asked} is another number of GPUs than {accelerator.gpus_per_pod}, "
                        f"which accelerator {accelerator.name} has: set accelerators[].count, and remove it here",
                        f"{place}.{kind}",
                    )


def _resources(spec: Any, accelerator: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The resources that a spec names for its engines on an accelerator, with their paths."""
    yield ".engine.resources", spec.engine.resources
    for owner, template in (("", spec.template), (path, accelerator.template)):
        for container in mappings(mapping(mapping(template).get("spec")).get("containers")):
            if container.get("name") == ENGINE_CONTAINER:
                yield f"{owner}.template.spec.containers.resources", mapping(container.get("resources"))


def _without_default(schema: JsonSchema) -> None:
    """With a default the API server would fill in what a rule must see left out."""
    schema.pop("default", None)


Gpus = Annotated[StrictInt, Field(ge=1, le=MAX_GPUS)]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_GPUS, json_schema_extra=_without_default)]


class Parallelism(ApiModel):
    """How the GPUs of a replica share its work. They are on one node, unless `nodes` spreads them."""

    rules = (
        Rule(
            f"{_cel_product('self')} <= {MAX_GPUS}",
            f"the product of tensor, pipeline and data must be at most {MAX_GPUS}: lower one of them",
            lambda parallelism: parallelism.gpus <= MAX_GPUS,
        ),
    )

    tensor: Gpus = 1
    """GPUs that compute each layer together (vLLM --tensor-parallel-size)."""
    pipeline: Gpus = 1
    """Stages that the layers are divided into (vLLM --pipeline-parallel-size)."""
    data: Gpus = 1
    """Engines in the pod, each with all weights, that share the requests (vLLM --data-parallel-size)."""

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor * self.pipeline * self.data


def _count_is_product(accelerator: Any) -> bool:
    parallelism = accelerator.parallelism
    return parallelism is None or "count" not in accelerator.model_fields_set or accelerator.count == parallelism.gpus


COUNT_IS_PRODUCT = Rule(
    f"!has(self.parallelism) || !has(self.count) || self.count == {_cel_product('self.parallelism')}",
    "count must be parallelism.tensor x pipeline x data, a missing one counts as 1: set count to it, or remove count",
    _count_is_product,
    ".count",
)
