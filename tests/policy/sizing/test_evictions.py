"""Nodes that are cordoned and drained: a successor serves first where a GPU is free, and no drain waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.signals import SignalState
from holdfast.policy.settings import PolicySettings
from tests.builders import ServiceBuilder, accelerator, service
from tests.policy.fluid import FluidCluster, Pod

SETTINGS = PolicySettings()


@dataclass
class Nodes(FluidCluster):
    """Each pod has a node of its own. Cordoned ones are drained: evictions are tried with each tick."""

    cordoned: set[str] = field(default_factory=set)
    drains: bool = True
    evicted: list[tuple[float, str]] = field(default_factory=list)

    def cordon(self, count: int = 1) -> float:
        """Cordon the nodes of so many serving pods; return the time."""
        serving = [pod.name for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        self.cordoned.update(serving[:count])
        return self.clock

    def _replica(self, pod: Pod) -> Replica:
        return replace(super()._replica(pod), node=f"node-of-{pod.name}", closing=pod.name in self.cordoned)

    def _tick(self) -> None:
        for pod in self.pods:
            if self.drains and pod.name in self.cordoned and pod.leaving_at is None and self._may_be_evicted():
                pod.leaving_at = self.clock + self.drain
                self.evicted.append((self.clock, pod.name))
                self._start(pod.accelerator)
        super()._tick()

    def _may_be_evicted(self) -> bool:
        """What the disruption controller allows, by the budget of the last decision."""
        if not self.decisions:
            return True
        serving = sum(self.ready().values())
        return serving > self.replicas() - self.decisions[-1][1].max_unavailable

    def outage_seconds(self, since: float) -> int:
        return sum(second["ready"] < 1 for second in self.seconds[int(since) :])

    def _second(self) -> None:
        super()._second()
        self.seconds[-1]["ready"] = float(sum(self.ready().values()))


def cluster(of: ServiceBuilder | None = None, rps: float = 2.0, gpus: int = 100, **more: Any) -> Nodes:
    one = of or service().with_accelerators(accelerator("h100"))
    found = Nodes(one, lambda at: rps, {"h100": 8.9}, cold_start=240.0, gpus={"h100": gpus}, **more)
    found.run(3600)
    return found


def test_the_only_replica_of_a_drained_node_goes_after_its_successor_serves() -> None:
    world = cluster()
    assert world.decisions[-1][1].max_unavailable == 0
    at = world.cordon()
    world.run(1800)
    assert world.outage_seconds(at) == 0
    assert not world.cordoned & {pod.name for pod in world.pods}
    assert world.replicas() == 1
    assert [change[1:] for change in world.changes(at)] == [("ScaleUp", 2), ("ScaleDown", 1)]
    assert {decision.max_unavailable for when, decision in world.decisions if when >= at} == {0}


def test_a_cordon_without_a_drain_moves_the_replica_as_well_and_says_why() -> None:
    world = cluster()
    world.drains = False
    at = world.cordon()
    world.run(20)
    name = next(iter(world.cordoned))
    told = next(c.message for c in world.decisions[-1][1].conditions if c.type == "Ready")
    assert f"{name} is on node node-of-{name}, which is cordoned or about to be removed" in told
    assert "NodeClosing" in {str(decision.verdict.reason) for when, decision in world.decisions if when >= at}
    world.run(1800)
    assert world.outage_seconds(at) == 0
    assert (world.replicas(), name in {pod.name for pod in world.pods}) == (1, False)


def test_where_no_gpu_is_free_the_eviction_goes_through_after_the_time_for_a_node() -> None:
    world = cluster(gpus=1)
    at = world.cordon()
    world.run(1800)
    assert len(world.evicted) == 1
    waited = world.evicted[0][0] - at
    assert 0 < waited <= SETTINGS.provisioning_seconds + 30


def test_a_drain_that_meets_no_free_gpu_is_told_why_it_waits_and_then_that_it_may_go() -> None:
    world = cluster(gpus=1)
    world.drains = False
    world.cordon()
    world.run(SETTINGS.provisioning_seconds + 60)
    ready = next(c.message for c in world.decisions[-1][1].conditions if c.type == "Ready")
    assert "no GPU was found for a successor, so it may be evicted" in ready
    assert world.decisions[-1][1].max_unavailable >= 1


@pytest.mark.parametrize("broken", [True, False])
def test_no_drain_waits_for_ever_for_a_successor_that_never_serves(broken: bool) -> None:
    world = cluster()
    world.cold_start = 1e9
    world.broken = frozenset({"h100"}) if broken else frozenset()
    at = world.cordon()
    world.run(3600)
    assert world.evicted
    assert world.evicted[0][0] - at <= SETTINGS.provisioning_seconds + SETTINGS.starting_seconds + 30


@pytest.mark.parametrize(
    "of",
    [
        service().with_accelerators(accelerator("h100")).with_replicas_between(1, 1),
        service().with_accelerators(accelerator("h100", max_replicas=1)),
        service().with_accelerators(accelerator("h100")).pinned_to(1),
        service().with_accelerators(accelerator("h100", spot=True)),
    ],
    ids=["scaling.max", "accelerators[].max", "pinned", "spot"],
)
def test_where_no_successor_may_come_in_time_the_eviction_goes_through_at_once(of: ServiceBuilder) -> None:
    world = cluster(of)
    at = world.cordon()
    world.run(60)
    assert world.evicted
    assert world.evicted[0][0] - at <= 10.0


def test_a_drain_of_several_replicas_costs_no_capacity_below_what_the_load_needs() -> None:
    world = cluster(rps=24.0)
    world.run(3600)
    size = world.replicas()
    assert size >= 3
    at = world.cordon(2)
    world.run(3600)
    assert min(second["ready"] for second in world.seconds[int(at) :]) >= size - 1
    assert not world.cordoned & {pod.name for pod in world.pods}
    assert world.replicas() == size


def test_every_replica_on_a_cordoned_node_is_replaced_one_by_one_without_a_drain() -> None:
    world = cluster(rps=24.0)
    world.run(3600)
    size = world.replicas()
    world.drains = False
    at = world.cordon(size)
    world.run(size * 900)
    assert not world.cordoned & {pod.name for pod in world.pods}
    assert min(second["ready"] for second in world.seconds[int(at) :]) >= size
    assert max(decision.verdict.replicas for when, decision in world.decisions if when >= at) == size + 1


def test_several_replicas_on_a_full_cluster_are_drained_all_the_same() -> None:
    world = cluster(rps=12.0, gpus=2)
    size = world.replicas()
    world.cordon(size)
    world.run(2 * 3600)
    assert len({name for _, name in world.evicted}) == size


def test_an_uncordoned_node_keeps_its_replica() -> None:
    world = cluster()
    world.drains = False
    world.cordon()
    world.run(30)
    world.cordoned.clear()
    world.run(3600)
    assert world.replicas() == 1
    assert world.decisions[-1][1].max_unavailable == 0


def test_without_any_metrics_one_successor_comes_and_no_more() -> None:
    world = cluster(sight=lambda at: SignalState.UNREACHABLE)
    at = world.cordon()
    world.run(2 * 3600)
    assert world.outage_seconds(at) == 0
    assert world.evicted
    assert max(decision.verdict.replicas for _, decision in world.decisions) == 2


def test_the_operator_that_restarts_during_a_drain_goes_on_with_it() -> None:
    world = cluster()
    at = world.cordon()
    world.run(100)
    world.restart_operator(remembered=True)
    world.run(1800)
    assert world.outage_seconds(at) == 0
    assert world.replicas() == 1
