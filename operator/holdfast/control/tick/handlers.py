"""kopf handlers of one or two lines each; the loop makes all decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from holdfast.api import llmbenchmark
from holdfast.api.llmservice import GROUP, PLURAL, VERSION


def register(registry: kopf.OperatorRegistry, wake: Callable[[], None], *, benchmarks: bool = False) -> None:
    """Wake the loop when an LLMService or an LLMBenchmark is created, deleted or edited."""

    async def on_service(type: str | None, body: kopf.Body, **_: Any) -> None:
        if is_news(type, body):
            wake()

    for plural in (PLURAL, *([llmbenchmark.PLURAL] if benchmarks else [])):
        kopf.on.event(GROUP, VERSION, plural, id=f"wake-{plural}", registry=registry)(on_service)


def is_news(event: str | None, body: Any) -> bool:
    """Whether an event is more than the echo of our own status write."""
    seen = (body.get("status") or {}).get("observedGeneration")
    return event in (None, "ADDED", "DELETED") or seen != body["metadata"].get("generation")


def settings() -> kopf.OperatorSettings:
    """kopf without its own writes, scans and peering: we elect by Lease and post our own Events."""
    result = kopf.OperatorSettings()
    result.scanning.disabled = True
    result.posting.enabled = False
    result.peering.standalone = True
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 5
    result.watching.chunk_size = 200  # objects of one page are in memory twice, as text and parsed
    result.queueing.idle_timeout = 1.0  # kopf retains the last body of every object for this long
    return result
