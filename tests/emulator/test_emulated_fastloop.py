"""The emulator with the fast loop: the plugin's own code behind the emulated scheduler."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.fastloop_emulated import MODEL, SHARP, SHORT, Replica
from holdfast.cli.emulate import parse_options
from holdfast.emulator.engine import EmulatedEngine, Job
from holdfast.emulator.families import cache_config
from holdfast.emulator.fast_loop import FastLoopMetrics, FastLoopScheduler
from holdfast.emulator.metrics import EngineMetrics
from holdfast.emulator.options import BadOptions
from holdfast.enginemodel.host import BUSY_FRONT_END
from holdfast.enginemodel.replay import Arrival, ReplayClock, replay, replay_on
from holdfast.enginemodel.scheduler import RejectReason, SchedulerLimits, Sequence, SequenceStatus
from holdfast.enginemodel.steplaw import StepLaw
from holdfast_engine.fastloop import SEEN_SECONDS
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.limits import DEFAULT_LIMITS, SCHEDULER_CLASS, LimitsFiles
from holdfast_engine.objectives.rules import Limits, Objectives, Overload, RequestClass
from holdfast_engine.stats.engine_info import INFO_LABELS, Identity
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import FIELDS
from holdfast_engine.stats.statsfile import StatsWriter
from tests.emulator.emulator_builders import Client, engine

LAW = StepLaw(c0=0.01, c1=1e-4, c2=5e-4, c3=1e-7, c4=0.0)
STOCK = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=20_000)
ASKED = Limits(1, Objectives(ttft_seconds=1.0, tpot_seconds=0.05))
MALFORMED = ("", "{", "[]", '{"version": 1}', '{"version": 1, "ttftSeconds": NaN, "tpotSeconds": 1}', "\0\xff")


def fast_scheduler(
    asked: Limits | str | None, folder: Path, limits: SchedulerLimits = STOCK
) -> tuple[FastLoopScheduler, ReplayClock]:
    """With these limits in its file, None for no file."""
    path, clock = folder / "engine-limits", ReplayClock()
    path.unlink(missing_ok=True)
    if asked is not None:
        path.write_text(asked.to_json() if isinstance(asked, Limits) else asked)
    return FastLoopScheduler(limits, LimitsFiles([path]), clock), clock


def poisson(rate: float, seconds: float, seed: int = 1) -> list[Arrival]:
    draw, at, found = random.Random(seed), 0.0, []
    while (at := at + draw.expovariate(rate)) < seconds:
        found.append(Arrival(at, draw.randint(20, 600), draw.randint(2, 80)))
    return found


def assert_conserved(scheduler: FastLoopScheduler) -> None:
    ledger = scheduler.loop.ledger.own
    assert ledger.arrived == ledger.good + sum(ledger.bad.values()) + ledger.withdrawn + ledger.unjudged


def test_an_emulated_engine_counts_what_a_killed_one_left_as_the_plugin_does(tmp_path: Path) -> None:
    (tmp_path / "engine-limits").write_text(ASKED.to_json())
    files, stats, clock = [tmp_path / "engine-limits"], tmp_path / "engine-0.stats", ReplayClock()
    killed = FastLoopScheduler(STOCK, LimitsFiles(files), clock, stats=stats)
    for _ in range(3):
        killed.add(Sequence(50, 20, clock.now))
    later = FastLoopScheduler(STOCK, LimitsFiles(files), clock, stats=stats)
    assert (later.numbers()["unjudged"], later.numbers()["bad_killed"]) == (3, 0)
    clock.now = SEEN_SECONDS
    later.look()
    assert (later.numbers()["unjudged"], later.numbers()["bad_killed"]) == (0, 3)
    last = FastLoopScheduler(STOCK, LimitsFiles(files), clock, stats=stats)
    assert last.numbers()["unjudged"] == 0, "each life is counted once"


requests = st.lists(
    st.builds(Arrival, st.floats(0, 5), st.integers(1, 900), st.integers(1, 60), st.integers(0, 900)), max_size=40
)
engines = st.builds(
    SchedulerLimits, st.integers(1, 16), st.integers(16, 512), st.just(1600), st.sampled_from([None, 4])
)


@pytest.mark.parametrize("text", [None, *MALFORMED])
def test_without_usable_limits_every_token_comes_when_stock_brings_it(text: str | None, tmp_path: Path) -> None:
    arrivals = poisson(12.0, 30.0)
    scheduler, clock = fast_scheduler(text, tmp_path)
    assert replay_on(scheduler, arrivals, LAW, clock) == replay(arrivals, STOCK, LAW)
    assert scheduler.loop.ledger.own.arrived == scheduler.rejected.total() == 0


@given(requests, engines)
def test_off_is_stock_bit_by_bit_even_with_preemptions(arrivals: list[Arrival], limits: SchedulerLimits) -> None:
    clock = ReplayClock()
    scheduler = FastLoopScheduler(limits, LimitsFiles([]), clock)
    assert replay_on(scheduler, arrivals, LAW, clock) == replay(arrivals, limits, LAW)


def test_an_overloaded_engine_keeps_most_of_its_goodput(tmp_path: Path) -> None:
    good = {}
    for rate in (15.0, 40.0):
        scheduler, clock = fast_scheduler(ASKED, tmp_path)
        replay_on(scheduler, poisson(rate, 60.0), LAW, clock)
        good[rate] = scheduler.loop.ledger.own.good
        assert_conserved(scheduler)
    assert good[40.0] > good[15.0] > 0.95 * 15.0 * 60.0


def test_a_calm_engine_answers_as_soon_as_stock(tmp_path: Path) -> None:
    limits, arrivals = replace(STOCK, max_num_batched_tokens=2048), poisson(6.0, 60.0)
    scheduler, clock = fast_scheduler(ASKED, tmp_path, limits)
    ours, stock = replay_on(scheduler, arrivals, LAW, clock), replay(arrivals, limits, LAW)
    assert scheduler.loop.ledger.own.good >= 0.99 * len(arrivals)
    assert median(each.ttft_seconds for each in ours) < 1.02 * median(each.ttft_seconds for each in stock)
    assert median(each.tpot_seconds for each in ours) < 1.02 * median(each.tpot_seconds for each in stock)


def test_refused_requests_may_come_again_and_those_let_in_are_good(tmp_path: Path) -> None:
    scheduler, clock = fast_scheduler(replace(ASKED, overload=Overload.REJECT), tmp_path)
    outcomes = replay_on(scheduler, poisson(40.0, 60.0), LAW, clock)
    ledger = scheduler.loop.ledger.own
    assert scheduler.rejected.total() > 0.2 * len(outcomes)
    assert ledger.arrived == len(outcomes) - scheduler.rejected.total()
    assert ledger.good > 0.8 * ledger.arrived


def test_a_refusal_says_when_to_come_again(tmp_path: Path) -> None:
    scheduler, clock = fast_scheduler(replace(ASKED, overload=Overload.REJECT), tmp_path)
    replay_on(scheduler, poisson(20.0, 10.0), LAW, clock)
    assert scheduler.refuse(10) is scheduler.refuse(10**6) is None
    scheduler.add(Sequence(10, 10, clock.now))
    assert scheduler.refuse(10) is None
    refusal = scheduler.refuse(10**6)
    assert refusal is not None
    assert refusal.reason is RejectReason.TTFT
    assert refusal.retry_after_seconds == 60


def test_stock_caps_refuse_as_before_and_are_counted(tmp_path: Path) -> None:
    scheduler, _ = fast_scheduler(ASKED, tmp_path, replace(STOCK, max_num_queued_reqs=1))
    scheduler.add(Sequence(10, 10, 0.0))
    refusal = scheduler.refuse(10)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_seconds) == (RejectReason.REQUESTS, 1)
    assert scheduler.rejected.total() == 1


actions = st.lists(
    st.tuples(st.sampled_from(["arrive", "arrive", "step", "step", "step", "abort", "limits"]), st.integers(0, 1000)),
    max_size=80,
)


@given(actions, st.booleans())
def test_nothing_is_lost_or_counted_twice(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, int]], reject: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    scheduler, clock = fast_scheduler(ASKED, folder, SchedulerLimits(4, 64, 1600))
    sequences: list[Sequence] = []
    for kind, number in story:
        if kind == "arrive" and scheduler.refuse(1 + number) is None:
            sequences.append(Sequence(1 + number, 1 + number % 7, clock.now))
            scheduler.add(sequences[-1])
        elif kind == "abort" and sequences:
            scheduler.abort(sequences[number % len(sequences)])
        elif kind == "limits":
            wanted = Limits(
                2 + number,
                Objectives(0.01 + number / 500, 0.02),
                overload=Overload.REJECT if reject else Overload.QUEUE,
            )
            (folder / "engine-limits").write_text(wanted.to_json())
            clock.now += 0.3
        elif kind == "step":
            step(scheduler, clock)
        ledger = scheduler.loop.ledger.own
        assert_conserved(scheduler)
        assert ledger.arrived == len(sequences)
        waiting = [each for each in sequences if each.status is SequenceStatus.WAITING]
        assert len(scheduler.waiting) == len(waiting)
    for _ in range(3000):
        step(scheduler, clock)
    assert scheduler.unfinished == scheduler.loop.ledger.own.unjudged == scheduler.queued_prompt_tokens == 0
    assert scheduler.free_blocks == scheduler.total_blocks
    finished = (SequenceStatus.FINISHED, SequenceStatus.FINISHED_ABORTED)
    assert all(each.status in finished for each in sequences)


def step(scheduler: FastLoopScheduler, clock: ReplayClock) -> None:
    if scheduler.unfinished:
        plan = scheduler.step(clock.now)
        clock.now += plan.seconds(LAW)
        scheduler.complete(plan, clock.now)


def series(text: str) -> set[tuple[str, tuple[str, ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("holdfast:")
    }


def test_metrics_have_the_names_and_labels_of_the_plugin(tmp_path: Path) -> None:
    scheduler, clock = fast_scheduler(ASKED, tmp_path)
    replay_on(scheduler, poisson(20.0, 10.0), LAW, clock)
    StatsWriter(tmp_path / "stats", len(FIELDS)).write(list(scheduler.numbers().values()))
    collector = EngineCollector(Identity("m", "0", "0.32.0"), {0: tmp_path / "stats"})
    plugin = {
        (sample.name, tuple(sorted(sample.labels))) for family in collector.collect() for sample in family.samples
    }
    assert series(FastLoopMetrics(scheduler, "m", "0.32.0", {}).render().decode()) == plugin


@asynccontextmanager
async def served(
    tmp_path: Path, asked: Limits | str, **changes: object
) -> AsyncIterator[tuple[Client, Callable[[str], None]]]:
    path = tmp_path / "engine-limits"
    path.write_text(asked.to_json() if isinstance(asked, Limits) else asked)
    async with engine(engine_limits=(str(path),), **changes) as client:
        yield client, path.write_text


ONE_AT_A_TIME = Limits(1, Objectives(60.0, 10.0), active_sequences=1, adapt=False)


@asynccontextmanager
async def occupied(tmp_path: Path, asked: Limits) -> AsyncIterator[Client]:
    """An engine that runs one long request, with another one behind it."""
    async with served(tmp_path, asked, speed=1.0) as (client, _), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.post(prompt=[1] * 10, max_tokens=20_000))
        while await client.value("vllm:num_requests_running") == 0:
            await asyncio.sleep(0)
        waiting = tasks.create_task(client.post(prompt=[1] * 3000, max_tokens=20_000))
        while await client.value("holdfast:requests_arrived_total") < 2:
            await asyncio.sleep(0)
        yield client
        running.cancel()
        waiting.cancel()


async def test_good_requests_are_counted_on_metrics(tmp_path: Path) -> None:
    async with served(tmp_path, Limits(1, Objectives(10.0, 10.0))) as (client, _):
        for _ in range(3):
            assert (await client.post(prompt="a b", max_tokens=4))[0] == 200
        assert await client.value("holdfast:requests_arrived_total") == 3
        assert await client.value("holdfast:requests_good_total") == 3
        assert await client.value("holdfast:good_tokens_total") == 12
        assert await client.value("holdfast:plugin_info", mode="active", vllm_version="0.32.0") == 1


async def test_requests_for_an_adapter_are_counted_in_its_class(tmp_path: Path) -> None:
    sql = RequestClass("sql", Objectives(10.0, 1e-6), adapter=True)
    limits = Limits(1, Objectives(10.0, 10.0), classes=(sql,))
    async with served(tmp_path, limits, adapters=("sql", "plain")) as (client, _):
        for model in ("sql", "plain", MODEL, "sql"):
            assert (await client.post(model=model, prompt="a b", max_tokens=4))[0] == 200
        counted = [
            [await client.value(f"holdfast:requests_{name}_total", **{"class": each}) for name in ("arrived", "good")]
            for each in ("sql", "")
        ]
    assert counted == [[2, 0], [2, 2]]


async def test_an_engine_says_how_it_was_started(tmp_path: Path) -> None:
    changes = {"max_model_len": 4096, "quantization": "fp8", "max_cudagraph_capture_size": 128}
    async with served(tmp_path, Limits(1, Objectives(10.0, 10.0)), **changes) as (client, _):
        said = {"max_model_len": "4096", "dtype": "bfloat16", "quantization": "fp8", "graph_edge": "128"}
        said |= {"tensor_parallel": "1", "pipeline_parallel": "1", "speculative_tokens": "0", "model_shape": ""}
        said |= {"front_end": "Python"}
        assert set(said) == set(INFO_LABELS)
        assert await client.value("holdfast:engine_info", **said) == 1
    async with served(tmp_path, Limits(1, Objectives(10.0, 10.0)), enforce_eager=True) as (client, _):
        assert await client.value("holdfast:engine_info", graph_edge="0", quantization="") == 1


async def test_without_the_fast_loop_there_are_none_of_its_metrics() -> None:
    async with engine() as client:
        assert "holdfast:" not in await client.metrics()


async def test_malformed_limits_leave_an_engine_that_serves_and_says_so(tmp_path: Path) -> None:
    async with served(tmp_path, "{") as (client, _):
        assert (await client.post(prompt="a b", max_tokens=4))[0] == 200
        assert await client.value("holdfast:plugin_info", mode="waiting") == 1
        assert await client.value("holdfast:requests_arrived_total") == 0


async def test_a_client_that_leaves_is_counted_once(tmp_path: Path) -> None:
    async with served(tmp_path, Limits(1, Objectives(100.0, 100.0)), speed=1.0) as (client, _):
        task = asyncio.create_task(client.post(prompt="a", max_tokens=20_000))
        while await client.value("vllm:num_requests_running") == 0:
            await asyncio.sleep(0)
        task.cancel()
        while await client.value("vllm:num_requests_running") == 1:
            await asyncio.sleep(0)
        assert await client.value("holdfast:requests_unjudged") == 0
        judged = [await client.value(f"holdfast:requests_{name}_total") for name in ("good", "withdrawn", "bad")]
        assert sum(judged) == 1


async def test_new_limits_are_taken_by_an_idle_engine(tmp_path: Path) -> None:
    async with served(tmp_path, ASKED) as (client, write):
        assert await client.value("holdfast:limits", name="ttft_seconds") == 1.0
        write(Limits(2, Objectives(0.5, 0.05), active_sequences=7).to_json())
        while await client.value("holdfast:limits", name="version") != 2:
            await asyncio.sleep(0)
        assert await client.value("holdfast:limits", name="ttft_seconds") == 0.5
        assert await client.value("holdfast:limits", name="active_sequences") == 7


async def test_a_request_that_would_be_late_gets_a_503_and_a_time(tmp_path: Path) -> None:
    # A law to fall back on: what this machine's steps really take may vary too much for one.
    prior = Law(0.008, 1e-5, 1e-4, 1e-8, 0.0)
    async with occupied(tmp_path, replace(ONE_AT_A_TIME, overload=Overload.REJECT, prior=prior)) as client:
        while await client.value("holdfast:prefill_tps") == 0:
            await asyncio.sleep(0)
        body = {"holdfast_prompt_tokens": 30_000, "max_tokens": 1}
        async with client.session.post(client.base + "/v1/completions", json=body) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert "first token" in (await response.json())["error"]["message"]
        assert await client.value("holdfast:requests_bad_total", cause="rejected") == 1
        assert await client.value("vllm:admission_rejections_total", reason="max_num_queued_tokens") == 1


@pytest.mark.parametrize(("depth", "status"), [(1, 503), (2, 200)])
async def test_an_engine_in_overload_ends_the_connections_of_its_clients(
    depth: int, status: int, tmp_path: Path
) -> None:
    asked = replace(ONE_AT_A_TIME, objectives=Objectives(0.01, 10.0), max_queued_requests=depth)
    async with occupied(tmp_path, asked) as client:
        while await client.value("holdfast:requests_waiting", lane="late") == 0:
            await asyncio.sleep(0)
        async with client.session.get(client.base + "/metrics") as metrics:
            assert "Connection" not in metrics.headers
        body = {"prompt": "a", "max_tokens": 1, "stream": True}
        async with client.session.post(client.base + "/v1/completions", json=body) as answer:
            assert answer.status == status
            assert answer.headers["Connection"] == "close"


async def test_requests_beyond_the_depth_are_turned_away(tmp_path: Path) -> None:
    async with occupied(tmp_path, replace(ONE_AT_A_TIME, max_queued_requests=1)) as client:
        assert (await client.post(prompt="a", max_tokens=1))[0] == 503
        assert await client.value("holdfast:requests_bad_total", cause="rejected") == 1
        assert await client.value("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_waits_for_too_long_is_ended_with_an_error_and_bad(stream: bool, tmp_path: Path) -> None:
    asked = replace(ONE_AT_A_TIME, objectives=Objectives(0.01, 10.0), max_queued_seconds=0.05)
    async with occupied(tmp_path, asked) as client:
        if stream:
            problem, end = await client.stream(prompt="a", max_tokens=1)
            assert end == "[DONE]"
            error = json.loads(problem)["error"]
        else:
            status, answer = await client.post(prompt="a", max_tokens=1)
            assert status == 503
            error = answer["error"]
        assert error["code"] == 503
        assert "waited for too long" in error["message"]
        assert await client.value("holdfast:requests_bad_total", cause="ttft") >= 2
        assert await client.value("holdfast:requests_withdrawn_total") == 0


@pytest.mark.looptime(start=100.0, end=100_000.0)
async def test_an_idle_engine_looks_for_limits_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "engine-limits"
    clock = asyncio.get_running_loop().time
    scheduler = FastLoopScheduler(STOCK, LimitsFiles([path]), clock)
    running = EmulatedEngine(scheduler, LAW, EngineMetrics("m", 2048, 0.0, cache_config(20_000, 16, 2048, 0.92)))
    task = asyncio.create_task(running.run())
    await asyncio.sleep(10.0)
    path.write_text(ASKED.to_json())
    await asyncio.sleep(1.0)
    assert scheduler.loop.limits == ASKED
    running.submit(Job(Sequence(100, 4, clock()), Nobody(), 4))
    await running.idle()
    assert scheduler.loop.ledger.own.good == 1
    task.cancel()


class Nobody:
    """Reads no tokens."""

    def token(self) -> None: ...
    def finish(self) -> None: ...
    def fail(self, message: str) -> None: ...


def test_the_scheduler_class_turns_it_on_as_in_vllm() -> None:
    def files(*flags: str, **environment: str) -> tuple[str, ...] | None:
        return parse_options(["--model=m", *flags], environment)[0].engine_limits

    own = f"--scheduler-cls={SCHEDULER_CLASS}"
    assert files() is None
    assert files(HOLDFAST_ENGINE_LIMITS="/a") is None
    assert files(own) == tuple(DEFAULT_LIMITS.split(":"))
    assert files(own, HOLDFAST_ENGINE_LIMITS="/a:/b") == ("/a", "/b")
    assert files("--engine-limits=/c", HOLDFAST_ENGINE_LIMITS="/a") == ("/c",)
    assert files(HOLDFAST_EMULATE_ENGINE_LIMITS="/d") == ("/d",)


def test_another_scheduler_class_is_refused() -> None:
    with pytest.raises(BadOptions, match="only holdfast_engine"):
        parse_options(["--model=m", "--scheduler-cls=other.Scheduler"], {})


@pytest.mark.parametrize("overload", list(Overload))
def test_an_api_server_that_is_behind_does_not_make_all_requests_late(overload: Overload) -> None:
    """The cell in which an H100 served 0.2 C: 74 requests per second, where it carries 37 and can read about 138."""
    replica = Replica((MODEL, "h100"), SHORT, SHARP, 1200, 1, 1.3, BUSY_FRONT_END)
    run = replica.plugin(overload, 2.0 * 37.1, 0)
    assert run.goodput > 0.75 * 37.1
