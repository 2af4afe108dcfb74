"""Nodes -> what they offer, which ones pods are about to leave, and the GPUs of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import kopf

from holdfast.domain.cluster import NodeOffer
from holdfast.observe.objects import body_pruning, mapping


def gpus_of_node(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the extended resources of a node by name; one that is cordoned or does not answer still has them."""
    status = node.get("status") or {}
    amounts = {**(status.get("allocatable") or {}), **(status.get("capacity") or {})}
    return mapping.extended_resources(amounts)


class Node(NamedTuple):
    """One node: `offer` is None where it takes no pods now, `gpus` are its extended resources in any case."""

    offer: NodeOffer | None
    closing: bool
    gpus: Mapping[str, int]


class Nodes:
    """Reads kopf's index of nodes; empty until kopf has filled it."""

    def __init__(self) -> None:
        self._shown: Mapping[str, Iterable[Node]] = {}

    def register(self, registry: kopf.OperatorRegistry) -> None:
        """Add the index."""
        kopf.index("", "v1", "nodes", id="nodes", registry=registry)(body_pruning.after(_index_node, "spec", "status"))
        kopf.on.startup(id="remember-nodes", registry=registry)(self._remember)

    async def _remember(self, **indices: Any) -> None:
        self._shown = indices["nodes"]

    def offers(self) -> list[NodeOffer]:
        """Return what the nodes that take pods offer."""
        return [node.offer for _, node in self._all() if node.offer is not None]

    def closing(self) -> frozenset[str]:
        """Return the names of the nodes that pods are about to leave."""
        return frozenset(name for name, node in self._all() if node.closing)

    def gpus(self, resource: str) -> int:
        """Return how many of an extended resource all nodes have; one that is cordoned or silent still has them."""
        return sum(node.gpus.get(resource, 0) for _, node in self._all())

    def _all(self) -> Iterator[tuple[str, Node]]:
        return ((name, node) for name in list(self._shown) for node in self._shown[name])


async def _index_node(body: kopf.Body, **_: Any) -> dict[str, Node]:
    offer, closing = mapping.node_offer_from_node(body), mapping.is_closing(body)
    return {body["metadata"]["name"]: Node(offer, closing, gpus_of_node(body))}
