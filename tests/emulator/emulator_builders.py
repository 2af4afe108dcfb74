"""Emulated engines on a real socket for tests, and requests to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web

from holdfast.emulator.options import EmulatorOptions, set_up
from holdfast.emulator.server import EmulatorServer, runner_of

MODEL = "Qwen/Qwen3-8B"
FAST = EmulatorOptions(model=MODEL, speed=20.0, drain_file="/nonexistent/draining")


class Client:
    """An HTTP client of one emulated engine."""

    def __init__(self, server: EmulatorServer, base: str, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.base = base
        self.session = session

    async def post(self, path: str = "/v1/completions", **fields: Any) -> tuple[int, dict[str, Any]]:
        async with self.session.post(self.base + path, json={"model": MODEL, **fields}) as response:
            return response.status, await response.json()

    async def stream(self, path: str = "/v1/completions", **fields: Any) -> list[str]:
        """The data of every event."""
        body = {"model": MODEL, "stream": True, **fields}
        async with self.session.post(self.base + path, json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/event-stream")
            text = await response.text()
        return [line.removeprefix("data: ") for line in text.split("\n\n") if line]

    async def metrics(self) -> str:
        async with self.session.get(self.base + "/metrics") as response:
            return await response.text()

    async def value(self, name: str, /, **labels: str) -> float:
        """The sum of the samples of that name with these labels."""
        wanted = [f'{label}="{text}"' for label, text in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in (await self.metrics()).splitlines()
            if line.startswith(name + "{") and all(pair in line for pair in wanted)
        )


@asynccontextmanager
async def engine(options: EmulatorOptions = FAST, **changes: Any) -> AsyncIterator[Client]:
    """An engine on a free port, and a client of it."""
    server = EmulatorServer(set_up(replace(options, **changes)))
    runner = runner_of(server)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield Client(server, f"http://127.0.0.1:{port}", session)
    finally:
        await runner.cleanup()
