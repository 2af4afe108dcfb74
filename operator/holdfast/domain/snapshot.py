"""The one immutable picture that all services are decided on."""

from __future__ import annotations

from holdfast.domain.activator import Activator
from holdfast.domain.benchmark import Measured
from holdfast.domain.cluster import ClusterProblem, NodeOffer, Placement, Replica
from holdfast.domain.service import ServiceSpec
from holdfast.domain.signals import History, Traffic
from holdfast.domain.value import value


@value
class Recalled:
    """What status tells of the time before a restart or a takeover of leadership; None where it tells nothing.

    `quantile` is the headroom's. On hardware as that of `accelerator` `gain` times as much is carried as is believed
    without observation, and steps take `slowness` times as long; it is empty where that was another spec's.
    """

    cold_start_seconds: float | None = None
    quantile: float | None = None
    accelerator: str = ""
    gain: float = 1.0
    slowness: float = 1.0


@value
class ServiceSnapshot:
    """One service: what is wanted, what runs, what it was seen to do.

    `history` is present only in the first snapshot after a start or a takeover of leadership.
    `recalled` is what status remembered from before that. `activator` holds requests while no replica serves; None
    where the service has none. `measured`: what benchmarks found of engines like its own, at most one result for an
    accelerator. `born_at` is when it was made, None where that is unknown.
    """

    spec: ServiceSpec
    traffic: Traffic
    replicas: tuple[Replica, ...] = ()
    placements: tuple[Placement, ...] = ()
    problems: tuple[ClusterProblem, ...] = ()
    history: History | None = None
    recalled: Recalled = Recalled()
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
