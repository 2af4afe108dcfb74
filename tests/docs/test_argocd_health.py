"""The health script for Argo CD, run as it is shipped against statuses as the operator writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lupa
import pytest

from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.report import invalid_status, status_of
from holdfast.domain.cluster import ClusterProblem, ReplicaPhase
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey
from holdfast.observe.cluster import Invalid
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.health.replicas import Group
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.view import View
from tests.builders import ServiceView, replicas, traffic
from tests.control.parts import decision, parts
from tests.policy.views import CHAT, view

SCRIPT = (Path(__file__).parents[2] / "docs" / "argocd" / "health.lua").read_text()
Status = dict[str, Any]


def health(status: Status | None, generation: int = 1) -> tuple[str, str]:
    """What Argo CD makes of the object: health and message."""
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)
    script: Callable[[Any], Any] = runtime.eval(f"function(obj)\n{SCRIPT}\nend")
    body: Status = {"metadata": {"generation": generation}, **({} if status is None else {"status": status})}
    told = script(runtime.table_from(body, recursive=True))
    return told["status"], told["message"]


def status(seen: View) -> Status:
    """The status that the operator writes of a view."""
    part = parts()
    decided = replace(decision(part, Action.HOLD, h100=4), conditions=conditions(seen, decide_sizes(seen)))
    return status_of(part, decided, BatchingStatus(), {}, 0.0)


def group(ready: int, **more: Any) -> Group:
    return Group("h100", size=4, exists=True, ready=replicas(ready), **more)


def secret_missing() -> View:
    problem = ClusterProblem(Reason.SECRET_MISSING, "Secret hf has no key token")
    return view(group=group(0), service=ServiceView(CHAT, traffic(5.0), problems=(problem,)).snapshot())


INVALID = invalid_status(Invalid(ServiceKey("prod", "chat"), 1, "template.hostPID is refused"), {}, 0.0)
FEW, MISSED = group(2, starting=replicas(2, ReplicaPhase.STARTING)), SloState(0.5, -49.0, True, True, 1000.0)

TABLE: dict[str, tuple[Status | None, str, str]] = {
    "nobody looked yet": (None, "Progressing", "waiting for Holdfast"),
    "a status without conditions": ({"observedGeneration": 1}, "Progressing", "waiting for Holdfast"),
    "all serve": (status(view()), "Healthy", "4 of 4 replicas are ready"),
    "the objective is missed": (status(view(slo=MISSED)), "Healthy", "4 of 4 replicas are ready"),
    "more are starting": (status(view(group=FEW, starting=True)), "Healthy", "2 of 4 replicas are ready"),
    "the first are starting": (
        status(view(group=group(0, starting=replicas(4, ReplicaPhase.STARTING)), starting=True)),
        "Progressing",
        "NoReplicas: 4 of 4 replicas are starting",
    ),
    "a rollout": (status(view(group=group(4, rolling_out=True))), "Progressing", "replicas are being replaced"),
    "nobody can run it": (status(secret_missing()), "Degraded", "SecretMissing: Secret hf has no key token"),
    "not understood": (INVALID, "Degraded", "Invalid: template.hostPID is refused"),
}


@pytest.mark.parametrize(("found", "expected", "message"), TABLE.values(), ids=TABLE.keys())
def test_argo_cd_sees_the_health_of_a_service(found: Status | None, expected: str, message: str) -> None:
    assert health(found) == (expected, message)


def test_a_status_of_an_older_spec_says_nothing_about_this_one() -> None:
    assert health(status(view()), generation=2) == ("Progressing", "waiting for Holdfast")


def test_the_last_resort_of_an_invalid_object_is_its_ready_condition() -> None:
    plain = {**INVALID, "conditions": [item for item in INVALID["conditions"] if item["type"] == "Ready"]}
    assert health(plain) == ("Degraded", "template.hostPID is refused")


@pytest.mark.parametrize("condition", ["Ready", "SLOMet", "ScalingActive", "MetricsAvailable", "CapacityAvailable"])
def test_kubectl_wait_finds_every_condition_in_each_status(condition: str) -> None:
    """`kubectl wait --for=condition=X` waits for status True of the type, once observedGeneration has caught up."""
    found = [item for item in status(view())["conditions"] if item["type"] == condition]
    assert [item["status"] for item in found] == ["True"]
    assert found[0]["observedGeneration"] == 1
