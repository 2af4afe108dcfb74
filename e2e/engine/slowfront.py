"""An API server that takes its time: tokens of a stream are written later than vLLM hands them out."""

from __future__ import annotations

import asyncio
from typing import Any

HELD_SECONDS = 6.0


class SlowFront:
    """Middleware around the plugin's own; requests with `X-Slow: 1` have the first event of their stream held back."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hold back the first part of the answer."""
        held = scope["type"] == "http" and (b"x-slow", b"1") in scope["headers"]

        async def send_late(message: Any) -> None:
            nonlocal held
            if held and message["type"] == "http.response.body":
                held = False
                await asyncio.sleep(HELD_SECONDS)
            await send(message)

        await self._app(scope, receive, send_late)
