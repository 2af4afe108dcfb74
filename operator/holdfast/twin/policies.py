"""Policies by name, for the command line and for benchmarks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from holdfast.api.suggestions import did_you_mean
from holdfast.domain.decision import Action, Decision, PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.decide import STEP_LAW, decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from holdfast.twin.peers.aibrix import AibrixApa
from holdfast.twin.peers.dynamo import DynamoLatency, DynamoSla
from holdfast.twin.peers.hpa import Hpa
from holdfast.twin.peers.keda import KedaQueue, KedaSlo, KedaToken
from holdfast.twin.peers.knative import KnativeConcurrency
from holdfast.twin.peers.sageserve import SageServe
from holdfast.twin.peers.wva import WvaSaturation
from holdfast.twin.policy_port import BadPolicy, Move, Policy
from holdfast.twin.scenarios.inputs import ALL_POLICIES

Make = tuple[Mapping[str, float], Callable[[str, Mapping[str, float]], Policy]]

STATIC = "static"
MOST_DIGITS = 9

SWEPT = (0.25, 0.5, 1.0, 2.0, 4.0)
"""A sweep's values of a knob, as multiples of what the policy's makers ship."""


class Holdfast:
    """The operator's own slow loop, the same pure function as in a cluster, on engines with or without the plugin.

    `model` says what replicas carry.
    """

    tick_seconds = 5.0
    start: int | None = None
    keeps_schedules = True

    def __init__(self, fast_loop: bool = True, model: EngineModel = STEP_LAW) -> None:
        self._model = model
        self.name = "holdfast" if fast_loop else "holdfast-slow"
        self.fast_loop, self.admission = fast_loop, not fast_loop
        self.provisioning_seconds = PolicySettings().provisioning_seconds
        self._memory = Memory()

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        return {
            each.key: _move(each)
            for each in self.decisions(snapshot)
            if each.verdict.action is not Action.HOLD or each.queue_limit is not None or each.restart is not None
        }

    def decisions(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """What the operator would say of every service."""
        settings = PolicySettings(provisioning_seconds=self.provisioning_seconds)
        found, self._memory = decide(snapshot, self._memory, settings, self._model)
        return found


def _move(decision: Decision) -> Move:
    restart = decision.restart.leader if decision.restart else ""
    verdict = decision.verdict
    return Move(_sizes(decision), str(verdict.reason), verdict.message, decision.queue_limit, restart)


def _sizes(decision: Decision) -> tuple[PlacementTarget, ...]:
    return () if decision.verdict.action is Action.HOLD else decision.verdict.targets


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
    sizes_foreknown = True

    def __init__(self, replicas: int) -> None:
        self.name = f"static:{replicas}"
        self.start: int | None = replicas

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        return {}


def _static(argument: str, knobs: Mapping[str, float]) -> Policy:
    if not argument.isdecimal() or len(argument) > MOST_DIGITS or int(argument) < 1:
        raise BadPolicy(f"static needs a size of at least 1 and at most {MOST_DIGITS} digits, such as static:4")
    return Static(int(argument))


def _peer(kind: Callable[..., Policy], knob: str) -> Make:
    def make(argument: str, knobs: Mapping[str, float]) -> Policy:
        return kind(knobs[knob]) if knob in knobs else kind()

    return {knob: inspect.signature(kind).parameters[knob].default}, make


POLICIES: Mapping[str, Make] = {
    "holdfast": ({}, lambda argument, knobs: Holdfast()),
    "holdfast-slow": ({}, lambda argument, knobs: Holdfast(fast_loop=False)),
    "holdfast-apart": ({}, lambda argument, knobs: Apart()),
    STATIC: ({}, _static),
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
"""By name: its knobs as they are shipped, and how it is made from what follows a colon and from the knobs."""

ALIASES: Mapping[str, str] = {"dynamo-load": "dynamo-sla", "forecast-hourly": "sageserve"}
"""Further names: what a planner does, for the product that does it so."""


def make_policy(text: str, knobs: Mapping[str, float], others: Iterable[str] = ()) -> Policy:
    """The policy of a name such as `holdfast-slow`, `static:4` or `hpa`; BadPolicy names the remedy.

    `others` are names that the caller takes besides.
    """
    name, _, argument = text.partition(":")
    known = ALIASES.get(name, name)
    if known not in POLICIES:
        names = (*_names(), *others)
        raise BadPolicy(f"{text!r} is no policy: {did_you_mean(name, names)}take one of {', '.join(names)}")
    if argument and name != STATIC:
        raise BadPolicy(f"{text!r}: only static takes a number after a colon")
    shipped, make = POLICIES[known]
    made = make(argument, {knob: value for knob, value in knobs.items() if knob in shipped})
    if name in ALIASES:
        made.name = name
    return made


def knobs_of(name: str) -> Mapping[str, float]:
    """The knobs of a policy, as they are shipped."""
    name = name.partition(":")[0]
    shipped, _ = POLICIES.get(ALIASES.get(name, name), ({}, None))
    return shipped


def sweep_of(name: str) -> list[dict[str, float]]:
    """The knobs of each run of a sweep; one run without any where the policy has none."""
    return [{knob: factor * value} for knob, value in knobs_of(name).items() for factor in SWEPT] or [{}]


def without_argument() -> list[str]:
    """The names of all policies that need none."""
    return [name for name in POLICIES if name != STATIC]


def _names() -> list[str]:
    return [ALL_POLICIES, *("static:N" if name == STATIC else name for name in (*POLICIES, *ALIASES))]
