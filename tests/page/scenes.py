"""Services with their newest decisions, as a tick hands them to the status page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.decision import (
    Action,
    BadByCause,
    Candidate,
    CapacityView,
    ConditionValue,
    Decision,
    Explanation,
    SloView,
)
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Concurrency, LatencyQuantiles
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.page.board import Board
from tests.control.parts import decision, llmservice, parts

NOW = 1_800_000_000.0
Scene = tuple[ServiceParts, Decision]

SLO = SloView(
    attainment=0.9962,
    budget_remaining=0.62,
    good_rps=25.5,
    arrival_rps=26.0,
    ttft=LatencyQuantiles(0.21, 0.48, 0.93),
    tpot=LatencyQuantiles(0.021, 0.034, 0.047),
    e2e=LatencyQuantiles(4.2, 9.1, 14.0),
    concurrency=Concurrency(3.0, 7.0, 12.5),
    bad=BadByCause(0.3, 0.1, None, 0.0, 0.1),
)
BEHIND = Explanation(
    forecast_rps=29.0,
    quantile=0.97,
    lead_time_seconds=45.0,
    backlog_requests=0.0,
    wanted_replicas=5,
    candidates=(Candidate("h100", 4, 8.9, 12.0), Candidate("l40s", 10, 3.0, 15.0, "dearer")),
    guards=("DownHold: fewer replicas must suffice for 75 s",),
)


def scene(
    name: str = "chat",
    *,
    slo: SloView = SLO,
    met: bool | None = True,
    action: Action = Action.HOLD,
    message: str = "",
    explanation: Explanation = BEHIND,
    starting: int = 0,
    **spec: Any,
) -> Scene:
    part = parts(llmservice(name, **spec), ready={"h100": 4}, sizes={"h100": 4})
    coming = tuple(
        Replica(f"new-{number}", "h100", ReplicaPhase.STARTING, created_at=0.0) for number in range(starting)
    )
    part = replace(part, replicas=(*part.replicas, *coming))
    told = ConditionValue(ConditionType.SLO_MET, met, Reason.OBJECTIVE_MET if met else Reason.BELOW_CAPACITY, message)
    made = decision(part, action, h100=4 + starting)
    return part, replace(
        made,
        conditions=(*made.conditions, told),
        slo=slo,
        capacity=CapacityView("h100", 8.9, "TPOT", 0.9),
        explanation=explanation,
    )


def fleet(*scenes: Scene) -> dict[ServiceKey, Scene]:
    return {part.spec.key: (part, made) for part, made in scenes}


def board(*scenes: Scene, at: float = NOW) -> Board:
    shown = Board()
    shown.pictured(fleet(*scenes), (), at)
    return shown
