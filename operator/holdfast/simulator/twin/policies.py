"""Policies behind one port: a snapshot of what can be seen goes in, sizes come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast import policy
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.decision import Action, PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class Move:
    """New sizes of one service, and why."""

    targets: tuple[PlacementTarget, ...]
    reason: str = ""
    message: str = ""


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


class BadPolicy(ValueError):
    """A policy that does not exist, or a knob that makes no sense."""


class Holdfast:
    """The operator's own slow loop, the same pure function as in a cluster, on engines with or without the plugin."""

    tick_seconds = 5.0
    start: int | None = None

    def __init__(self, fast_loop: bool = True) -> None:
        self.name = "holdfast" if fast_loop else "holdfast-slow"
        self.fast_loop, self.admission = fast_loop, not fast_loop
        self._memory = policy.Memory()

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        decisions, self._memory = policy.decide(snapshot, self._memory)
        return {
            each.key: Move(each.verdict.targets, str(each.verdict.reason), each.verdict.message)
            for each in decisions
            if each.verdict.action is not Action.HOLD
        }


class Static:
    """The same number of replicas for ever, on the first accelerator."""

    tick_seconds = 60.0
    admission = False
    fast_loop = False

    def __init__(self, replicas: int) -> None:
        self.name = f"static:{replicas}"
        self.start: int | None = replicas

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        return {}


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler on waiting requests per replica (autoscaling/v2, kube-controller-manager).

    Every 15 s ceil(waiting / target), nothing within 10 % of the target; at most double or four more within 15 s; down
    only to the largest of the last five minutes. A metric that cannot be read changes nothing.
    """

    name = "hpa"
    tick_seconds = 15.0
    admission = False
    fast_loop = False
    start: int | None = None
    _tolerance = 0.1
    _stabilization_seconds = 300.0

    def __init__(self, waiting_per_replica: float = 1.0) -> None:
        self._target = waiting_per_replica
        self._recommended: dict[ServiceKey, list[tuple[float, int]]] = {}

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        moves = {}
        for service in snapshot.services:
            if service.traffic.state not in (SignalState.FRESH, SignalState.PARTIAL):
                continue
            moves[service.spec.key] = Move(_on_first(service, self._size(service, snapshot.now)), "HPA")
        return moves

    def _size(self, service: ServiceSnapshot, now: float) -> int:
        current = sum(placement.replicas for placement in service.placements)
        ready = sum(replica.phase is ReplicaPhase.READY for replica in service.replicas)
        waiting = sum(traffic.waiting for _, traffic in service.traffic.by_accelerator)
        ratio = waiting / (self._target * max(1, ready))
        wanted = current if abs(ratio - 1.0) <= self._tolerance else math.ceil(waiting / self._target)
        wanted = min(max(wanted, service.spec.min_replicas), service.spec.max_replicas)
        lately = [
            (at, size)
            for at, size in self._recommended.get(service.spec.key, [])
            if at > now - self._stabilization_seconds
        ]
        self._recommended[service.spec.key] = [*lately, (now, wanted)]
        if wanted > current:
            return min(wanted, max(2 * current, current + 4))
        return min(current, max(wanted, *(size for _, size in lately)) if lately else current)


def _on_first(service: ServiceSnapshot, replicas: int) -> tuple[PlacementTarget, ...]:
    return (PlacementTarget(service.spec.accelerators[0].name, replicas),)


def _static(argument: str, knobs: Mapping[str, float]) -> Policy:
    if not argument.isdigit() or int(argument) < 1:
        raise BadPolicy("static needs a size of at least 1, such as static:4")
    return Static(int(argument))


def _hpa(argument: str, knobs: Mapping[str, float]) -> Policy:
    target = knobs.get("waiting", 1.0)
    if not 0.0 < target < math.inf:
        raise BadPolicy("hpa: the knob waiting must be a positive number of waiting requests per replica")
    return Hpa(target)


POLICIES: Mapping[str, tuple[tuple[str, ...], Callable[[str, Mapping[str, float]], Policy]]] = {
    "holdfast": ((), lambda argument, knobs: Holdfast()),
    "holdfast-slow": ((), lambda argument, knobs: Holdfast(fast_loop=False)),
    "static": ((), _static),
    "hpa": (("waiting",), _hpa),
}
"""By name: its knobs, and how it is made from what follows a colon and from the knobs."""


def make_policy(text: str, knobs: Mapping[str, float]) -> Policy:
    """The policy of a name such as `holdfast-slow`, `static:4` or `hpa`; BadPolicy names the remedy."""
    name, _, argument = text.partition(":")
    if name not in POLICIES:
        raise BadPolicy(f"{text!r} is no policy: take one of {', '.join(_names())}")
    known, make = POLICIES[name]
    if argument and name != "static":
        raise BadPolicy(f"{text!r}: only static takes a number after a colon")
    return make(argument, {knob: value for knob, value in knobs.items() if knob in known})


def knobs_of(names: Sequence[str]) -> tuple[str, ...]:
    """Knobs that at least one of these policies has."""
    return tuple(knob for name in names for knob in POLICIES.get(name.partition(":")[0], ((), None))[0])


def _names() -> list[str]:
    return ["static:N" if name == "static" else name for name in POLICIES]
