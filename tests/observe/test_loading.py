"""Which pods load, and which nodes their replicas are about to leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.observe.objects.loading import loading_from_pod
from holdfast.observe.objects.mapping import is_closing, on_nodes, replica_from_pod
from tests.builders import replicas

MADE, PLACED = "2026-11-26T10:00:00Z", "2026-11-26T10:01:00Z"
MARK = {"holdfast.dev/loading": "true"}


def pod(ready: str = "False", *, labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """A pod with a node; `ready` is its condition."""
    meta = {"name": "a", "uid": "u", "creationTimestamp": MADE, "labels": labels or {}} | more.pop("metadata", {})
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": PLACED},
        {"type": "Ready", "status": ready, "lastTransitionTime": PLACED},
    ]
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": {"conditions": conditions, **more}}


def found(body: dict[str, Any]) -> Any:
    return loading_from_pod(body, replica_from_pod(body))


def test_a_pod_loads_from_its_node_on_until_it_is_ready() -> None:
    loads = found(pod())
    assert (loads.pod, loads.uid, loads.marked, loads.since) == ("a", "u", False, replica_from_pod(pod()).scheduled_at)
    assert found(pod("True")) is None


def test_a_marked_pod_that_serves_or_fails_is_one_to_unmark() -> None:
    waiting = {"containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    for body in (pod("True", labels=MARK), pod(labels=MARK, **waiting)):
        assert (found(body).since, found(body).marked) == (None, True)


def test_nothing_is_to_be_written_to_pods_that_are_deleted_or_wait_for_a_node() -> None:
    assert found(pod(labels=MARK, metadata={"deletionTimestamp": MADE})) is None
    waits = pod()
    waits["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    assert found(waits) is None


def test_annotations_of_other_people_are_known() -> None:
    values = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    assert found(pod(metadata={"annotations": values})).others == {"cluster-autoscaler.kubernetes.io/safe-to-evict"}


@pytest.mark.parametrize(
    ("spec", "closes"),
    [
        ({}, False),
        ({"unschedulable": True}, True),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "karpenter.sh/disrupted", "effect": "PreferNoSchedule"}]}, False),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]}, False),
        ({"taints": None}, False),
    ],
)
def test_a_node_closes_when_it_is_cordoned_or_about_to_be_removed(spec: dict[str, Any], closes: bool) -> None:
    assert is_closing({"metadata": {"name": "n"}, "spec": spec}) is closes


def test_only_replicas_on_closing_nodes_are_marked_so() -> None:
    one, other = (replace(each, node=node) for each, node in zip(replicas(2), ("n", ""), strict=True))
    assert [each.closing for each in on_nodes([one, other], {"n"})] == [True, False]
