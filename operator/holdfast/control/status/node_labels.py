"""Labels that accelerators select nodes by, and that no node has: a typing error, or a label that comes too late."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.cluster import NodeOffer
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.observe.objects.failure_words import Remedy

Selector = tuple[tuple[str, str], ...]

_REMEDY = Remedy(
    "correct its nodeSelector, or, where an autoscaler is to add the node, select by a label that the autoscaler "
    "knows while its pool has no node (docs/platforms.md)",
    "add a node that matches, or correct the nodeSelector",
)


class NodeLabels:
    """The labels of the nodes of one tick; each selector is looked for once, however many services have it."""

    def __init__(self, nodes: Sequence[NodeOffer] = ()) -> None:
        self._nodes = nodes
        self._known: dict[Selector, str] = {}

    def unmatched(self, spec: ServiceSpec, target: str = "") -> str:
        """Say which selector of an accelerator no node matches, what differs on the nearest node, and what to do.

        Empty if nodes match the selectors of all accelerators. `target` names the Deployment that the service sizes as
        it is.
        """
        return next(filter(None, (self._unmatched(option, target) for option in spec.accelerators)), "")

    def _unmatched(self, option: AcceleratorOption, target: str) -> str:
        selector = option.node_selector
        if selector not in self._known:
            self._known[selector] = self._differing(selector)
        if not (differing := self._known[selector]):
            return ""
        wanted = ", ".join(f"{name}={value}" for name, value in selector)
        no_node = f"no node that takes pods matches the nodeSelector of {option.name} ({wanted})"
        return f"{no_node}{differing}; {_REMEDY.of(target)}"

    def _differing(self, selector: Selector) -> str:
        """What the nearest node has instead, the one that lacks fewest of the labels; empty if one lacks none."""
        if not self._nodes:
            return ": there is no node that takes pods" if selector else ""
        found = ((self._lacking(selector, node), node) for node in self._nodes)
        lacking, node = min(found, key=lambda each: (len(each[0]), -_known(each[0], each[1]), each[1].name))
        differing = ", ".join(_instead(node, *label) for label in lacking)
        return f"; the nearest, {node.name}, has {differing}" if differing else ""

    @staticmethod
    def _lacking(selector: Selector, node: NodeOffer) -> Selector:
        labels = frozenset(node.labels)
        return tuple(label for label in selector if label not in labels)


def _known(lacking: Selector, node: NodeOffer) -> int:
    """How many of the labels the node has with another value."""
    names = {name for name, _ in node.labels}
    return sum(name in names for name, _ in lacking)


def _instead(node: NodeOffer, name: str, value: str) -> str:
    has = dict(node.labels).get(name)
    return f"no label {name}" if has is None else f"{name}={has} instead of {value}"
