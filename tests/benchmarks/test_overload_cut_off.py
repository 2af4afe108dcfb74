"""The client goes home when all verdicts are known, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.engine_overload.inside.cut_off import ERROR, CutOff, noting


@dataclass
class Input:
    request_id: str | None


@dataclass
class Output:
    success: bool = False
    ttft: float = 0.0
    error: str = ""


class Client:
    """vLLM's function: makes an output, then is answered as told; its moments are the clock's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.aborted: list[str | None] = []
        self.first_token = asyncio.Event()
        self.end = asyncio.Event()
        self._output = noting(Output)

    async def ask(self, request: Input, session: Any, pbar: Any) -> Any:
        output = self._output()
        try:
            await self.first_token.wait()
            output.ttft = 0.1
            await self.end.wait()
        except asyncio.CancelledError:
            self.aborted.append(request.request_id)
            raise
        output.success = True
        return output


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def send(cut: CutOff, name: str | None) -> asyncio.Task[Any]:
    return asyncio.ensure_future(cut(Input(name), None))


async def test_what_has_no_first_token_when_the_arrivals_have_ended_is_let_go() -> None:
    client = Client()
    found = await send(CutOff(client.ask, 5.0, 0.0, lambda: client.now), "a-0")
    assert (found.success, found.error) == (False, ERROR)
    assert client.aborted == ["a-0"]


async def test_a_request_of_the_window_with_tokens_is_waited_for() -> None:
    client = Client()
    client.first_token.set()
    cut = CutOff(client.ask, 5.0, 10.0, lambda: client.now)
    first = send(cut, "a-0")
    await settle()
    client.now += 4.0
    inside = send(cut, "a-1")
    await settle()
    client.now += 2.0
    tail = send(CutOff(client.ask, -1.0, 0.0, lambda: client.now), "a-2")
    assert (await tail).error == ERROR
    client.end.set()
    assert [(await each).success for each in (first, inside)] == [True, True]


async def test_an_answer_in_time_passes_untouched() -> None:
    client = Client()
    client.first_token.set()
    client.end.set()
    found = await send(CutOff(client.ask, 5.0, 10.0, lambda: client.now), "a-0")
    assert (found.success, found.error) == (True, "")


async def test_looking_whether_the_server_is_there_begins_nothing() -> None:
    client = Client()
    client.first_token.set()
    cut = CutOff(client.ask, -1.0, -1.0, lambda: client.now)
    asked = send(cut, None)
    await settle()
    client.end.set()
    assert (await asked).success


async def test_a_client_that_cannot_be_watched_fails_loudly() -> None:
    async def ask(request: Input, session: Any, pbar: Any) -> Output:
        return Output(success=True)

    with pytest.raises(RuntimeError, match="in another way"):
        await send(CutOff(ask, 5.0, 10.0), "a-0")
