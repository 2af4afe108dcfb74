"""What to do while no replica of a service serves, where the decision alone does not know it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.control.status.node_labels import NodeLabels
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import ConditionValue
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.objects.failure_words import Remedy

_SHORTAGES = (Reason.INSUFFICIENT_GPUS, Reason.NO_MATCHING_NODES, Reason.ACCELERATOR_UNAVAILABLE)
_NO_NODE = Remedy(
    "see the scheduler's words in CapacityAvailable; add a node for it, or list another accelerator",
    "see the scheduler's words in CapacityAvailable; add a node for it, or change what they name",
)


def with_remedies(
    values: Sequence[ConditionValue], part: ServiceParts, desired: int, labels: NodeLabels
) -> tuple[ConditionValue, ...]:
    """Return the conditions; CapacityAvailable while capacity is short, and Ready while none serves, with a remedy."""
    return tuple(_with(value, _remedy(value, part, desired, labels)) for value in values)


def _with(value: ConditionValue, remedy: str) -> ConditionValue:
    return replace(value, message=f"{value.message}; {remedy}") if remedy else value


def _remedy(value: ConditionValue, part: ServiceParts, desired: int, labels: NodeLabels) -> str:
    """The remedy of one condition; empty where its message ends with one, or it needs none."""
    target = part.adoption.workload.name if part.adoption else ""
    if value.type == ConditionType.CAPACITY_AVAILABLE and value.reason in _SHORTAGES:
        return labels.unmatched(part.spec, target)
    if value.type != ConditionType.READY or value.reason != Reason.NO_REPLICAS or not desired:
        return ""
    if any(replica.phase is ReplicaPhase.UNSCHEDULABLE for replica in part.replicas):
        return labels.unmatched(part.spec, target) or _NO_NODE.of(target)
    pods = f"kubectl describe pod -n {part.spec.key.namespace} -l {shlex.quote(part.selector)}"
    return f"wait until one has started, or see {pods}"
