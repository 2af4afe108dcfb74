"""Free accelerators of the nodes, by resource and node labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from holdfast.domain.cluster import NodeOffer
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
        """Return the most replicas that can run now, of which `placed` do; None where nodes say nothing.

        Where no node has the resource, a cluster autoscaler may still create nodes for pending pods.
        """
        return None if self.offering == 0 else placed + self.free_replicas


@value
class _Requirements:
    """The properties of an accelerator that decide which nodes have room for it."""

    resource: str
    gpus: int
    selector: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]

    def takes(self, node: NodeOffer) -> bool:
        """Return whether its pods may run on a node."""
        labels = dict(node.labels)
        is_selected = all(labels.get(name) == value for name, value in self.selector)
        return is_selected and are_tolerated(node.taints, self.tolerations, self.resource)


@value
class Inventory:
    """The nodes of one snapshot; answers are cached per snapshot.

    `spoken_for`: GPUs by node and resource that other pods hold, and that no service can get.
    """

    nodes: tuple[NodeOffer, ...] = ()
    spoken_for: Mapping[tuple[str, str], int] = field(default_factory=dict)
    _rooms: dict[_Requirements, Room] = field(default_factory=dict)

    def room(self, option: AcceleratorOption, apart_from: frozenset[str] = frozenset()) -> Room:
        """Return the room for replicas of an accelerator, without the nodes in `apart_from`."""
        requirements = _Requirements(option.resource, option.gpus_per_replica, option.node_selector, option.tolerations)
        if apart_from:
            return _room(tuple(node for node in self.nodes if node.name not in apart_from), requirements)
        if requirements not in self._rooms:
            self._rooms[requirements] = _room(self.nodes, requirements)
        return self._rooms[requirements]

    def gpus(self, resource: str, names: frozenset[str], size: int = 1) -> int:
        """Return the GPUs of the named nodes, free or used, that replicas of `size` GPUs can use."""
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
                option = service.spec.accelerator(replica.accelerator)
                if option is not None and replica.node:
                    ours[replica.node, option.resource] += option.gpus_per_replica
        held = {(node.name, resource): amount for node in self.nodes for resource, amount in node.used}
        foreign = {slot: amount - ours[slot] for slot, amount in held.items() if amount > ours[slot]}
        return replace(self, spoken_for=foreign)


def _room(nodes: tuple[NodeOffer, ...], requirements: _Requirements) -> Room:
    """Count the room on nodes for replicas with these properties."""
    free = offering = 0
    matching: list[str] = []
    with_room: list[str] = []
    for node in nodes:
        allocatable = dict(node.allocatable).get(requirements.resource, 0)
        if allocatable <= 0:
            continue
        offering += 1
        if requirements.takes(node):
            matching.append(node.name)
            replicas = max(0, allocatable - dict(node.used).get(requirements.resource, 0)) // max(1, requirements.gpus)
            free += replicas
            if replicas:
                with_room.append(node.name)
    return Room(free, frozenset(matching), offering, frozenset(with_room))
