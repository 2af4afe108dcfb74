"""Lets go of what a watch showed and nobody reads again.

At the start kopf holds the body of every object until all kinds are listed, and each for a while more. With a thousand
services those are ten thousand bodies of 50 kB, of which the indices keep a hundredth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import kopf

T = TypeVar("T")

Index = Callable[..., Awaitable[T]]


def after(index: Index[T], *parts: str) -> Index[T]:
    """Return the index that empties these parts of a body, and the bookkeeping of its fields, once it has read it.

    Not after an error: then the same body may be read again.
    """

    async def reading(body: kopf.Body, **known: Any) -> T:
        found = await index(body=body, **known)
        body["metadata"].pop("managedFields", None)
        for part in parts:
            content = body.get(part)
            if isinstance(content, dict):
                content.clear()
        return found

    return reading
