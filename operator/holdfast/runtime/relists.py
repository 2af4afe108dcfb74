"""Reports to kopf objects that were deleted while no watch was open.

If a watch cannot resume (410 Gone: the API server restarted, or its history is shorter than the pause), kopf 1.45 lists
the kind again and indexes what it finds. Objects deleted meanwhile would stay in the indices for the life of the
process: a deleted pod would count as a replica, and a deleted service would be decided on. So the objects of each
watch are remembered by name, and an object that is missing from a later list is reported as deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kopf._cogs.clients import watching

Event = Any  # a raw event of the API server, or a bookmark of kopf
Watch = Callable[..., Any]


class CompleteWatch:
    """A kopf watch that reports deletions between two lists of the same kind and namespace."""

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
    """Remember the identifying parts of an object while it exists; return its uid."""
    body, meta = event["object"], event["object"]["metadata"]
    uid = str(meta.get("uid", ""))
    if event["type"] == "DELETED":
        known.pop(uid, None)
    elif uid not in known:
        named = {name: meta[name] for name in ("namespace", "name", "uid") if name in meta}
        known[uid] = {"apiVersion": body.get("apiVersion"), "kind": body.get("kind"), "metadata": named}
    return uid


def complete_watches() -> None:
    """Make every watch that kopf starts in this process report such deletions."""
    watching.continuous_watch = CompleteWatch(watching.continuous_watch)
