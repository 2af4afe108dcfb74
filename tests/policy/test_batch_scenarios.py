"""Batch work with a time to be done in, next to interactive requests, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.domain.service import BatchClass
from holdfast.domain.signals import BatchClassTraffic, BatchTraffic, SignalState, Traffic
from tests.builders import OUTPUT_TOKENS, PROMPT_TOKENS, ServiceBuilder, accelerator, service
from tests.policy.fluid import FluidCluster, steps

CHAT = service("chat", accelerator("h100")).with_replicas_between(1, 8)
ONE = {"h100": 4.0}
HOUR = 3600.0


@dataclass
class BatchCluster(FluidCluster):
    """The same with batch requests of class `night`, by second: they get what the others leave, first come first."""

    tick: float = 15.0
    scrape: float = 15.0
    batch: Callable[[float], float] = lambda second: 0.0
    told: Callable[[float], bool] = lambda second: True
    came: list[float] = field(default_factory=list)
    done_at: list[float] = field(default_factory=list)
    done: float = 0.0
    arrived: float = 0.0

    def _second(self) -> None:
        super()._second()
        self.arrived += self.batch(self.clock)
        self.came += [self.clock] * (int(self.arrived) - len(self.came))
        room = sum(self.slack * ONE["h100"] for _ in range(sum(self.ready().values())))
        self.done = min(float(len(self.came)), self.done + max(0.0, room - self.seconds[-1]["arrivals"]))
        self.done_at += [self.clock] * (int(self.done) - len(self.done_at))

    def _traffic(self) -> Traffic:
        seen = super()._traffic()
        if seen.state is not SignalState.FRESH or not self.told(self.clock):
            return seen
        done = float(sum(self.clock - self.interval <= at for at in self.done_at[-1000:]))
        row = BatchClassTraffic("night", float(len(self.came) - len(self.done_at)), done)
        tokens = (done * PROMPT_TOKENS, done * OUTPUT_TOKENS, done * PROMPT_TOKENS)
        return replace(seen, batch=BatchTraffic((row,), done, *tokens))

    def latest_seconds(self) -> float:
        """The longest time that a batch request took; one that is not done counts up to now."""
        ends = [*self.done_at, *[self.clock] * (len(self.came) - len(self.done_at))]
        return max(end - at for at, end in zip(self.came, ends, strict=True))

    def most(self, since: float = 0.0) -> int:
        """Most replicas that were wanted."""
        return max(decision.verdict.replicas for at, decision in self.decisions if at >= since)

    def reasons(self) -> set[Reason]:
        return {decision.verdict.reason for _, decision in self.decisions}


def night(within: float | None, builder: ServiceBuilder = CHAT) -> ServiceBuilder:
    return ServiceBuilder(replace(builder.spec, batch=(BatchClass("night", 0, within),)))


def burst(requests: float, at: float = 600.0) -> Callable[[float], float]:
    return steps((0, 0.0), (at, requests / 10.0), (at + 10.0, 0.0))


def test_a_backlog_is_done_in_time_and_its_replicas_go_afterwards() -> None:
    cluster = BatchCluster(night(HOUR), steps((0, 2.0)), ONE, batch=burst(30_000)).run(600)
    assert cluster.replicas() == 1
    cluster.run(2.0 * HOUR)
    assert cluster.latest_seconds() <= HOUR
    assert Reason.BATCH_TO_FINISH in cluster.reasons()
    assert [action for _, action, _ in cluster.changes(600.0)] == [Action.SCALE_UP, Action.SCALE_DOWN]
    assert (cluster.most(), cluster.replicas()) == (3, 1)


def test_replicas_for_batch_have_no_worth_for_the_fleet_when_batch_has_ended_either() -> None:
    cluster = BatchCluster(night(HOUR), steps((0, 2.0)), ONE, batch=burst(30_000)).run(600.0)
    worth = set[float]()
    while cluster.clock < 2.0 * HOUR:
        cluster.run(15.0)
        request = cluster.memory.services[CHAT.spec.key].request
        assert request is not None
        worth.add(request.demand_rps)
    assert cluster.most() == 3
    assert max(worth) <= ONE["h100"]


def test_without_a_time_batch_asks_for_nothing() -> None:
    cluster = BatchCluster(night(None), steps((0, 2.0)), ONE, batch=burst(30_000)).run(2.0 * HOUR)
    assert cluster.most(since=600.0) == 1
    assert cluster.latest_seconds() > HOUR


def test_a_backlog_that_what_is_left_can_do_asks_for_nothing() -> None:
    cluster = BatchCluster(night(HOUR), steps((0, 2.0)), ONE, batch=burst(4_000)).run(2.0 * HOUR)
    assert cluster.most(since=600.0) == 1
    assert cluster.latest_seconds() <= HOUR


@pytest.mark.slow
def test_steady_batch_beyond_what_is_left_is_in_time_without_flapping() -> None:
    cluster = BatchCluster(night(0.5 * HOUR), steps((0, 2.0)), ONE, batch=steps((0, 0.0), (600, 5.0))).run(6.0 * HOUR)
    assert cluster.latest_seconds() <= 0.5 * HOUR
    assert cluster.most() <= 3
    ups = [at for at, action, _ in cluster.changes(600.0) if action == Action.SCALE_UP]
    assert all(later - at >= HOUR for at, later in pairwise(ups))


def test_batch_never_raises_above_the_maximum() -> None:
    small = CHAT.with_replicas_between(1, 2)
    cluster = BatchCluster(night(HOUR, small), steps((0, 2.0)), ONE, batch=burst(1e5)).run(HOUR)
    assert cluster.most() == 2
    assert Reason.AT_MAXIMUM in cluster.reasons()


def test_metrics_that_no_longer_tell_of_batch_lower_nothing() -> None:
    cluster = BatchCluster(
        night(HOUR), steps((0, 2.0)), ONE, batch=burst(30_000), told=lambda second: not 900.0 <= second < 9000.0
    ).run(900.0)
    before = cluster.replicas()
    assert before > 1
    cluster.run(2.0 * HOUR)
    assert min(decision.verdict.replicas for at, decision in cluster.decisions if at >= 900.0) == before
    assert cluster.most() == before


def test_interactive_forecast_and_budget_know_nothing_of_batch() -> None:
    alone = BatchCluster(night(HOUR), steps((0, 2.0)), ONE).run(2000.0)
    together = BatchCluster(night(HOUR), steps((0, 2.0)), ONE, batch=burst(30_000)).run(2000.0)
    assert together.replicas() > alone.replicas()
    known = [cluster.memory.services[CHAT.spec.key] for cluster in (alone, together)]
    assert [(each.ample, each.limited) for each in known] == [(False, False), (True, False)]
    forecasts = [cluster.last().explanation.forecast_rps for cluster in (alone, together)]
    assert forecasts[0] is not None
    assert forecasts[1] is not None
    assert abs(forecasts[0] - forecasts[1]) <= 0.25 * forecasts[0]
