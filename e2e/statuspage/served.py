"""A page of its own thread and port, for a browser beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from holdfast.page.board import Board
from holdfast.page.server import application


@contextmanager
def served(board: Board, port: int = 0) -> Iterator[str]:
    """Serve the page on the loopback interface; yields its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = web.AppRunner(application(board))
    asyncio.run_coroutine_threadsafe(_start(runner, port), loop).result(60)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _start(runner: web.AppRunner, port: int) -> None:
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
