"""The operator's ports. The kubelet's probes have one of their own: no other client takes its connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp.web

from holdfast.listener.connections import Bounds
from holdfast.listener.refusals import Refusals
from holdfast.listener.serve import listening
from holdfast.page import server as page
from holdfast.page.access import Token
from holdfast.page.board import Board
from holdfast.runtime.settings import Settings
from holdfast.runtime.telemetry import Telemetry, health_application, http_application

BOUNDS = Bounds()
_FAREWELL_SECONDS = 2.0  # for responses in progress at shutdown: a slow client must not delay the next leader


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that are open; `status` is 0 without a status page."""

    health: int
    http: int
    status: int


@asynccontextmanager
async def opened(
    settings: Settings, telemetry: Telemetry, alive: Callable[[], bool], board: Board | None = None
) -> AsyncIterator[Ports]:
    """Serve health, metrics and decisions, and the status page if there is one, while the context lasts."""
    async with AsyncExitStack() as stack:

        async def opened_for(name: str, app: aiohttp.web.Application, port: int) -> int:
            refusals = Refusals(name, telemetry.refusals)
            served = listening(app, None, port, BOUNDS, refusals, shutdown_timeout=_FAREWELL_SECONDS)
            return await stack.enter_async_context(served)

        health = await opened_for("health", health_application(alive), settings.health_port)
        http = await opened_for("http", http_application(telemetry, alive), settings.http_port)
        status = 0
        if board is not None:
            token = Token(settings.status_token_file) if settings.status_token_file else None
            app = page.application(board, token, settings.status_host)
            status = await opened_for("status", app, settings.status_port)
        yield Ports(health, http, status)
