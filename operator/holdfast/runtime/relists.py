"""Tells kopf of objects that went while no watch was there to see it.

Where a watch cannot go on from where it broke off (410 Gone: the API server was started anew, or its history is
shorter than the pause), kopf 1.45 lists the kind again. What it finds is indexed again; of what has gone meanwhile the
indices keep the last they heard, for as long as the process lives: a pod that serves nobody counts as a replica, and a
service that was deleted is decided on. Here the objects of each watch are remembered by name, and those that a later
list lacks are told as deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kopf._cogs.clients import watching

Event = Any  # a raw event of the API server's, or a bookmark of kopf's
Watch = Callable[..., Any]


class CompleteWatch:
    """A watch of kopf's that tells what has gone between two lists of the same kind and place."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[object, dict[str, dict[str, Any]]] = {}

    async def __call__(self, *, resource: Any, namespace: Any, **more: Any) -> AsyncIterator[Event]:
        known, listed = self._known.setdefault((resource, namespace), {}), set[str]()
        async with contextlib.aclosing(self._watch(resource=resource, namespace=namespace, **more)) as events:
            async for event in events:
                if event is watching.Bookmark.LISTED:
                    for gone in known.keys() - listed:
                        yield {"type": "DELETED", "object": known.pop(gone)}
                elif not isinstance(event, watching.Bookmark) and event.get("type") != "BOOKMARK":
                    listed.add(_note(known, event))
                yield event


def _note(known: dict[str, dict[str, Any]], event: Event) -> str:
    """Remember an object by what an index finds it by, for as long as it is there; return its uid."""
    body, meta = event["object"], event["object"]["metadata"]
    uid = str(meta.get("uid", ""))
    if event["type"] == "DELETED":
        known.pop(uid, None)
    elif uid not in known:
        named = {name: meta[name] for name in ("namespace", "name", "uid") if name in meta}
        known[uid] = {"apiVersion": body.get("apiVersion"), "kind": body.get("kind"), "metadata": named}
    return uid


def complete_watches() -> None:
    """Let every watch that kopf starts in this process tell what has gone."""
    watching.continuous_watch = CompleteWatch(watching.continuous_watch)
