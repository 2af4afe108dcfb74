"""Asks engines that look stalled for one token: nothing is removed before one that is able to give it has failed to.

A query cannot tell a dead engine from gauges that stay after all clients left at once. The question goes to the pod
itself, without a key: keys are in Secrets that the operator may not read. So of an engine with a key, and of one that
cannot be reached, nothing is proven.
"""

from __future__ import annotations

import asyncio
import enum
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Traffic

_REACHED_SECONDS, _TOKEN_SECONDS = 5.0, 20.0
_AGAIN_SECONDS = 60.0
_AT_ONCE = 16
_MOST_BYTES = 65_536
_HEADERS = {"x-request-id": "holdfast-probe"}  # for who reads the engine's log; it counts like any client's request


class Answer(enum.Enum):
    """What became of a question."""

    SERVES = "serves"
    STALLED = "stalled"  # no token, although the API server answers
    UNKNOWN = "unknown"  # it could not be reached, or refused the question


Ask = Callable[[str], Awaitable[Answer]]
Who = tuple[ServiceKey, str]


@dataclass(slots=True)
class _Question:
    task: asyncio.Task[Answer]
    asked_at: float

    @property
    def answer(self) -> Answer | None:
        if not self.task.done() or self.task.cancelled():
            return None
        return Answer.UNKNOWN if self.task.exception() else self.task.result()


class TokenProbe:
    """Asks in the background, once for each suspicion, and again after a minute where nothing was proven."""

    def __init__(self, ask: Ask | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask or Engines().ask
        self._monotonic = monotonic
        self._asked: dict[Who, _Question] = {}

    def proven(
        self, traffic: Mapping[ServiceKey, Traffic], urls: Mapping[ServiceKey, Mapping[str, str]]
    ) -> dict[ServiceKey, Traffic]:
        """Return the traffic with only those pods `hung` that gave no token when asked; the others are `silent`."""
        self._forget(traffic)
        return {key: self._parted(key, seen, urls.get(key, {})) if seen.hung else seen for key, seen in traffic.items()}

    def _parted(self, key: ServiceKey, seen: Traffic, urls: Mapping[str, str]) -> Traffic:
        for pod in seen.hung:
            if pod in urls and self._is_due((key, pod)):
                task = asyncio.ensure_future(self._ask(urls[pod]))
                self._asked[key, pod] = _Question(task, self._monotonic())
        dead = tuple(pod for pod in seen.hung if self._answer((key, pod)) is Answer.STALLED)
        return replace(seen, hung=dead, silent=tuple(pod for pod in seen.hung if pod not in dead))

    def _is_due(self, who: Who) -> bool:
        question = self._asked.get(who)
        if question is None:
            return True
        return question.answer in (Answer.SERVES, Answer.UNKNOWN) and (
            self._monotonic() - question.asked_at >= _AGAIN_SECONDS
        )

    def _answer(self, who: Who) -> Answer | None:
        return self._asked[who].answer if who in self._asked else None

    def _forget(self, traffic: Mapping[ServiceKey, Traffic]) -> None:
        """Forget the engines that are suspected no more; without fresh metrics that is unknown."""
        for key, pod in list(self._asked):
            seen = traffic.get(key)
            if seen is None or (seen.fresh and pod not in seen.hung):
                self._asked.pop((key, pod)).task.cancel()


class Engines:
    """Sends the question over HTTP."""

    def __init__(self, token_seconds: float = _TOKEN_SECONDS) -> None:
        self._token_seconds = token_seconds
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, url: str) -> Answer:
        """Ask the engine at this address for one token; never raises."""
        # No certificate is checked: nothing secret is sent, and pods are addressed by their IPs.
        connector = aiohttp.TCPConnector(force_close=True, ssl=False)
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._places, aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                async with asyncio.timeout(_REACHED_SECONDS):
                    _, models = await _answered(session, "GET", f"{url}/v1/models")
                    question = {"model": models["data"][0]["id"], "prompt": "Hello", "max_tokens": 1}
            except Exception:  # whatever it answers: nothing is proven
                return Answer.UNKNOWN
            return await self._token(session, url, question)

    async def _token(self, session: aiohttp.ClientSession, url: str, question: Mapping[str, Any]) -> Answer:
        try:
            async with asyncio.timeout(self._token_seconds):
                status, answer = await _answered(session, "POST", f"{url}/v1/completions", question)
        except TimeoutError:
            return Answer.STALLED
        except Exception:
            return Answer.UNKNOWN
        if status >= 500:
            return Answer.STALLED
        return Answer.SERVES if status == 200 and answer.get("choices") else Answer.UNKNOWN


async def _answered(
    session: aiohttp.ClientSession, method: str, url: str, body: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    """Return the status and the JSON of an answer."""
    async with session.request(method, url, json=body, headers=_HEADERS, allow_redirects=False) as answer:
        text = await answer.content.read(_MOST_BYTES)
        return answer.status, json.loads(text) if answer.status == 200 else {}
