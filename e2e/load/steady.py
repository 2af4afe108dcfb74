"""A load that goes on beside a test, at a rate the test may change, until the test has seen what it waits for."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import types
from typing import Self

from e2e.load.client import ClientSettings, LoadClient
from e2e.load.records import Record
from e2e.patience import patient

USUAL_PROMPT_TOKENS, USUAL_OUTPUT_TOKENS = 1155, 211
"""Means of the Azure conversation trace: what the operator assumes of a service before its first request."""


class SteadyLoad:
    """Evenly spaced requests, every other one over a keep-alive connection, the others each over a new one.

    A context manager; on leaving, what is under way is awaited. `records` fills up as requests finish.
    """

    def __init__(self, url: str, model: str, rate_rps: float, keep_alive_connections: int = 4) -> None:
        self.rate_rps = rate_rps
        self.records: list[Record] = []
        self._url, self._model, self._connections = url, model, keep_alive_connections
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    async def _play(self) -> None:
        kept = ClientSettings(self._url, self._model, self._connections, timeout_seconds=patient(120.0))
        fresh = dataclasses.replace(kept, connections=0)
        async with LoadClient(kept, self.records.append) as first, LoadClient(fresh, self.records.append) as second:
            await first.reach()
            running: list[asyncio.Task[Record]] = []
            while not self._stop.is_set():
                client = (first, second)[len(running) % 2]
                running.append(asyncio.create_task(client.request(USUAL_PROMPT_TOKENS, USUAL_OUTPUT_TOKENS)))
                await asyncio.sleep(1.0 / self.rate_rps)
            await asyncio.gather(*running)
