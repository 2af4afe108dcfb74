"""ASGI middleware for vLLM's API server: `--middleware holdfast_engine.middleware.AdmissionMiddleware`.

It turns requests away before vLLM has read them, as the limits of the operator ask. It adds Retry-After to the
refusals of vLLM. The answers of an engine in overload end their connections. It reports to the scheduler when
answers were written. Where anything in it fails, requests go to vLLM as if it were not there.

Nothing that a client states is believed: docs/security.md lists what it may send, and what is used instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast_engine.apiserver.admission import (
    GUARDED,
    PROMPTS,
    PromptLengthEstimator,
    Prompts,
    Transit,
    backlog_of,
    decide,
    is_behind,
    sends_away,
    terms_of,
)
from holdfast_engine.apiserver.door import OPEN_SECONDS, Door
from holdfast_engine.apiserver.exchange import EXCHANGE, Exchange
from holdfast_engine.apiserver.frontend import Frontend, prompt_tokens, streams
from holdfast_engine.apiserver.requestbody import App, Message, Receive, Send, take_in
from holdfast_engine.apiserver.routes import WITH_KEY
from holdfast_engine.apiserver.socketage import ReadingDelays, is_gone
from holdfast_engine.clients.written_file import CLASS_BYTES, ReportKind, WrittenWriter, class_digest
from holdfast_engine.objectives import rules
from holdfast_engine.objectives.claims import CLAIMED, header_claim, header_key, pass_on
from holdfast_engine.objectives.request import OWN_NAME_VARIABLE, OWN_REQUEST
from holdfast_engine.objectives.rules import SERVICE_CLASS, Admission, RejectionReason
from holdfast_engine.stats.classfiles import at_door, read_class
from holdfast_engine.stats.stats_fields import FIELDS, folder, servers_folder, written_path
from holdfast_engine.stats.statsfile import read_stats

CLOSE = (b"connection", b"close")
MESSAGES = {
    RejectionReason.FULL: "Too many requests wait for this engine. Please try again later or on a different instance.",
    RejectionReason.LATE: "The first token would come later than this service promises. Please try again later or on a "
    "different instance.",
}
_FIND_SECONDS = 1.0
_SWEEP_SECONDS = 1.0

logger = logging.getLogger("vllm.holdfast")


class AdmissionMiddleware:
    """Wraps the engine's application; every API server process has its own."""

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._sweeping: asyncio.Task[None] | None = None
        self._broken = False
        self._writer: WrittenWriter | None = None
        self._patient: set[str] = set()
        self._held: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        try:
            self._claim_key = header_key(os.environ.get(OWN_NAME_VARIABLE, ""))
            self._door = Door()
            self._records = Records(clock)
            if servers_folder() is None:  # this process writes all answers
                self._writer = WrittenWriter(written_path())
            self._lengths = PromptLengthEstimator()
            self._transit = Transit()
            self._delays = ReadingDelays(clock)
        except Exception as error:
            self._give_up(error)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        guarded, refusal, exchange, client, prompts = False, None, None, receive, Prompts()
        if not self._broken:
            try:
                guarded = is_guarded(scope)
                CLAIMED.set(header_claim(scope["headers"]) if guarded else SERVICE_CLASS)
                if guarded:
                    receive, prompts.size_bytes, is_whole = await take_in(client)
                    if is_whole and not is_gone(client):
                        refusal, exchange = await self._let_in(scope, client, prompts.size_bytes)
            except Exception as error:
                self._give_up(error)
        if guarded:
            send = self._answering(scope, client, send, exchange)
        if refusal is None:
            EXCHANGE.set(exchange)
            PROMPTS.set(prompts)
            try:
                await self._app(scope, receive, send)
            finally:
                self._leave(scope, exchange, prompts)
            return
        for message in refusal:
            await send(message)

    async def _let_in(
        self, scope: Message, client: Receive, size_bytes: int
    ) -> tuple[list[Message] | None, Exchange | None]:
        """The answer to who is turned away, else what follows its request; who is to wait at the door waits here."""
        waited, now, held = self._delays.seconds(client), self._clock(), None
        found, writer = self._admit(scope, size_bytes, waited), self._writer
        if found.waits and writer is not None:
            held = await self._at_door(writer, client, now - waited)
            found = Admission() if held else Admission(RejectionReason.FULL, rules.RETRY_AFTER_SECONDS[0])
        if found.refused is not None:
            return busy_answer(found.refused, found.retry_after_seconds), None
        return None, None if writer is None else Exchange(writer, self._clock, now - waited, held)

    async def _at_door(self, writer: WrittenWriter, receive: Receive, arrived_at: float) -> bytes | None:
        """Wait until there is room; returns the name of the wait, None where it was too long or the client has gone."""
        loop, name = asyncio.get_running_loop(), class_digest(CLAIMED.get()) + os.urandom(16 - CLASS_BYTES)
        turn, goes_on = loop.create_future(), False
        writer.write(ReportKind.HELD, name, arrived_at)
        self._held.append(turn)
        self._opening = self._opening or loop.create_task(self._open_door())
        try:
            await asyncio.wait_for(turn, max(0.0, min(self._longest_wait(), rules.LONGEST_WAIT_SECONDS)))
            goes_on = not is_gone(receive)
        except TimeoutError:
            pass
        finally:
            if not goes_on:
                writer.write(ReportKind.GONE, name, math.nan)
        return name if goes_on else None

    async def _open_door(self) -> None:
        """Let those at the door go on, one by one."""
        try:
            while self._held and not self._broken:
                await asyncio.sleep(OPEN_SECONDS)
                # An engine with nothing to do keeps nobody waiting, not even where its objectives are out of reach.
                if not self._transit.sent or self._door.opens(self._clock(), self._is_overloaded):
                    self._next_turn()
        except Exception as error:
            self._give_up(error)
        self._opening = None

    def _next_turn(self) -> None:
        while self._held:
            turn = self._held.popleft()
            if not turn.done():
                return turn.set_result(None)

    def _is_overloaded(self) -> bool:
        return any(map(sends_away, self._records.read()))

    def _longest_wait(self) -> float:
        """Infinite where no engine limits it."""
        found = [each["limit_max_queued_seconds"] for each in self._records.read() if terms_of(each)]
        return max(found, default=math.inf)

    def _leave(self, scope: Message, exchange: Exchange | None, prompts: Prompts) -> None:
        """Who was let in has an answer, or hung up."""
        if not self._broken:
            try:
                self._lengths.learn(prompts)
                self._transit.remove(id(scope))
                if exchange is not None:
                    exchange.leave()
            except Exception as error:
                self._give_up(error)

    def _admit(self, scope: Message, size_bytes: int, waited_seconds: float) -> Admission:
        frontend = Frontend(scope["app"].state.engine_client)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(frontend))
            frontend.follow(self._watched)
        engines, now = self._records.read(CLAIMED.get()), self._clock()
        expected = [self._lengths.tokens(size_bytes, each["mean_prompt_tokens"], frontend.longest) for each in engines]
        answers = [
            self._ask(numbers, tokens, now, waited_seconds) for numbers, tokens in zip(engines, expected, strict=True)
        ]
        refusals = [answer for answer in answers if not answer.admitted]
        # vLLM gives a request to the engine with the shortest queue.
        if refusals and len(refusals) == len(answers):
            best = min(refusals, key=lambda answer: answer.retry_after_seconds)
            if best.refused is not None:
                frontend.count_refusal(best.refused)
            return best
        if [answer.waits for answer in answers] == [True]:  # several engines would each count who waits
            return answers[0]
        self._door.passed(any(is_behind(numbers, waited_seconds) for numbers in engines))
        if engines:
            self._transit.add(id(scope), now, expected[0])
        return Admission()

    def _ask(self, numbers: Mapping[str, float], expected: float, now: float, waited_seconds: float) -> Admission:
        requests, tokens = self._transit.since(now, numbers["step_seconds"])
        return decide(numbers, expected, requests + len(self._held), tokens, waited_seconds)

    def _watched(self, add_request: Callable[..., Any]) -> Callable[..., Any]:
        """vLLM's own way to a new request, and then the note whose answer it is part of."""
        running = getattr(getattr(add_request, "__self__", None), "request_states", None)

        def add_and_follow(request: Any, *given: Any, **named: Any) -> Any:
            found = add_request(request, *given, **named)
            if not self._broken:
                try:
                    pass_on(request.sampling_params, self._claim_key)
                    if self._records.is_batch(CLAIMED.get()):
                        self._patient.add(request.request_id)
                    exchange, prompts = EXCHANGE.get(), PROMPTS.get()
                    if exchange is not None:
                        exchange.start(request.request_id, streams(request), running)
                    if prompts is not None:
                        prompts.tokens += prompt_tokens(request)
                except Exception as error:
                    self._give_up(error)
            return found

        return add_and_follow

    def _answering(self, scope: Message, client: Receive, send: Send, exchange: Exchange | None) -> Send:
        """Tell those whom vLLM itself turns away when to come again, and all clients of an engine in overload to come
        over another connection. Of a stream that is decided when it starts. Report when tokens were written."""
        keeps = scope.get("http_version", "1.1").startswith("1")

        async def send_answer(message: Message) -> None:
            awaited = False
            if not self._broken:
                try:
                    if message["type"] == "http.response.start":
                        message = self._advised(message, keeps)
                    elif not message.get("more_body"):
                        self._delays.answered(client)
                    if exchange is not None:
                        awaited = exchange.is_awaited(message)
                except Exception as error:
                    self._give_up(error)
            await send(message)
            if awaited and exchange is not None:
                try:
                    exchange.write(message)
                except Exception as error:
                    self._give_up(error)

        return send_answer

    def _advised(self, message: Message, keeps: bool) -> Message:
        engines, added = self._records.read(), []
        given = {name.lower() for name, _ in message.get("headers", ())}
        if message["status"] == 503 and b"retry-after" not in given:
            added.append((b"retry-after", str(retry_after_seconds(engines)).encode()))
        if keeps and engines and all(map(sends_away, engines)):
            added.append(CLOSE)
        return with_headers(message, added)

    async def _sweep(self, frontend: Frontend) -> None:
        """End what has waited for too long, and batch that waits in a pod that drains."""
        try:
            while not self._broken:
                await asyncio.sleep(_SWEEP_SECONDS)
                longest = self._longest_wait()
                # Without a limit, as after the scheduler stood down, this only forgets the patient that have gone.
                if longest < math.inf or self._patient:
                    await frontend.end_older_than(longest, self._patient)
                if self._patient and _drains():
                    await frontend.give_back(self._patient)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        while self._held:
            self._next_turn()
        if self._writer is not None:
            # What is under way now is judged by the engine's times. The file may be what failed.
            with contextlib.suppress(Exception):
                self._writer.close()
        logger.error("holdfast: no admission, requests go to vLLM as they come: %s", error, exc_info=error)


class Records:
    """The records of this pod's engines, by name; unreadable records are left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_find = float("-inf")
        self._paths: list[Path] = []
        self._has_classes = False

    def read(self, claimed: str | None = None) -> list[dict[str, float]]:
        """The last record of every engine; with what a class finds where a request claims one."""
        now = self._clock()
        if now >= self._next_find:
            self._next_find = now + _FIND_SECONDS
            self._paths = sorted(folder().glob("engine-*.stats"))
            self._has_classes = any(folder().glob("engine-*.class"))
        found = ((path, read_stats(path, len(FIELDS))) for path in self._paths)
        records = [(path, dict(zip(FIELDS, numbers, strict=True))) for path, numbers in found if numbers is not None]
        if claimed is None or not self._has_classes:
            return [record for _, record in records]
        return [record | at_door(partial(read_class, path), claimed) for path, record in records]

    def is_batch(self, claimed: str) -> bool:
        """Whether a header claims a Batch class."""
        if claimed == SERVICE_CLASS or not self._has_classes:
            return False
        found = (read_class(path, claimed) for path in self._paths)
        return any(numbers is not None and numbers["limit_ttft_seconds"] == math.inf for numbers in found)


def _drains() -> bool:
    """Whether the pod is about to be removed: preStop makes a file then."""
    return os.path.exists(os.environ.get("HOLDFAST_DRAIN_FILE", "/tmp/holdfast-draining"))  # noqa: S108


def is_guarded(scope: Message) -> bool:
    """Whether this request may be turned away: not the pod's own, nor one without the key that vLLM will ask for."""
    if scope["type"] != "http" or scope.get("method") != "POST":
        return False
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path not in GUARDED:
        return False
    # Only this process writes into a scope: no byte that a client sends becomes one of its names.
    return OWN_REQUEST not in scope and (not path.startswith(WITH_KEY) or has_key(scope))


def has_key(scope: Message) -> bool:
    """Whether vLLM will serve a request with this header. One that it will not teaches nothing and is in no count."""
    arguments = getattr(getattr(scope.get("app"), "state", None), "args", None)
    keys = [key for key in getattr(arguments, "api_key", None) or [os.environ.get("VLLM_API_KEY")] if key]
    if not keys:
        return True
    # As vLLM does: the first header of several, compared in a time that tells nothing of the key.
    found = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, given = found.partition(b" ")
    digest = hashlib.sha256(given).digest()
    known = [secrets.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys]
    return scheme.lower() == b"bearer" and any(known)


def retry_after_seconds(engines: Iterable[Mapping[str, float]]) -> int:
    """When one of these engines has room again."""
    known = [(terms_of(numbers), backlog_of(numbers)) for numbers in engines]
    found = [rules.retry_after_seconds(terms, backlog, 0.0) for terms, backlog in known if terms is not None]
    return min(found, default=rules.RETRY_AFTER_SECONDS[0])


def with_headers(message: Message, added: list[tuple[bytes, bytes]]) -> Message:
    """The start of an answer with these headers in place of its own of the same names."""
    if not added:
        return message
    names = {name for name, _ in added}
    kept = [header for header in message.get("headers", ()) if header[0].lower() not in names]
    return {**message, "headers": [*kept, *added]}


def busy_answer(refused: RejectionReason, retry_after_seconds: int) -> list[Message]:
    """A 503 in vLLM's own form."""
    error = {"message": MESSAGES[refused], "type": "Service Unavailable", "param": None, "code": 503}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(retry_after_seconds).encode()),
    ]
    return [
        {"type": "http.response.start", "status": 503, "headers": headers},
        {"type": "http.response.body", "body": body},
    ]
