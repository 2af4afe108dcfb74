"""A small cluster whose clients keep their connections: load lies on replicas as they do, and steps take time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.engine import ExactCounts, StepSums
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.signals import LEAST_LOOK_SECONDS, AcceleratorTraffic, Traffic, busiest_share
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.enginemodel.steplaw import StepLaw
from tests.builders import OUTPUT_TOKENS, PROMPT_TOKENS
from tests.policy.fluid import FixedRates, FluidCluster, Pod

SUMMED_SECONDS = 180.0
"""Over how long the plugins' sums are asked for."""

WITHIN = 0.8
"""Share of its throughput up to which a replica keeps the objectives."""


@dataclass(frozen=True)
class Queueing(FixedRates):
    """Knows the law of the cluster below: time per token is that of an empty engine / (1 - utilisation)."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        return ReplicaRate(self.rates[option.name] / slowness, "TPOT", True, 0.8)

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw:
        return StepLaw(empty_tpot(spec), WITHIN / self.rates[option.name] / mix.computed_tokens, 0.0, 0.0, 0.0)


def empty_tpot(spec: ServiceSpec) -> float:
    return spec.slo.tpot_seconds * (1.0 - WITHIN)


@dataclass
class Load:
    """What one pod has: its share of the connections, what waits, and means over the time of one request."""

    share: float = 0.0
    queue: float = 0.0
    rate: float = 0.0
    tpot: float = 0.0


@dataclass
class RoutedCluster(FluidCluster):
    """One answer in `1 / closing` ends its connection, which is then opened to any replica; 0 connections: all even.

    `slower` is by how much steps take longer at a time. With the `plugin` a replica takes no more than it can keep, and
    serves late requests with what is left; without it, what waits beyond a second of throughput is refused.
    """

    connections: float = 1024.0
    closing: float = 0.1
    slower: Callable[[float], float] = lambda seconds: 1.0
    loads: dict[str, Load] = field(default_factory=dict)

    def begin_with(self, accelerator: str, replicas: int) -> None:
        """Replicas that have served for long."""
        self.size[accelerator] = replicas
        for _ in range(replicas):
            self._start(accelerator)
            self.pods[-1].created_at = self.pods[-1].ready_at = -3600.0

    def model(self) -> FixedRates:
        return Queueing(self.rates)

    def _traffic(self) -> Traffic:
        """With the plugin also how long all steps took, which goes on while there is no load, too."""
        seen = super()._traffic()
        ends = self.clock // self.scrape * self.scrape
        past = [at for at in range(int(ends - SUMMED_SECONDS), int(ends)) if at >= 0]
        seconds = sum(self.slower(float(at)) for at in past)
        sums = StepSums(steps=len(past) / empty_tpot(self.builder.spec), seconds=seconds)
        return replace(seen, steps=tuple((name, sums) for name, _ in seen.by_accelerator)) if self.plugin else seen

    def _second(self) -> None:
        self.clock += 1.0
        ready = [pod for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        arrivals = self._counted(self.rate(self.clock))
        self._connect(ready, arrivals)
        rows = [self._pod_second(pod, arrivals * self.loads[pod.name].share) for pod in ready]
        lost = {"arrivals": arrivals, "refused": arrivals, "bad": arrivals} if not rows else {}
        total = {name: sum(row[name] for row in rows) for name in (*NAMES, "bad")} | lost
        begun = {f"begun {pod.name}": row["begun"] for pod, row in zip(ready, rows, strict=True)}
        self.seconds.append(total | begun)
        self.pods = [pod for pod in self.pods if pod.leaving_at is None or self.clock < pod.leaving_at]

    def _connect(self, ready: Sequence[Pod], arrivals: float) -> None:
        loads = {pod.name: self.loads.get(pod.name, Load()) for pod in ready}
        kept = sum(load.share for load in loads.values())
        opened = 1.0 - kept * (1.0 - min(1.0, self.closing * arrivals / max(1.0, self.connections)))
        opened = 1.0 if not self.connections else opened
        for load in loads.values():
            load.share = load.share / kept * (1.0 - opened) if kept else 0.0
            load.share += opened / len(loads)
        self.loads = loads

    def _pod_second(self, pod: Pod, arrivals: float) -> dict[str, float]:
        load = self.loads[pod.name]
        throughput = self.rates[pod.accelerator] / WITHIN / self.slower(self.clock)
        begun = min(throughput, load.queue + arrivals)
        left = load.queue + arrivals - begun
        refused = 0.0 if self.plugin else max(0.0, left - throughput)
        load.queue = left - refused
        memory = 1.0 / self.service_seconds
        load.rate += memory * (begun - load.rate)
        used = min(WITHIN if self.plugin else 0.9, load.rate / throughput)  # 0.9: twice the objective
        now = empty_tpot(self.builder.spec) * self.slower(self.clock) / (1.0 - used)
        load.tpot = now if not load.tpot else load.tpot + memory * (now - load.tpot)
        in_time = throughput * self.builder.spec.slo.ttft_seconds
        late = (
            max(0.0, arrivals - throughput) if self.plugin else min(arrivals - refused, max(0.0, load.queue - in_time))
        )
        beyond = min(1.0, max(0.0, load.tpot / self.builder.spec.slo.tpot_seconds - 1.0))
        slow = beyond * max(0.0, begun - late)
        return dict(zip(NAMES, (arrivals, refused, late, slow, begun, load.queue, load.tpot * begun), strict=True)) | {
            "bad": min(arrivals, refused + late + slow)
        }

    def _counts(self, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        total = {name: sum(second.get(name, 0.0) for second in past) for name in NAMES}
        begun, late, slow = total["begun"], min(total["late"], total["begun"]), total["slow"]
        waiting = past[-1].get("queue", 0.0) if past else 0.0
        grown = waiting - (past[0].get("queue", 0.0) if past else 0.0)
        bad_ttft, engines = total["late"], len(self.loads)
        good = max(0.0, total["arrivals"] - bad_ttft - slow)
        exact = ExactCounts(arrived=total["arrivals"], good=good, bad_ttft=bad_ttft, bad_tpot=slow, engines=engines)
        return AcceleratorTraffic(
            finished=begun,
            rejected=total["refused"],
            prompt_tokens=begun * PROMPT_TOKENS,
            length_samples=begun,
            prompt_length_sum=begun * PROMPT_TOKENS,
            output_length_sum=begun * OUTPUT_TOKENS,
            ttft_count=begun,
            ttft_within=begun - late,
            tpot_count=begun,
            tpot_within=max(0.0, begun - slow),
            tpot_typical_seconds=total["tpot seconds"] / begun if begun else 0.0,
            e2e_count=begun,
            e2e_within=begun,
            running=begun / self.interval * self.service_seconds,
            waiting=waiting,
            waiting_late=waiting if self.plugin else 0.0,
            in_flight_growth=grown,
            engines=engines,
            busiest=self.busiest(),
            exact=exact if self.plugin else None,
        )

    def busiest(self) -> float:
        end = int(self.clock // self.scrape * self.scrape)
        past = self.seconds[max(0, end - int(self.interval + LEAST_LOOK_SECONDS)) : end]
        each = [sum(second.get(f"begun {name}", 0.0) for second in past) for name in self.loads]
        return busiest_share(sum(each), max(each, default=0.0), len(each))


NAMES = ("arrivals", "refused", "late", "slow", "begun", "queue", "tpot seconds")
