"""Objects as the operator writes their status, with what kstatus (Flux, Helm) makes of each and Argo CD is to make.

Argo CD's script is run on them in test_argocd_health.py, kstatus itself and Flux's expressions in e2e/test_gitops.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.api.reasons import Reason
from holdfast.api.status import BatchingStatus
from holdfast.control.status.report import invalid_status, status_of
from holdfast.domain.cluster import ClusterProblem, ReplicaPhase
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.observe.objects.cluster import Invalid
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.health.replicas import Group
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.view import View
from tests.builders import ServiceView, no_traffic, replicas, traffic
from tests.control.parts import decision, parts
from tests.policy.views import CHAT, view

Status = dict[str, Any]
CURRENT, IN_PROGRESS, FAILED = "Current", "InProgress", "Failed"
UNSEEN: Status = {"observedGeneration": -1}
"""What the API server makes up until the operator has seen the object; the CRD says so."""


def told(generation: int = 1, **status: Any) -> Status:
    """An object with this status."""
    meta = {"name": "chat", "namespace": "prod", "generation": generation}
    return {"apiVersion": "holdfast.dev/v1alpha1", "kind": "LLMService", "metadata": meta, "status": status}


def seen(of: View, generation: int = 1) -> Status:
    """The object with the status that the operator writes of a view of generation 1."""
    part = parts()
    decided = replace(decision(part, Action.HOLD, h100=4), conditions=conditions(of, decide_sizes(of)))
    return told(generation, **status_of(part, decided, BatchingStatus(), {}, 0.0))


def invalid(message: str, reason: Reason) -> Status:
    return told(**invalid_status(Invalid(ServiceKey("prod", "chat"), 1, message, reason=reason), {}, 0.0))


def group(ready: int, starting: int = 0, **more: Any) -> Group:
    coming = replicas(starting, ReplicaPhase.STARTING)
    return Group("h100", size=ready + starting, exists=True, ready=replicas(ready), starting=coming, **more)


def having(problem: Reason, ready: int) -> View:
    found = ClusterProblem(problem, "Secret hf has no key token")
    return view(group=group(ready), service=ServiceView(CHAT, traffic(5.0), problems=(found,)).snapshot())


def scaling(ready: int, starting: int, least: int = 2, **more: Any) -> View:
    return view(of=CHAT.with_replicas_between(least, 10), group=group(ready, starting, **more), starting=starting > 0)


MISSED = SloState(0.5, -49.0, True, 1000.0)
BLIND = ServiceView(CHAT, no_traffic(SignalState.UNREACHABLE)).snapshot()

TABLE: dict[str, tuple[Status, str, str]] = {
    "nobody looked yet": (told(**UNSEEN), IN_PROGRESS, "waiting for Holdfast"),
    "the spec was edited": (seen(view(), generation=2), IN_PROGRESS, "waiting for Holdfast"),
    "all serve": (seen(view()), CURRENT, "4 of 4 replicas are ready"),
    "the objective is missed": (seen(view(slo=MISSED)), CURRENT, "4 of 4 replicas are ready"),
    "no metrics": (seen(view(service=BLIND)), CURRENT, "4 of 4 replicas are ready"),
    "one more starts": (seen(scaling(4, 1)), CURRENT, "4 of 5 replicas are ready"),
    "many more start": (seen(scaling(2, 8)), CURRENT, "2 of 10 replicas are ready"),
    "the declared minimum starts": (
        seen(scaling(2, 1, least=3)),
        IN_PROGRESS,
        "ReplicasStarting: 2 of 3 replicas are ready",
    ),
    "the first are starting": (seen(scaling(0, 4)), IN_PROGRESS, "ReplicasStarting: 0 of 4 replicas are ready"),
    "a pinned size is not there yet": (
        seen(view(of=CHAT.pinned_to(4), group=group(2, 2), starting=True)),
        IN_PROGRESS,
        "ReplicasStarting: 2 of 4 replicas are ready",
    ),
    "pinned": (seen(view(of=CHAT.pinned_to(4))), CURRENT, "4 of 4 replicas are ready"),
    "a rollout": (seen(scaling(4, 0, rolling_out=True)), IN_PROGRESS, "RolloutUnderWay: replicas are being replaced"),
    "a change that Kubernetes has not seen": (
        seen(scaling(4, 0, observed=False)),
        IN_PROGRESS,
        "SpecNotObserved: Kubernetes has not observed the last change yet",
    ),
    "nobody can run it": (
        seen(having(Reason.SECRET_MISSING, ready=0)),
        FAILED,
        "SecretMissing: Secret hf has no key token",
    ),
    "a change is refused while the old ones serve": (
        seen(having(Reason.APPLY_FAILED, ready=4)),
        FAILED,
        "ApplyFailed: Secret hf has no key token",
    ),
    "not understood": (
        invalid("template.hostPID is refused", Reason.INVALID),
        FAILED,
        "Invalid: template.hostPID is refused",
    ),
    "deletion held": (invalid("it waits for x", Reason.DELETION_HELD), FAILED, "DeletionHeld: it waits for x"),
}
