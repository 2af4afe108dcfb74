"""The port behind which every policy of the twin stands: what it is shown, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.domain.decision import PlacementTarget, QueueLimitTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.twin.pods.peer_metrics import Sight


class ObservedEngines(Protocol):
    """What can be seen of the engines of a service; None while nothing can.

    Percentiles of latencies cost as much as all the rest, and are left out unless they are asked for.
    """

    def __call__(self, key: ServiceKey, percentiles: bool = False) -> Sight | None: ...


@dataclass(frozen=True, slots=True)
class Move:
    """New sizes of one service, and why; another queue limit is a rollout; `restart` names a group of pods."""

    targets: tuple[PlacementTarget, ...]
    reason: str = ""
    message: str = ""
    queue_limit: QueueLimitTarget | None = None
    restart: str = ""


class Policy(Protocol):
    """Sizes services. `tick_seconds` is how often it looks.

    `admission` is whether its engines get Holdfast's cap on queued prompts, `fast_loop` whether they have the plugin.
    `start` is the size it begins with; None leaves the scenario's.
    """

    name: str
    tick_seconds: float
    admission: bool
    fast_loop: bool
    start: int | None

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        """Return what changes; services that are left out keep their sizes."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A policy that looks at single engines, which a snapshot does not tell apart; its snapshots have no histograms."""

    def watch(self, look: ObservedEngines) -> None:
        """Called once, before the run."""
        ...


@runtime_checkable
class Foreknown(Protocol):
    """A policy whose sizes are known before the run: no metrics are read for it, its snapshots have none."""

    sizes_foreknown: bool


@runtime_checkable
class Scheduling(Protocol):
    """A policy that keeps the floors of scaling.schedules."""

    keeps_schedules: bool


@runtime_checkable
class Provisioned(Protocol):
    """A policy that knows before the run how long new nodes take."""

    provisioning_seconds: float


class BadPolicy(ValueError):
    """A policy that does not exist, or a knob that makes no sense."""
