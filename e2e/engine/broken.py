"""The plugin with faults, for tests: `Broken` fails where HOLDFAST_TEST_FAULT says, `Door` where it is told to."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any
from urllib.parse import parse_qs

from e2e.engine.hooks import Fault, hooks, import_all
from holdfast_engine.middleware import AdmissionMiddleware
from holdfast_engine.scheduler import HoldfastScheduler

# The plugin orders, limits and counts for a while before it fails.
_CALLS_BEFORE = 30


class Broken(HoldfastScheduler):
    """Fails at the named method: `loop.<method>` or `order.<method>`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        part, method = os.environ["HOLDFAST_TEST_FAULT"].split(".")
        loop = self._loop
        assert loop is not None
        target: Any = {"loop": loop, "order": loop.queue.order}[part]
        working, calls = getattr(target, method), 0

        def fail(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > _CALLS_BEFORE:
                raise RuntimeError(f"a fault in {method}")
            return working(*given, **named)

        setattr(target, method, fail)


class Door:
    """The plugin's middleware, made anew by `GET /fault`: with one fault, or with none in any hook.

    `/fault?hook=HOOK&entrance=ENTRANCE&fails_at=CALL` breaks it, `/fault` counts calls, `/faults` tells of them.
    """

    def __init__(self, app: Any) -> None:
        import_all()
        self._app = app
        self._faults: list[Fault] = []
        self._broken = contextlib.ExitStack()
        self._begin({})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Requests for the tests are answered here, all others by the plugin and vLLM."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path not in ("/fault", "/faults"):
            await self._plugin(scope, receive, send)
            return
        if path == "/fault":
            self._begin({name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()})
        told = [{"hook": each.hook, "calls": each.calls, "reached": each.reached} for each in self._faults]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})

    def _begin(self, asked: dict[str, str]) -> None:
        if self._faults:
            # It watches over what has waited for too long.
            watch = self._plugin._sweeping
            if watch is not None:
                watch.cancel()
        self._broken.close()
        if asked:
            self._faults = [Fault(asked["hook"], asked["entrance"], float(asked["fails_at"]))]
        else:
            self._faults = [Fault(hook, fails_at=math.inf) for hook in hooks()]
        for fault in self._faults:
            self._broken.enter_context(fault)
        self._plugin = AdmissionMiddleware(self._vllm)

    async def _vllm(self, scope: Any, receive: Any, send: Any) -> None:
        """vLLM, or a refusal as by its own caps where a test asks for one."""
        if (b"x-busy", b"1") not in scope.get("headers", ()):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})
