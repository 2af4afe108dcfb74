"""Real vLLM whose steps take as long as on an accelerator: `--worker-cls paced_worker.PacedWorker`.

Scheduler, API server, sampling and the model (a tiny one) are vLLM's own. A step ends no earlier than a step law says:
T = c0 + c1 p + c2 d + c3 k + c4 a, of p prompt tokens, d sequences that decode, k KV tokens that these read and a pairs
of a prompt token and one before it. So the speed of the host shows only where its own work takes longer than that.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

# Scheduling and output run beside the accelerator, as in vLLM's asynchronous mode: a busy engine's step begins where
# the one before it ended, unless that is longer ago.
_BESIDE_SECONDS = 0.02
_TELL_SECONDS = 0.5
_TOLD = Path("pace.json")


class PacedWorker(CPUWorker):
    """Takes the five coefficients of the law in seconds, a JSON list, from HOLDFAST_PACE."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._law = [float(each) for each in json.loads(os.environ["HOLDFAST_PACE"])]
        self._ends = self._told = 0.0
        self._lasts, self._over = 0.0, 0.0

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """Compute the step; where sampling is a call of its own, its end is awaited there."""
        now = time.monotonic()
        seconds = self._step_seconds(scheduler_output)
        self._ends = (self._ends if now - self._ends < _BESIDE_SECONDS else now) + seconds
        self._lasts += seconds
        output = super().execute_model(scheduler_output)
        if output is not None and seconds > 0.0:
            self._wait()
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then wait for the end of the step."""
        output = super().sample_tokens(*args, **kwargs)
        self._wait()
        return output

    def _step_seconds(self, step: SchedulerOutput) -> float:
        """How long the step lasts; a prompt's chunk of one token counts as a token that is decoded."""
        computed = {each.req_id: each.num_computed_tokens for each in step.scheduled_new_reqs}
        cached = step.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens = decodes = kv_tokens = 0
        pairs = 0.0
        for request, count in step.num_scheduled_tokens.items():
            before = computed.get(request, 0)
            if count == 1:
                decodes, kv_tokens = decodes + 1, kv_tokens + before
            else:
                tokens, pairs = tokens + count, pairs + count * (before + 0.5 * count)
        c0, c1, c2, c3, c4 = self._law
        work = c1 * tokens + c2 * decodes + c3 * kv_tokens + c4 * pairs
        return c0 + work if tokens or decodes else 0.0

    def _wait(self) -> None:
        """Let the step end when the law says so, and tell the sum of what the host took beyond it."""
        now = time.monotonic()
        if now < self._ends:
            time.sleep(self._ends - now)
        else:
            self._over += now - self._ends
            self._ends = now
        if now >= self._told + _TELL_SECONDS:
            self._told = now
            fresh = _TOLD.with_suffix(".new")
            fresh.write_text(json.dumps({"paced_seconds": self._lasts, "beyond_seconds": self._over}))
            fresh.replace(_TOLD)
