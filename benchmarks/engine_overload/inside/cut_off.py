"""Lets `vllm bench serve` go home when the verdict on what is still under way is known.

An overload leaves a queue behind that takes as long again to serve as the run did, and tells nothing: what waits for
its first token when the arrivals have ended has missed its objective. From then on only requests of the window that
already have tokens are waited for; the others are dropped, which the server notices, and count as failed. Nothing is
dropped while requests still arrive: clients that gave up would relieve the server.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from typing import Any

ERROR = "let go when the arrivals had ended"
_noted: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("noted")


def noting(output: type[Any]) -> type[Any]:
    """vLLM's class of outputs, which tells the request's own wrapper of every new one."""

    class Noted(output):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if (noted := _noted.get(None)) is not None:
                noted.append(self)

    return Noted


class CutOff:
    """Wraps the function that sends a request; seconds are counted from the first one."""

    def __init__(
        self,
        ask: Callable[..., Awaitable[Any]],
        window_ends_seconds: float,
        arrivals_end_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._window_ends, self._arrivals_end = window_ends_seconds, arrivals_end_seconds
        self._began: float | None = None

    async def __call__(self, request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        """Send the request; those without a name only see whether the server is there."""
        if request_func_input.request_id is None:
            return await self._ask(request_func_input, session, pbar)
        if self._began is None:
            self._began = self._clock()
        at = self._clock() - self._began
        noted: list[Any] = []
        _noted.set(noted)
        task = asyncio.ensure_future(self._ask(request_func_input, session, pbar))
        done, _ = await asyncio.wait({task}, timeout=max(0.0, self._arrivals_end - at))
        if not noted:
            task.cancel()
            raise RuntimeError("this vLLM's client makes its outputs in another way: nothing can be let go")
        output = noted[0]
        if done or (at < self._window_ends and output.ttft > 0.0):
            return await task
        task.cancel()
        await asyncio.wait({task})
        output.success, output.error = False, ERROR
        return output
