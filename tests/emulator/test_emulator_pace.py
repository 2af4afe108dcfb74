"""The emulator's clock: on a virtual one, times come out exactly as the step timer says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from holdfast.emulator.engine import EmulatedEngine, Job
from holdfast.emulator.families import cache_config
from holdfast.emulator.metrics import EngineMetrics
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.host import ASYNCHRONOUS, NO_HOST, FrontEnd, Host
from holdfast.enginemodel.scheduler import Scheduler, SchedulerLimits, Sequence
from holdfast.enginemodel.steplaw import StepLaw

LAW = StepLaw(c0=0.1, c1=0.001, c2=0.0, c3=0.0, c4=0.0)

pytestmark = pytest.mark.looptime(start=100.0, end=100_000.0)


class Recorder:
    """A sink that notes when tokens came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.done = asyncio.Event()

    def token(self) -> None:
        self.times.append(asyncio.get_running_loop().time())

    def finish(self) -> None:
        self.token()
        self.done.set()


@asynccontextmanager
async def running_engine(
    speed: float = 1.0, kv_tokens: int = 16_000, host: Host = NO_HOST
) -> AsyncIterator[EmulatedEngine]:
    metrics = EngineMetrics("m", 2048, 0.0, cache_config(kv_tokens, 16, 2048, 0.92))
    scheduler, timer = Scheduler(SchedulerLimits(8, 512, kv_tokens)), EngineTimer(LAW, host)
    engine = EmulatedEngine(scheduler, timer, metrics, speed=speed)
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()


def submitted(engine: EmulatedEngine, prompt: int, output: int) -> Recorder:
    recorder = Recorder()
    arrived_at = asyncio.get_running_loop().time()
    engine.submit(Job(Sequence(prompt, output, arrived_at), recorder, output))
    return recorder


async def test_tokens_come_when_their_steps_end() -> None:
    async with running_engine() as engine:
        recorder = submitted(engine, 100, 4)
        await recorder.done.wait()
    assert recorder.times == pytest.approx([100.2, 100.3, 100.4, 100.5])


async def test_speed_divides_every_step() -> None:
    async with running_engine(speed=10.0) as engine:
        recorder = submitted(engine, 100, 3)
        await recorder.done.wait()
    assert recorder.times == pytest.approx([100.02, 100.03, 100.04])


async def test_an_arrival_during_a_step_joins_the_next_one() -> None:
    async with running_engine() as engine:
        first = submitted(engine, 100, 3)
        await asyncio.sleep(0.05)
        second = submitted(engine, 100, 1)
        await first.done.wait()
    assert second.times == pytest.approx([100.4])
    assert first.times == pytest.approx([100.2, 100.4, 100.5])


async def test_after_a_pause_the_first_step_starts_at_the_arrival() -> None:
    async with running_engine() as engine:
        await submitted(engine, 100, 1).done.wait()
        await asyncio.sleep(50.0)
        started = asyncio.get_running_loop().time()
        recorder = submitted(engine, 100, 1)
        await recorder.done.wait()
    assert recorder.times == pytest.approx([started + 0.2])


async def test_an_engine_that_schedules_ahead_takes_a_request_into_the_step_after_the_next() -> None:
    async with running_engine(host=Host(depth=ASYNCHRONOUS)) as engine:
        first = submitted(engine, 100, 5)
        await asyncio.sleep(0.25)
        second = submitted(engine, 100, 1)
        await first.done.wait()
    # At 100.25 the step until 100.3 runs and the one until 100.4 is launched.
    assert second.times == pytest.approx([100.6])
    assert first.times == pytest.approx([100.2, 100.3, 100.4, 100.6, 100.7])


async def test_a_launch_that_is_longer_than_the_gpu_decides_over_the_pace() -> None:
    host = Host(depth=ASYNCHRONOUS, launch_seconds=(0.25, 0.0, 0.0))
    async with running_engine(host=host) as engine:
        recorder = submitted(engine, 100, 4)
        await recorder.done.wait()
    gaps = [later - earlier for earlier, later in pairwise(recorder.times)]
    assert gaps[1:] == pytest.approx([0.25, 0.1], abs=0.16)
    assert recorder.times[-1] == pytest.approx(100.75, abs=0.11)


async def test_the_api_server_reads_before_and_writes_after_the_engine() -> None:
    front_end = FrontEnd(request_seconds=0.02, token_seconds=0.01, transit_seconds=0.03, reply_seconds=0.04)
    async with running_engine(host=Host(front_end=front_end)) as engine:
        recorder = submitted(engine, 100, 2)
        await recorder.done.wait()
        histogram = engine.metrics.histograms["vllm:time_to_first_token_seconds"]
    assert recorder.times == pytest.approx([100.3, 100.4])
    assert histogram.total == pytest.approx(0.25), "the engine's own count knows nothing of what comes after it"


async def test_who_goes_before_the_engine_has_it_leaves_nothing_behind() -> None:
    async with running_engine(host=Host(front_end=FrontEnd(transit_seconds=1.0))) as engine:
        recorder = Recorder()
        job = Job(Sequence(100, 50, asyncio.get_running_loop().time()), recorder, 50)
        engine.submit(job)
        await asyncio.sleep(0.5)
        engine.abort(job)
        await asyncio.sleep(5.0)
        assert recorder.times == []
        assert engine.scheduler.unfinished == 0
        await asyncio.wait_for(engine.idle(), 1.0)


async def test_metrics_tell_the_same_times() -> None:
    async with running_engine() as engine:
        await submitted(engine, 100, 4).done.wait()
        histograms = engine.metrics.histograms
    assert histograms["vllm:time_to_first_token_seconds"].total == pytest.approx(0.2)
    assert histograms["vllm:request_time_per_output_token_seconds"].total == pytest.approx(0.1)
    assert histograms["vllm:inter_token_latency_seconds"].total == pytest.approx(0.3)
    assert histograms["vllm:e2e_request_latency_seconds"].total == pytest.approx(0.5)
    assert histograms["vllm:request_decode_time_seconds"].total == pytest.approx(0.3)
    assert histograms["vllm:iteration_tokens_total"].total == 100 + 3


async def test_an_aborted_request_gets_no_more_tokens() -> None:
    async with running_engine() as engine:
        recorder = Recorder()
        job = Job(Sequence(100, 50, asyncio.get_running_loop().time()), recorder, 50)
        engine.submit(job)
        await asyncio.sleep(0.35)
        engine.abort(job)
        engine.abort(job)
        await asyncio.sleep(5.0)
        assert len(recorder.times) == 2
        await asyncio.wait_for(engine.idle(), 1.0)
        assert engine.scheduler.unfinished == 0


async def test_every_gap_counts_even_across_a_preemption() -> None:
    async with running_engine(kv_tokens=96) as engine:
        recorders = [submitted(engine, 46, 30), submitted(engine, 46, 30)]
        for recorder in recorders:
            await recorder.done.wait()
        assert engine.metrics.values["vllm:num_preemptions"][""] == 1
        assert sum(engine.metrics.histograms["vllm:inter_token_latency_seconds"].counts) == 2 * 29
