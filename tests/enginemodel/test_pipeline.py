"""The pipeline of an engine: launches, steps in flight, and what the client sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.enginetimer import EngineTimer, host_of, within
from holdfast.enginemodel.host import ASYNCHRONOUS, NO_HOST, FrontEnd, GraphMode, Graphs, Host, Launch, usual_host
from holdfast.enginemodel.replay import Arrival, replay
from holdfast.enginemodel.scheduler import Scheduler, SchedulerLimits, Sequence, SequenceStatus
from holdfast.enginemodel.steplaw import StepLaw

LAW = StepLaw(c0=0.01, c1=1e-4, c2=0.0, c3=0.0, c4=0.0)
LIMITS = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=100_000)
AHEAD = Host(depth=ASYNCHRONOUS)
arrivals = st.lists(
    st.builds(Arrival, st.floats(0, 5), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)), max_size=40
)


@given(arrivals)
def test_a_host_that_costs_nothing_changes_nothing(given_arrivals: list[Arrival]) -> None:
    assert replay(given_arrivals, LIMITS, EngineTimer(LAW, NO_HOST)) == replay(given_arrivals, LIMITS, LAW)


def test_an_arrival_also_waits_for_the_step_already_launched() -> None:
    requests = [Arrival(0.0, 100, 5), Arrival(0.021, 100, 5)]
    # Steps end at 20, 30, 40, ... ms: at 21 ms the one until 30 runs, and the one until 40 is launched.
    _, second = replay(requests, LIMITS, EngineTimer(LAW, AHEAD))
    assert second.ttft_seconds == pytest.approx(0.040 + 0.020 - 0.021)
    _, second = replay(requests, LIMITS, LAW)
    assert second.ttft_seconds == pytest.approx(0.030 + 0.020 - 0.021)


def test_a_lone_answer_takes_no_step_more_than_it_has_tokens() -> None:
    [outcome] = replay([Arrival(0.0, 100, 11)], LIMITS, EngineTimer(LAW, AHEAD))
    assert outcome.e2e_seconds == pytest.approx(0.02 + 10 * 0.01)


def test_a_launch_hides_behind_the_gpu_until_it_is_longer() -> None:
    def tpot(launch_seconds: float) -> float:
        host = replace(AHEAD, launch_seconds=(launch_seconds, 0.0, 0.0))
        return replay([Arrival(0.0, 100, 101)], LIMITS, EngineTimer(LAW, host))[0].tpot_seconds

    assert tpot(0.008) == pytest.approx(0.010, rel=1e-3)
    assert tpot(0.013) == pytest.approx(0.013, rel=0.02)


def test_a_host_that_does_not_schedule_ahead_adds_what_it_takes() -> None:
    host = Host(launch_seconds=(0.004, 0.0, 0.0), schedule_seconds=0.001, update_seconds=0.002, lead_seconds=0.0005)
    [outcome] = replay([Arrival(0.0, 100, 101)], LIMITS, EngineTimer(LAW, host))
    assert outcome.tpot_seconds == pytest.approx(0.0135, rel=1e-3)
    assert EngineTimer(LAW, host).step_seconds((), 1, 100.0) == pytest.approx(0.0135)


def test_a_step_costs_the_longer_of_gpu_and_host() -> None:
    timer = EngineTimer(LAW, replace(usual_host(36), sequence_seconds=0.0))
    assert timer.step_seconds(((512, 0),), 0, 0.0) == LAW.step_seconds(((512, 0),), 0, 0.0)
    assert timer.step_seconds(((600, 0),), 0, 0.0) == LAW.step_seconds(((600, 0),), 0, 0.0)
    quick = EngineTimer(LAW.scaled(0.1), timer.host)
    assert quick.step_seconds((), 4, 100.0) == pytest.approx(0.0012 + 0.00032)
    assert quick.step_seconds(((100, 0),), 0, 0.0) == pytest.approx(0.0108 + 0.00032)
    assert quick.step_seconds(((513, 0),), 0, 0.0) == pytest.approx(0.0288 + 0.00032)


def test_a_prompt_among_decodes_is_launched_while_the_gpu_computes_these() -> None:
    timer = EngineTimer(LAW, replace(usual_host(36), sequence_seconds=0.0))
    quick = timer.with_host(timer.host.slower(2.0))
    spare = 0.01 - 2.0 * (0.0012 + 0.00032)
    assert quick.step_seconds(((100, 0),), 8, 100.0) == pytest.approx(max(0.02, 2.0 * (0.0108 + 0.00032) - spare))
    assert quick.step_seconds(((200, 0),), 0, 0.0) == pytest.approx(0.03)
    beyond = timer.with_host(timer.host.slower(3.0)).step_seconds(((600, 0),), 8, 100.0)
    assert beyond == pytest.approx(3.0 * (0.0288 + 0.00032) - (0.01 - 3.0 * (0.0012 + 0.00032)))


def test_smaller_limits_have_smaller_graphs() -> None:
    timer = EngineTimer(LAW, usual_host(36))
    assert host_of(within(timer, 1024, 8192)).graphs.edge == 512
    assert host_of(within(timer, 64, 8192)).graphs.edge == 128
    assert host_of(within(timer, 256, 300)).graphs.edge == 300
    unknown = EngineTimer(LAW, usual_host(36, Graphs(edge=None)))
    assert within(unknown, 64, 8192) is unknown
    assert within(LAW, 64, 8192) is LAW


@pytest.mark.parametrize(
    ("mode", "decodes", "prompts"),
    [
        (GraphMode.NONE, Launch.KERNELS, Launch.KERNELS),
        (GraphMode.PIECEWISE, Launch.LAYER_GRAPHS, Launch.LAYER_GRAPHS),
        (GraphMode.FULL, Launch.WHOLE_GRAPH, Launch.WHOLE_GRAPH),
        (GraphMode.FULL_DECODE_ONLY, Launch.WHOLE_GRAPH, Launch.KERNELS),
        (GraphMode.FULL_AND_PIECEWISE, Launch.WHOLE_GRAPH, Launch.LAYER_GRAPHS),
    ],
)
def test_the_mode_says_how_a_step_is_launched(mode: GraphMode, decodes: Launch, prompts: Launch) -> None:
    for edge in (512, None):
        assert Graphs(mode, edge).launch(512, prompts=False) is decodes
        assert Graphs(mode, edge).launch(512, prompts=True) is prompts
    assert Graphs(mode, 512).launch(513, prompts=False) is Launch.KERNELS
    # Beyond an edge that is not known, a step counts for the least it takes.
    assert Graphs(mode, None).launch(513, prompts=True) is prompts


def test_the_api_server_reads_and_writes_one_after_the_other() -> None:
    front_end = FrontEnd(0.002, 1e-5, 0.003, 0.001, 0.004)
    first, second = replay(
        [Arrival(0.0, 100, 1), Arrival(0.0, 100, 1)], LIMITS, EngineTimer(LAW, Host(front_end=front_end))
    )
    # Read until 3 ms, in the engine at 4; done at 24, written until 27, seen at 31.
    assert first.ttft_seconds == pytest.approx(0.031)
    # Read until 6 ms, in the engine's second step from 24 to 44.
    assert second.ttft_seconds == pytest.approx(0.051)


def test_who_is_preempted_with_a_token_in_flight_gets_it() -> None:
    engine = Scheduler(SchedulerLimits(8, 1000, 96))
    elder, younger = Sequence(46, 40, 0.0), Sequence(46, 40, 0.0)
    engine.add(elder)
    engine.add(younger)
    plans = [engine.step(0.0)]
    while not plans[-1].preempted:
        plans.append(engine.step(0.0))
        if not plans[-1].preempted:
            engine.complete(plans.pop(0), 1.0)
    before = younger.generated
    assert younger.status is SequenceStatus.WAITING
    assert engine.complete(plans.pop(0), 2.0) == [elder, younger]
    assert (younger.generated, younger.in_flight, younger.computed) == (before + 1, 0, 0)


def test_who_gets_the_last_token_after_a_preemption_leaves_the_queue() -> None:
    engine = Scheduler(SchedulerLimits(8, 1000, 96))
    elder, younger = Sequence(46, 40, 0.0), Sequence(47, 2, 0.0)
    engine.add(elder)
    engine.add(younger)
    engine.complete(engine.step(0.0), 1.0)
    last = engine.step(1.0)
    assert last.decodes == (elder, younger)
    later = engine.step(1.0)
    assert later.decodes == (elder,)
    engine.preempt_last()
    assert engine.complete(last, 2.0) == [elder, younger]
    assert younger.status is SequenceStatus.FINISHED
    assert len(engine.waiting) == 0


@given(arrivals, st.integers(1, 12), st.integers(960, 4000))
def test_every_request_is_answered_whatever_memory_lacks(given_arrivals: list[Arrival], seqs: int, kv: int) -> None:
    limits = SchedulerLimits(seqs, 512, kv)
    timer = EngineTimer(LAW, replace(usual_host(4), front_end=FrontEnd(1e-3, 1e-6, 1e-4, 1e-3, 1e-3)))
    scheduled_ahead = replay(given_arrivals, limits, timer)
    for ahead, alone in zip(scheduled_ahead, replay(given_arrivals, limits, LAW), strict=True):
        assert (ahead.ttft_seconds < float("inf")) == (alone.ttft_seconds < float("inf"))
        assert ahead.ttft_seconds <= ahead.e2e_seconds
