"""The one immutable picture that all services are decided on."""

from __future__ import annotations

from holdfast.domain.activator import Activator
from holdfast.domain.benchmark import Measured
from holdfast.domain.cluster import ClusterProblem, GpuCap, NodeOffer, Placement, Replica
from holdfast.domain.service import ServiceSpec
from holdfast.domain.signals import History, MissingHistory, Traffic
from holdfast.domain.value import value


@value
class Recalled:
    """Learned values in status from before a restart or a takeover of leadership; None for missing values.

    `quantile` is the headroom's. On the hardware of `accelerator`, a replica carries `gain` times the modelled load and
    steps take `slowness` times as long; `accelerator` is empty if the values belong to another spec. `set_back`:
    somebody else sized the service, so that Holdfast did not.
    """

    cold_start_seconds: float | None = None
    quantile: float | None = None
    accelerator: str = ""
    gain: float = 1.0
    slowness: float = 1.0
    set_back: bool = False


@value
class ServiceSnapshot:
    """One service: its spec, its replicas, and its observed signals.

    `ended` are pods that ended before they served, the newest `MOST_ENDED` of each accelerator, oldest first.
    `history` is present only in one snapshot after a start or a takeover of leadership; until then `missing_history`
    says that it has yet to be read.
    `recalled` are learned values in status from before that. `activator` holds requests while no replica serves; None
    if the service has none. `measured`: benchmark results of engines like its own, at most one per accelerator.
    `born_at` is its creation time, None if unknown. `set_back`: accelerators whose size somebody else has
    changed since Holdfast wrote it, each reported once a write; None where nobody recorded what was written.
    `lost_fields`: paths of fields of the applied manifest that the API server dropped, because its CRD lacks them.
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
    ended: tuple[Replica, ...] = ()
    missing_history: MissingHistory | None = None
    set_back: tuple[str, ...] | None = None
    lost_fields: tuple[str, ...] = ()

    @property
    def awaits_history(self) -> bool:
        """Whether its history is still being read, and no read has failed."""
        return self.missing_history is not None and not self.missing_history.failure


@value
class Timing:
    """Periods of the loop, in seconds; they are part of the lead time."""

    tick_seconds: float = 5.0
    scrape_seconds: float = 15.0


@value
class Snapshot:
    """All services, the nodes and the caps of namespaces at time `now` (seconds since the epoch)."""

    now: float
    services: tuple[ServiceSnapshot, ...]
    nodes: tuple[NodeOffer, ...] = ()
    timing: Timing = Timing()
    gpu_caps: tuple[GpuCap, ...] = ()
