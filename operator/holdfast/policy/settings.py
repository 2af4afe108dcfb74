"""Settings of the policy, for the operator of Holdfast, and what all services of one tick share."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceSpec
from holdfast.domain.snapshot import Snapshot, Timing
from holdfast.domain.value import value


@value
class PolicySettings:
    """Times in seconds; the defaults suit clouds whose node pools grow in minutes.

    `provisioning_seconds`: how long a pod may stay unschedulable before its accelerator counts as unavailable.
    `failing_seconds`, `starting_seconds`: how long an accelerator may have only failing, or only starting, replicas.
    `retry_seconds`: first backoff of an unavailable accelerator; it doubles up to `longest_retry_seconds`.
    `cold_start_seconds`: assumed until a cold start was observed. `drain_seconds`: how long a replica takes to drain.
    `idle_seconds`: idle time before scale-to-zero, at least what a replica takes to leave and to come back.
    """

    provisioning_seconds: float = 300.0
    failing_seconds: float = 60.0
    starting_seconds: float = 1800.0
    retry_seconds: float = 600.0
    longest_retry_seconds: float = 6 * 3600.0
    cold_start_seconds: float = 90.0
    drain_seconds: float = 30.0
    idle_seconds: float = 600.0

    @property
    def yielding_seconds(self) -> float:
        """How long services may take to free accelerators: start replicas elsewhere first, then drain."""
        return self.provisioning_seconds + self.cold_start_seconds + self.drain_seconds


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
