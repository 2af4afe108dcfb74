"""Holdfast's own load generator: an open-loop, streaming client that keeps the time of every event."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin

import numpy as np

from holdfast.tools.bench.figures.definitions import percentile
from holdfast.tools.bench.generators.connections import Connections, Origin
from holdfast.tools.bench.generators.flight import Flight
from holdfast.tools.bench.generators.requests import RequestBuilder
from holdfast.tools.bench.load.load_generator import Client, Endpoint, Load, Planned, Run
from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord

MOST_REDIRECTS = 5
LAG_SECONDS = 0.02
"""How often the client looks whether it keeps up with its events."""


class OwnGenerator:
    """Behind the load port; one core, no threads."""

    async def run(self, endpoint: Endpoint, load: Load, ended: Callable[[RequestRecord], None]) -> Run:
        """Send all of it and wait for the answers."""
        with _few_collections():
            sender = _Sender(endpoint, load, ended)
            watch = _LagWatch()
            wall, cpu = time.monotonic(), time.process_time()
            watching = asyncio.create_task(watch.run())
            try:
                records = await sender.run()
            finally:
                watching.cancel()
                sender.close()
            share = (time.process_time() - cpu) / max(time.monotonic() - wall, 1e-9)
        late_p99, seconds = lateness_p99_seconds(records), time.monotonic() - wall
        lag_p99 = delay_exceeded(watch.lags, seconds, 0.01)
        client = Client(late_p99, lag_p99, max(watch.lags, default=0.0), share, sender.kernel_times)
        return Run(tuple(records), client, "holdfast")


def as_recorded(records: Sequence[RequestRecord]) -> Client:
    """What records still tell of the client that made them: how late requests left, not how late events were read."""
    return Client(lateness_p99_seconds(records), math.nan, math.nan, math.nan)


def lateness_p99_seconds(records: Iterable[RequestRecord]) -> float:
    """Seconds by which 1 % of requests left late; what has no time on one clock says nothing of the client."""
    late = [record.lateness_seconds for record in records]
    return percentile(np.array([seconds for seconds in late if math.isfinite(seconds)], np.float64), 0.99)


def delay_exceeded(lags: Sequence[float], seconds: float, share: float) -> float:
    """The delay that this share of events exceeds: one that comes in the midst of a stall waits for the rest of it.

    A stall is one of few looks, but nearly all that comes in it is late: shares are of time, not of looks.
    """
    stalls = np.sort(np.asarray(lags, np.float64))[::-1]
    # More than x late are sum(stall - x) of all seconds, over the stalls longer than x: linear between two stalls.
    longer = np.cumsum(stalls)
    for count, (total, following) in enumerate(zip(longer, np.append(stalls, 0.0)[1:], strict=True), start=1):
        delay = (total - share * seconds) / count
        if delay >= following:
            return float(max(delay, 0.0))
    return 0.0


class _LagWatch:
    """How late the event loop wakes a timer: as late it reads what comes from the endpoint."""

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.lags.append(max(0.0, loop.time() - due))


class _Sender:
    """One run."""

    def __init__(self, endpoint: Endpoint, load: Load, ended: Callable[[RequestRecord], None]) -> None:
        self._endpoint, self._load, self._ended = endpoint, load, ended
        self._requests = RequestBuilder(endpoint, load.seed)
        self._connections = Connections(endpoint.ca_file)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._records: list[RequestRecord] = []
        self._flights: set[Flight] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> list[RequestRecord]:
        """Send, drain, and return the records in the order of their numbers."""
        load = self._load
        if load.batches:
            await self._in_batches()
        elif load.concurrency:
            await self._closed()
        else:
            await self._open()
        await self._drain()
        return sorted(self._records, key=lambda record: record.index)

    @property
    def kernel_times(self) -> bool:
        """Whether every connection said when its bytes came."""
        return 0 < self._connections.opened == self._connections.stamped

    def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()
        self._connections.close()

    async def _open(self) -> None:
        start = self._loop.time()
        for planned in self._load.planned:
            # Built before it is due, so that a long prompt does not delay its own sending.
            index, due = next(self._numbers), start + planned.at_seconds
            body = self._requests.build(index, planned)
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            else:
                await asyncio.sleep(0)
            if self._load.stopped():
                return
            self._start(self._play(index, planned, due, body))

    async def _closed(self) -> None:
        planned = iter(self._load.planned)
        stop = self._loop.time() + self._load.stop_after_seconds

        async def one_after_the_other() -> None:
            for each in planned:
                if self._loop.time() >= stop:
                    return
                await self._play_now(each)

        workers = [asyncio.create_task(one_after_the_other()) for _ in range(self._load.concurrency)]
        self._tasks.update(workers)
        for worker in workers:
            worker.add_done_callback(self._tasks.discard)
        seconds = self._load.stop_after_seconds
        await asyncio.wait(workers, timeout=seconds if math.isfinite(seconds) else None)

    async def _in_batches(self) -> None:
        planned = iter(self._load.planned)
        while batch := list(itertools.islice(planned, self._load.concurrency)):
            await asyncio.gather(*(self._play_now(each) for each in batch))

    async def _play_now(self, planned: Planned) -> None:
        index = next(self._numbers)
        body = self._requests.build(index, planned)
        await self._play(index, planned, self._loop.time(), body)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        """Wait for what is under way, then count the rest as unfinished."""
        # What was started a moment ago takes its first step, and with it becomes a request that counts.
        await asyncio.sleep(0)
        if self._tasks and not self._load.stopped():
            await asyncio.wait(tuple(self._tasks), timeout=self._load.drain_seconds)
        for flight in tuple(self._flights):
            flight.now = self._loop.time()
            flight.fail(RequestOutcome.UNFINISHED, "under way at the end of the run")
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _play(self, index: int, planned: Planned, due: float, body: bytes) -> None:
        flight = Flight(index, planned, due, self._loop.create_future(), self._requests.slo_class(index))
        self._flights.add(flight)
        flight.sent_at = flight.now = self._loop.time()
        limit = self._loop.call_later(self._endpoint.timeout_seconds, self._time_out, flight)
        try:
            await self._fly(flight, body)
        finally:
            limit.cancel()
            self._flights.discard(flight)
            record = flight.record()
            self._records.append(record)
            self._ended(record)

    async def _fly(self, flight: Flight, body: bytes) -> None:
        """Send; again where a connection had been closed under the request, or where the answer redirects."""
        url, fresh = self._requests.url, False
        for _ in range(MOST_REDIRECTS + 2):
            reused = await self._send(flight, url, body, fresh)
            if target := _target(url, flight):
                url = target
            elif reused and flight.outcome is RequestOutcome.UNREACHABLE and not flight.retried:
                # An idle connection may be closed as a request is written to it; every HTTP client repeats that.
                flight.retried = fresh = True
            else:
                return
            flight.restart(self._loop.create_future())
        flight.fail(RequestOutcome.HTTP_ERROR, f"more than {MOST_REDIRECTS} redirects")

    async def _send(self, flight: Flight, url: str, body: bytes, fresh: bool) -> bool:
        """One try; whether it went over a connection that had been used before."""
        origin = Origin.of(url)
        connection = None if fresh else self._connections.idle(origin)
        flight.new_connection = connection is None
        if connection is None:
            try:
                connection = await self._connections.connect(origin)
            except (OSError, UnicodeError) as problem:
                flight.now = self._loop.time()
                flight.fail(RequestOutcome.UNREACHABLE, f"no connection to {origin.host}:{origin.port}: {problem}")
                return False
        if flight.done.done():
            connection.close()
            return False
        connection.ask(flight, self._requests.framed(url, flight.index, body))
        await flight.done
        if flight.outcome in (RequestOutcome.TIMED_OUT, RequestOutcome.UNFINISHED):
            connection.close()
        return not flight.new_connection

    def _time_out(self, flight: Flight) -> None:
        flight.now = self._loop.time()
        flight.fail(RequestOutcome.TIMED_OUT, f"not complete after {self._endpoint.timeout_seconds:g} s")


def _target(url: str, flight: Flight) -> str:
    """Where an answer sends its request, empty where it does not, or to nowhere."""
    if not flight.redirect or flight.outcome is not RequestOutcome.HTTP_ERROR:
        return ""
    try:
        target = urljoin(url, flight.redirect)
        return target if target.startswith(("http://", "https://")) and Origin.of(target).host else ""
    except ValueError:
        return ""


@contextmanager
def _few_collections() -> Iterator[None]:
    """What lives now is no garbage: a full collection would stop the client for tens of milliseconds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
