"""Pods that ended before they served: what Kubernetes said, and what to do about it.

A ReplicaSet replaces such a pod at once and keeps it as a record. The kubelet restarts containers, so a pod of ours
ends only if its node rejects or evicts it, or shuts down. Of a group of pods no object keeps a record: LeaderWorkerSet
deletes it at the first restart of a container (v0.9.0, pod_controller.go, handleRestartPolicy).
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import nlargest

from holdfast.domain.cluster import MOST_ENDED, Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey
from holdfast.observe.objects.failure_words import Remedy, explained
from holdfast.observe.objects.mapping import Object, epoch, has_ended, is_of_replica_set, is_true, last_words, was_ready
from holdfast.rendered.names import ACCELERATOR_LABEL

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
    ended = next((each for each in containers if each.get("exitCode")), {})
    return _failed(pod, meta["name"], *_rejected(pod, ended, target), _times(status, containers))


def ended_from_member(pod: Object, leader: Replica | None) -> Replica | None:
    """Return the group of a pod that ended before the `leader` was ready, under the leader's name; None for any other.

    None, too, where the leader is not known: whether the group served is not known either.
    """
    meta, status = pod["metadata"], pod.get("status", {})
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    again = [_run(each, "lastState") for each in containers if each.get("restartCount")]
    rejected = has_ended(pod) and not meta.get("deletionTimestamp")  # a pod that is deleted ends as well
    runs = [run for run in again or [_run(each, "state") for each in containers] if run]
    started = [epoch(run.get("startedAt")) or 0.0 for run in runs]
    if leader is None or leader.ready_at is not None or not (rejected or (again and runs)):
        return None
    if any((leader.unready_at or 0.0) > at for at in started):
        return None
    run = next(iter(runs), {})
    reason, detail = _rejected(pod, run)
    if again:
        reason, detail = explained(str(run.get("reason") or reason), last_words(run, {}), meta)
    return _failed(pod, leader.name, reason, detail, filter(None, (epoch(run.get("finishedAt")) for run in runs)))


def _rejected(pod: Object, run: Object, target: str = "") -> tuple[str, str]:
    """Reason and detail of a pod that its node rejected, evicted or shut down; `run` is how a container ended."""
    status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName", "")
    reason = str(status.get("reason") or run.get("reason") or status.get("phase"))
    # Thousands of pods of one cause share one text.
    return reason, sys.intern(_detail(reason, str(status.get("message") or last_words(run, {})), node, target))


def _failed(pod: Object, name: str, reason: str, detail: str, times: Iterable[float]) -> Replica:
    meta, created_at = pod["metadata"], epoch(pod["metadata"].get("creationTimestamp")) or 0.0
    return Replica(
        name=name,
        accelerator=meta.get("labels", {}).get(ACCELERATOR_LABEL, ""),
        phase=ReplicaPhase.FAILING,
        created_at=created_at,
        reason=reason,
        detail=detail,
        node=pod.get("spec", {}).get("nodeName", ""),
        unready_at=max([created_at, *times]),
    )


def _run(container: Object, state: str) -> Object:
    """How a run of a container ended: the last one, or the present one; empty where it did not."""
    return (container.get(state) or {}).get("terminated") or {}


class EndedGroups:
    """Ended groups of each service, the newest `MOST_ENDED` of each accelerator."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, tuple[Replica, ...]] = {}

    def add(self, key: ServiceKey, ended: Replica) -> None:
        """Remember the end of a group once: all pods of its successor are made later."""
        known = self.of(key)
        if all(each.name != ended.name or each.ended_at < ended.created_at for each in known):
            self._of[key] = newest((*known, ended))

    def of(self, key: ServiceKey) -> tuple[Replica, ...]:
        """Return the ended groups of a service."""
        return self._of.get(key, ())

    def forget(self, key: ServiceKey) -> None:
        """Drop those of a service that is gone."""
        self._of.pop(key, None)


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
