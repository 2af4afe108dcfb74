"""Engines with the plugin: the emulator's scheduler under the twin's clock."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.domain.service import Slo
from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.replay import Arrival, ReplayClock, replay_on
from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.twin.arrays import state_arrays
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing, Workload
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.rules import Limits, Objectives, Overload
from tests.fakes import GivenLimits
from tests.twin.twin_builders import workload

LAW = StepLaw(0.008, 4e-5, 2e-4, 4e-8, 4e-9)
SLO = Slo(ttft_seconds=1.0, tpot_seconds=0.05, objective=0.95, window_seconds=3600.0)
TIGHT = Slo(ttft_seconds=0.25, tpot_seconds=0.012, objective=0.95, window_seconds=3600.0)
"""TPOT is close to the shortest step: at its pace, a prompt of 1,500 tokens or more misses TTFT."""
ENGINE = SchedulerLimits(64, 2048, 40_000)


def _load(rate: float, seconds: float = 25.0, seed: int = 0, shortest: int = 1) -> Workload:
    draw = np.random.default_rng(seed)
    count = int(rate * seconds)
    at, prompts = np.cumsum(draw.exponential(1.0 / rate, count)), draw.integers(50, 2000, count)
    return workload(at, prompts, draw.integers(shortest, 200, count))


def _told(overload: Overload = Overload.QUEUE, most_seconds: float | None = None, slo: Slo = SLO) -> Limits:
    objectives = Objectives(slo.ttft_seconds, slo.tpot_seconds)
    law = Law(LAW.c0, LAW.c1, LAW.c2, LAW.c3, LAW.c4)
    return Limits(1, objectives, overload=overload, max_queued_seconds=most_seconds, prior=law)


def _fleet(load: Workload, told: Limits | None, engines: int = 1) -> EngineFleet:
    """Engines with the plugin, or without where it is told nothing."""
    fleet = EngineFleet(load, [EngineSpec(LAW, ENGINE)], SLO, Routing("round-robin"), [] if told is None else [told])
    for _ in range(engines):
        fleet.add()
    return fleet


def _ended(load: Workload, told: Limits | None) -> EngineFleet:
    fleet = _fleet(load, told)
    fleet.advance(math.inf)
    return fleet


def _good(fleet: EngineFleet, slo: Slo = SLO) -> int:
    found = fleet.requests
    tpot = (found["last_at"] - found["first_at"]) / np.maximum(found["output"] - 1, 1)
    in_time = (found["first_at"] - found["at"] <= slo.ttft_seconds) & (tpot <= slo.tpot_seconds)
    return int((in_time & (found["state"] == state_arrays.FINISHED)).sum())


@pytest.mark.parametrize("overload", list(Overload))
@pytest.mark.parametrize("rate", [2.0, 16.0])
@pytest.mark.parametrize(("slo", "shortest"), [(SLO, 1), (TIGHT, 20)])
def test_every_time_is_that_of_the_emulators_scheduler(
    slo: Slo, shortest: int, rate: float, overload: Overload
) -> None:
    load, clock = _load(rate, shortest=shortest), ReplayClock()
    fleet = _fleet(load, _told(overload, slo=slo))
    for stop in range(10):
        fleet.advance(7.0 * stop)
        fleet.check()
    fleet.advance(math.inf)
    columns = (load.at, load.prompt_tokens, load.output_tokens)
    arrivals = [Arrival(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
    outcomes = replay_on(FastLoopScheduler(ENGINE, GivenLimits(_told(overload, slo=slo)), clock), arrivals, LAW, clock)
    for request, outcome in zip(fleet.requests, outcomes, strict=True):
        if math.isinf(outcome.ttft_seconds):
            assert request["state"] == state_arrays.REJECTED
        else:
            assert request["first_at"] - request["at"] == outcome.ttft_seconds
            assert request["last_at"] - request["at"] == outcome.e2e_seconds


def test_overload_costs_less_with_the_fast_loop() -> None:
    load = _load(16.0)
    assert _good(_ended(load, _told())) > 2 * _good(_ended(load, None))


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_prompts_do_not_crawl_where_tpot_is_close_to_the_shortest_step(rate: float) -> None:
    load = _load(rate, seconds=300.0, shortest=20)
    fast, plain = (_good(_ended(load, told), TIGHT) / len(load) for told in (_told(slo=TIGHT), None))
    assert fast >= plain - 0.01


def test_what_the_plugin_judged_is_what_clients_saw() -> None:
    fleet = _fleet(_load(6.0), _told(), engines=2)
    fleet.advance(math.inf)
    state = np.concatenate([fleet.state(number) for number in (0, 1)])
    assert state["judged_arrived"].sum() == len(fleet.workload)
    assert state["judged_good"].sum() == _good(fleet)
    assert sum(state[name].sum() for name in state_arrays.EXACT[1:7]) == len(fleet.workload)


def test_what_waits_for_longer_than_told_is_ended() -> None:
    fleet = _fleet(_load(30.0, seconds=20.0), _told(most_seconds=5.0))
    fleet.advance(math.inf)
    fleet.check()
    found = fleet.requests
    assert (found["state"] == state_arrays.LOST).sum() > 50
    assert (found["first_at"] - found["at"])[found["state"] == state_arrays.FINISHED].max() < 8.0


def test_clients_of_an_engine_in_overload_soon_meet_a_new_one() -> None:
    load = _load(16.0, seconds=20.0)
    fleet = EngineFleet(load, [EngineSpec(LAW, ENGINE)], SLO, Routing(close_share=0.0), [_told()])
    fleet.add()
    fleet.advance(10.0)
    new = fleet.add()
    fleet.advance(math.inf)
    found = fleet.requests[load.at > 15.0]
    assert 0.3 < (found["engine"] == new).mean() < 0.7


def test_limits_are_given_once() -> None:
    limits = GivenLimits(_told())
    assert limits.poll(0.0) == _told()
    assert limits.poll(1.0) is None
    assert limits.current == _told()
