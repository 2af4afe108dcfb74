"""What all peers have in common: they size one Deployment by what they see of its engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic
from holdfast.domain.snapshot import Snapshot
from holdfast.twin.peers.behavior import Behavior, Governor
from holdfast.twin.pods.peer_metrics import Sight
from holdfast.twin.policy_port import BadPolicy, Move, ObservedEngines

SETTLE_SECONDS = 60.0
"""Nobody acts before: a run begins with empty engines, which a service that runs for long never shows."""


class Peer(ABC):
    """A policy of the twin without Holdfast's admission and fast loop; `behavior` where an HPA carries it out.

    It holds all sizes while metrics are gone, which is more than some of the originals do (they read zero).
    """

    name: str
    tick_seconds = 15.0
    admission = False
    fast_loop = False
    start: int | None = None
    behavior: Behavior | None = Behavior()
    sees_percentiles = False

    def __init__(self) -> None:
        self._look: ObservedEngines = _nothing
        self._governors: dict[ServiceKey, Governor] = {}
        self._began: float | None = None

    def watch(self, look: ObservedEngines) -> None:
        """Called before the run with what shows single engines."""
        self._look = look

    @abstractmethod
    def wanted(self, key: ServiceKey, seen: Sight, now: float) -> int:
        """Replicas by the law alone."""

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        """The sizes that change, on each service's first accelerator."""
        moves: dict[ServiceKey, Move] = {}
        self._began = snapshot.now if self._began is None else self._began
        if snapshot.now < self._began + SETTLE_SECONDS:
            return moves
        for service in snapshot.services:
            key, seen = service.spec.key, self._look(service.spec.key, self.sees_percentiles)
            if seen is not None:
                size = self._size(key, with_rates(seen, service.traffic), snapshot.now)
                targets = (PlacementTarget(service.spec.accelerators[0].name, size),)
                moves[key] = Move(targets, self.name)
        return moves

    def _size(self, key: ServiceKey, seen: Sight, now: float) -> int:
        wanted = min(max(self.wanted(key, seen, now), seen.lowest), seen.highest)
        if self.behavior is None:
            return wanted
        return self._governors.setdefault(key, Governor(self.behavior)).size(now, seen.size, wanted)


def _nothing(key: ServiceKey, percentiles: bool = False) -> Sight | None:
    return None


def with_rates(seen: Sight, traffic: Traffic) -> Sight:
    """What is seen, with rates and mean lengths of the service's traffic."""
    counts = [counted for _, counted in traffic.by_accelerator]
    came = sum(each.finished + each.rejected + each.in_flight_growth for each in counts)
    samples = max(1.0, sum(each.length_samples for each in counts))
    prompts, cached = sum(each.prompt_tokens for each in counts), sum(each.cached_prompt_tokens for each in counts)
    return replace(
        seen,
        prompt_tokens=sum(each.prompt_length_sum for each in counts) / samples,
        output_tokens=sum(each.output_length_sum for each in counts) / samples,
        arrivals_rps=max(0.0, came) / max(1e-9, traffic.interval_seconds),
        cached_share=min(1.0, cached / prompts) if prompts > 0.0 else 0.0,
    )


def positive(peer: str, knob: str, value: float) -> float:
    """The knob's value; BadPolicy where it makes no sense."""
    if not 0.0 < value < math.inf:
        raise BadPolicy(f"{peer}: the knob {knob} must be a positive number")
    return value
