"""The page over HTTP: for reading, by those who may, and safe to open."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from holdfast.listener import refusals
from holdfast.listener.connections import Bounds
from holdfast.listener.refusals import Refusals
from holdfast.listener.serve import listening
from holdfast.page.access import Token, known_host
from holdfast.page.board import Board
from holdfast.page.server import HEADERS, application
from tests.fakes import HugeBoard
from tests.page.scenes import board, scene

SECRET = "correct-horse-battery-staple"
SCRIPTS = ("/main.js", "/fleet.js", "/service.js", "/plots.js", "/text.js", "/uPlot.iife.min.js")
FILES = ("/", *SCRIPTS, "/page.css", "/uPlot.min.css", "/icon.svg", "/LICENSE.uPlot")


def client(shown: Board, token: Token | None = None, hosts: tuple[str, ...] = ()) -> TestClient:
    return TestClient(TestServer(application(shown, token, hosts)))


FOUND = [(path, 200) for path in (*FILES, "/api/services", "/api/services/prod/chat")]


@pytest.mark.parametrize(("path", "status"), [*FOUND, ("/nowhere", 404), ("/api/services/no/one", 404)])
async def test_every_answer_is_hardened(path: str, status: int) -> None:
    async with client(board(scene())) as page:
        answer = await page.get(path)
        assert answer.status == status
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


async def test_scripts_and_styles_come_from_files_alone() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    async with client(board()) as page:
        text = await (await page.get("/")).text()
    assert "style=" not in text
    assert "<style" not in text
    assert "://" not in text
    assert text.count("<script") == text.count("<script src=")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/services", "/nowhere"])
async def test_nothing_can_be_written(method: str, path: str) -> None:
    async with client(board(scene())) as page:
        answer = await page.request(method, path, data=b"x")
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"


async def test_head_tells_what_get_would() -> None:
    async with client(board(scene())) as page:
        whole, head = await page.get("/api/services"), await page.head("/api/services")
        assert (head.status, await head.read()) == (200, b"")
        assert head.headers["ETag"] == whole.headers["ETag"]


async def test_who_has_seen_the_tick_is_sent_nothing() -> None:
    async with client(board(scene())) as page:
        for path in ("/api/services", "/api/services/prod/chat", "/main.js"):
            tag = (await page.get(path)).headers["ETag"]
            again = await page.get(path, headers={"If-None-Match": f'"other", {tag}'})
            assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)


async def test_who_reads_no_gzip_is_sent_none() -> None:
    async with client(board(scene())) as page:
        answer = await page.get("/api/services", headers={"Accept-Encoding": "identity"})
        assert "Content-Encoding" not in answer.headers
        assert json.loads(await answer.read())["counts"]["held"] == 1


async def test_a_replica_that_does_not_lead_says_so() -> None:
    async with client(Board()) as page:
        answer = await page.get("/api/services")
        assert answer.status == 404
        assert "does not lead" in (await answer.json())["message"]


async def test_without_the_api_server_nobody_leads_and_the_page_says_why() -> None:
    outage = "https://10.0.0.1:443 does not answer GET /apis: Connection refused"
    async with client(Board(lambda: outage)) as page:
        for path in ("/api/services", "/api/services/prod/chat"):
            told = (await (await page.get(path)).json())["message"]
            assert told.startswith(f"The API server does not answer: {outage}. Engines keep running.")


async def test_who_does_not_read_is_cut_off() -> None:
    """Else every tick that he asked for stays in memory."""
    refused = refusals.counter(CollectorRegistry(), "holdfast")
    served = listening(
        application(HugeBoard()), "127.0.0.1", 0, Bounds(stalled_seconds=0.05), Refusals("status", refused)
    )
    async with served as port, asyncio.timeout(60.0):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/services HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"Content-Type: application/json; charset=utf-8\r\n" in head
        while refused.labels("status", "slow")._value.get() == 0:
            await asyncio.sleep(0.01)
        writer.close()


async def test_a_service_that_nobody_knows_is_named() -> None:
    async with client(board(scene())) as page:
        told = (await (await page.get("/api/services/prod/chta")).json())["message"]
        assert told.startswith("prod/chta: this operator decides on no LLMService with this name")


async def test_what_users_write_is_sent_as_data_only() -> None:
    nasty = "<img src=x onerror=alert(1)></script>\u2028\ud800"
    async with client(board(scene(met=False, message=nasty))) as page:
        answer = await page.get("/api/services")
        assert answer.content_type == "application/json"
        assert (await answer.json())["services"][0]["message"].startswith("<img src=x onerror=alert(1)></script>")


@pytest.mark.parametrize("path", ["/..%2f..%2fetc/passwd", "/static/", "/../server.py", "/page.py", "/%00"])
async def test_no_other_file_is_served(path: str) -> None:
    async with client(board()) as page:
        assert (await page.get(path)).status == 404


@pytest.mark.parametrize(
    ("header", "known"),
    [
        ("localhost:8090", True), ("LOCALHOST", True), ("127.0.0.1:8090", True), ("10.1.2.3", True),
        ("[::1]:8090", True), ("holdfast.example:443", True), ("Holdfast.Example.", True),
        ("evil.example:8090", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False),
        ("", False), ("holdfast.example.evil", False), ("[::1", False), ("user@localhost", False), ("127.1", False),
    ],
)  # fmt: skip
def test_the_page_is_asked_for_by_names_it_knows(header: str, known: bool) -> None:
    assert known_host(header, ("holdfast.example",)) is known


async def test_another_name_is_refused() -> None:
    async with client(board(scene())) as page:
        answer = await page.get("/api/services", headers={"Host": "evil.example"})
        assert answer.status == 421
        assert "--status-host" in await answer.text()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    return file


async def test_without_the_token_nothing_is_shown(secret: Path) -> None:
    async with client(board(scene()), Token(secret)) as page:
        for path in ("/", "/main.js", "/api/services", "/nowhere"):
            answer = await page.get(path)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic ")


async def test_the_token_is_a_bearer_token_or_a_password(secret: Path) -> None:
    async with client(board(scene()), Token(secret)) as page:
        bearer = {"Authorization": f"Bearer {SECRET}"}
        assert (await page.get("/api/services", headers=bearer)).status == 200
        password = {"Authorization": f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}"}
        assert (await page.get("/api/services", headers=password)).status == 200


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic !!!", "Basic bWU=", "Digest x", f"Bearer {SECRET}x", "Bearer é"]
)
def test_any_other_word_is_refused(secret: Path, given: str) -> None:
    assert not Token(secret).admits(given)


def test_a_new_token_holds_at_once(secret: Path) -> None:
    token = Token(secret)
    secret.write_text("another-horse-battery-staple")
    assert not token.admits(f"Bearer {SECRET}")
    assert token.admits("Bearer another-horse-battery-staple")


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_an_empty_or_short_token_admits_nobody(secret: Path, content: str) -> None:
    secret.write_text(content)
    assert not Token(secret).admits(f"Bearer {content.strip()}")


def test_a_token_file_that_is_gone_admits_nobody(secret: Path) -> None:
    token = Token(secret)
    secret.unlink()
    assert not token.admits("Bearer ")
    assert not token.admits(f"Bearer {SECRET}")
