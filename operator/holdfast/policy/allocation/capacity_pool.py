"""Which claims share which GPUs, and how many of these there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from holdfast.domain.cluster import GpuCap
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceKey
from holdfast.domain.value import value
from holdfast.policy.capacity_request import CapacityRequest

Place = tuple[str, frozenset[str]]
"""A resource, and the nodes where some accelerator finds it."""


@value
class CapacityPool:
    """Claims whose replicas find room on the same nodes only, and the GPUs that these have for them.

    `kept` GPUs come on top as soon as services that are leaving have left. `paired` GPUs are for replicas that serve
    next to another accelerator's: replicas that have them, or that have waited for too long (`waits`). With a `cap`
    the claims are those of its namespace instead, wherever their replicas find room.
    """

    gpus: int
    requests: tuple[CapacityRequest, ...]
    kept: int = 0
    paired: int = 0
    waits: bool = False
    cap: GpuCap | None = None

    @property
    def keys(self) -> frozenset[ServiceKey]:
        return frozenset([request.key for request in self.requests])

    @property
    def wanted(self) -> int:
        """GPUs that all want together."""
        return sum(request.gpus(request.want) for request in self.requests)


def capped_pools(requests: Collection[CapacityRequest], inventory: Inventory) -> list[CapacityPool]:
    """Return a pool for each cap of a namespace; replicas on nodes that take no new pods count as well."""
    pools, by_namespace = [], defaultdict[str, list[CapacityRequest]](list)
    for request in requests if inventory.caps else ():
        by_namespace[request.key.namespace].append(request)
    for cap in inventory.caps:
        here = by_namespace[cap.namespace]
        inside = tuple(request for request in here if request.option.resource == cap.resource)
        others = [part for request in here for part in (*request.kept, *request.paired)]
        held = sum(replicas * option.gpus_per_replica for option, replicas in others if option.resource == cap.resource)
        outside = sum(request.option.gpus_per_replica * request.outside for request in inside)
        pools.append(CapacityPool(cap.left - held - outside, inside, cap=cap))
    return pools


def capacity_pools(requests: Collection[CapacityRequest], inventory: Inventory) -> list[CapacityPool]:
    """Return a pool for each set of nodes that some claim may run on, and there for each size of replica.

    A wider pool holds the claims of the narrower ones inside it as well. Claims that no node matches are in none:
    nodes may be created for them. Pools of caps come last.
    """
    by_place: defaultdict[Place, list[CapacityRequest]] = defaultdict(list)
    kept: Counter[Place] = Counter()
    paired: Counter[Place] = Counter()
    waiting: set[Place] = set()

    def place_of(option: AcceleratorOption) -> Place:
        return option.resource, inventory.room(option).names

    for request in requests:
        by_place[place_of(request.option)].append(request)
        for held, of in ((kept, request.kept), (paired, request.paired)):
            for option, replicas in of:
                held[place_of(option)] += replicas * option.gpus_per_replica
        waiting |= {place_of(option) for option, _ in request.paired if request.waits}
    pools = []
    for place in sorted((place for place in by_place if place[1]), key=lambda place: (place[0], sorted(place[1]))):
        inside = tuple(request for other in by_place if _is_inside(other, place) for request in by_place[other])
        left, taken = (sum(held[other] for other in held if _is_inside(other, place)) for held in (kept, paired))
        waits = any(_is_inside(other, place) for other in waiting)
        pools.append(CapacityPool(inventory.gpus(*place) - left - taken, inside, left, taken, waits))
        for size in sorted({request.option.gpus_per_pod for request in inside} - {1}):
            alike = tuple(request for request in inside if request.option.gpus_per_pod == size)
            pools.append(CapacityPool(inventory.gpus(*place, size), alike))
    return [*pools, *capped_pools(requests, inventory)]


def _is_inside(place: Place, wider: Place) -> bool:
    """What finds room in one place takes it from the other."""
    return bool(place[1]) and place[0] == wider[0] and place[1] <= wider[1]
