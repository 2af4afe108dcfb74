"""The plugin with a fault in one of its hooks, for tests: `broken:Broken` fails where HOLDFAST_TEST_FAULT says."""

from __future__ import annotations

import os
from typing import Any

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
