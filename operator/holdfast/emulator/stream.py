"""Where tokens go: onto the wire of a streaming client, or into one answer."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import HttpVersion11, web

from holdfast.emulator.openai import BadRequest, Completion


class Collector:
    """Waits for the last token of an answer that is sent whole."""

    def __init__(self) -> None:
        self._done = asyncio.Event()
        self._problem: str | None = None

    def token(self) -> None:
        """One more token; nothing to do before the last."""

    def finish(self) -> None:
        self._done.set()

    def fail(self, message: str) -> None:
        self._problem = message
        self._done.set()

    async def finished(self) -> None:
        """Wait for the end; BadRequest where the engine ended it."""
        await self._done.wait()
        if self._problem is not None:
            raise BadRequest(self._problem, HTTPStatus.SERVICE_UNAVAILABLE)


class TokenStream:
    """Server-sent events of one answer, one write to the transport per token.

    Every token event of an answer is the same bytes, so the chunk with its HTTP framing is built once, and no task
    has to wake for a token: the engine writes while it delivers a step.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, answer: Completion) -> None:
        self._request = request
        self._response = response
        self._answer = answer
        self._chunked = request.version >= HttpVersion11
        self._token = self._framed(answer.token_event())
        self._unsent = self._framed(answer.first_event())
        self._opened = False
        self._problem: bytes | None = None
        self._done = asyncio.Event()

    async def open(self) -> None:
        """Send the headers."""
        if self._chunked:
            self._response.enable_chunked_encoding()
        await self._response.prepare(self._request)
        self._opened = True
        self._write(b"")

    def token(self) -> None:
        self._write(self._token)

    def finish(self) -> None:
        self._done.set()

    def fail(self, message: str) -> None:
        self._problem = BadRequest(message, HTTPStatus.SERVICE_UNAVAILABLE).body()
        self._done.set()

    async def finished(self) -> None:
        await self._done.wait()

    async def close(self) -> None:
        """Send the last token, or the error, and the end."""
        problem = self._problem
        last = self._answer.last_events() if problem is None else b"data: " + problem + b"\n\ndata: [DONE]\n\n"
        self._write(self._framed(last))
        await self._response.write_eof()

    def _write(self, data: bytes) -> None:
        self._unsent += data
        transport = self._request.transport
        if self._opened and self._unsent and transport is not None and not transport.is_closing():
            transport.write(self._unsent)
            self._unsent = b""

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data
