"""Writes that nobody waits for: a tick does not take longer because many of them fall due at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.act.api import ApiError, ApiUnreachable, NotLeading
from holdfast.domain.service import ServiceKey

_LOG = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class Later:
    """Makes writes one after the other; a newer one for the same service takes the place of an older one.

    What fails is only logged: whoever wanted it finds it missing at the next look, and asks again.
    """

    def __init__(self) -> None:
        self._waiting: dict[ServiceKey, Write] = {}
        self._under_way: ServiceKey | None = None
        self._writing = asyncio.Lock()
        self._worker: asyncio.Task[None] | None = None

    def put(self, key: ServiceKey, write: Write) -> None:
        """Make this write soon."""
        self._waiting[key] = write
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    def drop(self, key: ServiceKey) -> None:
        """Forget what waits for a service."""
        self._waiting.pop(key, None)

    async def displace(self, key: ServiceKey) -> None:
        """Forget what waits for a service, and let what is under way for it end: nothing older comes after this."""
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
