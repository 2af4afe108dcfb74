"""Writes to many pods in one tick: bounded, and some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_WRITES = 200
"""Maximum pods written in one tick; later ticks write the rest."""
_CONCURRENCY = 8


async def write_each(due: Sequence[T], write: Callable[[T], Awaitable[None]]) -> None:
    """Write the first `MOST_WRITES` of those that are due; the first error of a write ends all."""
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def in_a_slot(item: T) -> None:
        async with slots:
            await write(item)

    writing = [asyncio.create_task(in_a_slot(item)) for item in due[:MOST_WRITES]]
    try:
        await asyncio.gather(*writing)
    finally:
        for task in writing:
            task.cancel()
