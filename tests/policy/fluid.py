"""A small cluster on a virtual clock: fluid load, noisy counts, cold starts, drains, and what Prometheus shows."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.domain.cluster import NodeOffer, Placement, Replica, ReplicaPhase
from holdfast.domain.decision import Action, Decision
from holdfast.domain.engine import ExactCounts
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec
from holdfast.domain.signals import AcceleratorTraffic, History, MissingHistory, RateSample, SignalState, Traffic
from holdfast.domain.snapshot import Recalled, ServiceSnapshot, Snapshot, Timing
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, OUTPUT_TOKENS, PROMPT_TOKENS, ServiceBuilder


@dataclass(frozen=True)
class FixedRates:
    """An engine model that says what the test says: requests/s per replica by accelerator.

    Where that is 0 the objectives cannot be met, and `serving` is what a replica carries all the same.
    """

    rates: Mapping[str, float]
    serving: float = 0.0

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        rate = self.rates[option.name]
        return ReplicaRate(rate or self.serving, "TPOT", rate > 0.0, 0.8)

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw | None:
        return None

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits:
        return spec.batching


@dataclass
class Pod:
    name: str
    accelerator: str
    created_at: float
    ready_at: float | None
    leaving_at: float | None = None


@dataclass
class FluidCluster:
    """Time goes in steps of one second; what a second's capacity cannot serve queues, beyond another it is refused.

    The capacity at which the objective holds is 1 / `slack` of the one at which the queue grows.

    With the `plugin` nothing is refused: late requests wait behind all others, and what capacity there is stays good.
    `exact` tells when its counts cover all engines, `engine_timed` when an engine judges by its own times.

    `broken` accelerators start no replica, `gpus` bounds the pods that find a node.
    """

    builder: ServiceBuilder
    rate: Callable[[float], float]
    rates: Mapping[str, float]
    seed: int = 0
    tick: float = 5.0
    scrape: float = 5.0
    cold_start: float = 30.0
    drain: float = 5.0
    service_seconds: float = 6.0
    slack: float = 1.25
    dispersion: float = 1.0
    broken: frozenset[str] = frozenset()
    gpus: Mapping[str, int] = field(default_factory=dict)
    settings: PolicySettings = field(default_factory=PolicySettings)
    nodes: tuple[NodeOffer, ...] = ()
    sight: Callable[[float], SignalState] = lambda seconds: SignalState.FRESH
    plugin: bool = False
    exact: Callable[[float], bool] = lambda seconds: True
    engine_timed: Callable[[float], bool] = lambda seconds: False
    distort: Callable[[AcceleratorTraffic], AcceleratorTraffic] = lambda counts: counts

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = 0.0
        self.queue = 0.0
        self.memory = Memory()
        self.pods: list[Pod] = []
        self.size: dict[str, int] = {}
        self.serial = 0
        self.seconds: list[dict[str, float]] = []  # arrivals, refused per second
        self.decisions: list[tuple[float, Decision]] = []
        self.history_at: float | None = None  # when Prometheus has answered what a restarted operator asks
        self.recalled = Recalled()

    @property
    def interval(self) -> float:
        return max(2.0 * self.scrape, self.tick)

    def run(self, seconds: float) -> FluidCluster:
        """Let that many seconds pass."""
        end = self.clock + seconds
        while self.clock < end:
            self._tick()
            for _ in range(round(self.tick)):
                self._second()
        return self

    def fork(self) -> FluidCluster:
        """Return another cluster that goes on from here on its own."""
        found = copy.copy(self)
        found.random, found.pods = copy.copy(self.random), [replace(pod) for pod in self.pods]
        found.size, found.seconds, found.decisions = dict(self.size), list(self.seconds), list(self.decisions)
        return found

    def restart_operator(self, remembered: bool = False, history_after: float = 0.0) -> None:
        """Forget everything; `remembered`: status tells of the time before, and Prometheus so many seconds later."""
        self.memory = Memory()
        if remembered:
            self.history_at, self.recalled = self.clock + history_after, self._recalled()

    def reclaim(self, accelerator: str, left: int = 0) -> None:
        """Take nodes away until so many GPUs are left; Deployments make other pods, which wait."""
        self.gpus = {**self.gpus, accelerator: left}
        placed = [pod for pod in self.pods if pod.accelerator == accelerator and pod.ready_at is not None]
        for pod in placed[left:]:
            self.pods.remove(pod)
            if pod.leaving_at is None:
                self._start(accelerator)

    def give_back(self, accelerator: str) -> None:
        """Let nodes be there again, for pods to come."""
        self.gpus = {name: gpus for name, gpus in self.gpus.items() if name != accelerator}

    # -- the cluster

    def _second(self) -> None:
        self.clock += 1.0
        mean = self.rate(self.clock)
        arrivals = self._counted(mean)
        carried = sum(self.rates[pod.accelerator] for pod in self.pods if self._phase(pod) is ReplicaPhase.READY)
        physical = self.slack * carried
        self.seconds.append((self._plugin_second if self.plugin else self._stock_second)(arrivals, physical))
        self.pods = [pod for pod in self.pods if pod.leaving_at is None or self.clock < pod.leaving_at]

    def _stock_second(self, arrivals: float, physical: float) -> dict[str, float]:
        queued = self.queue + arrivals - physical
        refused = max(0.0, queued - physical)
        self.queue = max(0.0, queued - refused)
        late = min(arrivals - refused, max(0.0, self.queue - physical * self.builder.spec.slo.ttft_seconds))
        return {"arrivals": arrivals, "refused": refused, "bad": refused + late, "queue": self.queue}

    def _plugin_second(self, arrivals: float, physical: float) -> dict[str, float]:
        good = min(arrivals, physical)
        overdue = min(self.queue, physical - good)  # late ones that are served after all
        self.queue += arrivals - good - overdue
        bad = arrivals - good
        return {"arrivals": arrivals, "refused": 0.0, "bad": bad, "queue": self.queue, "overdue": overdue}

    def _counted(self, mean: float) -> float:
        """Compound Poisson: batches of size `dispersion`."""
        batches, left = 0, mean / self.dispersion
        while left > 0.0:
            left -= self.random.expovariate(1.0)
            batches += left > 0.0
        return batches * self.dispersion

    def _phase(self, pod: Pod) -> ReplicaPhase:
        if pod.leaving_at is not None:
            return ReplicaPhase.DRAINING
        if pod.ready_at is None:
            return ReplicaPhase.UNSCHEDULABLE
        if self.clock >= pod.ready_at:
            return ReplicaPhase.READY
        if pod.accelerator in self.broken and self.clock - pod.created_at > 20.0:
            return ReplicaPhase.FAILING
        return ReplicaPhase.STARTING

    def _apply(self, decision: Decision) -> None:
        if decision.verdict.action is Action.HOLD:
            return
        for target in decision.verdict.targets:
            self.size[target.accelerator] = target.replicas
            alive = [p for p in self.pods if p.accelerator == target.accelerator and p.leaving_at is None]
            for _ in range(target.replicas - len(alive)):
                self._start(target.accelerator)
            order = {name: index for index, name in enumerate(target.remove_first)}
            alive.sort(key=lambda pod: (self._phase(pod) is ReplicaPhase.READY, order.get(pod.name, len(order))))
            for pod in alive[: max(0, len(alive) - target.replicas)]:
                pod.leaving_at = self.clock + self.drain

    def _start(self, accelerator: str) -> None:
        self.serial += 1
        there = sum(p.accelerator == accelerator and p.ready_at is not None for p in self.pods)
        placed = there < self.gpus.get(accelerator, 1_000)
        ready = self.clock + (1e9 if accelerator in self.broken else self.cold_start)
        self.pods.append(Pod(f"{accelerator}-{self.serial}", accelerator, self.clock, ready if placed else None))

    # -- what the operator sees

    def model(self) -> FixedRates:
        return FixedRates(self.rates)

    def _tick(self) -> None:
        snapshot = self.snapshot()
        if snapshot.services[0].history is not None:
            self.history_at = None
        decisions, self.memory = decide(snapshot, self.memory, self.settings, self.model())
        self.decisions.append((self.clock, decisions[0]))
        self._apply(decisions[0])

    def snapshot(self) -> Snapshot:
        read = self.history_at is not None and self.clock >= self.history_at
        awaited = self.history_at is not None and not read
        service = ServiceSnapshot(
            self.builder.spec,
            self._traffic(),
            tuple(self._replica(pod) for pod in self.pods),
            tuple(Placement(name, size) for name, size in sorted(self.size.items())),
            history=self.remembered() if read else None,
            recalled=self.recalled,
            missing_history=MissingHistory() if awaited else None,
        )
        return Snapshot(NOW + self.clock, (service,), self.nodes, Timing(self.tick, self.scrape))

    def remembered(self) -> History:
        """What Prometheus knows."""
        ends = range(int(self.clock) % 30 + 30, int(self.clock) + 1, 30)
        return History(tuple(self._half_minute(end) for end in ends), since=NOW)

    def _half_minute(self, end: int) -> RateSample:
        arrivals, bad = (sum(second[name] for second in self.seconds[end - 30 : end]) for name in ("arrivals", "bad"))
        return RateSample(NOW + end, 30.0, arrivals, arrivals - bad, bad)

    def _recalled(self) -> Recalled:
        told = self.last()
        assert told.capacity is not None
        quantile, used = told.explanation.quantile, told.capacity
        return Recalled(self.cold_start, quantile, used.accelerator, used.learned_gain, used.learned_slowness)

    def _replica(self, pod: Pod) -> Replica:
        phase = self._phase(pod)
        ready = pod.ready_at if phase is ReplicaPhase.READY else None
        return Replica(
            pod.name,
            pod.accelerator,
            phase,
            NOW + pod.created_at,
            None if pod.ready_at is None else NOW + pod.created_at,
            None if ready is None else NOW + ready,
            "CrashLoopBackOff" if phase is ReplicaPhase.FAILING else "",
        )

    def _traffic(self) -> Traffic:
        state = self.sight(self.clock)
        ready = {pod.accelerator for pod in self.pods if self._phase(pod) is ReplicaPhase.READY}
        if state is SignalState.FRESH and not ready:
            state = SignalState.ABSENT
        if state in (SignalState.ABSENT, SignalState.UNREACHABLE, SignalState.STALE):
            return Traffic(state, "nothing to be seen", self.interval)
        end = int(self.clock // self.scrape * self.scrape)
        past = self.seconds[max(0, end - int(self.interval)) : end]
        return Traffic(state, "", self.interval, 1.0, ((min(ready), self.distort(self._counts(past))),))

    def _counts(self, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        counts = self._stock_counts(past)
        return self._with_plugin(counts, past) if self.plugin else counts

    def _with_plugin(self, counts: AcceleratorTraffic, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        """vLLM sees a late first token when it comes, the plugin when it is overdue."""
        arrivals, bad, overdue = (sum(second[name] for second in past) for name in ("arrivals", "bad", "overdue"))
        good = arrivals - bad
        own_times = int(self.engine_timed(self.clock))
        exact = ExactCounts(arrived=arrivals, good=good, bad_ttft=bad, engines=1, engine_timed=own_times)
        return replace(
            counts,
            finished=good + overdue,
            in_flight_growth=bad - overdue,
            ttft_count=good + overdue,
            ttft_within=good,
            tpot_count=good + overdue,
            tpot_within=good + overdue,
            e2e_count=good + overdue,
            e2e_within=good + overdue,
            waiting_late=counts.waiting,
            exact=exact if self.exact(self.clock) else None,
        )

    def _stock_counts(self, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        arrivals = sum(second["arrivals"] for second in past)
        refused = sum(second["refused"] for second in past)
        late = sum(second["bad"] for second in past) - refused
        served = arrivals - refused
        return AcceleratorTraffic(
            finished=served,
            rejected=refused,
            prompt_tokens=served * PROMPT_TOKENS,
            length_samples=served,
            prompt_length_sum=served * PROMPT_TOKENS,
            output_length_sum=served * OUTPUT_TOKENS,
            ttft_count=served,
            ttft_within=served - late,
            tpot_count=served,
            tpot_within=served,
            e2e_count=served,
            e2e_within=served,
            running=served / max(1.0, self.interval) * self.service_seconds,
            waiting=past[-1]["queue"] if past else 0.0,
            engines=1,
        )

    # -- what tests ask

    def replicas(self, accelerator: str | None = None) -> int:
        """Replicas wanted now."""
        return sum(self.size.values()) if accelerator is None else self.size.get(accelerator, 0)

    def ready(self) -> dict[str, int]:
        """Replicas that serve now, by accelerator."""
        found = [pod.accelerator for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        return {name: found.count(name) for name in found}

    def changes(self, since: float = 0.0) -> list[tuple[float, str, int]]:
        """(second, action, replicas) of every decision that moved something."""
        return [
            (at, decision.verdict.action.value, decision.verdict.replicas)
            for at, decision in self.decisions
            if at >= since and decision.verdict.action is not Action.HOLD
        ]

    def attainment(self, start: float, end: float) -> float:
        """Good share of what arrived in [start, end)."""
        past = self.seconds[int(start) : int(end)]
        arrivals = sum(second["arrivals"] for second in past)
        return 1.0 - sum(second["bad"] for second in past) / max(1.0, arrivals)

    def last(self) -> Decision:
        return self.decisions[-1][1]

    def with_spec(self, builder: ServiceBuilder) -> None:
        """Somebody edits the object."""
        self.builder = ServiceBuilder(replace(builder.spec, generation=self.builder.spec.generation + 1))


def steps(*pairs: tuple[float, float]) -> Callable[[float], float]:
    """A rate by (from second, requests/s)."""

    def rate(seconds: float) -> float:
        return [value for start, value in pairs if seconds >= start][-1]

    return rate
