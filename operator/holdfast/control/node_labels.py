"""Labels that accelerators select nodes by, and that no node has: a typing error, or a label that comes too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import NodeOffer
from holdfast.domain.decision import ConditionValue
from holdfast.domain.service import ServiceSpec

_SHORTAGES = (Reason.INSUFFICIENT_GPUS, Reason.NO_MATCHING_NODES, Reason.ACCELERATOR_UNAVAILABLE)


class NodeLabels:
    """The labels of the nodes of one tick; each is looked for once, however many services select by it."""

    def __init__(self, nodes: Sequence[NodeOffer] = ()) -> None:
        self._nodes = nodes
        self._known: dict[tuple[str, str], bool] = {}

    def has(self, label: tuple[str, str]) -> bool:
        """Whether a node that takes pods has this label, with this value."""
        if label not in self._known:
            self._known[label] = any(label in node.labels for node in self._nodes)
        return self._known[label]

    def lacked(self, spec: ServiceSpec) -> str:
        """Say what the first such accelerator selects by and no node has, and what to do; empty if there is none."""
        for option in spec.accelerators:
            lacking = [f"{name}={value}" for name, value in option.node_selector if not self.has((name, value))]
            if lacking:
                return (
                    f"no node that takes pods has the label {', '.join(lacking)} of {option.name}; correct its "
                    "nodeSelector, or, where an autoscaler is to add the node, select by a label that the autoscaler "
                    "knows while its pool has no node (docs/platforms.md)"
                )
        return ""


def with_lacked_labels(
    values: Sequence[ConditionValue], spec: ServiceSpec, labels: NodeLabels
) -> tuple[ConditionValue, ...]:
    """Return the conditions, with labels that no node has in CapacityAvailable while capacity is short."""

    def told(value: ConditionValue) -> ConditionValue:
        if value.type != ConditionType.CAPACITY_AVAILABLE or value.reason not in _SHORTAGES:
            return value
        lacked = labels.lacked(spec)
        return replace(value, message=f"{value.message}; {lacked}") if lacked else value

    return tuple(told(value) for value in values)
