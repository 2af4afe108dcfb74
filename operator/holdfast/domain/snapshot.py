"""The one immutable picture that all services are decided on."""

from __future__ import annotations

from holdfast.domain.activator import Activator
from holdfast.domain.benchmark import Measured
from holdfast.domain.cluster import ClusterProblem, NodeOffer, Placement, Replica
from holdfast.domain.service import ServiceSpec
from holdfast.domain.signals import History, Traffic
from holdfast.domain.value import value


@value
class ServiceSnapshot:
    """One service: what is wanted, what runs, what it was seen to do.

    `history` is present only in the first snapshot after a start or a takeover of leadership.
    `last_cold_start_seconds` is what status remembered from before a restart. `activator` holds requests while no
    replica serves; None where the service has none. `measured`: what benchmarks found of engines like its own, at most
    one result for an accelerator. `born_at` is when it was made, None where that is unknown.
    """

    spec: ServiceSpec
    traffic: Traffic
    replicas: tuple[Replica, ...] = ()
    placements: tuple[Placement, ...] = ()
    problems: tuple[ClusterProblem, ...] = ()
    history: History | None = None
    last_cold_start_seconds: float | None = None
    activator: Activator | None = None
    measured: tuple[Measured, ...] = ()
    born_at: float | None = None


@value
class Timing:
    """Periods of the loop, in seconds: they enter the lead time."""

    tick_seconds: float = 5.0
    scrape_seconds: float = 15.0


@value
class Snapshot:
    """All services and the nodes at time `now` (seconds since the epoch)."""

    now: float
    services: tuple[ServiceSnapshot, ...]
    nodes: tuple[NodeOffer, ...] = ()
    timing: Timing = Timing()
