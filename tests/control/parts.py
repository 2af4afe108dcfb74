"""Services as the loop sees them, for tests of control."""

from __future__ import annotations

import dataclasses
from typing import Any

from holdfast.act.resources import _KINDS
from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import LLMService
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, ConditionValue, Decision, PlacementTarget, SloView, Verdict
from holdfast.observe.objects.cluster import ObservedDeployment, ServiceParts
from holdfast.observe.objects.spec import to_spec
from holdfast.rendered import context
from holdfast.rendered.live import Live
from tests.fakes import FakeApi


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
        ObservedDeployment(Placement(accelerator, size, workload=Workload(f"{service.metadata.name}-{accelerator}")))
        for accelerator, size in (sizes or {}).items()
    )
    return ServiceParts(service, to_spec(service), replicas, deployed)


def with_router(part: ServiceParts, away_since: float | None = None) -> ServiceParts:
    """The service with a router that is available, or has not been since then."""
    placement = Placement("", 2, workload=Workload(f"{part.spec.key.name}-router"))
    return dataclasses.replace(part, router=ObservedDeployment(placement, away_since=away_since))


def as_watched(part: ServiceParts, api: FakeApi) -> ServiceParts:
    """The service with everything the watches show of the objects in this API server."""
    kinds = {plural: kind for kind, (_, plural) in _KINDS.items() if kind != "Event"}
    found = [(kinds.get(path.split("/")[-2]), path, body) for path, body in api.objects.items()]
    live = [Live.of(kind, body) for kind, path, body in found if kind and f"/{part.spec.key.namespace}/" in path]
    deployed = [
        dataclasses.replace(item, rendered=_rendered(api, part, item.placement.workload.name)) for item in part.deployed
    ]
    return dataclasses.replace(part, live=tuple(live), watched=frozenset(kinds.values()), deployed=tuple(deployed))


def _rendered(api: FakeApi, part: ServiceParts, deployment: str) -> context.Deployed | None:
    body = api.objects.get(f"/apis/apps/v1/namespaces/{part.spec.key.namespace}/deployments/{deployment}")
    return context.Deployed.read(body) if body and body["spec"].get("strategy") else None


def decision(part: ServiceParts, action: Action, **sizes: int) -> Decision:
    observed = {placement.accelerator: placement.replicas for placement in part.placements}
    targets = tuple(PlacementTarget(name, size, observed.get(name)) for name, size in sizes.items())
    return Decision(
        key=part.spec.key,
        generation=part.spec.generation,
        verdict=Verdict(action, Reason.FORECAST_ABOVE_CAPACITY, "because", targets),
        conditions=(ConditionValue(ConditionType.READY, True, Reason.SERVING, "1 of 1 replica is ready"),),
        slo=SloView(),
    )
