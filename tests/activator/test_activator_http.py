"""An activator on real sockets: nothing is lost, nothing grows without bound, and nobody gets where they should not."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from holdfast.activator import server as activator_server
from holdfast.activator import upstream
from holdfast.activator.options import Options
from holdfast.activator.server import WAITED_HEADER, ActivatorServer, opened
from holdfast.cli.main import build_parser
from holdfast.domain.activator import SILENT, WAIT_EDGES, Activator, longer_than
from holdfast.domain.service import ServiceKey
from holdfast.observe.endpoints import activators
from holdfast.observe.endpoints.activators import ActivatorClient, NoActivators, read

CHAT = ServiceKey("prod", "chat")


def taken_port() -> socket.socket:
    """A port that refuses connections until somebody listens, and is nobody else's meanwhile."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


@dataclass
class Engine:
    """What comes to the engines; `go_on` lets the second half of an answer out."""

    taken: socket.socket = field(default_factory=taken_port)
    seen: list[tuple[web.BaseRequest, bytes]] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    breaks: bool = False
    runner: web.ServerRunner | None = None

    @property
    def port(self) -> int:
        return int(self.taken.getsockname()[1])

    async def start(self) -> None:
        server = web.Server(self._answer, auto_decompress=False)
        self.runner = web.ServerRunner(server)
        await self.runner.setup()
        await web.SockSite(self.runner, self.taken).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
        self.taken.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request, await request.read()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Keep-Alive": "timeout=75"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        if request.query_string == "slow":
            await self.go_on.wait()
        if self.breaks and request.transport is not None:
            request.transport.abort()
        await response.write(b"data: two\n\n")
        return response


@dataclass
class Running:
    """An activator, how to reach it, and the engines it stands in for."""

    server: ActivatorServer
    url: str
    admin_url: str
    engine: Engine
    client: aiohttp.ClientSession

    def post(self, path: str = "/v1/completions", **more: Any) -> asyncio.Task[tuple[int, bytes, Any]]:
        return asyncio.create_task(self._ask("POST", path, **more))

    async def get(self, path: str) -> tuple[int, bytes, Any]:
        return await self._ask("GET", path)

    async def _ask(self, method: str, path: str, **more: Any) -> tuple[int, bytes, Any]:
        async with self.client.request(method, f"{self.url}{path}", **({"data": b"{}"} | more)) as answer:
            return answer.status, await answer.read(), answer.headers

    async def told(self) -> Activator:
        async with self.client.get(f"{self.admin_url}/held") as answer:
            return read(await answer.json())

    async def holding(self, count: int) -> Activator:
        """What it tells as soon as so many wait."""
        async with asyncio.timeout(60.0):
            while (told := await self.told()).waiting != count:
                await asyncio.sleep(0.01)
        return told


@contextlib.asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    engine = Engine()
    told = Options(URL(f"http://127.0.0.1:{engine.port}"), ("qwen",), 0, 0, "127.0.0.1", **options)
    server = ActivatorServer(told)
    async with opened(server, told) as (port, admin_port), aiohttp.ClientSession() as client:
        try:
            yield Running(server, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", engine, client)
        finally:
            await engine.stop()


async def test_a_request_waits_for_the_first_replica_and_is_answered() -> None:
    async with running() as it:
        asked = it.post(data=b'{"prompt": "hello"}')
        assert (await it.holding(1)).answers
        await it.engine.start()
        status, body, headers = await asked
        assert (status, body) == (200, b"data: one\n\ndata: two\n\n")
        assert headers["Connection"] == "close"
        assert float(headers[WAITED_HEADER]) >= 0.0
        assert it.engine.seen[0][1] == b'{"prompt": "hello"}'
        told = await it.holding(0)
        assert (sum(told.forwarded), sum(told.gone), told.turned_away) == (1, 0, 0)
        assert told.quiet_seconds < 60.0


async def test_all_that_wait_are_passed_on_at_once() -> None:
    async with running() as it:
        asked = [it.post() for _ in range(50)]
        await it.holding(50)
        await it.engine.start()
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
        assert longer_than((await it.holding(0)).forwarded, 60.0) == 0


async def test_what_comes_beyond_the_bound_is_told_to_come_back() -> None:
    async with running(most_requests=2) as it:
        waiting = [it.post(), it.post()]
        await it.holding(2)
        status, body, headers = await it.post()
        assert (status, headers["Retry-After"]) == (503, "10")
        assert b"the queue is full: 2 requests wait" in body
        assert (await it.told()).turned_away == 1
        await it.engine.start()
        assert [status for status, _, _ in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_client_that_leaves_frees_its_place() -> None:
    async with running(most_requests=1) as it:
        gone = it.post()
        await it.holding(1)
        gone.cancel()
        told = await it.holding(0)
        assert sum(told.gone) == 1
        stays = it.post()
        await it.holding(1)
        await it.engine.start()
        assert (await stays)[0] == 200
        assert len(it.engine.seen) == 1


async def test_the_bytes_that_wait_are_bounded_also_where_nobody_says_how_many_come() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with running(most_bytes=1000) as it:
        first = it.post(data=b"x" * 900)
        await it.holding(1)
        assert (await it.post(data=b"x" * 200))[0] == 503
        assert (await it.post(data=endless()))[0] == 503
        small = it.post(data=b"x" * 50)
        await it.holding(2)
        await it.engine.start()
        assert [(await task)[0] for task in (first, small)] == [200, 200]
        assert (await it.post(data=b"x" * 1000))[0] == 200


async def test_a_large_request_comes_whole_and_with_its_length() -> None:
    body = bytes(range(256)) * 1000
    async with running() as it:
        await it.engine.start()
        assert (await it.post(data=body))[0] == 200
        seen, received = it.engine.seen[0]
        assert received == body
        assert seen.headers["Content-Length"] == str(len(body))
        assert "Transfer-Encoding" not in seen.headers


async def test_a_request_that_never_arrives_whole_wakes_nobody_and_is_no_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activator_server, "BODY_SECONDS", 0.1)
    async with running() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(it.url).port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()
        await it.server.emptied()
        told = await it.told()
        assert (told.waiting, told.turned_away, sum(told.gone), told.quiet_seconds) == (0, 0, 0, float("inf"))


async def test_a_request_that_fails_as_nobody_foresaw_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise UnicodeError("unforeseen")

    monkeypatch.setattr(upstream.Upstream, "send", fails)
    async with running() as it:
        assert (await it.post())[0] == 500
        assert (await it.told()).waiting == 0


async def test_nobody_waits_for_ever() -> None:
    async with running(longest_seconds=0.2) as it:
        status, body, headers = await it.post()
        assert (status, headers["Retry-After"]) == (503, "10")
        assert b"no replica was ready within 0.2 s" in body
        told = await it.holding(0)
        assert (told.turned_away, sum(told.forwarded)) == (1, 0)


async def test_nobody_waits_for_a_service_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked_for(*_: Any) -> None:
        raise socket.gaierror(problem, "as DNS says it")

    monkeypatch.setattr(upstream, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(upstream, "GONE_SECONDS", 0.05)
    async with running() as it:
        asked = it.post()
        await it.holding(1)
        problem = socket.EAI_NONAME
        monkeypatch.setattr(asyncio, "open_connection", asked_for)
        assert not (await asyncio.wait([asked], timeout=0.2))[0], "DNS alone turns nobody away"
        problem = socket.EAI_AGAIN
        it.server.leave()
        assert not (await asyncio.wait([asked], timeout=0.2))[0], "a DNS that does not answer turns nobody away"
        problem = socket.EAI_NONAME
        status, body, _ = await asked
        assert (status, b"the service was deleted" in body) == (503, True)
        await it.server.emptied()


async def test_that_a_service_was_deleted_is_learned_without_a_dns_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the cluster the name is unknown at once; a search for the short one goes on where nobody answers."""

    async def open_connection(host: str, _: int) -> None:
        if host != "chat-engines.lab.svc.cluster.local.":
            await asyncio.Event().wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for name, seconds in (("PROBE_SECONDS", 0.01), ("GONE_SECONDS", 0.05), ("CONNECT_SECONDS", 0.02)):
        monkeypatch.setattr(upstream, name, seconds)
    monkeypatch.setattr(upstream, "_search_domains", lambda: ["lab.svc.cluster.local", "svc.cluster.local"])
    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    engines = upstream.Upstream(URL("http://chat-engines.lab.svc:8000"))
    engines.leave()
    with pytest.raises(upstream.Gone):
        await asyncio.wait_for(engines.there(), 60.0)


@pytest.mark.parametrize(
    ("search", "absolute"),
    [
        (["lab.svc.cluster.local", "svc.cluster.local", "cluster.local"], "chat-engines.lab.svc.cluster.local."),
        (["lab.svc.cluster.local.", "svc.cluster.local."], "chat-engines.lab.svc.cluster.local."),
        (["corp.example", "lab.svc.k8s.corp.example"], "chat-engines.lab.svc.k8s.corp.example."),
        (["default.svc.cluster.local", "svc.cluster.local", "cluster.local"], "chat-engines.lab.svc"),
        ([], "chat-engines.lab.svc"),
    ],
)
def test_the_name_of_the_engines_is_asked_for_in_full(search: list[str], absolute: str) -> None:
    assert upstream.in_full("chat-engines.lab.svc", search) == absolute


async def test_an_activator_that_ends_still_passes_on_what_it_holds() -> None:
    async with running() as it:
        asked = it.post()
        await it.holding(1)
        it.server.leave()
        await it.engine.start()
        assert (await asked)[0] == 200


async def test_an_activator_that_ends_waits_until_what_it_counted_last_was_asked_for() -> None:
    async with running() as it:
        await it.engine.start()
        await asyncio.wait_for(it.server.told(), 60.0)  # nothing was counted yet
        await it.post()
        ending = asyncio.create_task(it.server.told())
        assert not (await asyncio.wait([ending], timeout=0.05))[0]
        assert sum((await it.told()).forwarded) == 1
        await asyncio.wait_for(ending, 60.0)


async def test_an_activator_that_nobody_asks_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activator_server, "TOLD_SECONDS", 0.01)
    async with running(longest_seconds=0.01) as it:
        assert (await it.post())[0] == 503
        await asyncio.wait_for(it.server.told(), 60.0)


async def test_what_asks_for_no_token_neither_waits_nor_wakes() -> None:
    async with running() as it:
        assert (await it.get("/health"))[0] == 200
        status, body, _ = await it.get("/v1/models")
        assert (status, b'"id": "qwen"' in body) == (200, True)
        assert (await it.get("/metrics"))[0] == 503
        told = await it.told()
        assert (told.waiting, told.turned_away) == (0, 0)
        assert told.quiet_seconds == float("inf")
        await it.engine.start()
        assert (await it.get("/metrics"))[1] == b"data: one\n\ndata: two\n\n"


async def test_a_stream_is_handed_through_as_it_comes() -> None:
    async with running() as it:
        await it.engine.start()
        async with it.client.post(f"{it.url}/v1/completions?slow") as answer:
            assert await answer.content.readuntil(b"\n\n") == b"data: one\n\n"
            assert (await it.told()).waiting == 0
            it.engine.go_on.set()
            assert await answer.content.read() == b"data: two\n\n"


async def test_an_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    async with running() as it:
        it.engine.breaks = True
        await it.engine.start()
        with pytest.raises(aiohttp.ClientError):
            await it.post()
        await it.server.emptied()


async def test_only_what_is_meant_for_the_engine_is_passed_on() -> None:
    sent = {
        "Authorization": "Bearer secret",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "Proxy-Authorization": "Basic Zm9v",
        "TE": "trailers",
        "Upgrade": "h2c",
        "Host": "evil.example.com",
        "Content-Encoding": "gzip",
    }
    async with running() as it:
        await it.engine.start()
        body = gzip.compress(b"{}")
        _, _, headers = await it.post(headers=sent, data=body)
        (seen, received), told = it.engine.seen[0], it.engine.seen[0][0].headers
        assert received == body
        assert told["Authorization"] == "Bearer secret"
        assert told["Host"] == f"127.0.0.1:{it.engine.port}"
        assert not {"X-Hop", "Proxy-Authorization", "TE", "Upgrade", "Keep-Alive"} & set(seen.headers)
        assert "Keep-Alive" not in headers


@pytest.mark.parametrize(
    "target",
    ["//127.0.0.1:1/v1/completions", "http://127.0.0.1:1/v1/completions", "/v1/%2e%2e/x?a=%2F&b=http://127.0.0.1:1"],
)
async def test_no_request_chooses_where_it_is_passed_on_to(target: str) -> None:
    async with running() as it:
        await it.engine.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(it.url).port)
        writer.write(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")
        assert it.engine.seen[0][0].rel_url.raw_path_qs in target


async def test_prometheus_sees_what_waited() -> None:
    async with running() as it:
        await it.engine.start()
        await it.post()
        async with it.client.get(f"{it.admin_url}/metrics") as answer:
            text = await answer.text()
        assert 'holdfast_activator_requests_total{outcome="turned_away"} 0.0' in text, "a first value is no increase"
        assert 'holdfast_activator_requests_total{outcome="forwarded"} 1.0' in text
        assert 'holdfast_activator_wait_seconds_bucket{le="0.1",outcome="forwarded"}' in text
        assert "holdfast_activator_waiting_requests 0.0" in text


async def test_the_operator_reads_what_an_activator_tells_and_takes_anything_else_for_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activators, "_TIMEOUT_SECONDS", 60.0)
    async with running() as it:
        pages = {"prod": f"{it.admin_url}/held", "text": f"{it.admin_url}/metrics", "none": "http://127.0.0.1:1/held"}
        client = ActivatorClient(lambda namespace, _: pages[namespace])
        keys = [ServiceKey(namespace, "chat") for namespace in pages]
        asked = it.post()
        await it.holding(1)
        found = await client.look(keys)
        await client.close()
        asked.cancel()
        assert found[CHAT].waiting == 1
        assert [found[key] for key in keys[1:]] == [SILENT, SILENT]
    assert await NoActivators().look([CHAT]) == {}


async def test_an_answer_that_is_nested_without_end_is_silence_and_harms_nobody_else() -> None:
    async def nested(_: web.Request) -> web.Response:
        return web.Response(text="[" * 60_000)

    app = web.Application()
    app.router.add_get("/held", nested)
    async with TestServer(app) as odd, running() as it:
        client = ActivatorClient(
            lambda namespace, _: str(odd.make_url("/held")) if namespace == "odd" else f"{it.admin_url}/held"
        )
        found = await client.look([ServiceKey("odd", "chat"), CHAT])
        await client.close()
    assert found[ServiceKey("odd", "chat")] == SILENT
    assert found[CHAT].answers


async def test_activators_behind_a_closed_network_silence_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activators, "_AT_ONCE", 2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(16)
        nowhere = f"http://127.0.0.1:{mute.getsockname()[1]}/held"
        async with running() as it:
            client = ActivatorClient(lambda namespace, _: nowhere if namespace == "shut" else f"{it.admin_url}/held")
            shut = [ServiceKey("shut", f"s{number}") for number in range(4)]
            # On a crowded machine the one that answers may need longer, too.
            for seconds in (0.05, 0.5, 5.0):
                monkeypatch.setattr(activators, "_TIMEOUT_SECONDS", seconds)
                found = await client.look([*shut, CHAT])
                if found[CHAT].answers:
                    break
            await client.close()
    assert [found[key] for key in shut] == [SILENT] * 4
    assert found[CHAT].answers


@pytest.mark.parametrize(
    "change",
    [
        {"waiting": -1},
        {"waiting": 1.5},
        {"waiting": None},
        {"oldest_seconds": float("nan")},
        {"quiet_seconds": "long"},
        {"forwarded": [1]},
        {"gone": None},
        {"edges_seconds": [1.0]},
        {"turned_away": 10**15},
    ],
)
async def test_numbers_that_make_no_sense_are_no_answer(change: dict[str, Any]) -> None:
    async with running() as it, it.client.get(f"{it.admin_url}/held") as answer:
        told = await answer.json()
    assert read(told).answers
    for garbage in (told | change, [], None, 7, {}):
        with pytest.raises(ValueError, match=r".+"):
            read(garbage)


@pytest.mark.parametrize(
    "upstream", ["chat:8000", "https://chat:8000", "http://chat:8000/path", "http://u:p@chat:8000", ""]
)
def test_an_address_is_a_host_and_a_port_and_no_more(upstream: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser(("activate",)).parse_args(["activate", f"--upstream={upstream}"])
    assert ended.value.code == 2
    assert "give http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("claimed", "in_time"),
    [({}, 0), ({"X-SLO-Class": "night"}, 1), ({"x-gateway-inference-objective": "slow"}, 1), ({"x-slo-class": "x"}, 0)],
)
async def test_a_wait_within_the_time_of_its_class_is_told_as_none(claimed: dict[str, str], in_time: int) -> None:
    async with running(patient={"night": math.inf, "slow": 600.0}) as it:
        asked = it.post(headers=claimed)
        while (await it.told()).oldest_seconds <= WAIT_EDGES[0]:
            await asyncio.sleep(0.01)
        await it.engine.start()
        await asked
        forwarded = (await it.told()).forwarded
        assert (sum(forwarded), forwarded[0]) == (1, in_time)


async def test_batch_that_is_turned_away_is_no_miss() -> None:
    async with running(patient={"night": math.inf, "slow": 600.0}, longest_seconds=0.01) as it:
        for name, missed in (("night", 0), ("slow", 1)):
            assert (await it.post(headers={"x-slo-class": name}))[0] == 503
            assert (await it.told()).turned_away == missed
