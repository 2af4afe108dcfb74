"""Field reports that were met already: D18, D19 and D20 stay so."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from holdfast.domain.decision import Action
from holdfast.domain.signals import AcceleratorTraffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot
from tests.builders import ServiceBuilder, accelerator, condition, node, service
from tests.policy.contest import Contest
from tests.policy.fluid import FluidCluster, steps

CHAT = service("chat").with_replicas_between(1, 20)
STALE_SECONDS = 300.0
"""Prometheus shows the last sample of a series that ends without a mark for so long."""


@pytest.mark.parametrize("waiting", [0.0, 10.0], ids="{:.0f} waited".format)
def test_d18_gauges_of_deleted_pods_bring_no_size_back(waiting: float) -> None:
    """llm-d-autoscaling#368: what pods showed last is read as load of those that are left."""
    left_at: list[float] = []

    def with_ghosts(counts: AcceleratorTraffic) -> AcceleratorTraffic:
        ghosts = sum(cluster.clock - at < STALE_SECONDS for at in left_at)
        return replace(counts, running=counts.running + 8.0 * ghosts, waiting=counts.waiting + waiting * ghosts)

    cluster = FluidCluster(CHAT, steps((0, 24.0), (600, 8.0)), {"h100": 4.0}, distort=with_ghosts).run(600)
    while cluster.clock < 1800.0:
        before = cluster.replicas()
        cluster.run(cluster.tick)
        left_at += [cluster.clock] * (before - cluster.replicas())
    assert left_at
    assert {action for _, action, _ in cluster.changes(600)} == {Action.SCALE_DOWN.value}


class SwingingQueues(Contest):
    """Constant load, and at each scrape another length of the queue in front of each service."""

    draw = random.Random(0)
    queues: tuple[float, ...] = (20.0, 20.0)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 15.0)):
            self.before, self.queues = self.queues, tuple(20.0 * self.draw.uniform(0.7, 1.3) for _ in self.builders)
            super().run(15.0)

    def snapshot(self) -> Snapshot:
        seen = super().snapshot()
        grown = zip(seen.services, self.queues, self.before, strict=True)
        return replace(seen, services=tuple(_queueing(each, now, now - before) for each, now, before in grown))


@pytest.mark.parametrize("seed", range(3))
def test_d19_queues_that_swing_at_each_scrape_change_sizes_a_few_times_an_hour(seed: int) -> None:
    """llm-d-autoscaling#1427: two services on ten GPUs changed their sizes every 15 s."""
    loads = {"chat": 12.0, "code": 16.0}
    contest = SwingingQueues(10, {name: (_named(name), rate, 4) for name, rate in loads.items()}, cold_seconds=30.0)
    contest.draw = random.Random(seed)
    contest.run(600)
    changes, sizes = 0, _sizes(contest)
    for _ in range(3600 // 15):
        contest.run(15)
        changes += sum(new != old for new, old in zip(_sizes(contest), sizes, strict=True))
        sizes = _sizes(contest)
    assert changes <= 20


def test_d20_a_node_without_its_gpu_is_named_at_once_and_the_next_accelerator_comes_after_the_time_for_a_node() -> None:
    """karpenter-provider-azure#1790: the node that was made for a pod offers no GPU, and the pod waits for ever."""
    chat = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s"))
    load = steps((0, 3.0), (200, 6.0))
    cluster = FluidCluster(chat, load, {"h100": 4.0, "l40s": 4.0}, gpus={"h100": 1}, nodes=(node("empty", 0),))
    cluster.run(260)
    assert condition(cluster.last(), "CapacityAvailable") == (False, "InsufficientGPUs")
    assert cluster.replicas("l40s") == 0
    cluster.run(300)
    assert cluster.ready().get("l40s")


def _named(name: str) -> ServiceBuilder:
    return service(name).with_replicas_between(1, 10)


def _sizes(contest: Contest) -> list[int]:
    return [sum(contest.size[name].values()) for name in contest.builders]


def _queueing(each: ServiceSnapshot, waiting: float, grown: float) -> ServiceSnapshot:
    counts = tuple(
        (on, replace(known, waiting=waiting, in_flight_growth=known.in_flight_growth + grown))
        for on, known in each.traffic.by_accelerator
    )
    return replace(each, traffic=replace(each.traffic, by_accelerator=counts))
