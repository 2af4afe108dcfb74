"""Pods that ended before they served: what is read of them, whatever word Kubernetes has for it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.cluster import MOST_ENDED, ReplicaPhase
from holdfast.observe.objects.ended import ended_from_pod, newest
from tests.observe.test_mapping import CREATED_AT, condition, ended, pod

# NVIDIA/k8s-device-plugin#231: one lost GPU, twelve thousand failed pods.
NO_DEVICE = (
    "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
    "nvidia.com/gpu, which is unexpected"
)
FULL_DISK = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8Gi."
CORDON = "keep pods off the node until its devices and resources are right: kubectl cordon gpu-1"
VOLUME = "keep the model on a volume (model.cache.pvc), or use nodes with a larger disk"
DESCRIBE = "see kubectl describe node gpu-1"


def failed(reason: str = "", message: str = "", **status: Any) -> dict[str, Any]:
    """A pod of phase Failed, as the kubelet leaves it."""
    said = {key: text for key, text in (("reason", reason), ("message", message)) if text}
    return pod(**{"phase": "Failed"} | said | status)


@pytest.mark.parametrize(
    ("reason", "message", "remedy"),
    [
        ("UnexpectedAdmissionError", NO_DEVICE, CORDON),
        ("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 8000", CORDON),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 8", CORDON),
        ("Evicted", FULL_DISK, VOLUME),
        ("Evicted", 'Usage of EmptyDir volume "cache" exceeds the limit "1Gi".', VOLUME),
        ("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", VOLUME),
        ("Evicted", "The node was low on resource: memory.", "request more memory in engine.resources, or use nodes "
         "with more memory"),
        ("Evicted", "", DESCRIBE),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", "compare accelerators[].nodeSelector and "
         "tolerations with kubectl describe node gpu-1"),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", "if nobody shut the node down, "
         "see kubectl describe node gpu-1"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", "if nobody shut the node down, see kubectl "
         "describe node gpu-1"),
        ("Preempting", "Preempted in order to admit critical pod", "give the pods a higher priority: "
         "priorityClassName in template.spec"),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", "remove "
         "activeDeadlineSeconds from template.spec"),
        ("SomethingOfNextYear", "no idea", DESCRIBE),
    ],
)  # fmt: skip
def test_whatever_ended_a_pod_is_told_with_its_node_and_a_remedy(reason: str, message: str, remedy: str) -> None:
    replica = ended_from_pod(failed(reason, message))
    assert replica is not None
    assert (replica.phase, replica.reason, replica.accelerator) == (ReplicaPhase.FAILING, reason, "h100")
    assert replica.detail == f"{message or 'no message'} (node gpu-1); {remedy}"


def test_without_a_reason_the_containers_last_words_are_told() -> None:
    crashed = [{"name": "vllm", "state": ended(1, "CUDA out of memory")}]
    replica = ended_from_pod(failed(containerStatuses=crashed))
    assert replica is not None
    assert (replica.reason, replica.detail) == ("Error", f"CUDA out of memory (node gpu-1); {DESCRIBE}")


def test_without_any_word_the_phase_is_told() -> None:
    for phase in ("Failed", "Succeeded"):
        body = failed(phase=phase)
        del body["spec"]["nodeName"]
        replica = ended_from_pod(body)
        assert replica is not None
        assert replica.reason == phase
        assert replica.detail == "no message (node unknown); see kubectl describe node NODE"


def test_null_and_missing_fields_of_a_status_are_no_error() -> None:
    body = failed()
    body["status"] = {"phase": "Failed", "conditions": None, "containerStatuses": None, "reason": None, "message": None}
    replica = ended_from_pod(body)
    assert replica is not None
    assert replica.unready_at == CREATED_AT


def test_a_long_message_leaves_room_for_the_remedy() -> None:
    replica = ended_from_pod(failed("UnexpectedAdmissionError", "no device\n" * 1000))
    assert replica is not None
    assert len(replica.detail) < 600
    assert "no device no device" in replica.detail
    assert replica.detail.endswith("kubectl cordon gpu-1")


def test_a_pod_ended_at_the_latest_time_that_its_status_names() -> None:
    crashed = [{"name": "vllm", "state": ended(1, finished="2026-11-21T04:08:00Z")}]
    replica = ended_from_pod(failed("Evicted", FULL_DISK, containerStatuses=crashed))
    assert replica is not None
    assert (replica.created_at, replica.unready_at) == (CREATED_AT, CREATED_AT + 480.0)


def test_a_pod_that_served_is_deleted_or_runs_is_not_among_them() -> None:
    assert ended_from_pod(pod(phase="Running")) is None
    deleted = failed("Evicted")
    deleted["metadata"]["deletionTimestamp"] = "2026-11-21T04:09:00Z"
    assert ended_from_pod(deleted) is None
    not_ours = failed("Evicted")
    not_ours["metadata"]["ownerReferences"] = []
    assert ended_from_pod(not_ours) is None
    # Ready turned False when the engine, which had started long before, ended.
    crashed = [{"name": "vllm", "state": ended(137, finished="2026-11-21T04:08:00Z")}]
    lost = [condition("Ready", "False", at="2026-11-21T04:08:00Z")]
    assert ended_from_pod(failed("Evicted", containerStatuses=crashed, conditions=lost)) is None
    assert ended_from_pod(failed("Evicted", conditions=[condition("Ready", "True")])) is None


def test_an_engine_that_was_evicted_while_it_loaded_never_served() -> None:
    crashed = [{"name": "vllm", "state": ended(137, finished="2026-11-21T04:08:00Z")}]
    never = [condition("Ready", "False", at="2026-11-21T04:00:00Z")]
    assert ended_from_pod(failed("Evicted", containerStatuses=crashed, conditions=never)) is not None


def test_of_thousands_the_newest_of_each_accelerator_are_kept() -> None:
    found = []
    for number in range(5000):
        body = failed("UnexpectedAdmissionError", NO_DEVICE, startTime=f"2026-11-21T05:{number // 100:02}:00Z")
        body["metadata"]["name"] = f"chat-{number:04}"
        body["metadata"]["labels"] |= {"holdfast.dev/accelerator": ("h100", "l40s")[number % 2]}
        found.append(ended_from_pod(body))
    kept = newest([replica for replica in found if replica is not None])
    assert [replica.name for replica in kept] == [
        *(f"chat-{number}" for number in range(5000 - 2 * MOST_ENDED, 5000, 2)),
        *(f"chat-{number}" for number in range(5001 - 2 * MOST_ENDED, 5000, 2)),
    ]
    assert len({id(replica.detail) for replica in found if replica is not None}) == 1, "one text for one cause"
