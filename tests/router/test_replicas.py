"""A router sends requests to the replicas that are ready, whatever DNS, clients and dying pods do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from holdfast.router import replicas
from holdfast.router.options import Options
from holdfast.router.replicas import Answer, Replicas, lookup, roles, wanted
from tests.fakes import FakeReplica, FakeVLLMRouter

A, B, EVIL = "http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://192.0.2.9:80"
READY, NOT_READY, SILENT, GONE = Answer.READY, Answer.NOT_READY, Answer.SILENT, Answer.GONE


@pytest.mark.parametrize(
    ("listed", "workers", "answers", "expected"),
    [
        pytest.param({A, B}, set(), {A: READY, B: READY}, {A, B}, id="new ones come"),
        pytest.param({A, B}, {A, B}, {A: NOT_READY, B: READY}, {B}, id="one drains"),
        pytest.param({A, B}, {A}, {A: NOT_READY, B: GONE}, {A}, id="the last one drains while its successor loads"),
        pytest.param({A, B}, {A}, {A: NOT_READY, B: NOT_READY}, {A}, id="the last one drains, the next one warms up"),
        pytest.param({A, B}, {A}, {A: NOT_READY, B: READY}, {B}, id="the last one drains, its successor is ready"),
        pytest.param({A}, {A}, {A: GONE}, set(), id="the last one is gone"),
        pytest.param({A, B}, {A, B}, {A: NOT_READY, B: SILENT}, {A, B}, id="one drains, and the other may be dead"),
        pytest.param({B}, {A, B}, {B: READY}, {B}, id="one is gone, and its address may be somebody else's"),
        pytest.param({A, B}, {A}, {A: SILENT, B: SILENT}, {A}, id="a busy one stays, a silent new one waits"),
        pytest.param({A}, {A, EVIL}, {A: READY, EVIL: READY}, {A}, id="an address that a client added goes"),
        pytest.param(None, {A, B}, {A: READY, B: NOT_READY}, {A}, id="DNS is away: no new ones, dead ones go"),
        pytest.param(None, set(), {}, set(), id="DNS is away from the start"),
        pytest.param(set(), {A}, {}, set(), id="no replica is ready"),
        pytest.param({A}, {A}, {}, {A}, id="nobody was asked"),
    ],
)
def test_the_ready_replicas_get_requests(
    listed: set[str] | None, workers: set[str], answers: Mapping[str, Answer], expected: set[str]
) -> None:
    assert wanted(None if listed is None else frozenset(listed), frozenset(workers), answers) == expected


@pytest.mark.parametrize(
    ("replicas", "prefill", "expected"),
    [
        ({A}, {B}, {A: "decode", B: "prefill"}),
        ({A}, set(), {A: "regular"}),
        (set(), {B}, {}),
    ],
    ids=["both pools", "no prefill engine: replicas serve whole requests", "nobody can answer"],
)
def test_engines_have_the_role_of_their_pool(replicas: set[str], prefill: set[str], expected: dict[str, str]) -> None:
    assert roles(frozenset(replicas), frozenset(prefill)) == expected


def test_a_prefill_engine_that_drains_goes_at_once_because_replicas_serve_in_its_place() -> None:
    assert wanted(frozenset({A}), frozenset({A}), {A: NOT_READY}, spared=True) == frozenset()
    assert wanted(frozenset({A}), frozenset({A}), {A: SILENT}, spared=True) == {A}


async def test_replicas_serve_whole_requests_while_no_prefill_engine_is_ready() -> None:
    router, replica, prefill = FakeVLLMRouter(), FakeReplica(), FakeReplica(503)
    async with (
        TestServer(router.app()) as front,
        TestServer(replica.app()) as decodes,
        TestServer(prefill.app(), host="127.0.0.2") as prefills,
        aiohttp.ClientSession() as session,
    ):
        urls = {"replicas": f"http://127.0.0.1:{decodes.port}", "prefill": f"http://127.0.0.2:{prefills.port}"}

        async def listed(name: str, _: int) -> frozenset[str]:
            return frozenset({urls[name]})

        options = Options("replicas", port=front.port or 0, prefill="prefill", model="chat")
        looks = Replicas(options, session, listed)
        for status, expected in (
            (503, {urls["replicas"]: "regular"}),
            (200, {urls["replicas"]: "decode", urls["prefill"]: "prefill"}),
            (503, {urls["replicas"]: "regular"}),
        ):
            prefill.status = status
            await looks.look()
            assert router.roles == expected
            before = list(router.told)
            await looks.look()
            assert router.told == before, "a list that is right is left alone"


class World:
    """A router and one replica on real sockets; `listed` is what DNS says."""

    def __init__(self, router: TestServer, replica: TestServer, session: aiohttp.ClientSession) -> None:
        self.url = f"http://127.0.0.1:{replica.port}"
        self.listed: frozenset[str] | None = frozenset({self.url})
        self.dns_answers = asyncio.Event()
        self.dns_answers.set()
        options = Options("chat-replicas.prod.svc", port=router.port or 0, replica_port=replica.port or 0)
        self.replicas = Replicas(options, session, self._lookup)

    async def _lookup(self, name: str, port: int) -> frozenset[str] | None:
        assert name == "chat-replicas.prod.svc"
        await self.dns_answers.wait()
        return self.listed


@contextlib.asynccontextmanager
async def world(router: FakeVLLMRouter, replica: FakeReplica) -> AsyncIterator[World]:
    """Both of them for a while."""
    async with (
        TestServer(router.app()) as front,
        TestServer(replica.app()) as engine,
        aiohttp.ClientSession() as session,
    ):
        yield World(front, engine, session)


async def test_a_ready_replica_is_added_once() -> None:
    router, replica = FakeVLLMRouter(), FakeReplica()
    async with world(router, replica) as there:
        await there.replicas.look()
        await there.replicas.look()
        assert router.told == [("add", there.url)]


async def test_a_replica_that_drains_is_removed_once_another_one_is_ready() -> None:
    router, replica, other = FakeVLLMRouter(), FakeReplica(), FakeReplica(503)
    async with world(router, replica) as there, TestServer(other.app()) as next_one:
        there.listed = frozenset({there.url, successor := f"http://127.0.0.1:{next_one.port}"})
        await there.replicas.look()
        replica.status = 503
        await there.replicas.look()
        assert router.urls == {there.url}
        other.status = 200
        await there.replicas.look()
        assert router.urls == {successor}


async def test_a_replica_that_drains_is_removed_while_dns_keeps_its_answer_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "LOOKUP_SECONDS", 0.0)
    monkeypatch.setattr(replicas, "_LOOKUP_TIMEOUT_SECONDS", 0.01)
    router, replica, other = FakeVLLMRouter(), FakeReplica(), FakeReplica()
    async with world(router, replica) as there, TestServer(other.app()) as next_one:
        there.listed = frozenset({there.url, stays := f"http://127.0.0.1:{next_one.port}"})
        await there.replicas.look()
        there.dns_answers.clear()
        replica.status = 503
        await there.replicas.look()
        assert router.urls == {stays}
        there.listed = frozenset()
        there.dns_answers.set()
        await there.replicas.look()
        assert router.urls == set()


async def test_an_address_that_a_client_added_is_not_asked_and_goes() -> None:
    router, stranger = FakeVLLMRouter(), FakeReplica()
    async with world(router, FakeReplica()) as there, TestServer(stranger.app()) as elsewhere:
        router.urls = {there.url, foreign := f"http://127.0.0.1:{elsewhere.port}"}
        await there.replicas.look()
        assert (router.told, stranger.asked) == ([("remove", foreign)], 0)


async def test_a_replica_that_nothing_listens_for_any_more_goes_though_dns_lists_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
        router = FakeVLLMRouter(gone)
        async with world(router, FakeReplica()) as there:
            there.listed = frozenset({gone})
            await there.replicas.look()
            assert router.urls == set()


async def test_a_replica_that_does_not_answer_in_time_stays_and_no_new_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "_TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    router, replica = FakeVLLMRouter(), FakeReplica(None)
    async with world(router, replica) as there:
        await there.replicas.look()
        router.urls = {there.url}
        await there.replicas.look()
        assert router.told == []


async def test_a_replica_that_has_been_silent_for_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    monkeypatch.setattr(replicas, "SILENT_SECONDS", 0.05)
    router = FakeVLLMRouter()
    async with world(router, FakeReplica(None)) as there:
        router.urls = {there.url}
        await there.replicas.look()
        assert router.told == []
        await there.replicas.look()
        assert router.told == [("remove", there.url)]


async def test_a_pod_whose_first_process_serves_no_requests_answers_at_its_own_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, own = FakeVLLMRouter(), FakeReplica()
    async with TestServer(own.app()) as page, world(router, FakeReplica(404)) as there:
        monkeypatch.setattr(replicas, "POD_PORT", page.port)
        await there.replicas.look()
        assert (router.urls, own.asked) == ({there.url}, 1)


async def test_a_replica_that_the_router_refuses_is_told_again() -> None:
    router = FakeVLLMRouter()
    router.refuses = True
    async with world(router, FakeReplica()) as there:
        await there.replicas.look()
        router.refuses = False
        await there.replicas.look()
        assert router.urls == {there.url}


async def test_dns_that_does_not_answer_is_no_list_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    async def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", fails)
    assert await lookup("chat-replicas.prod.svc", 8000) is None
    monkeypatch.setattr(loop, "getaddrinfo", nobody)
    assert await lookup("chat-replicas.prod.svc", 8000) == frozenset()


async def test_addresses_of_both_families_become_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        v4, v6 = ("10.0.0.1", 8000), ("fd00::1", 8000, 0, 0)
        return [(socket.AF_INET, 1, 6, "", v4), (socket.AF_INET6, 1, 6, "", v6)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    assert await lookup("chat-replicas.prod.svc", 8000) == {"http://10.0.0.1:8000", "http://[fd00::1]:8000"}
