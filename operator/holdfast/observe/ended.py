"""Pods that ended before they served: what Kubernetes said, and what to do about it.

A ReplicaSet replaces such a pod at once and keeps it as a record. The kubelet restarts containers, so a pod of ours
ends only if its node rejects or evicts it, or shuts down.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import nlargest

from holdfast.domain.cluster import MOST_ENDED, Replica, ReplicaPhase
from holdfast.observe.failure_words import Remedy
from holdfast.observe.mapping import Object, epoch, has_ended, is_of_replica_set, is_true, last_words, was_ready
from holdfast.render.names import ACCELERATOR_LABEL

_MOST_WORDS = 400

# Reason and message, and what to do; the first match counts. The words of node shutdown changed between releases.
_REMEDIES = (
    (r"ephemeral|EmptyDir|DiskPressure|imagefs|nodefs",
     Remedy("keep the model on a volume (model.cache.pvc), or use nodes with a larger disk",
            "use nodes with a larger disk, or keep the model on a volume")),
    (r"^Evicted.*memory",
     Remedy("request more memory in engine.resources, or use nodes with more memory",
            "use nodes with more memory, or request more")),
    (r"^(UnexpectedAdmissionError|OutOf)",
     Remedy("keep pods off the node until its devices and resources are right: kubectl cordon {node}")),
    (r"^(NodeAffinity|NodeSelector|Taint)",
     Remedy("compare accelerators[].nodeSelector and tolerations with kubectl describe node {node}",
            "compare kubectl describe node {node} with nodeSelector and tolerations")),
    (r"^(NodeShutdown|Terminated|Shutdown|NodeLost)",
     Remedy("if nobody shut the node down, see kubectl describe node {node}")),
    (r"^Preempt",
     Remedy("give the pods a higher priority: priorityClassName in template.spec",
            "give the pods a higher priority: priorityClassName")),
    (r"^DeadlineExceeded",
     Remedy("remove activeDeadlineSeconds from template.spec", "remove activeDeadlineSeconds")),
    ("", Remedy("see kubectl describe node {node}")),
)  # fmt: skip


def ended_from_pod(pod: Object, target: str = "") -> Replica | None:
    """Return a pod that ended before it was ready, as a failing replica; None for any other pod.

    `unready_at` is when it ended: the latest time that its status names. `target` names somebody else's Deployment that
    made the pod.
    """
    meta, status = pod["metadata"], pod.get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    containers = [each.get("state", {}).get("terminated") or {} for each in status.get("containerStatuses") or ()]
    served = is_true(conditions, "Ready") or any(was_ready(conditions, each) for each in containers)
    if not is_of_replica_set(pod) or not has_ended(pod) or meta.get("deletionTimestamp") or served:
        return None
    created_at, node = epoch(meta.get("creationTimestamp")) or 0.0, pod.get("spec", {}).get("nodeName", "")
    ended = next((each for each in containers if each.get("exitCode")), {})
    reason = str(status.get("reason") or ended.get("reason") or status["phase"])
    return Replica(
        name=meta["name"],
        accelerator=meta.get("labels", {}).get(ACCELERATOR_LABEL, ""),
        phase=ReplicaPhase.FAILING,
        created_at=created_at,
        reason=reason,
        # Thousands of pods of one cause share one text.
        detail=sys.intern(_detail(reason, str(status.get("message") or last_words(ended, {})), node, target)),
        node=node,
        unready_at=max([created_at, *_times(status, containers)]),
    )


def newest(ended: Iterable[Replica]) -> tuple[Replica, ...]:
    """Return the last `MOST_ENDED` pods of each accelerator, oldest first, in order of accelerators."""
    found: dict[str, list[Replica]] = defaultdict(list)
    for replica in ended:
        found[replica.accelerator].append(replica)
    return tuple(
        replica for name in sorted(found) for replica in reversed(nlargest(MOST_ENDED, found[name], key=_in_time))
    )


def _in_time(replica: Replica) -> tuple[float, float, str]:
    return replica.unready_at or 0.0, replica.created_at, replica.name


def _detail(reason: str, message: str, node: str, target: str) -> str:
    said = " ".join(message.split())
    shown = said if len(said) <= _MOST_WORDS else f"{said[:_MOST_WORDS]}…"
    remedy = next(remedy for words, remedy in _REMEDIES if re.search(words, f"{reason} {said}"))
    return f"{shown or 'no message'} (node {node or 'unknown'}); {remedy.of(target).format(node=node or 'NODE')}"


def _times(status: Object, containers: Iterable[Object]) -> Iterator[float]:
    texts = [status.get("startTime"), *(each.get("finishedAt") for each in containers)]
    texts += [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    yield from filter(None, map(epoch, texts))
