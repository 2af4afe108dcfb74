"""Watches of kopf that break off and list anew, with kopf's own loop around them and its own index behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import kopf
import pytest
from kopf._cogs.clients import watching
from kopf._cogs.structs.bodies import Body, RawBody
from kopf._cogs.structs.references import Resource
from kopf._core.engines.indexing import OperatorIndexers

from holdfast.runtime.relists import CompleteWatch, complete_watches

PODS = Resource("", "v1", "pods")
LISTED = watching.Bookmark.LISTED


def pod(name: str, **more: Any) -> dict[str, Any]:
    meta = {"namespace": "prod", "name": name, "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **more}


def body(raw: dict[str, Any]) -> Body:
    return Body(cast("RawBody", raw))


def event(kind: str | None, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, **more)}


class Server:
    """What an API server says in one watch after the other; each breaks off at its end, the last one included."""

    def __init__(self, *watches: list[Any]) -> None:
        self._watches = list(watches)
        self.watch = CompleteWatch(self._answer)

    async def _answer(self, **_: Any) -> AsyncGenerator[Any, None]:
        for each in self._watches.pop(0):
            yield each

    async def next(self, resource: Resource = PODS, namespace: str | None = None) -> list[Any]:
        watched = self.watch(resource=resource, namespace=namespace, settings=None, operator_pause_waiter=None)
        return [each async for each in watched]


def told(events: list[Any]) -> list[tuple[str | None, str]]:
    return [(each["type"], each["object"]["metadata"]["name"]) for each in events if isinstance(each, dict)]


async def test_what_went_while_nobody_watched_is_told_as_deleted() -> None:
    server = Server([event(None, "a"), event(None, "b"), LISTED, event("ADDED", "c")], [event(None, "b"), LISTED])
    assert told(await server.next()) == [(None, "a"), (None, "b"), ("ADDED", "c")]
    again = await server.next()
    assert sorted(told(again), key=str) == [("DELETED", "a"), ("DELETED", "c"), (None, "b")]
    assert again[-1] is LISTED


async def test_what_was_seen_to_go_is_told_once() -> None:
    server = Server([event(None, "a"), LISTED, event("DELETED", "a")], [LISTED], [LISTED])
    await server.next()
    assert await server.next() == [LISTED]
    assert await server.next() == [LISTED]


async def test_a_list_that_breaks_off_takes_nobody_away() -> None:
    server = Server([event(None, "a"), event(None, "b"), LISTED], [event(None, "a")], [event(None, "a"), LISTED])
    await server.next()
    assert told(await server.next()) == [(None, "a")]
    assert told(await server.next()) == [(None, "a"), ("DELETED", "b")]


async def test_another_kind_or_namespace_has_lists_of_its_own() -> None:
    server = Server([event(None, "a"), LISTED], [LISTED], [LISTED])
    await server.next()
    assert await server.next(Resource("", "v1", "nodes")) == [LISTED]
    assert await server.next(namespace="prod") == [LISTED]


async def test_marks_of_the_api_server_name_no_object() -> None:
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}
    assert await Server([LISTED, mark]).next() == [LISTED, mark]


async def test_no_whole_object_is_remembered() -> None:
    server = Server([event(None, "a", spec={"containers": ["x" * 1000]}), LISTED], [LISTED])
    await server.next()
    (gone, _) = await server.next()
    assert gone == event("DELETED", "a")


async def test_the_index_of_kopf_finds_an_object_by_what_is_told_of_it() -> None:
    server = Server([event(None, "a"), LISTED], [LISTED])
    await server.next()
    (gone, _) = await server.next()
    indexers = OperatorIndexers()
    assert indexers.make_key(body(gone["object"])) == indexers.make_key(body(pod("a", spec={})))


@pytest.fixture
def kopf_untouched() -> Iterator[None]:
    before = watching.continuous_watch
    yield
    watching.continuous_watch = before


async def test_kopf_takes_them(kopf_untouched: None) -> None:
    lists: Iterator[list[Any]] = iter([[event(None, "a"), LISTED], [LISTED]])

    async def breaking_off(**_: Any) -> AsyncGenerator[Any, None]:
        for each in next(lists):
            yield each

    watching.continuous_watch = breaking_off
    complete_watches()
    settings = kopf.OperatorSettings()
    settings.watching.reconnect_backoff = 0.0
    watched = watching.infinite_watch(settings=settings, resource=PODS, namespace=None, _iterations=2)
    assert told([each async for each in watched]) == [(None, "a"), ("DELETED", "a")]
