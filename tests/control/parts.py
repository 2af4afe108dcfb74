"""Services as the loop sees them, for tests of control."""

from __future__ import annotations

from typing import Any

from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase
from holdfast.domain.decision import Action, ConditionValue, Decision, PlacementTarget, SloView, Verdict
from holdfast.observe.cluster import Deployed, ServiceParts
from holdfast.observe.spec import to_spec


def llmservice(name: str = "chat", *, generation: int = 1, **spec: Any) -> LLMService:
    return LLMService.parse(body(name, generation=generation, **spec))


def body(name: str = "chat", *, generation: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "generation": generation},
        "spec": {
            "model": {"uri": "Qwen/Qwen3-8B"},
            "slo": {"ttft": "1s", "tpot": "50ms"},
            "accelerators": [{"name": "h100", "costPerHour": 3.0}, {"name": "l40s", "costPerHour": 1.0}],
            **spec,
        },
    }


def parts(
    service: LLMService | None = None, *, ready: dict[str, int] | None = None, sizes: dict[str, int] | None = None
) -> ServiceParts:
    service = service or llmservice()
    replicas = tuple(
        Replica(f"{accelerator}-{number}", accelerator, ReplicaPhase.READY, created_at=0.0, ready_at=30.0)
        for accelerator, count in (ready or {}).items()
        for number in range(count)
    )
    deployed = tuple(
        Deployed(Placement(accelerator, size, deployment=f"{service.metadata.name}-{accelerator}"))
        for accelerator, size in (sizes or {}).items()
    )
    return ServiceParts(service, to_spec(service), replicas, deployed)


def decision(part: ServiceParts, action: Action, **sizes: int) -> Decision:
    observed = {placement.accelerator: placement.replicas for placement in part.placements}
    targets = tuple(PlacementTarget(name, size, observed.get(name)) for name, size in sizes.items())
    return Decision(
        key=part.spec.key,
        generation=part.spec.generation,
        verdict=Verdict(action, Reason.FORECAST_ABOVE_CAPACITY, "because", targets),
        conditions=(ConditionValue(ConditionType.READY, True, Reason.SERVING, "1 of 1 replicas serve"),),
        slo=SloView(),
    )
