"""What replicas are believed to carry after a step of the load: too few of them are no evidence against each."""

from __future__ import annotations

import math

import pytest

from tests.builders import condition, service
from tests.policy.fluid import steps
from tests.policy.routed import RoutedCluster

CHAT = service("chat").with_replicas_between(1, 40)
ONE = {"h100": 4.0}
STEP = 600.0
KEPT, EVEN = 1024.0, 0.0

plugins = pytest.mark.parametrize("plugin", [False, True], ids=["stock", "plugin"])


def stepped(factor: float, cold_start: float, plugin: bool, connections: float) -> RoutedCluster:
    """8 req/s on enough replicas, so many times as much after ten minutes, until 15 minutes after new ones came."""
    rate = steps((0, 8.0), (STEP, 8.0 * factor))
    cluster = RoutedCluster(CHAT, rate, ONE, cold_start=cold_start, plugin=plugin, connections=connections)
    cluster.begin_with("h100", 4)
    return cluster.run(STEP + cold_start + 900.0)


def needed(cluster: RoutedCluster) -> int:
    """Replicas that carry what was reckoned with during the last hold time, by what they really carry."""
    return math.ceil(cluster.memory.services[CHAT.spec.key].peaks.rate_rps / 4.0)


def believed(cluster: RoutedCluster, since: float = 0.0) -> list[tuple[float, float]]:
    """(second, requests/s of a replica)."""
    return [(at, decision.capacity.per_replica_rps) for at, decision in cluster.decisions if at >= since]


def told(cluster: RoutedCluster) -> list[str]:
    """Reasons of SLOMet since the step."""
    return [condition(decision, "SLOMet")[1] for at, decision in cluster.decisions if at >= STEP]


@pytest.mark.parametrize("connections", [EVEN, KEPT], ids=["even", "kept connections"])
@plugins
@pytest.mark.parametrize("cold_start", [30.0, 120.0, 240.0])
@pytest.mark.parametrize("factor", [2.0, 3.0, 5.0])
def test_after_a_step_the_size_settles_at_what_the_rate_needs(
    factor: float, cold_start: float, plugin: bool, connections: float
) -> None:
    cluster = stepped(factor, cold_start, plugin, connections)
    assert min(rate for _, rate in believed(cluster, STEP)) >= 0.9 * 4.0
    assert abs(cluster.replicas() - needed(cluster)) <= 1


@plugins
def test_engines_that_become_slower_are_noticed_soon(plugin: bool) -> None:
    """At the first look by the time per token; what plugins sum up holds three minutes."""
    soon = 180.0 if plugin else 60.0
    slower = steps((0, 1.0), (STEP, 1.5))
    cluster = RoutedCluster(CHAT, steps((0, 14.0)), ONE, plugin=plugin, connections=EVEN, slower=slower)
    cluster.begin_with("h100", 5)
    cluster.run(STEP + 600.0)
    before = believed(cluster)[int(STEP / cluster.tick)][1]
    assert next(at for at, rate in believed(cluster, STEP) if rate < 0.95 * before) <= STEP + soon
    assert believed(cluster)[-1][1] <= 4.0 / 1.5


@plugins
def test_a_prior_that_promises_too_much_is_corrected(plugin: bool) -> None:
    truth = 0.6
    slower = steps((0, 1.0 / truth))
    cluster = RoutedCluster(CHAT, steps((0, 8.0)), ONE, plugin=plugin, connections=EVEN, slower=slower).run(1800.0)
    assert 0.75 * truth * 4.0 <= believed(cluster)[-1][1] <= 1.05 * truth * 4.0
    assert cluster.attainment(900, 1800) >= 0.99


def test_right_after_a_cold_start_no_engine_is_called_slow() -> None:
    reasons = told(stepped(3.0, 60.0, plugin=False, connections=EVEN))
    assert not {"EngineSlow", "CauseUnknown"}.intersection(reasons)
    assert "ColdStart" in reasons


def test_load_that_stays_with_the_old_replicas_is_called_that() -> None:
    reasons = told(stepped(3.0, 60.0, plugin=False, connections=KEPT))
    assert reasons.count("LoadImbalanced") > 5 * (reasons.count("EngineSlow") + reasons.count("CauseUnknown"))
