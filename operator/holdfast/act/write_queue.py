"""Background writes: a tick does not take longer if many of them are due at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.act.api import ApiError, ApiUnreachable, NotLeading
from holdfast.domain.service import ServiceKey

_LOG = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class WriteQueue:
    """Runs writes one after the other; a newer write for the same service replaces an older one.

    A failure is only logged: the caller finds the write missing at its next check, and queues it again.
    """

    def __init__(self) -> None:
        self._waiting: dict[ServiceKey, Write] = {}
        self._under_way: ServiceKey | None = None
        self._writing = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None

    def put(self, key: ServiceKey, write: Write) -> None:
        """Queue this write."""
        self._waiting[key] = write
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def drop(self, key: ServiceKey) -> None:
        """Drop the queued write of a service."""
        self._waiting.pop(key, None)

    async def displace(self, key: ServiceKey) -> None:
        """Drop the queued write of a service and wait for the one in progress: no older write follows this call."""
        self.drop(key)
        if self._under_way == key:
            async with self._writing:
                pass

    async def settle(self) -> None:
        """Wait until everything has been written or has failed."""
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            write = self._waiting.pop(key)
            try:
                async with self._writing:
                    self._under_way = key
                    await write()
            except (ApiError, ApiUnreachable, NotLeading) as error:
                _LOG.warning("%s: %s", key, error)
            finally:
                self._under_way = None
