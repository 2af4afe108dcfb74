"""LeaderWorkerSets and their pods -> domain values: a group of pods is one replica. Pure.

The replica is the leader, which answers clients. It is capacity while all of its pods are Ready, because the engine
runs in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.api.group_set import KIND, LABELS
from holdfast.domain.cluster import Replica, ReplicaPhase

Object = Mapping[str, Any]

_GROUP = f"{LABELS}/group-index"
_INDEX, _REVISION = f"{LABELS}/worker-index", f"{LABELS}/template-revision-hash"
_LEADER, _SIZE = f"{LABELS}/leader-name", f"{LABELS}/size"

_WORST_FIRST = (
    ReplicaPhase.DRAINING,
    ReplicaPhase.FAILING,
    ReplicaPhase.UNSCHEDULABLE,
    ReplicaPhase.STARTING,
    ReplicaPhase.READY,
)


class Member(NamedTuple):
    """A pod in a group: the name of its leader, which may be its own, the number of its pods, and its own number."""

    leader: str
    size: int
    number: int
    revision: str = ""


def member_from_pod(pod: Object) -> Member | None:
    """Return the pod's part in a group of a LeaderWorkerSet; None for a pod of any other kind."""
    meta = pod["metadata"]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    owners = meta.get("ownerReferences") or ()
    is_made = any(owner.get("controller") and owner.get("kind") == "StatefulSet" for owner in owners)
    size, number = str(annotations.get(_SIZE, "")), str(labels.get(_GROUP, ""))
    if not (is_made and _INDEX in labels and size.isdecimal() and number.isdecimal()):
        return None
    leader = meta["name"] if labels[_INDEX] == "0" else annotations.get(_LEADER, "")
    return Member(str(leader), int(size), int(number), str(labels.get(_REVISION, "")))


def joined(leader: Replica, member: Member, followers: Sequence[Replica]) -> Replica:
    """Return a group as one replica, in the phase of its worst pod; without all of its pods it is starting."""
    pods = (leader, *followers)
    worst = min(pods, key=lambda pod: _WORST_FIRST.index(pod.phase))
    is_whole = len(pods) == member.size
    phase = ReplicaPhase.STARTING if worst.phase is ReplicaPhase.READY and not is_whole else worst.phase
    placed, ready = [pod.scheduled_at for pod in pods], [pod.ready_at for pod in pods]
    detail = f"{worst.name}: {worst.detail}" if worst is not leader and worst.detail else worst.detail
    return replace(
        leader,
        phase=phase,
        scheduled_at=max((at for at in placed if at is not None), default=None) if is_whole and all(placed) else None,
        ready_at=max((at for at in ready if at is not None), default=None) if phase is ReplicaPhase.READY else None,
        unready_at=worst.unready_at,
        reason=worst.reason,
        detail=detail,
        revision=member.revision,
        number=member.number,
        followers=tuple(follower.node for follower in followers if follower.node),
    )


def as_deployment(group_set: Object) -> Object:
    """Return a LeaderWorkerSet in the shape of a Deployment, which has one pod for each group: its leader.

    LeaderWorkerSet 0.7 does not say which generation it has observed.
    """
    meta, spec, status = group_set["metadata"], group_set.get("spec") or {}, group_set.get("status") or {}
    rolling = (spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
    return {
        "kind": KIND,
        "metadata": meta,
        "spec": {
            "replicas": spec.get("replicas", 1),
            "template": (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or {},
            "strategy": {"rollingUpdate": rolling},
        },
        "status": {
            "observedGeneration": meta.get("generation", 0) if status else 0,
            **status,
            "availableReplicas": status.get("readyReplicas", 0),
        },
    }
