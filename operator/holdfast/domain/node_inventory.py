"""Free accelerators of the nodes, by resource and node labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from holdfast.domain.cluster import GpuCap, NodeOffer
from holdfast.domain.service import AcceleratorOption
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.taints import Toleration, are_tolerated
from holdfast.domain.value import value


@value
class Room:
    """Room for replicas on matching nodes.

    `names` are the matching nodes, `free_on` those with room now, and `offering` counts all nodes with the resource.
    """

    free_replicas: int
    names: frozenset[str]
    offering: int
    free_on: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """Number of matching nodes."""
        return len(self.names)

    def most_replicas(self, placed: int) -> int | None:
        """Return the most replicas that can run now, including the `placed` ones; None where nodes say nothing.

        Where no node has the resource, a cluster autoscaler may still create nodes for pending pods.
        """
        return None if self.offering == 0 else placed + self.free_replicas


_Requirements = tuple[str, int, int, tuple[tuple[str, str], ...], tuple[Toleration, ...]]
"""What decides which nodes have room for an accelerator: resource, GPUs and pods of a replica, labels, tolerations."""


@value
class Inventory:
    """The nodes of one snapshot; answers are cached per snapshot.

    `spoken_for`: GPUs by node and resource that other pods hold, and that no service can get. `caps`: what namespaces
    may have, and what others than services use of it.
    """

    nodes: tuple[NodeOffer, ...] = ()
    spoken_for: Mapping[tuple[str, str], int] = field(default_factory=dict)
    caps: tuple[GpuCap, ...] = ()
    _rooms: dict[_Requirements, Room] = field(default_factory=dict)

    def room(self, option: AcceleratorOption) -> Room:
        """Return the room for replicas of an accelerator."""
        shape = option.resource, option.gpus_per_replica, option.nodes
        requirements = *shape, option.node_selector, option.tolerations
        if requirements not in self._rooms:
            self._rooms[requirements] = _room(self.nodes, option)
        return self._rooms[requirements]

    def gpus(self, resource: str, names: frozenset[str], size: int = 1) -> int:
        """Return the GPUs of the named nodes, free or used, that pods of `size` GPUs can use."""
        amounts = (
            dict(node.allocatable).get(resource, 0) - self.spoken_for.get((node.name, resource), 0)
            for node in self.nodes
            if node.name in names
        )
        return sum(max(0, amount) // size * size for amount in amounts)

    def available_to(self, services: Iterable[ServiceSnapshot]) -> Inventory:
        """Return the inventory available to these services: GPUs of all other pods are excluded.

        Such pods belong to services that cannot be decided on, are being deleted or no longer exist.
        """
        ours: Counter[tuple[str, str]] = Counter()
        for service in services:
            for replica in service.replicas:
                if (option := service.spec.accelerator(replica.accelerator)) is None:
                    continue
                for node in replica.nodes:
                    ours[node, option.resource] += option.gpus_per_pod
        held = {(node.name, resource): amount for node in self.nodes for resource, amount in node.used}
        foreign = {slot: amount - ours[slot] for slot, amount in held.items() if amount > ours[slot]}
        return replace(self, spoken_for=foreign)


def _room(nodes: Iterable[NodeOffer], option: AcceleratorOption) -> Room:
    """Count the room on nodes for replicas of an accelerator."""
    free, offering = dict[str, int](), 0
    for node in nodes:
        allocatable = dict(node.allocatable).get(option.resource, 0)
        offering += allocatable > 0
        if allocatable > 0 and _takes(node, option):
            left = allocatable - dict(node.used).get(option.resource, 0)
            free[node.name] = max(0, left) // max(1, option.gpus_per_pod)
    replicas = sum(free.values()) // option.nodes
    with_room = frozenset([name for name, pods in free.items() if pods and replicas])
    return Room(replicas, frozenset(free), offering, with_room)


def _takes(node: NodeOffer, option: AcceleratorOption) -> bool:
    """Return whether pods of an accelerator may run on a node."""
    labels = dict(node.labels)
    is_selected = all(labels.get(name) == value for name, value in option.node_selector)
    return is_selected and are_tolerated(node.taints, option.tolerations, option.resource)
