"""Pods that load their model, and the marks that keep drains and autoscalers from ending them before they serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.rendered.names import LOADING_LABEL, PROTECTIONS


@dataclass(frozen=True, slots=True)
class LoadingPod:
    """A pod that loads, or that is still marked as one.

    `since`: when it got its node, in seconds since the epoch; None once it serves or fails. `others` are the
    annotations of `PROTECTIONS` to which somebody else gave another value.
    """

    pod: str
    uid: str
    since: float | None
    marked: bool
    others: frozenset[str] = frozenset()


def loading_from_pod(pod: Mapping[str, Any], replica: Replica) -> LoadingPod | None:
    """Return a pod that loads or is marked; None for any other pod, and for one that is being deleted."""
    meta = pod["metadata"]
    marked = LOADING_LABEL in (meta.get("labels") or {})
    loads = replica.phase is ReplicaPhase.STARTING
    if replica.phase is ReplicaPhase.DRAINING or not (loads or marked):
        return None
    annotations = meta.get("annotations") or {}
    others = frozenset(name for name, value in PROTECTIONS.items() if annotations.get(name, value) != value)
    placed_at = replica.created_at if replica.scheduled_at is None else replica.scheduled_at
    return LoadingPod(meta["name"], str(meta.get("uid", "")), placed_at if loads else None, marked, others)
