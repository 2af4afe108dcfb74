"""kopf's own indexing, fed with events: objects as they come and go, without an API server."""

from __future__ import annotations

import copy
from typing import Any, Self

import kopf
from kopf._core.engines.indexing import OperatorIndexers


class Indexed:
    """The indices that a registry has when this is made, as kopf fills them and gives them to its start handler."""

    def __init__(self, registry: kopf.OperatorRegistry) -> None:
        handlers = registry._indexing.get_all_handlers()
        self.indexers = OperatorIndexers()
        self.indexers.ensure(handlers)
        self._functions = {str(handler.id): handler.fn for handler in handlers}
        self._startup = registry._activities.get_all_handlers()

    async def start(self) -> Self:
        """Give the indices to whoever reads them."""
        for handler in self._startup:
            await handler.fn(**self.indexers.indices)  # type: ignore[call-arg, misc]
        return self

    async def put(self, index: str, body: dict[str, Any]) -> None:
        """An object was added or changed."""
        await self.show(index, copy.deepcopy(body))

    async def show(self, index: str, body: dict[str, Any]) -> None:
        """The same with the very body that kopf would hold on to."""
        result = await self._functions[index](body=kopf.Body(body))  # type: ignore[call-arg, misc]
        self.indexers[index].replace(self._key(body), result)

    def in_order(self, *indices: str) -> list[str]:
        """These indices as kopf asks them: in the order in which they were registered."""
        return [name for name in self._functions if name in indices]

    def remove(self, index: str, body: dict[str, Any]) -> None:
        """An object was deleted."""
        self.indexers[index].discard(self._key(body))

    def _key(self, body: dict[str, Any]) -> Any:
        return body["metadata"].get("namespace"), body["metadata"]["name"], body["metadata"].get("uid")
