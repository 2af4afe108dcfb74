"""Frees the parts of watched objects that are not read again.

At the start kopf holds the body of every object until all kinds are listed, and each for a while longer. A thousand
services have ten thousand bodies of 50 kB; the indices need one hundredth of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import kopf

T = TypeVar("T")

Index = Callable[..., Awaitable[T]]


def after(index: Index[T], *parts: str) -> Index[T]:
    """Return an index that, after reading a body, removes these parts of it and the managed fields.

    It removes nothing after an error, because the same body may be read again.
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
