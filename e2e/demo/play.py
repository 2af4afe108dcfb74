"""Play one load against one service or several at once while watching them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence

from rich.console import Console

from e2e.cluster.apiclient import ApiError
from e2e.demo import run
from e2e.demo.board import Board, View
from e2e.demo.journal import Journal
from e2e.demo.live import LiveView
from e2e.demo.run import Facts
from e2e.demo.watch import Api, Decision, Sample, Watcher
from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record, RecordWriter
from e2e.load.trace import Arrival

SAMPLE_SECONDS = 1.0
REFRESH_SECONDS = 0.5
LEAD_SECONDS = 2.0
LAST_LOOKS_SECONDS = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One service under the load, and the folder in which what is seen of it is kept."""

    facts: Facts
    settings: ClientSettings
    folder: pathlib.Path


@dataclasses.dataclass(frozen=True, slots=True)
class _Stage:
    """A side whose files and connections are open."""

    client: LoadClient
    board: Board
    watcher: Watcher
    start: float

    def view(self) -> View:
        return self.board.view(self.client.now())

    async def send(self, arrivals: Sequence[Arrival]) -> None:
        await self.client.run(arrivals, self.start)

    async def look(self) -> None:
        # An API server that is busy for a moment costs one sample, not the run.
        with contextlib.suppress(OSError, ApiError):
            await asyncio.to_thread(self.watcher.look, self.client.now())


async def play(
    sides: Sequence[Side],
    arrivals: Sequence[Arrival],
    api: Api,
    console: Console,
    lead_seconds: float = LEAD_SECONDS,
    last_looks_seconds: float = LAST_LOOKS_SECONDS,
) -> None:
    """Send the load to every side at the same moments, show the first, and leave each side's records in its folder.

    What was seen until then is on disk also when this is cancelled, with the true start among the facts.
    """
    async with contextlib.AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(LoadClient(side.settings)) for side in sides]
        await asyncio.gather(*(client.reach() for client in clients))
        start = clients[0].now() + lead_seconds
        stages = [
            await opened.enter_async_context(_staged(side, client, arrivals, api, start))
            for side, client in zip(sides, clients, strict=True)
        ]
        for stage in stages:
            await stage.look()
        view = opened.enter_context(LiveView(console))
        background = [asyncio.create_task(_watch(stage)) for stage in stages]
        background.append(asyncio.create_task(_show(view, stages)))
        try:
            async with asyncio.TaskGroup() as load:
                for stage in stages:
                    load.create_task(stage.send(arrivals))
            await asyncio.sleep(last_looks_seconds)
        finally:
            await _stop(*background)
            view.show(*(stage.view() for stage in stages))


@contextlib.asynccontextmanager
async def _staged(
    side: Side, client: LoadClient, arrivals: Sequence[Arrival], api: Api, start: float
) -> AsyncIterator[_Stage]:
    with RecordWriter(side.folder / run.RECORDS) as writer, Journal(side.folder / run.SAMPLES) as journal:
        facts = dataclasses.replace(side.facts, start=start)
        run.write_facts(side.folder, facts)
        board = Board(facts.scenario, facts.objectives, facts.cold_start_seconds, start)
        board.arrivals = arrivals
        client.on_record = _keeper(board, writer)
        yield _Stage(client, board, _watcher(facts, api, board, journal), start)


def _keeper(board: Board, writer: RecordWriter) -> Callable[[Record], None]:
    def keep(record: Record) -> None:
        board.records.append(record)
        writer.write(record)

    return keep


def _watcher(facts: Facts, api: Api, board: Board, journal: Journal) -> Watcher:
    def on_sample(sample: Sample) -> None:
        board.sample = sample
        journal.sample(sample)

    def on_decision(decision: Decision) -> None:
        board.decisions.append(decision)
        journal.decision(decision)

    namespace, _, name = facts.service.partition("/")
    return Watcher(api, namespace, name, on_sample, on_decision)


async def _watch(stage: _Stage) -> None:
    while True:
        await stage.look()
        await asyncio.sleep(SAMPLE_SECONDS)


async def _show(view: LiveView, stages: Sequence[_Stage]) -> None:
    while True:
        view.show(*(stage.view() for stage in stages))
        await asyncio.sleep(REFRESH_SECONDS)


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for stopped in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(stopped, Exception):
            raise stopped
