"""So many streams under way at any time: the next one starts where one ends."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import statistics
import threading
import time
import types
from typing import Self

from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record
from e2e.patience import patient


class Streams:
    """A context manager; on leaving, what is under way is awaited. Each request comes over a new connection."""

    def __init__(self, settings: ClientSettings, streams: int, prompt_tokens: int, output_tokens: int) -> None:
        self.records: list[Record] = []
        self._settings = dataclasses.replace(settings, connections=0)
        self._streams, self._lengths = streams, (prompt_tokens, output_tokens)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="streams")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def tpot_seconds(self, requests: int, seconds: float = 120.0) -> float:
        """Mean time per output token of so many requests that are sent from now on; waits for them."""
        since, deadline = time.time(), time.monotonic() + patient(seconds)
        while True:
            ended = [_tpot(record) for record in self.records if record.sent_at > since and record.status == "ok"]
            if len(ended) >= requests:
                return statistics.fmean(ended)
            assert time.monotonic() < deadline, f"{len(ended)} of {requests} requests ended in {patient(seconds):.0f} s"
            time.sleep(0.25)

    def least_tpot_seconds(self, requests: int, enough: float, rounds: int = 3) -> float:
        """The least of some rounds, none after one below `enough`: a neighbour that begins meanwhile only ever adds."""
        least = math.inf
        for _ in range(rounds):
            least = min(least, self.tpot_seconds(requests))
            if least < enough:
                break
        return least

    async def _play(self) -> None:
        async with LoadClient(self._settings, self.records.append) as client:
            await client.reach()
            await asyncio.gather(*(self._one_after_the_other(client) for _ in range(self._streams)))

    async def _one_after_the_other(self, client: LoadClient) -> None:
        while not self._stop.is_set():
            await client.request(*self._lengths)


def _tpot(record: Record) -> float:
    assert record.first_token_at is not None
    return (record.finished_at - record.first_token_at) / (record.output_tokens - 1)
