"""Policies by name, for the command line and for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast import policy
from holdfast.domain.decision import Action
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.settings import PolicySettings
from holdfast.simulator.peers.aibrix import AibrixApa
from holdfast.simulator.peers.dynamo import DynamoLatency, DynamoSla
from holdfast.simulator.peers.hpa import Hpa
from holdfast.simulator.peers.keda import KedaQueue, KedaSlo, KedaToken
from holdfast.simulator.peers.knative import KnativeConcurrency
from holdfast.simulator.peers.sageserve import SageServe
from holdfast.simulator.peers.wva import WvaSaturation
from holdfast.simulator.twin.port import BadPolicy, Move, Policy

Make = tuple[tuple[str, ...], Callable[[str, Mapping[str, float]], Policy]]


class Holdfast:
    """The operator's own slow loop, the same pure function as in a cluster, on engines with or without the plugin."""

    tick_seconds = 5.0
    start: int | None = None
    keeps_schedules = True

    def __init__(self, fast_loop: bool = True) -> None:
        self.name = "holdfast" if fast_loop else "holdfast-slow"
        self.fast_loop, self.admission = fast_loop, not fast_loop
        self.provisioning_seconds = PolicySettings().provisioning_seconds
        self._memory = policy.Memory()

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        settings = PolicySettings(provisioning_seconds=self.provisioning_seconds)
        decisions, self._memory = policy.decide(snapshot, self._memory, settings)
        return {
            each.key: Move(each.verdict.targets, str(each.verdict.reason), each.verdict.message)
            for each in decisions
            if each.verdict.action is not Action.HOLD
        }


class Apart:
    """Holdfast's slow loop for each service by itself, as other autoscalers are: first come, first served."""

    name = "holdfast-apart"
    tick_seconds = Holdfast.tick_seconds
    start: int | None = None
    admission = True
    fast_loop = False
    keeps_schedules = True

    def __init__(self) -> None:
        self.provisioning_seconds = PolicySettings().provisioning_seconds
        self._loops: dict[ServiceKey, Holdfast] = {}

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        moves: dict[ServiceKey, Move] = {}
        for service in snapshot.services:
            loop = self._loops.setdefault(service.spec.key, Holdfast(fast_loop=False))
            loop.provisioning_seconds = self.provisioning_seconds
            moves.update(loop.decide(replace(snapshot, services=(service,))))
        return moves


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


def _static(argument: str, knobs: Mapping[str, float]) -> Policy:
    if not argument.isdigit() or int(argument) < 1:
        raise BadPolicy("static needs a size of at least 1, such as static:4")
    return Static(int(argument))


def _peer(kind: Callable[..., Policy], knob: str) -> Make:
    def make(argument: str, knobs: Mapping[str, float]) -> Policy:
        return kind(knobs[knob]) if knob in knobs else kind()

    return (knob,), make


POLICIES: Mapping[str, Make] = {
    "holdfast": ((), lambda argument, knobs: Holdfast()),
    "holdfast-slow": ((), lambda argument, knobs: Holdfast(fast_loop=False)),
    "holdfast-apart": ((), lambda argument, knobs: Apart()),
    "static": ((), _static),
    "hpa": _peer(Hpa, "waiting"),
    "keda-queue": _peer(KedaQueue, "inflight"),
    "keda-token": _peer(KedaToken, "kv"),
    "keda-slo": _peer(KedaSlo, "band"),
    "aibrix-apa": _peer(AibrixApa, "kv"),
    "wva": _peer(WvaSaturation, "up"),
    "dynamo-sla": _peer(DynamoSla, "target"),
    "dynamo-latency": _peer(DynamoLatency, "kv"),
    "sageserve": _peer(SageServe, "util"),
    "knative": _peer(KnativeConcurrency, "concurrency"),
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
