"""How the GPUs of a replica share its work: the field `accelerators[].parallelism`, and its rules."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StrictInt

from holdfast.api.pod_security import engines, mapping
from holdfast.api.quantities import parse_whole
from holdfast.api.rules import ApiModel, BrokenRule, JsonSchema, Rule

MAX_GPUS = 64


def _cel_product(name: str) -> str:
    return f"{name}.tensor * {name}.pipeline * {name}.data"


def cel_gpus(name: str) -> str:
    """CEL for the GPUs of a replica on an accelerator: its count, else the product, else one."""
    product = _cel_product(f"{name}.parallelism")
    return f"(has({name}.count) ? {name}.count : has({name}.parallelism) ? {product} : 1)"


def require_gpus_said_once(spec: Any) -> None:
    """Raise BrokenRule where a template has other GPUs than the accelerator, or engine.resources those of none.

    The operator alone checks it: the two numbers are of any form that Kubernetes takes.
    """
    pods = [each.gpus_per_pod for each in spec.accelerators]
    for number, accelerator in enumerate(spec.accelerators):
        _require_gpus(spec.engine.resources, accelerator, pods, ".engine.resources")
        own = (accelerator.template, f".accelerators[{number}]")
        for template, owner in (own, (spec.template, "")):  # the accelerator's is merged over the service's
            resources = _resources(template)
            _require_gpus(
                resources, accelerator, [accelerator.gpus_per_pod], f"{owner}.template.spec.containers.resources"
            )
            if resources:
                break


def _require_gpus(resources: Mapping[str, Any], accelerator: Any, allowed: list[int], path: str) -> None:
    for kind in ("requests", "limits"):
        asked = mapping(resources.get(kind)).get(accelerator.resource)
        if asked is not None and parse_whole(asked) not in allowed:
            raise BrokenRule(
                f"{accelerator.resource}: {asked} is another number of GPUs than {accelerator.gpus_per_pod}, which a "
                f"pod on {accelerator.name} has: set accelerators[].count, and remove it here",
                f"{path}.{kind}",
            )


def _resources(template: Any) -> Mapping[str, Any]:
    """What a template names for its engine."""
    return mapping(next(iter(engines(template)), {}).get("resources"))


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
