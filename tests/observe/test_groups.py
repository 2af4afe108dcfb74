"""Pods of a LeaderWorkerSet, and the set itself, as the makers' controller v0.9.0 writes them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.cluster import Replica, ReplicaPhase, Workload
from holdfast.observe.objects import groups, mapping
from holdfast.rendered.context import Deployed
from holdfast.rendered.names import INPUTS_ANNOTATION
from tests.observe.test_mapping import pod

LABELS = "leaderworkerset.sigs.k8s.io"
MEMBER = groups.Member("chat-h100-0", 2, 0, "5c4d")
READY = Replica("chat-h100-0", "h100", ReplicaPhase.READY, 100.0, 110.0, 200.0, node="gpu-1")
FOLLOWER = Replica("chat-h100-0-1", "h100", ReplicaPhase.READY, 101.0, 130.0, 140.0, node="gpu-2")


def group_pod(index: int = 0, group: int = 0, **status: Any) -> dict[str, Any]:
    """A pod of a group of two."""
    body, leader = pod(**status), f"chat-h100-{group}"
    name, label = (f"{leader}-{index}", "chat.followers") if index else (leader, "chat")
    labels = {f"{LABELS}/name": "chat-h100", f"{LABELS}/group-index": str(group), f"{LABELS}/worker-index": str(index)}
    body["metadata"] |= {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {
            "holdfast.dev/service": label,
            "holdfast.dev/accelerator": "h100",
            f"{LABELS}/template-revision-hash": "5c4d",
            **labels,
        },
        "annotations": {f"{LABELS}/size": "2", **({f"{LABELS}/leader-name": leader} if index else {})},
        "ownerReferences": [{"kind": "StatefulSet", "name": leader, "uid": "sts", "controller": True}],
    }
    return body


def group_set(**status: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"holdfast_revision": "r1"}}, "spec": {"containers": [{"name": "vllm"}]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": "chat-h100",
            "namespace": "prod",
            "uid": "uid-chat-h100",
            "generation": 3,
            "labels": {"holdfast.dev/service": "chat", "holdfast.dev/accelerator": "h100"},
            "annotations": {INPUTS_ANNOTATION: "x"},
            "ownerReferences": [{"kind": "LLMService", "name": "chat", "uid": "uid-chat", "controller": True}],
        },
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": 2, "leaderTemplate": template, "workerTemplate": template},
            "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}},
        },
        "status": status,
    }


@pytest.mark.parametrize("index", [0, 1])
def test_a_pod_of_a_group_names_its_leader(index: int) -> None:
    assert groups.member_from_pod(group_pod(index)) == MEMBER


def test_a_pod_that_only_wears_the_labels_of_a_group_is_in_none() -> None:
    assert groups.member_from_pod(pod()) is None
    stranger = group_pod()
    stranger["metadata"]["ownerReferences"] = []
    assert groups.member_from_pod(stranger) is None
    nameless = group_pod()
    nameless["metadata"]["annotations"] = {f"{LABELS}/size": "many"}
    assert groups.member_from_pod(nameless) is None


def test_a_group_is_ready_once_the_last_of_its_pods_is() -> None:
    whole = groups.joined(READY, MEMBER, [FOLLOWER])
    assert (whole.phase, whole.ready_at, whole.scheduled_at) == (ReplicaPhase.READY, 200.0, 130.0)
    assert (whole.name, whole.nodes, whole.revision) == ("chat-h100-0", ("gpu-1", "gpu-2"), "5c4d")
    assert not whole.can_be_chosen


def test_a_group_without_all_of_its_pods_is_starting_though_its_leader_is_ready() -> None:
    part = groups.joined(READY, MEMBER, [])
    assert (part.phase, part.ready_at, part.scheduled_at) == (ReplicaPhase.STARTING, None, None)


@pytest.mark.parametrize("phase", [phase for phase in ReplicaPhase if phase is not ReplicaPhase.READY])
def test_a_group_is_in_the_phase_of_its_worst_pod_and_names_it(phase: ReplicaPhase) -> None:
    worse = replace(FOLLOWER, phase=phase, reason="Why", detail="words", ready_at=None)
    found = groups.joined(READY, MEMBER, [worse])
    assert (found.phase, found.reason, found.detail, found.ready_at) == (
        phase,
        "Why",
        "chat-h100-0-1: words",
        None,
    )


def test_half_a_group_waits_for_its_other_nodes_since_its_leader_was_made() -> None:
    waiting = replace(FOLLOWER, phase=ReplicaPhase.UNSCHEDULABLE, node="", scheduled_at=None, ready_at=None)
    found = groups.joined(replace(READY, phase=ReplicaPhase.STARTING, ready_at=None), MEMBER, [waiting])
    assert (found.phase, found.created_at, found.scheduled_at) == (ReplicaPhase.UNSCHEDULABLE, 100.0, None)
    assert found.nodes == ("gpu-1",)


def test_a_set_is_read_as_a_deployment_of_its_leaders() -> None:
    body = groups.as_deployment(group_set(observedGeneration=3, replicas=3, updatedReplicas=1, readyReplicas=2))
    placement = mapping.placement_from_deployment(body)
    assert placement.workload == Workload("chat-h100", "LeaderWorkerSet")
    assert (placement.replicas, placement.observed, placement.rolling_out) == (2, True, True)
    assert (placement.accelerator, placement.revision) == ("h100", "r1")
    assert mapping.away_since(body) is None
    rendered = Deployed.read(body)
    assert rendered is not None
    assert (rendered.inputs, rendered.max_surge) == ("x", 1)


@pytest.mark.parametrize(
    ("status", "observed"),
    [({}, False), ({"observedGeneration": 2}, False), ({"observedGeneration": 3}, True), ({"replicas": 2}, True)],
    ids=["of nobody yet", "of an earlier spec", "of this spec", "of version 0.7"],
)
def test_a_set_is_observed_once_its_controller_says_so(status: dict[str, Any], observed: bool) -> None:
    body = groups.as_deployment(group_set(**status))
    assert mapping.placement_from_deployment(copy.deepcopy(body)).observed is observed
