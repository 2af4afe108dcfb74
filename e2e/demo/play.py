"""Play the load against the service while watching it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from rich.console import Console

from e2e.cluster.apiclient import ApiError
from e2e.demo import run
from e2e.demo.board import Board
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


async def play(
    facts: Facts,
    arrivals: Sequence[Arrival],
    settings: ClientSettings,
    api: Api,
    folder: pathlib.Path,
    console: Console,
    lead_seconds: float = LEAD_SECONDS,
    last_looks_seconds: float = LAST_LOOKS_SECONDS,
) -> Facts:
    """Send the load and leave records and samples in `folder`; return the facts with the true start.

    What was seen until then is on disk also when this is cancelled.
    """
    with RecordWriter(folder / run.RECORDS) as writer, Journal(folder / run.SAMPLES) as journal:
        async with LoadClient(settings) as client:
            started = dataclasses.replace(facts, start=client.now() + lead_seconds)
            run.write_facts(folder, started)
            board = Board(facts.scenario, facts.objectives, facts.cold_start_seconds, started.start)
            board.arrivals = arrivals
            client.on_record = _keeper(board, writer)
            watcher = _watcher(facts, api, board, journal)
            await _look(watcher, client)
            with LiveView(console) as view:
                watching = asyncio.create_task(_watch(watcher, client))
                showing = asyncio.create_task(_show(view, board, client))
                try:
                    await client.run(arrivals, started.start)
                    await asyncio.sleep(last_looks_seconds)
                finally:
                    await _stop(watching, showing)
                    view.show(board.view(client.now()))
    return started


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


async def _watch(watcher: Watcher, client: LoadClient) -> None:
    while True:
        await _look(watcher, client)
        await asyncio.sleep(SAMPLE_SECONDS)


async def _look(watcher: Watcher, client: LoadClient) -> None:
    # An API server that is busy for a moment costs one sample, not the run.
    with contextlib.suppress(OSError, ApiError):
        await asyncio.to_thread(watcher.look, client.now())


async def _show(view: LiveView, board: Board, client: LoadClient) -> None:
    while True:
        view.show(board.view(client.now()))
        await asyncio.sleep(REFRESH_SECONDS)


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for stopped in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(stopped, Exception):
            raise stopped
