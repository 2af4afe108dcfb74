"""Engines that look stalled are asked for one token: what is asked, and what each answer proves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.endpoints.token_probe import Answer, Engines, TokenProbe
from tests.builders import traffic
from tests.observe.observe_builders import CHAT

SUSPECTED = replace(traffic(0.0), hung=("chat-0", "chat-1"))
URLS = {CHAT: {"chat-0": "http://10.0.0.1:8000", "chat-1": "http://10.0.0.2:8000"}}


class Asked:
    """Answers what a test says, once it lets the answer go."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.urls: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, url: str) -> Answer:
        self.urls.append(url)
        await self.go_on.wait()
        return self.answers.get("first" if url.endswith("1:8000") else "second", Answer.UNKNOWN)


class Clock:
    """Time that passes where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(probe: TokenProbe, told: Traffic, urls: Mapping[ServiceKey, Mapping[str, str]] = URLS) -> Traffic:
    return probe.proven({CHAT: told}, urls)[CHAT]


async def answered(asked: Asked) -> None:
    asked.go_on.set()
    for _ in range(3):
        await asyncio.sleep(0)


async def test_who_gives_no_token_is_stalled_and_whoever_gives_one_is_not() -> None:
    asked = Asked(first=Answer.STALLED, second=Answer.SERVES)
    probe = TokenProbe(asked, Clock())
    first = seen(probe, SUSPECTED)
    assert (first.hung, first.silent) == ((), ("chat-0", "chat-1"))
    await answered(asked)
    found = seen(probe, SUSPECTED)
    assert (found.hung, found.silent) == (("chat-0",), ("chat-1",))
    assert sorted(asked.urls) == sorted(URLS[CHAT].values())


@pytest.mark.parametrize("answer", [Answer.SERVES, Answer.UNKNOWN])
async def test_where_nothing_is_proven_it_is_asked_again_after_a_minute(answer: Answer) -> None:
    asked, clock = Asked(first=answer, second=answer), Clock()
    probe = TokenProbe(asked, clock)
    for second, times in ((0.0, 2), (5.0, 2), (59.0, 2), (60.0, 4)):
        clock.now = second
        seen(probe, SUSPECTED)
        await answered(asked)
        assert len(asked.urls) == times
    assert seen(probe, SUSPECTED).hung == ()


async def test_an_engine_that_moves_again_is_forgotten_and_one_out_of_sight_is_not() -> None:
    asked = Asked(first=Answer.STALLED, second=Answer.STALLED)
    probe = TokenProbe(asked, Clock())
    seen(probe, SUSPECTED)
    await answered(asked)
    seen(probe, replace(SUSPECTED, state=SignalState.UNREACHABLE, hung=()))
    assert seen(probe, SUSPECTED).hung == ("chat-0", "chat-1")
    seen(probe, replace(SUSPECTED, hung=("chat-1",)))
    assert (seen(probe, SUSPECTED).hung, len(asked.urls)) == (("chat-1",), 2)
    await answered(asked)
    assert len(asked.urls) == 3


async def test_an_engine_without_an_address_and_a_question_that_breaks_prove_nothing() -> None:
    async def breaks(url: str) -> Answer:
        raise ValueError(url)

    probe = TokenProbe(breaks, Clock())
    for _ in range(2):
        found = seen(probe, SUSPECTED, {CHAT: {"chat-0": "nowhere"}})
        await asyncio.sleep(0)
    assert (found.hung, found.silent) == ((), ("chat-0", "chat-1"))
    assert probe.proven({CHAT: traffic(5.0)}, {}) == {CHAT: traffic(5.0)}


class Engine:
    """vLLM's two routes; each answers what a test says, or never."""

    def __init__(self) -> None:
        self.models: tuple[int, str] = (200, '{"data": [{"id": "llama"}]}')
        self.completion: tuple[int, str] | None = (200, '{"choices": [{"text": "x"}]}')
        self.questions: list[object] = []

    def routes(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._list), web.post("/v1/completions", self._complete)])
        return app

    async def _list(self, request: web.Request) -> web.Response:
        return web.Response(status=self.models[0], text=self.models[1])

    async def _complete(self, request: web.Request) -> web.Response:
        self.questions.append((await request.json(), request.headers["x-request-id"]))
        if self.completion is None:
            await asyncio.Event().wait()
        assert self.completion is not None
        return web.Response(status=self.completion[0], text=self.completion[1])


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    made = Engine()
    server = TestServer(made.routes())
    await server.start_server()
    yield made, str(server.make_url("")).rstrip("/")
    await server.close()


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ((200, '{"choices": [{"text": "x"}]}'), Answer.SERVES),
        ((200, '{"choices": []}'), Answer.UNKNOWN),
        ((200, "no json"), Answer.UNKNOWN),
        ((500, "EngineDeadError"), Answer.STALLED),
        ((503, ""), Answer.STALLED),
        ((401, ""), Answer.UNKNOWN),
        ((404, ""), Answer.UNKNOWN),
        ((429, ""), Answer.UNKNOWN),
        (None, Answer.STALLED),
    ],
)
async def test_each_answer_proves_what_it_can(
    engine: tuple[Engine, str], completion: tuple[int, str] | None, answer: Answer
) -> None:
    engine[0].completion = completion
    assert await Engines(token_seconds=0.2).ask(engine[1]) is answer
    question = {"model": "llama", "prompt": "Hello", "max_tokens": 1}
    assert engine[0].questions == [(question, "holdfast-probe")]


@pytest.mark.parametrize(
    "models", [(401, ""), (500, ""), (200, "{"), (200, "{}"), (200, '{"data": []}'), (302, ""), (200, "[" * 60_000)]
)
async def test_an_api_server_that_does_not_name_its_model_is_asked_for_nothing(
    engine: tuple[Engine, str], models: tuple[int, str]
) -> None:
    engine[0].models = models
    assert await Engines().ask(engine[1]) is Answer.UNKNOWN
    assert engine[0].questions == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://127.0.0.1:9", "nowhere", ""])
async def test_an_engine_that_cannot_be_reached_is_not_called_stalled(url: str) -> None:
    assert await Engines().ask(url) is Answer.UNKNOWN
