"""The services of the benchmark, the same for the same seed, and how they come into being on fake nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from e2e.cluster import nodes
from e2e.stack import H100
from holdfast.domain.service import AcceleratorOption, ServiceKey, ServiceSpec, Slo
from holdfast.enginemodel.mix import DEFAULT_CV, LengthMix
from holdfast.enginemodel.replica_model import StepLawModel, work_seconds

NAMESPACE = "scale"
ACCELERATOR = "h100"
MODEL = "Qwen/Qwen3-8B"
PROMPT_TOKENS, OUTPUT_TOKENS = 1155.0, 211.0

# TTFT, TPOT and end-to-end objectives in seconds; one service in five also promises the last.
_OBJECTIVES = ((0.5, 0.03, None), (1.0, 0.04, None), (1.0, 0.04, None), (2.0, 0.05, None), (2.0, 0.05, 30.0))
_WRITERS = 8


@dataclass(frozen=True, slots=True)
class Member:
    """One service: its objectives (s), its size, its constant load, and what the engine model says of a replica.

    `step_rps` is a load that needs more replicas than it has. `tpot_seconds` is the model's own answer at the constant
    load, so that the operator has nothing to correct.
    """

    name: str
    ttft_seconds: float
    objective_tpot_seconds: float
    e2e_seconds: float | None
    replicas: int
    rate_rps: float
    step_rps: float
    tpot_seconds: float

    def manifest(self) -> dict[str, Any]:
        """The LLMService."""
        slo = {"ttft": _milliseconds(self.ttft_seconds), "tpot": _milliseconds(self.objective_tpot_seconds)}
        if self.e2e_seconds is not None:
            slo["e2e"] = _milliseconds(self.e2e_seconds)
        return {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "LLMService",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "model": {"uri": MODEL},
                "slo": {**slo, "objective": "99%", "window": "1h"},
                "accelerators": [
                    {"name": ACCELERATOR, "nodeSelector": {nodes.GPU_PRODUCT_LABEL: H100}},
                    {"name": "l40s", "nodeSelector": {nodes.GPU_PRODUCT_LABEL: "NVIDIA-L40S"}},
                ],
                "scaling": {"min": self.replicas, "max": 2 * self.replicas},
            },
        }


def members(count: int, replicas: int, seed: int) -> tuple[Member, ...]:
    """Return the services; each is loaded to between a fifth and a half of what its replicas carry."""
    chance, model = random.Random(seed), StepLawModel()
    return tuple(_member(f"s{index:04}", replicas, chance, model) for index in range(count))


def _member(name: str, replicas: int, chance: random.Random, model: StepLawModel) -> Member:
    ttft, tpot, e2e = chance.choice(_OBJECTIVES)
    option = AcceleratorOption(ACCELERATOR)
    slo = Slo(ttft_seconds=ttft, tpot_seconds=tpot, objective=0.99, window_seconds=3600.0, e2e_seconds=e2e)
    spec = ServiceSpec(ServiceKey(NAMESPACE, name), "", 1, MODEL, slo, (option,))
    mix = LengthMix.from_means(
        PROMPT_TOKENS, OUTPUT_TOKENS, cached_share=0.0, prompt_cv=DEFAULT_CV, output_cv=DEFAULT_CV
    )
    carried = model.rate(spec, option, mix, 1.0).rate_rps
    # A rate of two digits, as status shows it: scrapes that come some milliseconds late do not turn it into another.
    each = float(f"{replicas * carried * chance.uniform(0.2, 0.5):.2g}") / replicas
    law = model.law(spec, option, mix, 1.0, each)
    assert law is not None, "half of what a replica carries is always stable"
    predicted = law.c0 / (1.0 - each * work_seconds(law, mix))
    return Member(name, ttft, tpot, e2e, replicas, each * replicas, 1.6 * carried * replicas, predicted)


def add_nodes(pods: int, gpus_per_node: int) -> None:
    """Create fake GPU nodes with room for a quarter more pods than given, and wait until they are Ready."""
    count = math.ceil(1.25 * pods / gpus_per_node)
    labels = {nodes.GPU_PRODUCT_LABEL: H100}
    names = nodes.add_fake_nodes("gpu", count, labels, {nodes.GPU: gpus_per_node}, pods=max(110, gpus_per_node))
    nodes.wait_for_nodes(names, seconds=300.0)


def declare(services: Sequence[Member]) -> None:
    """Create the namespace and all LLMServices."""
    nodes.connect().create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices"
    with ThreadPoolExecutor(_WRITERS) as writers:
        list(writers.map(lambda member: nodes.connect().create(path, member.manifest()), services))


def statuses() -> dict[str, dict[str, Any]]:
    """The status of every service, by name."""
    path = f"/apis/holdfast.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices"
    return {item["metadata"]["name"]: item.get("status", {}) for item in nodes.connect().get(path)["items"]}


def changed_fields(before: object, after: object, path: str = "") -> Iterator[str]:
    """The paths at which two statuses differ; places in lists are left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from changed_fields(before.get(name), after.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from changed_fields(one, other, path)
    elif before != after:
        yield path


def remove() -> None:
    """Delete the services with all they own, and the fake nodes."""
    api = nodes.connect()
    api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    fake = api.get(f"/api/v1/nodes?labelSelector={nodes.FAKE_NODE_LABEL}=true")["items"]
    nodes.remove_nodes([node["metadata"]["name"] for node in fake])


def _milliseconds(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"
