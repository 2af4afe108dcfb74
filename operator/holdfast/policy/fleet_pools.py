"""Which claims share which GPUs, and how many of these there are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.domain.service import AcceleratorOption
from holdfast.policy.fleet_claims import Claim
from holdfast.policy.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Pool:
    """Claims whose replicas find room on the same nodes only, and the GPUs that these have for them."""

    gpus: int
    claims: tuple[Claim, ...]

    @property
    def wanted(self) -> int:
        """GPUs that all want together."""
        return sum(claim.gpus(claim.want) for claim in self.claims)


def pools_of(claims: Collection[Claim], inventory: Inventory) -> list[Pool]:
    """Return a pool for each set of nodes that some claim may run on, and there for each size of replica.

    A wider pool holds the claims of the narrower ones inside it as well. Claims on resources that no node has are in
    none: nodes may be created for whoever asks.
    """
    bound = [claim for claim in claims if inventory.room(claim.option).offering > 0]
    places = {(claim.option.resource, inventory.room(claim.option).names) for claim in bound}
    pools = []
    for resource, names in sorted(places, key=lambda place: (place[0], sorted(place[1]))):
        inside = tuple(claim for claim in bound if _is_inside(claim.option, resource, names, inventory))
        left = sum(
            replicas * option.gpus_per_replica
            for claim in claims
            for option, replicas in claim.kept
            if _is_inside(option, resource, names, inventory)
        )
        sizes = {claim.option.gpus_per_replica for claim in inside}
        pools.append(Pool(inventory.gpus(resource, names) - left, inside))
        for size in sorted(sizes - {1}):
            alike = tuple(claim for claim in inside if claim.option.gpus_per_replica == size)
            pools.append(Pool(inventory.gpus(resource, names, size), alike))
    return pools


def _is_inside(option: AcceleratorOption, resource: str, names: frozenset[str], inventory: Inventory) -> bool:
    """Replicas of the accelerator find room on these nodes only; what no node matches shares nothing."""
    if option.resource != resource:
        return False
    own = inventory.room(option).names
    return own <= names and bool(own) == bool(names)
