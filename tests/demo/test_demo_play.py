"""A short load from the first arrival to the files on disk, with a made-up API and a fake engine."""

import asyncio
import dataclasses
import io
import pathlib
import time
from typing import Any

import pytest
from rich.console import Console

from e2e.cluster.apiclient import ApiError
from e2e.demo import run
from e2e.demo.play import Side, play
from e2e.load.client import ClientSettings
from e2e.load.trace import Arrival
from tests.demo.demo_runs import FACTS
from tests.fakes import FakeOpenAIServer


class OnePod:
    """An API with one ready pod and one Event; every seventh read fails as a busy API server would."""

    def __init__(self) -> None:
        self.reads = 0

    def get(self, path: str, seconds: float = 10.0) -> Any:
        self.reads += 1
        if self.reads % 7 == 0:
            raise ApiError(503, "busy")
        if "/llmservices/" in path:
            return {"status": {}}
        stamp = "2026-11-21T05:00:00Z"
        metadata = {"name": "chat-0", "creationTimestamp": stamp}
        if "/events?" in path:
            return {"items": [{"metadata": metadata, "reason": "FirstSize", "message": "Create: 1", "type": "Normal"}]}
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": stamp}
        return {"items": [{"metadata": metadata, "status": {"phase": "Running", "conditions": [condition]}}]}


def facts() -> run.Facts:
    """Return facts of a load that begins and ends at once."""
    scenario = dataclasses.replace(FACTS.scenario, before_seconds=0.2, step_seconds=0.2, after_seconds=0.2)
    return dataclasses.replace(FACTS, scenario=scenario, start=time.time())


async def test_a_load_leaves_records_samples_and_its_true_start(tmp_path: pathlib.Path) -> None:
    arrivals = [Arrival(0.05 * k, 10, 3) for k in range(12)]
    planned, begun = facts(), time.time()
    async with FakeOpenAIServer(["ok", "reject"]) as server:
        side = Side(planned, ClientSettings(server.url, "chat"), tmp_path)
        await play([side], arrivals, OnePod(), Console(file=io.StringIO()), 0.05, 0.0)
    finished = run.read(tmp_path)
    assert begun < finished.facts.start < time.time()
    assert finished.facts == dataclasses.replace(planned, start=finished.facts.start)
    assert finished.comparison is None
    assert [record.status for record in finished.records].count("ok") == 11
    assert finished.verdict.rejected == 1
    assert finished.samples[0].count("ready") == 1
    assert [decision.reason for decision in finished.decisions] == ["FirstSize"]


async def test_two_services_get_the_same_load_at_the_same_moments(tmp_path: pathlib.Path) -> None:
    arrivals = [Arrival(0.05 * k, 10, 3) for k in range(8)]
    folders = (tmp_path, tmp_path / run.COMPARISON)
    async with FakeOpenAIServer() as one, FakeOpenAIServer(["reject"]) as other:
        sides = [
            Side(facts(), ClientSettings(server.url, "chat"), folder)
            for server, folder in zip((one, other), folders, strict=True)
        ]
        await play(sides, arrivals, OnePod(), Console(file=io.StringIO()), 0.05, 0.0)
    finished = run.read(tmp_path)
    assert finished.comparison is not None
    assert finished.comparison.facts.start == finished.facts.start
    assert [record.scheduled_at for record in sorted(finished.records, key=lambda record: record.index)] == [
        record.scheduled_at for record in sorted(finished.comparison.records, key=lambda record: record.index)
    ]
    assert (finished.verdict.rejected, finished.comparison.verdict.rejected) == (0, 1)


async def test_a_load_that_is_stopped_leaves_what_was_seen(tmp_path: pathlib.Path) -> None:
    arrivals = [Arrival(0.01, 10, 3), *(Arrival(3600.0 + k, 10, 3) for k in range(5))]
    scenario = dataclasses.replace(FACTS.scenario, before_seconds=4000.0)
    planned = dataclasses.replace(FACTS, scenario=scenario)
    async with FakeOpenAIServer() as server:
        side = Side(planned, ClientSettings(server.url, "chat"), tmp_path)
        playing = asyncio.create_task(play([side], arrivals, OnePod(), Console(file=io.StringIO()), 0.05))
        while not server.bodies or not (tmp_path / run.RECORDS).read_text():
            await asyncio.sleep(0.02)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    stopped = run.read(tmp_path)
    assert [record.status for record in stopped.records] == ["ok"]
    assert not stopped.complete
