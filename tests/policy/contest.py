"""Services at constant load that compete for a few GPUs, through time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import NodeOffer, Placement, Replica, ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import Snapshot
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceBuilder, ServiceView, a_snapshot, node, traffic
from tests.policy.fluid import FixedRates

SETTINGS = PolicySettings(provisioning_seconds=60.0)
RATE_RPS = 4.0
"""What a replica carries on any accelerator."""


class Contest:
    """One node for each accelerator; pods are scheduled in the order in which they were made.

    They serve `cold_seconds` after that, and hold their GPUs for `drain_seconds` when they go. `offered` GPUs by
    accelerator, a number alone is of h100; `held` of each by pods of no service that is shown. `same` accelerators are
    on the node of the one that they name. Pods of the `odd` ones find no node, for a reason that nodes do not show;
    those of the `broken` ones never serve. So many `strangers` wait, as long as nothing else, for a GPU to hold.
    """

    def __init__(
        self,
        offered: int | Mapping[str, int],
        services: Mapping[str, tuple[ServiceBuilder, float, int]],
        held: int = 0,
        same: Mapping[str, str] = MappingProxyType({}),
        cold_seconds: float = 0.0,
        drain_seconds: float = 0.0,
        odd: frozenset[str] = frozenset(),
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.strangers = 0
        self.same, self.odd, self.broken = same, odd, broken
        self.cold_seconds, self.drain_seconds = cold_seconds, drain_seconds
        self.gone_at: dict[str, float] = {}
        self.offered = {"h100": offered} if isinstance(offered, int) else dict(offered)
        self.held = held
        self.rates: dict[str, float] = {}
        self.builders: dict[str, ServiceBuilder] = {}
        self.pods: dict[str, list[Replica]] = {}
        self.size: dict[str, dict[str, int]] = {}
        self.sight: dict[str, SignalState] = {}
        self.memory, self.now, self.serial = Memory(), NOW, 0
        self.gave_way: list[str] = []
        self.switched: list[str] = []
        self.last: dict[str, Decision] = {}
        for name, (builder, rate, _) in services.items():
            self.join(name, builder, rate)
        for name, (builder, _, size) in services.items():
            self._resize(name, builder.spec.accelerators[0].name, size)

    def join(self, name: str, builder: ServiceBuilder, rate: float) -> None:
        """Let a service come that has no replica yet."""
        self.builders[name], self.rates[name], self.sight[name] = builder, rate, SignalState.FRESH
        self.pods[name], self.size[name] = [], {}

    def run(self, seconds: float) -> None:
        model = FixedRates(dict.fromkeys([*self.offered, *self.same], RATE_RPS))
        for _ in range(int(seconds / 5.0)):
            decisions, self.memory = decide(self.snapshot(), self.memory, SETTINGS, model)
            for decision in decisions:
                self._apply(decision)
            self.now += 5.0
            self._age()
            self._schedule()

    def snapshot(self) -> Snapshot:
        views = (
            ServiceView(
                builder,
                traffic(self.rates[name], state=self.sight[name], good=self.good(name), on=self.mostly_on(name)),
                tuple(self.pods[name]),
                tuple(Placement(on, size) for on, size in sorted(self.size[name].items())),
            )
            for name, builder in self.builders.items()
        )
        return a_snapshot(*views, now=self.now, nodes=self.nodes())

    def good(self, name: str) -> float:
        """What is beyond 4 requests/s for each replica is late."""
        return min(1.0, RATE_RPS * self.running(name) / self.rates[name])

    def mostly_on(self, name: str) -> str:
        return max([*self.offered, *self.same], key=lambda on: self.running(name, on))

    def nodes(self) -> tuple[NodeOffer, ...]:
        return tuple(
            node(f"n-{on}", gpus, used=self.held + self.placed(on), kind=on) for on, gpus in self.offered.items()
        )

    def placed(self, home: str) -> int:
        """GPUs of pods on the node of an accelerator."""
        there = ((name, pod) for name, pods in self.pods.items() for pod in pods if pod.node == f"n-{home}")
        return sum(self._gpus(name, pod) for name, pod in there)

    def _gpus(self, name: str, pod: Replica) -> int:
        option = self.builders[name].spec.accelerator(pod.accelerator)
        return 1 if option is None else option.gpus_per_replica

    def running(self, name: str | None = None, on: str | None = None) -> int:
        pods = (pod for one in (self.pods if name is None else [name]) for pod in self.pods[one])
        return sum(pod.phase is ReplicaPhase.READY and on in (None, pod.accelerator) for pod in pods)

    def _apply(self, decision: Decision) -> None:
        name, verdict = decision.key.name, decision.verdict
        self.last[name] = decision
        if verdict.action is Action.HOLD:
            return
        if (verdict.action, verdict.reason) == (Action.SCALE_DOWN, Reason.CAPACITY_LIMITED):
            self.gave_way.append(name)
        if verdict.action is Action.SWITCH:
            self.switched.append(name)
        for target in verdict.targets:
            self._resize(name, target.accelerator, target.replicas)

    def _resize(self, name: str, on: str, size: int) -> None:
        self.size[name][on] = size
        mine = [pod for pod in self.pods[name] if pod.accelerator == on and pod.phase is not ReplicaPhase.DRAINING]
        elsewhere = [pod for pod in self.pods[name] if pod not in mine]
        ranked = sorted(mine, key=lambda pod: (pod.phase is not ReplicaPhase.READY, not pod.node))
        here = ranked[:size]
        for _ in range(size - len(here)):
            self.serial += 1
            here.append(Replica(f"p{self.serial}", on, ReplicaPhase.UNSCHEDULABLE, self.now))
        self.pods[name] = elsewhere + here + self._draining(ranked[size:])
        self._schedule()

    def _draining(self, going: list[Replica]) -> list[Replica]:
        """They hold what they have until their last requests end."""
        held = [replace(pod, phase=ReplicaPhase.DRAINING) for pod in going if pod.node and self.drain_seconds]
        self.gone_at |= {pod.name: self.now + self.drain_seconds for pod in held}
        return held

    def _age(self) -> None:
        for name, pods in self.pods.items():
            there = [pod for pod in pods if self.gone_at.get(pod.name, self.now + 1.0) > self.now]
            self.pods[name] = [self._older(pod) for pod in there]

    def _older(self, pod: Replica) -> Replica:
        if pod.accelerator in self.broken:
            return replace(pod, phase=ReplicaPhase.FAILING, reason="CrashLoopBackOff") if pod.node else pod
        started = pod.phase is ReplicaPhase.STARTING and self.now - (pod.scheduled_at or 0.0) >= self.cold_seconds
        return replace(pod, phase=ReplicaPhase.READY, ready_at=self.now) if started else pod

    def _has_room(self, home: str, gpus: int = 1) -> bool:
        return self.held + self.placed(home) + gpus <= self.offered[home]

    def _schedule(self) -> None:
        waiting = sorted(
            (pod.created_at, pod.name, name, index)
            for name, pods in self.pods.items()
            for index, pod in enumerate(pods)
            if pod.phase is ReplicaPhase.UNSCHEDULABLE
        )
        while self.strangers and all(self._has_room(home) for home in self.offered):
            self.held, self.strangers = self.held + 1, self.strangers - 1
        for _, _, name, index in waiting:
            pod = self.pods[name][index]
            home = self.same.get(pod.accelerator, pod.accelerator)
            if pod.accelerator not in self.odd and self._has_room(home, self._gpus(name, pod)):
                starting = replace(pod, phase=ReplicaPhase.STARTING, scheduled_at=self.now, node=f"n-{home}")
                self.pods[name][index] = starting if self.cold_seconds else self._older(starting)
