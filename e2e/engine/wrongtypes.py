"""Mistakes that the check of interface.py must find; never run."""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from holdfast_engine.scheduler import HoldfastScheduler


def use(scheduler: HoldfastScheduler, request: Request) -> SchedulerOutput:
    """A name that vLLM does not have, and a number where it wants a request."""
    scheduler.waiting.peek()
    scheduler.add_request(7)
    return scheduler.schedule()
