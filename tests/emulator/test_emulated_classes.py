"""Classes in the emulator: who may claim one, and how its requests are ordered, judged and counted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.emulator.fast_loop import FastLoopScheduler
from holdfast.enginemodel.replay import ReplayClock
from holdfast.enginemodel.scheduler import SamplingParams, SchedulerLimits, Sequence, SequenceStatus
from holdfast.enginemodel.steplaw import StepLaw
from holdfast_engine.law.arithmetic import Law
from holdfast_engine.objectives.claims import header_key
from holdfast_engine.objectives.limits import LimitsFiles
from holdfast_engine.objectives.rules import UNBOUNDED, Claim, Kind, Limits, Objectives, RequestClass
from tests.emulator.emulator_builders import MODEL, Client, engine

LAW = StepLaw(c0=0.01, c1=1e-4, c2=5e-4, c3=1e-7, c4=0.0)
PRIOR = Law(LAW.c0, LAW.c1, LAW.c2, LAW.c3, LAW.c4)
STOCK = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=512, kv_tokens=20_000)
EASY = Objectives(60.0, 60.0)
TIGHT = RequestClass("tight", Objectives(0.5, 0.05), priority=10)
NIGHTLY = RequestClass("nightly", UNBOUNDED, kind=Kind.BATCH)
NEVER = RequestClass("never", Objectives(60.0, 1e-9))
SQL = RequestClass("sql", EASY, adapter=True)
DECLARED = Limits(1, EASY, classes=(RequestClass("tight", EASY), NEVER, SQL, NIGHTLY))
POD = "a word of the pod"


async def post(client: Client, headers: list[tuple[str, str]], **fields: Any) -> int:
    body = {"model": MODEL, "prompt": "a b", "max_tokens": 4, **fields}
    async with client.session.post(client.base + "/v1/completions", json=body, headers=headers) as answer:
        return answer.status


async def counted(client: Client, name: str) -> dict[str, float]:
    classes = ("tight", "never", "sql", "")
    return {each: await client.value(f"holdfast:requests_{name}_total", **{"class": each}) for each in classes}


def written(folder: Path, limits: Limits) -> tuple[str]:
    path = folder / "engine-limits"
    path.write_text(limits.to_json())
    return (str(path),)


async def test_each_request_is_counted_in_the_class_that_its_header_claims(tmp_path: Path) -> None:
    async with engine(engine_limits=written(tmp_path, DECLARED)) as client:
        for headers in (
            [("X-SLO-Class", "tight")],
            [("x-slo-class", "tight"), ("x-gateway-inference-objective", "never")],
            [("x-gateway-inference-objective", "never")],
            [("x-slo-class", "tight"), ("x-slo-class", "never")],
            [("x-slo-class", "sql")],
            [("x-slo-class", "unheard-of")],
            [],
        ):
            assert await post(client, headers, vllm_xargs={"slo_class": "tight"}) == 200
        assert await counted(client, "arrived") == {"tight": 2, "never": 1, "sql": 0, "": 4}
        assert await counted(client, "good") == {"tight": 2, "never": 0, "sql": 0, "": 4}


@pytest.mark.parametrize(
    ("claim", "named"), [(Claim.BODY, {"tight": 1, "never": 1, "": 0}), (Claim.NONE, {"tight": 0, "never": 0, "": 2})]
)
async def test_a_body_claims_a_class_where_the_limits_say_so(
    claim: Claim, named: dict[str, float], tmp_path: Path
) -> None:
    async with engine(engine_limits=written(tmp_path, replace(DECLARED, claim=claim))) as client:
        assert await post(client, [], vllm_xargs={"slo_class": "tight"}) == 200
        assert await post(client, [("x-slo-class", "never")], vllm_xargs={"slo_class": "tight"}) == 200
        assert await counted(client, "arrived") == {"sql": 0, **named}


async def test_arguments_that_are_no_object_are_refused_as_by_vllm() -> None:
    async with engine() as client:
        assert await post(client, [], vllm_xargs="tight") == 400
        assert await post(client, [], vllm_xargs=None) == 200


async def test_a_full_queue_of_a_lower_class_turns_away_that_class_alone(tmp_path: Path) -> None:
    limits = Limits(1, EASY, 1, adapt=False, max_queued_requests=1, classes=(TIGHT,))
    async with engine(engine_limits=written(tmp_path, limits), speed=1.0) as client, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(client.post(prompt="a", max_tokens=20_000))
        while await client.value("vllm:num_requests_running") == 0:
            await asyncio.sleep(0)
        waiting = tasks.create_task(post(client, []))
        while await client.value("vllm:num_requests_waiting") == 0:
            await asyncio.sleep(0)
        assert await post(client, []) == 503
        behind = tasks.create_task(post(client, [("x-slo-class", "tight")]))
        while await client.value("vllm:num_requests_waiting") < 2:
            await asyncio.sleep(0)
        assert await post(client, [("x-slo-class", "tight")]) == 503
        refused = [
            await client.value("holdfast:requests_bad_total", cause="rejected", **{"class": name})
            for name in ("", "tight")
        ]
        assert refused == [1, 1]
        for task in (running, waiting, behind):
            task.cancel()


async def test_batch_is_counted_by_itself(tmp_path: Path) -> None:
    async with engine(engine_limits=written(tmp_path, DECLARED)) as client:
        assert await post(client, [("x-slo-class", "nightly")]) == 200
        assert await client.value("holdfast:batch_requests_ended_total", outcome="done") == 1
        assert await client.value("holdfast:requests_arrived_total") == 0


class Replayed:
    """A scheduler in simulated time, whose requests name their class."""

    def __init__(self, folder: Path, limits: Limits, stock: SchedulerLimits = STOCK) -> None:
        self.clock = ReplayClock()
        files = LimitsFiles([Path(*written(folder, limits))])
        self.scheduler = FastLoopScheduler(stock, files, self.clock, own_name=POD)

    def add(self, name: str, prompt_tokens: int, output_tokens: int) -> Sequence:
        sequence = Sequence(prompt_tokens, output_tokens, self.clock.now)
        sequence.sampling_params = SamplingParams({header_key(POD): name} if name else None)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> int:
        """Run one step; returns how many it preempted."""
        plan = self.scheduler.step(self.clock.now)
        self.clock.now += plan.seconds(LAW)
        self.scheduler.complete(plan, self.clock.now)
        return len(plan.preempted)

    def good(self, name: str) -> float:
        """Good requests of a class / all of it that arrived."""
        numbers = self.scheduler.class_numbers()[name]
        return numbers["good"] / numbers["arrived"]


def test_a_tight_class_stays_in_time_in_an_overload_in_which_bulk_waits(tmp_path: Path) -> None:
    limits = Limits(1, Objectives(2.0, 0.05), classes=(TIGHT,), prior=PRIOR)
    replayed, draw, due = Replayed(tmp_path, limits), random.Random(1), 0.0
    while due < 60.0 or replayed.scheduler.unfinished:
        while due <= replayed.clock.now and due < 60.0:
            replayed.add(draw.choice(("tight", "", "", "")), draw.randint(20, 600), draw.randint(20, 80))
            due += draw.expovariate(30.0)
        if replayed.scheduler.unfinished:
            replayed.step()
        else:
            replayed.clock.now = due
    assert replayed.good("tight") > 0.98
    assert replayed.good("") < 0.5


def test_batch_runs_in_what_others_leave_and_is_preempted_for_them(tmp_path: Path) -> None:
    limits = Limits(1, Objectives(2.0, 0.05), 4, classes=(NIGHTLY,))
    replayed = Replayed(tmp_path, limits)
    batch = [replayed.add("nightly", 100, 200) for _ in range(8)]
    for _ in range(20):
        replayed.step()
    assert sum(each.status is SequenceStatus.RUNNING for each in batch) >= 2
    others = [replayed.add("", 100, 20) for _ in range(4)]
    preempted = replayed.step()
    assert preempted == sum(each.preemptions for each in batch) > 0
    assert all(each.status is SequenceStatus.RUNNING for each in others)
    while replayed.scheduler.unfinished:
        replayed.step()
    assert [each.generated for each in batch] == [200] * 8
    assert replayed.scheduler.class_numbers()["nightly"]["good"] == 8
    assert replayed.good("") == 1.0
    assert replayed.scheduler.free_blocks == replayed.scheduler.total_blocks
