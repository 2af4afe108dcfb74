"""Builders of services, replicas, traffic and snapshots: a test states only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.domain.cluster import ClusterProblem, NodeOffer, Placement, Replica, ReplicaPhase
from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption, BatchingLimits, Schedule, ServiceKey, ServiceSpec, Slo
from holdfast.domain.signals import AcceleratorTraffic, History, SignalState, Traffic
from holdfast.domain.snapshot import Recalled, ServiceSnapshot, Snapshot, Timing
from holdfast.domain.taints import Taint

NOW = 1_800_000_000.0
QWEN = "Qwen/Qwen3-8B"
H100 = AcceleratorOption("h100")
L40S = AcceleratorOption("l40s")
PROMPT_TOKENS, OUTPUT_TOKENS = 1155.0, 211.0


@dataclass(frozen=True)
class ServiceBuilder:
    """An LLMService as decisions see it; every `with_` returns another one."""

    spec: ServiceSpec

    def with_ttft(self, seconds: float) -> ServiceBuilder:
        return self._slo(ttft_seconds=seconds)

    def with_tpot(self, seconds: float) -> ServiceBuilder:
        return self._slo(tpot_seconds=seconds)

    def with_objective(self, share: float) -> ServiceBuilder:
        return self._slo(objective=share)

    def with_window(self, seconds: float) -> ServiceBuilder:
        return self._slo(window_seconds=seconds)

    def with_accelerators(self, *options: AcceleratorOption) -> ServiceBuilder:
        return self._spec(accelerators=options)

    def with_replicas_between(self, least: int, most: int) -> ServiceBuilder:
        return self._spec(min_replicas=least, max_replicas=most)

    def with_on_demand(self, least: int) -> ServiceBuilder:
        return self._spec(min_on_demand=least)

    def pinned_to(self, replicas: int, lacked_by: str = "") -> ServiceBuilder:
        return self._spec(pinned_replicas=replicas, pin_lacked_by=lacked_by)

    def recommending(self) -> ServiceBuilder:
        return self._spec(recommend_only=True)

    def adopting(self) -> ServiceBuilder:
        """Engines of somebody else's Deployment."""
        return self._spec(adopted=True)

    def with_schedules(self, *schedules: Schedule) -> ServiceBuilder:
        return self._spec(schedules=schedules)

    def costing_at_most(self, dollars_per_hour: float) -> ServiceBuilder:
        return self._spec(max_cost_per_hour=dollars_per_hour)

    def with_priority(self, priority: int) -> ServiceBuilder:
        return self._spec(priority=priority)

    def declaring_priority(self, priority: int) -> ServiceBuilder:
        return self._spec(declared_priority=priority)

    def with_batching(self, max_num_seqs: int, max_num_batched_tokens: int) -> ServiceBuilder:
        return self._spec(batching=BatchingLimits(max_num_seqs, max_num_batched_tokens))

    def at_generation(self, generation: int) -> ServiceBuilder:
        return self._spec(generation=generation)

    def _slo(self, **changes: float) -> ServiceBuilder:
        return self._spec(slo=replace(self.spec.slo, **changes))  # type: ignore[arg-type]

    def _spec(self, **changes: object) -> ServiceBuilder:
        return ServiceBuilder(replace(self.spec, **changes))  # type: ignore[arg-type]


def service(name: str = "chat", namespace: str = "prod") -> ServiceBuilder:
    """Qwen3-8B on h100, TTFT 500 ms and TPOT 30 ms for 99 % of an hour's requests, 1 to 10 replicas."""
    return ServiceBuilder(
        ServiceSpec(
            key=ServiceKey(namespace, name),
            uid=f"uid-{name}",
            generation=1,
            model_uri=QWEN,
            slo=Slo(ttft_seconds=0.5, tpot_seconds=0.03, objective=0.99, window_seconds=3600.0),
            accelerators=(H100,),
        )
    )


def accelerator(name: str, **fields: object) -> AcceleratorOption:
    """One candidate for placement."""
    return AcceleratorOption(name, **fields)  # type: ignore[arg-type]


def counts(
    rate: float = 0.0, seconds: float = 10.0, *, good: float = 1.0, running: float = 0.0, **more: float
) -> AcceleratorTraffic:
    """What engines count in a steady state at `rate` requests/s of which a share `good` meets the objectives."""
    finished = rate * seconds
    told = AcceleratorTraffic(
        finished=finished,
        prompt_tokens=finished * PROMPT_TOKENS,
        output_tokens=finished * OUTPUT_TOKENS,
        length_samples=finished,
        prompt_length_sum=finished * PROMPT_TOKENS,
        output_length_sum=finished * OUTPUT_TOKENS,
        ttft_count=finished,
        ttft_within=finished * good,
        tpot_count=finished,
        tpot_within=finished,
        e2e_count=finished,
        e2e_within=finished,
        running=running,
        engines=1,
    )
    return replace(told, **more)  # type: ignore[arg-type]


def traffic(
    rate: float = 0.0,
    *,
    seconds: float = 10.0,
    on: str = "h100",
    state: SignalState = SignalState.FRESH,
    detail: str = "",
    **more: float,
) -> Traffic:
    """What Prometheus shows of a service with that rate on one accelerator."""
    return Traffic(state, detail, seconds, 1.0, ((on, counts(rate, seconds, **more)),))


def no_traffic(state: SignalState, detail: str = "") -> Traffic:
    """Nothing is visible."""
    return Traffic(state, detail)


def replicas(
    count: int,
    phase: ReplicaPhase = ReplicaPhase.READY,
    *,
    on: str = "h100",
    age: float = 3600.0,
    cold_start: float = 30.0,
    reason: str = "",
    detail: str = "",
    now: float = NOW,
) -> tuple[Replica, ...]:
    """Pods of one phase, created `age` seconds ago."""
    created = now - age
    placed = None if phase is ReplicaPhase.UNSCHEDULABLE else created
    ready = created + cold_start if phase is ReplicaPhase.READY else None
    return tuple(
        Replica(f"{on}-{phase.value}-{index}", on, phase, created, placed, ready, reason, detail)
        for index in range(count)
    )


def node(
    name: str,
    gpus: int,
    *,
    used: int = 0,
    resource: str = "nvidia.com/gpu",
    taints: tuple[Taint, ...] = (),
    **labels: str,
) -> NodeOffer:
    """A node with GPUs."""
    return NodeOffer(name, tuple(sorted(labels.items())), ((resource, gpus),), ((resource, used),), taints)


@dataclass(frozen=True)
class ServiceView:
    """One service of a snapshot."""

    of: ServiceBuilder
    traffic: Traffic = field(default_factory=lambda: no_traffic(SignalState.ABSENT, "no replica is ready yet"))
    replicas: tuple[Replica, ...] = ()
    sizes: tuple[Placement, ...] | None = None
    problems: tuple[ClusterProblem, ...] = ()
    history: History | None = None
    cold_start: float | None = 30.0
    born_at: float | None = None
    ended: tuple[Replica, ...] = ()

    def snapshot(self) -> ServiceSnapshot:
        placements = self.sizes if self.sizes is not None else _sizes_of(self.replicas)
        return ServiceSnapshot(
            self.of.spec,
            self.traffic,
            self.replicas,
            placements,
            self.problems,
            self.history,
            Recalled(self.cold_start),
            born_at=self.born_at,
            ended=self.ended,
        )


def _sizes_of(pods: Iterable[Replica]) -> tuple[Placement, ...]:
    names = [pod.accelerator for pod in pods if pod.phase is not ReplicaPhase.DRAINING]
    return tuple(Placement(name, names.count(name)) for name in sorted(set(names)))


def a_snapshot(
    *views: ServiceView, now: float = NOW, nodes: tuple[NodeOffer, ...] = (), tick: float = 5.0, scrape: float = 5.0
) -> Snapshot:
    """A snapshot of these services."""
    return Snapshot(now, tuple(view.snapshot() for view in views), nodes, Timing(tick, scrape))


def sizes(decision: Decision) -> dict[str, int]:
    """Replicas by accelerator as decided."""
    return {target.accelerator: target.replicas for target in decision.verdict.targets}


def condition(decision: Decision, kind: str) -> tuple[bool | None, str]:
    """Status and reason of one condition."""
    return next((c.status, str(c.reason)) for c in decision.conditions if c.type == kind)
