"""What the nodes could take: free accelerators by resource and node labels."""

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
    """Replicas that matching nodes have room for: those of these names, of `offering` that have the resource at all.

    `free_on` are those of the nodes that have some now.
    """

    free_replicas: int
    names: frozenset[str]
    offering: int
    free_on: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """How many match."""
        return len(self.names)

    def most_replicas(self, placed: int) -> int | None:
        """Most replicas that could run now, `placed` of which do; None where nodes say nothing.

        Where no node has the resource, nodes may still be created for whoever asks.
        """
        return None if self.offering == 0 else placed + self.free_replicas


@value
class _Asked:
    """What of an accelerator decides which nodes have room for it."""

    resource: str
    gpus: int
    selector: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]

    def takes(self, node: NodeOffer) -> bool:
        """Whether its pods may run on a node."""
        labels = dict(node.labels)
        is_selected = all(labels.get(name) == value for name, value in self.selector)
        return is_selected and are_tolerated(node.taints, self.tolerations, self.resource)


@value
class Inventory:
    """The nodes of one snapshot; answers are remembered while one snapshot is decided on.

    `spoken_for`: GPUs by node and resource that nobody hands out.
    """

    nodes: tuple[NodeOffer, ...] = ()
    spoken_for: Mapping[tuple[str, str], int] = field(default_factory=dict)
    _rooms: dict[_Asked, Room] = field(default_factory=dict)

    def room(self, option: AcceleratorOption, apart_from: frozenset[str] = frozenset()) -> Room:
        """Return the room for replicas of an accelerator, maybe apart from that of some nodes."""
        asked = _Asked(option.resource, option.gpus_per_replica, option.node_selector, option.tolerations)
        if apart_from:
            return _room(tuple(node for node in self.nodes if node.name not in apart_from), asked)
        if asked not in self._rooms:
            self._rooms[asked] = _room(self.nodes, asked)
        return self._rooms[asked]

    def gpus(self, resource: str, names: frozenset[str], size: int = 1) -> int:
        """GPUs of the named nodes, free or not, that replicas of `size` GPUs can use."""
        amounts = (
            dict(node.allocatable).get(resource, 0) - self.spoken_for.get((node.name, resource), 0)
            for node in self.nodes
            if node.name in names
        )
        return sum(max(0, amount) // size * size for amount in amounts)

    def available_to(self, services: Iterable[ServiceSnapshot]) -> Inventory:
        """Return what there is for these services: what other pods hold stays theirs.

        Such pods belong to services that cannot be decided on, that are being deleted, or that are gone already.
        """
        ours: Counter[tuple[str, str]] = Counter()
        for service in services:
            for replica in service.replicas:
                option = service.spec.accelerator(replica.accelerator)
                if option is not None and replica.node:
                    ours[replica.node, option.resource] += option.gpus_per_replica
        held = {(node.name, resource): amount for node in self.nodes for resource, amount in node.used}
        others = {place: amount - ours[place] for place, amount in held.items() if amount > ours[place]}
        return replace(self, spoken_for=others)


def _room(nodes: tuple[NodeOffer, ...], asked: _Asked) -> Room:
    free = offering = 0
    matching: list[str] = []
    with_room: list[str] = []
    for node in nodes:
        there = dict(node.allocatable).get(asked.resource, 0)
        if there <= 0:
            continue
        offering += 1
        if asked.takes(node):
            matching.append(node.name)
            here = max(0, there - dict(node.used).get(asked.resource, 0)) // max(1, asked.gpus)
            free += here
            if here:
                with_room.append(node.name)
    return Room(free, frozenset(matching), offering, frozenset(with_room))
