"""Asks activators what they hold. It asks at each tick: a scrape would come seconds later, while a request waits."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from holdfast.domain.activator import SILENT, WAIT_EDGES, Activator, Waits
from holdfast.domain.service import ServiceKey
from holdfast.rendered.names import activator_url

_TIMEOUT_SECONDS = 2.0
_AT_ONCE = 256
_MOST_BYTES = 65_536
_MOST = 10**12


class ActivatorSource(Protocol):
    """Source of activator states. An activator that does not answer is a state: no method raises because of it."""

    async def look(self, keys: Sequence[ServiceKey]) -> Mapping[ServiceKey, Activator]:
        """Return what the activator of each service reports; services without an activator are omitted."""
        ...


class NoActivators:
    """Used when the operator has no activator image."""

    async def look(self, keys: Sequence[ServiceKey]) -> Mapping[ServiceKey, Activator]:
        return {}


class ActivatorClient:
    """Asks each activator over HTTP, through its Service."""

    def __init__(self, address: Callable[[str, str], str] = activator_url) -> None:
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def look(self, keys: Sequence[ServiceKey]) -> Mapping[ServiceKey, Activator]:
        return dict(zip(keys, await asyncio.gather(*map(self._ask, keys)), strict=True)) if keys else {}

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, key: ServiceKey) -> Activator:
        if self._session is None:
            # A new connection for each question: a kept-alive one would still lead to a pod that is being replaced.
            # The semaphore bounds how many. An activator that waits for it was not asked yet, so it is not silent.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        try:
            async with (
                self._places,
                asyncio.timeout(_TIMEOUT_SECONDS),
                self._session.get(self._address(key.namespace, key.name), allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    return SILENT
                return read(json.loads(await answer.content.read(_MOST_BYTES)))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
            return SILENT


def read(reported: Any) -> Activator:
    """Parse what an activator reports. Raises ValueError if that makes no sense."""
    try:
        if reported["edges_seconds"] != [edge for edge in WAIT_EDGES if math.isfinite(edge)]:
            raise ValueError("its histogram has other buckets: the activator of another version, about to be replaced")
        quiet = reported["quiet_seconds"]
        return Activator(
            answers=True,
            boot=str(reported["boot"])[:64],
            waiting=_count(reported["waiting"]),
            oldest_seconds=_seconds(reported["oldest_seconds"]),
            quiet_seconds=math.inf if quiet is None else _seconds(quiet),
            forwarded=_waits(reported["forwarded"]),
            gone=_waits(reported["gone"]),
            turned_away=_count(reported["turned_away"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a valid answer of an activator: {error!r}") from error


def _waits(reported: Sequence[Any]) -> Waits:
    counts = tuple(map(_count, reported))
    if len(counts) != len(WAIT_EDGES):
        raise ValueError("the number of counts differs from the number of buckets")
    return counts


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} is not a count")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not 0.0 <= value < _MOST:
        raise ValueError(f"{value!r} is not a time")
    return float(value)
