"""Whoever reads why no replica serves reads last what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.control.status.node_labels import NodeLabels
from holdfast.control.status.remedies import with_remedies
from holdfast.domain.cluster import Adoption, NodeOffer, ReplicaPhase, Workload
from holdfast.domain.decision import ConditionValue
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.view import View
from holdfast.render.refusals import refusal_told
from tests.builders import replicas
from tests.control.parts import llmservice, parts
from tests.policy.explain.test_messages import SITUATIONS, failing, pod

REFERENCE = (Path(__file__).parents[2] / "docs/api.md").read_text()
VERBS = (
    "accept|add|change|check|compare|correct|create|delete|describe|give|grant|keep|let|lower|make|name|raise|remove|"
    "rename|replace|resume|see|serve|set|start|undo|use|wait|write"
)
REMEDY = re.compile(rf"^(.*, )?(or |to .*, )?({VERBS})\b|kubectl ")


def ends_with_a_remedy(message: str) -> bool:
    """Whether the last part of a message, after a semicolon or the colon of a field, says what to do."""
    last = message.rsplit("; ", 1)[-1]
    return any(REMEDY.search(part) for part in (last, last.rsplit(": ", 1)[-1]))


def ready(seen: View) -> ConditionValue:
    """The condition Ready as it is published."""
    sizes = decide_sizes(seen)
    waiting = [replica for group in seen.state.groups for replica in (*group.starting, *group.pending, *group.short)]
    part = replace(parts(llmservice()), replicas=tuple(waiting))
    known = with_remedies(conditions(seen, sizes), part, sizes.after, NodeLabels(()))
    return next(value for value in known if value.type == ConditionType.READY)


READY = {name: seen for name, (_, seen) in SITUATIONS.items() if name.startswith("Ready, ") and isinstance(seen, View)}
CANNOT_RUN = {
    "CreateContainerConfigError": "couldn't find key token in Secret prod/hf",
    "CreateContainerError": "failed to generate container spec",
    "ErrImageNeverPull": "Container image is not present with pull policy of Never",
    "ErrImagePull": "denied: requested access to the resource is denied",
    "ImageInspectError": "cannot inspect",
    "InvalidImageName": 'couldn\'t parse image name "vllm:Ö"',
    "RunContainerError": "exec: python3: not found",
}
for word, words in CANNOT_RUN.items():
    told = failing(pod(containerStatuses=[{"state": {"waiting": {"reason": word, "message": words}}}]))
    READY[f"Ready, {word}"] = told
    READY[f"Ready, {word} without words"] = failing(pod(containerStatuses=[{"state": {"waiting": {"reason": word}}}]))


@pytest.mark.parametrize("name", READY)
def test_why_a_service_is_not_ready_ends_with_what_to_do(name: str) -> None:
    value = ready(READY[name])
    assert value.status or ends_with_a_remedy(value.message), value.message
    assert len(value.message) <= 1024


def test_every_reason_of_a_service_that_is_not_ready_is_in_the_table() -> None:
    (row,) = re.findall(r"^\| Ready \| .* \| Serving; (.*) \|$", REFERENCE, re.MULTILINE)
    possible = set(re.findall(r"[A-Z]\w+", re.sub(r"\([^)]*\)", "", row))) - {"DeletionHeld"}
    # Of test_claims.py, tests/api/test_refusals.py, tests/observe/test_adoption.py and test_prefill.py; a straggler has
    # peers.
    elsewhere = {"VolumeNotShared", "Invalid", "TargetUnusable", "PrefillNotReady", "EngineLagging"}
    unready = {str(value.reason) for value in map(ready, READY.values()) if not value.status}
    assert possible - elsewhere - unready == set()


UNSCHEDULABLE = ConditionValue(ConditionType.READY, False, Reason.NO_REPLICAS, "1 of 1 replica waits for a node")


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        ({"gpu": "h200"}, "; the nearest, gpu-1, has gpu=h200 instead of h100; correct its nodeSelector, or, where"),
        (
            {"gpu": "h100"},
            "; see the scheduler's words in CapacityAvailable; add a node for it, or list another",
        ),
    ],
)
def test_a_replica_without_a_node_names_the_selector_that_no_node_matches(labels: dict[str, str], remedy: str) -> None:
    service = llmservice(accelerators=[{"name": "h100", "nodeSelector": {"gpu": "h100"}}])
    part = replace(parts(service), replicas=replicas(1, ReplicaPhase.UNSCHEDULABLE))
    nodes = NodeLabels((NodeOffer("gpu-1", tuple(labels.items()), (("nvidia.com/gpu", 8),)),))
    (told,) = with_remedies([UNSCHEDULABLE], part, 1, nodes)
    assert remedy in told.message


@pytest.mark.parametrize(("labels", "remedy"), [
    ({"gpu": "h200"}, "; add a node that matches, or correct the nodeSelector in Deployment my-vllm"),
    ({"gpu": "h100"}, "; add a node for it, or change what they name in Deployment my-vllm"),
])  # fmt: skip
def test_a_replica_of_a_target_without_a_node_names_its_deployment(labels: dict[str, str], remedy: str) -> None:
    service = llmservice(accelerators=[{"name": "h100", "nodeSelector": {"gpu": "h100"}}])
    waits = replicas(1, ReplicaPhase.UNSCHEDULABLE)
    part = replace(parts(service), replicas=waits, adoption=Adoption(Workload("my-vllm"), "app=my-vllm"))
    nodes = NodeLabels((NodeOffer("gpu-1", tuple(labels.items()), (("nvidia.com/gpu", 8),)),))
    (told,) = with_remedies([UNSCHEDULABLE], part, 1, nodes)
    assert told.message.endswith(remedy)


def test_the_pods_of_a_target_are_named_by_the_selector_of_its_deployment() -> None:
    waits = ConditionValue(ConditionType.READY, False, Reason.NO_REPLICAS, "no replica is ready")
    part = replace(parts(llmservice()), adoption=Adoption(Workload("my-vllm"), "app in (vllm, llm)"))
    (told,) = with_remedies([waits], part, 1, NodeLabels())
    assert told.message.endswith(" -l 'app in (vllm, llm)'")


REFUSED = {
    "a misspelt amount": ('Deployment "chat" is invalid: quantities must match the regular expression', "such as 80Gi"),
    "a container that should be called vllm": (
        'Deployment.apps "chat-h100" is invalid: spec.template.spec.containers[1].image: Required value',
        "name the container of the template vllm to change the engine, or give it an image of its own",
    ),
    "a quota": ('deployments "x" is forbidden: exceeded quota: objects, requested: 1', "raise the quota"),
    "RBAC": (
        'deployments.apps is forbidden: User "system:serviceaccount:h:h" cannot create resource "deployments"',
        "grant the operator this right",
    ),
    "a webhook": ('admission webhook "policy.example.com" denied the request: no', "change the spec or this rule"),
    "a policy": ("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "change the spec or this rule"),
    "anything else": ("spec.ports: no", "change what it names, in the LLMService or in the cluster"),
    "a long refusal": ("x" * 5000, "change what it names, in the LLMService or in the cluster"),
}


@pytest.mark.parametrize(("message", "remedy"), REFUSED.values(), ids=REFUSED)
def test_a_refused_write_ends_with_a_remedy(message: str, remedy: str) -> None:
    told = refusal_told(message)
    assert remedy in told.rsplit("; ", 1)[-1]
    assert told.startswith(message[:600])
    assert ends_with_a_remedy(told)
    assert len(told) < 900
