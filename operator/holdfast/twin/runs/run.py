"""One run: a scenario under a policy, from the first request to the last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.domain.cluster import QueueLimit, ReplicaPhase
from holdfast.domain.service import AcceleratorOption, ServiceKey, ServiceSpec, Slo
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.render.engine_limits import engine_limits
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing
from holdfast.twin.pods.cluster import NODE_LABEL, Cluster, Hardware, Service, SimulatedPod
from holdfast.twin.pods.peer_metrics import EngineGauges, EngineShape, Sight, p90_seconds
from holdfast.twin.pods.view import SimulatedObserver
from holdfast.twin.policy_port import BadPolicy, Foreknown, Move, Policy, Provisioned, Scheduling, Watching
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.scenario import Fault, Scenario, ServiceReality

LOOK_SECONDS = 5.0
"""How often sizes are noted for the report."""

OF_REPLICAS = ("replica-slow", "replica-hang", "node-loss")
"""Faults that strike one replica."""

UNREAD = Traffic(SignalState.ABSENT, "no metrics are read for a policy whose sizes are known before")

HUNG = 1e9
"""Stretch of the steps of an engine that hangs."""


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A size that a policy changed, `at` seconds into the run."""

    at: float
    service: str
    replicas: int
    reason: str
    message: str


@dataclass(slots=True)
class SizeHistory:
    """Replicas of one service over time, every `LOOK_SECONDS`, and the GPUs that they hold."""

    at: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    starting: list[int] = field(default_factory=list)
    draining: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)

    def note(self, at: float, pods: Sequence[SimulatedPod]) -> None:
        """Add the replicas by phase."""
        phases = [pod.phase(at) for pod in pods]
        self.at.append(at)
        self.gpus.append(sum(pod.gpus for pod in pods if pod.placed_at is not None))
        self.ready.append(phases.count(ReplicaPhase.READY))
        self.draining.append(phases.count(ReplicaPhase.DRAINING))
        self.starting.append(len(phases) - self.ready[-1] - self.draining[-1])


@dataclass(frozen=True, slots=True)
class Absent:
    """A fault of a replica that was not there when it came: another of the `ready` ones was struck, or nobody."""

    fault: Fault
    service: str
    ready: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything about a run that has ended."""

    scenario: Scenario
    policy: str
    seed: int
    services: tuple[Service, ...]
    changes: tuple[SizeChange, ...]
    sizes: tuple[SizeHistory, ...]
    ended_at: float
    absent: tuple[Absent, ...] = ()


def simulate(
    scenario: Scenario,
    declared: Sequence[Declared],
    policy: Policy,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
) -> Finished:
    """Run a scenario under a policy; `progress` gets the share of the duration that has passed.

    Floors at certain hours are Holdfast's own: who does not know them cannot be compared, BadPolicy says so.
    """
    scheduled = next((each.spec.key.name for each in declared if each.spec.schedules), None)
    if scheduled is not None and not isinstance(policy, Scheduling):
        raise BadPolicy(
            f"services {scheduled}: {policy.name} keeps no scaling.schedules: leave them out, or the policy"
        )
    return _Run(scenario, declared, policy, seed).finish(progress)


class _Run:
    """The virtual clock, and what happens when."""

    def __init__(self, scenario: Scenario, declared: Sequence[Declared], policy: Policy, seed: int) -> None:
        self.scenario = scenario
        self.policy = policy
        self.seed = seed
        self.timing = Timing(policy.tick_seconds, scenario.scrape_interval)
        self.began_at = scenario.begins.timestamp()
        self.services = tuple(_service(scenario, each, policy, seed) for each in declared)
        kinds = scenario.cluster.accelerators.items()
        hardware = [Hardware(name, kind.gpus, kind.cold_start, kind.cold_start_jitter) for name, kind in kinds]
        self.cluster = Cluster(hardware, self.services, seed)
        histograms = not isinstance(policy, Watching)
        delay = scenario.cluster.reality.sample_delay
        self.views = [SimulatedObserver(service, self.timing, histograms, delay) for service in self.services]
        self.reads = not isinstance(policy, Foreknown)
        self.sizes = [SizeHistory() for _ in self.services]
        self.changes: list[SizeChange] = []
        self.absent: list[Absent] = []
        self.faults = sorted(_fault_events(scenario.faults), key=lambda event: event[0])
        self.next_tick = self.next_scrape = self.next_look = 0.0
        for service, each in zip(self.services, declared, strict=True):
            self.cluster.begin(service, _first_sizes(each, policy))
        if isinstance(policy, Watching):
            policy.watch(self._sight)
        if isinstance(policy, Provisioned):
            policy.provisioning_seconds = scenario.cluster.node_provisioning_time

    def finish(self, progress: Callable[[float], None]) -> Finished:
        duration, now = self.scenario.duration, 0.0
        drain = max(_longest_seconds(service) for service in self.services)
        while now < duration + drain and not (now >= duration and self._done()):
            fault = self.faults[0][0] if self.faults else math.inf
            now = min(self.next_tick, self.next_scrape, self.cluster.next_change(), fault, duration + drain)
            self.cluster.advance(now)
            self._apply_faults(now)
            if now >= self.next_scrape:
                self._scrape(now)
                self.next_scrape += self.timing.scrape_seconds
            if now >= self.next_tick:
                self._tick(now)
                self.next_tick += self.timing.tick_seconds
            if now >= self.next_look:
                self._look(now)
                self.next_look += LOOK_SECONDS
                progress(min(1.0, now / duration))
        return Finished(
            self.scenario,
            self.policy.name,
            self.seed,
            self.services,
            tuple(self.changes),
            tuple(self.sizes),
            now,
            tuple(self.absent),
        )

    def _done(self) -> bool:
        return all(service.fleet.done for service in self.services)

    def _scrape(self, now: float) -> None:
        if self.reads:
            for view in self.views:
                view.scrape(now)

    def _look(self, now: float) -> None:
        for service, sizes in zip(self.services, self.sizes, strict=True):
            sizes.note(now, service.pods)

    def _tick(self, now: float) -> None:
        if now >= self.scenario.duration:
            return
        moves = self.policy.decide(self._snapshot(now))
        for service in self.services:
            move = moves.get(service.spec.key)
            if move is not None:
                self._move(service, move, now)

    def _move(self, service: Service, move: Move, now: float) -> None:
        before = dict(service.sizes)
        if move.queue_limit is not None:
            self.cluster.roll_out(service, move.queue_limit)
        if move.restart:
            self.cluster.restart(service, move.restart)
        self.cluster.scale(service, move.targets)
        if service.sizes != before:
            self.changes.append(
                SizeChange(now, service.spec.key.name, sum(service.sizes.values()), move.reason, move.message)
            )

    def _snapshot(self, now: float) -> Snapshot:
        pictured = tuple(
            ServiceSnapshot(
                service.spec,
                view.traffic(now) if self.reads else UNREAD,
                tuple(pod.replica(now, self.began_at) for pod in service.pods),
                service.placements(),
                set_back=(),
            )
            for service, view in zip(self.services, self.views, strict=True)
        )
        return Snapshot(self.began_at + now, pictured, self.cluster.nodes(), self.timing)

    def _sight(self, key: ServiceKey, percentiles: bool = False) -> Sight | None:
        service, view = next(
            (service, view) for service, view in zip(self.services, self.views, strict=True) if service.spec.key == key
        )
        engines = view.engines(self.cluster.now)
        if engines is None or view.scraped_at is None:
            return None
        ttft, tpot = p90_seconds(service, view.scraped_at) if percentiles else (None, None)
        return replace(_sighted(service, engines, self.cluster.now), ttft_p90_seconds=ttft, tpot_p90_seconds=tpot)

    def _apply_faults(self, now: float) -> None:
        while self.faults and self.faults[0][0] <= now:
            _, begins, fault = self.faults.pop(0)
            named = [s for s in self.services if fault.service in (None, s.spec.key.name)]
            if begins and fault.kind in OF_REPLICAS:
                self._note_absent(fault, named[0])
            if fault.kind == "metrics-gone":
                for view in self.views:
                    view.blind = begins
            elif fault.kind == "node-loss":
                if begins:
                    self.cluster.fail_node(named[0], fault.replica)
            elif fault.accelerator is not None:
                (self.cluster.reclaim if begins else self.cluster.give_back)(fault.accelerator)
            else:
                factor = HUNG if fault.kind == "replica-hang" else fault.factor
                _stretch(named[0], fault.replica, factor if begins else 1.0)

    def _note_absent(self, fault: Fault, service: Service) -> None:
        ready = sum(pod.engine is not None and pod.leaving_at is None for pod in service.pods)
        if fault.replica >= ready:
            self.absent.append(Absent(fault, service.spec.key.name, ready))


def _sighted(service: Service, engines: tuple[EngineGauges, ...], now: float) -> Sight:
    spec, kind = service.spec, service.fleet.kinds[0]
    return Sight(
        size=sum(service.sizes.values()),
        ready=sum(pod.phase(now) is ReplicaPhase.READY for pod in service.pods),
        lowest=max(1, spec.min_replicas),  # nothing holds requests here
        highest=spec.max_replicas,
        engines=engines,
        shape=EngineShape(
            kind.limits.kv_tokens, kind.limits.max_num_seqs, kind.limits.max_num_batched_tokens, kind.timer
        ),
        slo=spec.slo,
    )


def _stretch(service: Service, number: int, factor: float) -> None:
    alive = [pod.engine for pod in service.pods if pod.engine is not None]
    if alive:
        service.fleet.stretch(alive[number % len(alive)], factor)


def _fault_events(faults: Iterable[Fault]) -> Iterable[tuple[float, bool, Fault]]:
    for fault in faults:
        yield fault.at, True, fault
        if fault.lasts is not None:
            yield fault.at + fault.lasts, False, fault


def _first_sizes(each: Declared, policy: Policy) -> Mapping[str, int]:
    first = each.spec.accelerators[0].name
    if policy.start is not None:
        return {first: policy.start}
    return each.initial_replicas or {first: max(1, each.spec.min_replicas)}


def _longest_seconds(service: Service) -> float:
    """After so long a request is surely bad."""
    longest = float(service.fleet.workload.output_tokens.max())

    def bad_after(slo: Slo) -> float:
        slowest = slo.ttft_seconds + slo.tpot_seconds * longest
        return max(slo.ttft_seconds, slowest if slo.e2e_seconds is None else min(slo.e2e_seconds, slowest))

    return max(map(bad_after, (service.spec.slo, *service.spec.slo.classes)))


def _service(scenario: Scenario, each: Declared, policy: Policy, seed: int) -> Service:
    entries = scenario.cluster.accelerators
    kinds = [engine_kind(each, option, entries[option.name], policy.admission) for option in each.spec.accelerators]
    _check_possible(each.spec, kinds)
    routing = _routing(scenario.cluster.router, each.reality, seed)
    told = [engine_limits(each.service, declared) for declared in each.service.spec.accelerators]
    fleet = EngineFleet(each.workload, kinds, each.spec.slo, routing, told if policy.fast_loop else ())
    spec = replace(each.spec, accelerators=tuple(_labelled(option) for option in each.spec.accelerators))
    limits = {
        option.name: QueueLimit(kind.limits.max_num_queued_tokens)
        for option, kind in zip(spec.accelerators, kinds, strict=True)
        if policy.admission
    }
    names = tuple(one.name for one in each.service.spec.all_classes)
    return Service(spec, fleet, each.service.spec.engine.shutdown_timeout_seconds, names, limits)


def _routing(router: str, reality: ServiceReality, seed: int) -> Routing:
    return Routing(
        router,
        close_share=reality.close_share,
        keep_seconds=reality.idle_timeout,
        seed=seed,
        connections=reality.connections,
        busy_half_share=reality.busy_half_share,
        retry_seconds=() if reality.retries is None else reality.retries.waits_seconds,
    )


def _check_possible(spec: ServiceSpec, kinds: Sequence[EngineSpec]) -> None:
    """Refuse objectives that no engine meets even when it is empty."""
    slo = spec.slo
    tpot = min(kind.timer.step_seconds((), 1, 1.0) for kind in kinds)
    ttft = min(kind.timer.step_seconds(((1, 0),), 0, 0.0) for kind in kinds)
    for name, asked, possible in (("tpot", slo.tpot_seconds, tpot), ("ttft", slo.ttft_seconds, ttft)):
        if asked < possible:
            raise BadInput(
                f"service {spec.key.name}: spec.slo.{name} of {1000 * asked:g} ms is impossible: a step of an empty "
                f"engine takes {1000 * possible:.3g} ms; ask for more, or take a faster accelerator"
            )


def _labelled(option: AcceleratorOption) -> AcceleratorOption:
    """The accelerator with its simulated nodes; a label more does not change what it is taken for."""
    return replace(option, node_selector=(*option.node_selector, (NODE_LABEL, option.name)))
