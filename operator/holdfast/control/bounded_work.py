"""Requests about many objects in one tick: bounded, and some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_IN_A_TICK = 200
"""Maximum items of one tick; later ticks do the rest."""
_CONCURRENCY = 8


async def do_each(due: Sequence[T], do: Callable[[T], Awaitable[None]], most: int = MOST_IN_A_TICK) -> None:
    """Do the work for the first `most` items, some at a time; the first error ends the work for all."""
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def in_a_slot(item: T) -> None:
        async with slots:
            await do(item)

    doing = [asyncio.create_task(in_a_slot(item)) for item in due[:most]]
    try:
        await asyncio.gather(*doing)
    finally:
        for task in doing:
            task.cancel()
