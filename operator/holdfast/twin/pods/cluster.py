"""Pods of the simulated services: placed on GPUs, started, drained and removed, on a virtual clock in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.domain.cluster import (
    NodeOffer,
    Placement,
    QueueLimit,
    Replica,
    ReplicaPhase,
    Workload,
    grown_surge,
    rollout_surge,
)
from holdfast.domain.decision import PlacementTarget, QueueLimitTarget
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.twin.arrays.fleet import EngineFleet

EPOCH_SECONDS = 1_800_000_000.0
"""What the wall clock shows when a run begins, where the scenario does not say: 2027-01-15, a Friday, 08:00 UTC."""

NODE_LABEL = "holdfast.dev/simulated-accelerator"


@dataclass(frozen=True, slots=True)
class Hardware:
    """GPUs of one kind, and how long a pod on them takes until it is ready: `jitter` 0.2 is 20 % up or down."""

    name: str
    gpus: int
    cold_start_seconds: float
    jitter: float = 0.0


@dataclass(slots=True, eq=False)
class SimulatedPod:
    """One replica, `number` in order of creation; `ready_at` is known once it has a node, `engine` once it is ready.

    `queue_limit` is the one of the template it was made from; None where its engine has that of its kind. One of more
    `nodes` than one is a group of pods, `index` its number in its LeaderWorkerSet.
    """

    name: str
    number: int
    accelerator: str
    gpus: int
    created_at: float
    placed_at: float | None = None
    ready_at: float | None = None
    leaving_at: float | None = None
    gone_at: float | None = None
    engine: int | None = None
    queue_limit: QueueLimit | None = None
    nodes: int = 1
    index: int = 0

    def phase(self, now: float) -> ReplicaPhase:
        """Its phase as the API server shows it."""
        if self.leaving_at is not None:
            return ReplicaPhase.DRAINING
        if self.ready_at is None:
            return ReplicaPhase.UNSCHEDULABLE
        return ReplicaPhase.READY if now >= self.ready_at else ReplicaPhase.STARTING

    def replica(self, now: float, began_at: float = EPOCH_SECONDS) -> Replica:
        """What the policy is shown; `began_at` is the wall clock at the beginning of the run."""
        phase = self.phase(now)
        placed = None if self.placed_at is None else began_at + self.placed_at
        ready = began_at + self.ready_at if self.ready_at is not None and now >= self.ready_at else None
        node = "" if placed is None else f"node-{self.accelerator}"
        return Replica(
            self.name,
            self.accelerator,
            phase,
            began_at + self.created_at,
            placed,
            ready,
            revision=str(self.queue_limit),
            node=node,
            followers=(node,) * (self.nodes - 1) if node else (),
            number=self.index,
        )


@dataclass(slots=True)
class Service:
    """One service: its requests, its engines, its pods and the sizes of its Deployments."""

    spec: ServiceSpec
    fleet: EngineFleet
    drain_seconds: float
    class_names: tuple[str, ...] = ()
    """Declared classes in the order of their numbers, batch among them."""
    queue_limits: dict[str, QueueLimit] = field(default_factory=dict)
    """Those of the Deployments' templates, where the policy sets them."""
    surges: dict[str, int] = field(default_factory=dict)
    """Further replicas during a rollout, by accelerator."""
    pods: list[SimulatedPod] = field(default_factory=list)
    gone: list[SimulatedPod] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    actions: int = 0

    @property
    def everything(self) -> Sequence[SimulatedPod]:
        """Pods that are or were."""
        return [*self.gone, *self.pods]

    def placements(self) -> tuple[Placement, ...]:
        """Its Deployments."""
        return tuple(
            Placement(
                name,
                size,
                rolling_out=bool(self.outdated(name)),
                workload=Workload(f"{self.spec.key.name}-{name}"),
                queue_limit=self.queue_limits.get(name),
            )
            for name, size in sorted(self.sizes.items())
        )

    def staying(self, accelerator: str) -> list[SimulatedPod]:
        """Pods of a Deployment that are not to go."""
        return [pod for pod in self.pods if pod.accelerator == accelerator and pod.leaving_at is None]

    def outdated(self, accelerator: str) -> list[SimulatedPod]:
        """Pods that a rollout has yet to replace."""
        limit = self.queue_limits.get(accelerator)
        return [pod for pod in self.staying(accelerator) if pod.queue_limit != limit]

    def kind(self, accelerator: str) -> int:
        """Number of the accelerator among the kinds of the fleet."""
        return [option.name for option in self.spec.accelerators].index(accelerator)

    def option(self, accelerator: str) -> AcceleratorOption:
        """The accelerator as declared."""
        return self.spec.accelerators[self.kind(accelerator)]


class Cluster:
    """All services on the same GPUs; call `advance` with times that never go back."""

    def __init__(self, hardware: Sequence[Hardware], services: Sequence[Service], seed: int) -> None:
        self.now = 0.0
        self.services = tuple(services)
        self._hardware = {each.name: each for each in hardware}
        self._free = {each.name: each.gpus for each in hardware}
        self._reclaimed: set[str] = set()
        self._draw = np.random.default_rng([seed, 2])
        self._numbers = itertools.count(1)

    def begin(self, service: Service, replicas: Mapping[str, int]) -> None:
        """Let a service have these replicas, ready, when the run begins."""
        for accelerator, count in replicas.items():
            service.sizes[accelerator] = count
            for _ in range(count):
                pod = self._create(service, accelerator, -self._hardware[accelerator].cold_start_seconds)
                if self._place(pod):
                    pod.placed_at, pod.ready_at = pod.created_at, 0.0
        self._start_ready()

    def scale(self, service: Service, targets: Sequence[PlacementTarget]) -> None:
        """Give Deployments other sizes, as their controller would carry it out."""
        for target in targets:
            if service.sizes.get(target.accelerator, 0) == target.replicas:
                continue
            service.actions += 1
            service.sizes[target.accelerator] = target.replicas
            staying, old = service.staying(target.accelerator), service.outdated(target.accelerator)
            missing = target.replicas - len(staying)
            # In the middle of a rollout Kubernetes adds pods of both templates in proportion.
            of_old = round(missing * len(old) / len(staying)) if old else 0
            for number in range(missing):
                pod = self._create(service, target.accelerator, self.now)
                if number < of_old:
                    pod.queue_limit = old[0].queue_limit
            for pod in self._ranked(service, staying, target)[: max(0, len(staying) - target.replicas)]:
                self._leave(service, pod)
        self._place_all()
        self._start_ready()

    def roll_out(self, service: Service, target: QueueLimitTarget) -> None:
        """Give the engines of a Deployment another queue limit: pods are replaced in turn (`_go_on`)."""
        service.actions += 1
        name = target.accelerator
        service.queue_limits[name] = target.limit
        free_replicas = self._free[name] // service.option(name).gpus_per_replica if service.spec.may_surge else 0
        service.surges[name] = rollout_surge(service.sizes[name], free_replicas)
        self._go_on(service, name)

    def next_change(self) -> float:
        """When the next pod becomes ready or must be gone; infinite where nothing is pending."""
        return min(self._moments(), default=float("inf"))

    def advance(self, until: float) -> None:
        """Let the engines work, start pods that are ready by then and remove drained pods."""
        for service in self.services:
            service.fleet.advance(until)
        self.now = until
        for service in self.services:
            for pod in [pod for pod in service.pods if pod.leaving_at is not None]:
                self._remove_drained(service, pod)
            for accelerator in service.queue_limits:
                self._go_on(service, accelerator)
        self._place_all()
        self._start_ready()

    def nodes(self) -> tuple[NodeOffer, ...]:
        """One node per accelerator with all its GPUs, without the reclaimed ones."""
        return tuple(
            NodeOffer(
                f"node-{each.name}",
                self._labels(each.name),
                (("nvidia.com/gpu", each.gpus),),
                (("nvidia.com/gpu", each.gpus - self._free[each.name]),),
            )
            for each in self._hardware.values()
            if each.name not in self._reclaimed
        )

    def _labels(self, accelerator: str) -> tuple[tuple[str, str], ...]:
        """What the services select nodes of an accelerator by."""
        options = [option for service in self.services for option in service.spec.accelerators]
        selected = {label for option in options if option.name == accelerator for label in option.node_selector}
        return tuple(sorted({(NODE_LABEL, accelerator), *selected}))

    def reclaim(self, accelerator: str) -> None:
        """Take the nodes of an accelerator away with all that runs there; Deployments make other pods, which wait."""
        for service in self.services:
            for pod in [pod for pod in service.pods if pod.accelerator == accelerator and pod.placed_at is not None]:
                stays = pod.leaving_at is None
                pod.leaving_at = self.now if stays else pod.leaving_at
                self._remove(service, pod, self.now)
                if stays:
                    self._create(service, accelerator, self.now)
        self._reclaimed.add(accelerator)
        self._free[accelerator] = 0

    def give_back(self, accelerator: str) -> None:
        """Let the nodes of an accelerator be there again."""
        if accelerator in self._reclaimed:
            self._reclaimed.remove(accelerator)
            self._free[accelerator] = self._hardware[accelerator].gpus
            self._place_all()

    def fail_node(self, service: Service, number: int) -> None:
        """Take a replica away at once, with all that is in it; its Deployment makes another."""
        alive = [pod for pod in service.pods if pod.engine is not None and pod.leaving_at is None]
        if alive:
            pod = alive[number % len(alive)]
            pod.leaving_at = self.now
            self._remove(service, pod, self.now)
            self._create(service, pod.accelerator, self.now)
            self._place_all()

    def restart(self, service: Service, name: str) -> None:
        """Let a group of pods go, and be made anew once its GPUs are free."""
        for pod in [pod for pod in service.pods if pod.name == name and pod.leaving_at is None]:
            self._leave(service, pod)
            self._create(service, pod.accelerator, self.now)

    def _moments(self) -> Iterator[float]:
        for service in self.services:
            for pod in service.pods:
                if pod.leaving_at is not None:
                    yield pod.leaving_at + service.drain_seconds
                elif pod.ready_at is not None and pod.engine is None:
                    yield pod.ready_at

    def _create(self, service: Service, accelerator: str, at: float) -> SimulatedPod:
        option = service.option(accelerator)
        number = next(self._numbers)
        name = f"{service.spec.key.name}-{accelerator}-{number}"
        limit, taken = service.queue_limits.get(accelerator), {pod.index for pod in service.staying(accelerator)}
        index = next(each for each in itertools.count() if each not in taken) if option.nodes > 1 else 0
        pod = SimulatedPod(name, number, accelerator, option.gpus_per_replica, at, queue_limit=limit)
        pod.nodes, pod.index = option.nodes, index
        service.pods.append(pod)
        return pod

    def _place_all(self) -> None:
        """Who has waited longest gets GPUs first, of whatever service; one that finds too few delays nobody."""
        waiting = [
            pod for service in self.services for pod in service.pods if pod.placed_at is None and pod.leaving_at is None
        ]
        for pod in sorted(waiting, key=lambda pod: (pod.created_at, pod.number)):
            self._place(pod)

    def _place(self, pod: SimulatedPod) -> bool:
        """Give a pod its GPUs if there are any."""
        if self._free[pod.accelerator] < pod.gpus:
            return False
        self._free[pod.accelerator] -= pod.gpus
        kind = self._hardware[pod.accelerator]
        pod.placed_at = self.now
        pod.ready_at = pod.placed_at + kind.cold_start_seconds * (1.0 + kind.jitter * self._draw.uniform(-1.0, 1.0))
        return True

    def _start_ready(self) -> None:
        for service in self.services:
            for pod in service.pods:
                due = pod.ready_at is not None and pod.ready_at <= self.now
                if due and pod.engine is None and pod.leaving_at is None:
                    pod.engine = service.fleet.add(service.kind(pod.accelerator))
                    if pod.queue_limit is not None:
                        service.fleet.limit_queue(pod.engine, pod.queue_limit.tokens)

    def _go_on(self, service: Service, accelerator: str) -> None:
        """Go on with a rollout as far as Kubernetes would: further pods of the new template, then old ones go."""
        while self._add_new(service, accelerator) or self._remove_old(service, accelerator):
            pass

    def _add_new(self, service: Service, accelerator: str) -> bool:
        """Create one pod of the new template within size and surge; without free GPUs the surge ends, as rendered."""
        staying, size = service.staying(accelerator), service.sizes.get(accelerator, 0)
        new = len(staying) - len(service.outdated(accelerator))
        free_replicas = self._free[accelerator] // service.option(accelerator).gpus_per_replica
        surge = service.surges[accelerator] = grown_surge(service.surges.get(accelerator, 0), size, free_replicas)
        if new >= size or len(staying) >= size + surge:
            return False
        if len(staying) >= size and not free_replicas:
            service.surges[accelerator] = len(staying) - size
            return False
        self._place(self._create(service, accelerator, self.now))
        return True

    def _remove_old(self, service: Service, accelerator: str) -> bool:
        """Remove one old pod where enough others serve: first a pod that is not ready, then the youngest."""
        staying, old = service.staying(accelerator), service.outdated(accelerator)
        least = service.sizes.get(accelerator, 0) - int(not service.surges.get(accelerator, 0))
        if not old:
            return False
        starting = sum(pod.engine is None for pod in staying if pod not in old)
        goes = max(old, key=lambda pod: (pod.engine is None, pod.number))
        serving = sum(pod.engine is not None for pod in staying)
        if len(staying) - starting <= least or (goes.engine is not None and serving <= least):
            return False
        self._leave(service, goes)
        return True

    def _ranked(self, service: Service, pods: Sequence[SimulatedPod], target: PlacementTarget) -> list[SimulatedPod]:
        """Pods in the order in which they are removed: without a node, then not ready, then those with the least work.

        What `lost` ones hold counts for nothing, as in `act`. Of groups of pods the one with the highest index goes.
        """
        if service.option(target.accelerator).nodes > 1:
            return sorted(pods, key=lambda pod: -pod.index)
        order = {name: place for place, name in enumerate(target.remove_first)}

        def rank(pod: SimulatedPod) -> tuple[bool, bool, int, int]:
            place = order.get(pod.name, len(order))
            if pod.engine is None:
                return pod.placed_at is not None, False, 0, place
            state = service.fleet.state(pod.engine)
            held = 0 if pod.name in target.lost else int(state["running"][0] + state["waiting"][0])
            return True, True, held, place

        return sorted(pods, key=rank)

    def _leave(self, service: Service, pod: SimulatedPod) -> None:
        pod.leaving_at = self.now
        if pod.engine is None:
            self._remove(service, pod, self.now)
        else:
            service.fleet.close(pod.engine)

    def _remove_drained(self, service: Service, pod: SimulatedPod) -> None:
        assert pod.engine is not None
        assert pod.leaving_at is not None
        idle, deadline = service.fleet.idle_since(pod.engine), pod.leaving_at + service.drain_seconds
        if idle is not None or self.now >= deadline:
            self._remove(service, pod, deadline if idle is None else max(idle, pod.leaving_at))

    def _remove(self, service: Service, pod: SimulatedPod, at: float) -> None:
        if pod.engine is not None:
            service.fleet.remove(pod.engine)
        if pod.placed_at is not None:
            self._free[pod.accelerator] += pod.gpus
        pod.gone_at = at
        service.pods.remove(pod)
        service.gone.append(pod)
