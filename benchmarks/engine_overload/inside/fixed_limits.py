"""Stock vLLM whose two limits can be set while it runs: `--scheduler-cls fixed_limits.FixedLimitsScheduler`.

The search for C tries dozens of limits; a server takes a minute to start. Order and everything else are vLLM's own.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput

_LOOK_SECONDS = 0.25


class FixedLimitsScheduler(AsyncScheduler):
    """Takes `sequences` and `tokens` from the JSON file named by HOLDFAST_ENGINE_LIMITS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next_look = 0.0

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Look at the file a few times per second, then let vLLM schedule."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            with open(os.environ["HOLDFAST_ENGINE_LIMITS"], encoding="utf-8") as file:
                limits = json.load(file)
            self.max_num_active_reqs = limits["sequences"]
            self.max_num_scheduled_tokens = limits["tokens"]
        return super().schedule(*args, **kwargs)
