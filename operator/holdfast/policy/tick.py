"""What all services of one tick share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import Snapshot, Timing
from holdfast.domain.value import value
from holdfast.policy.settings import PolicySettings


@value
class Tick:
    """The time (seconds since the epoch), how often metrics and the cluster are read, the nodes, and the settings."""

    now: float
    timing: Timing
    inventory: Inventory
    settings: PolicySettings

    def of(self, spec: ServiceSpec) -> Tick:
        """Return the tick of one service, with the times that its spec sets."""
        if spec.startup_seconds is None:
            return self
        return replace(self, settings=replace(self.settings, starting_seconds=spec.startup_seconds))


def tick_of(snapshot: Snapshot, settings: PolicySettings) -> Tick:
    """Return what all services of a snapshot share, whatever the order of its nodes."""
    nodes = tuple(sorted(snapshot.nodes, key=lambda node: node.name))
    return Tick(snapshot.now, snapshot.timing, Inventory(nodes), settings)
