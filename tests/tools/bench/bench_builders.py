"""Records of requests for tests, times in seconds from 0."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from holdfast.tools.bench.load.records import RequestOutcome, RequestRecord

PNG = b"\x89PNG\r\n\x1a\n"
"""How every such file begins."""


def record(
    tokens_at: Sequence[float] = (0.5, 0.6, 0.7),
    outcome: RequestOutcome = RequestOutcome.FINISHED,
    at: float = 0.0,
    **more: Any,
) -> RequestRecord:
    """A request sent at `at`; `tokens_at` counts from there."""
    moments = array("d", [at + moment for moment in tokens_at])
    known: dict[str, Any] = {
        "index": 0,
        "scheduled_at": at,
        "sent_at": at,
        "ended_at": moments[-1] if moments else at + 1.0,
        "outcome": outcome,
        "token_at": moments,
        "prompt_tokens": 10,
        "output_tokens": len(moments),
        "counted": True,
        "asked_tokens": len(moments),
    }
    return RequestRecord(**{**known, **more})


def steady(count: int, gap: float = 0.1, **more: Any) -> list[RequestRecord]:
    """So many alike, one after another."""
    return [record(at=gap * number, index=number, **more) for number in range(count)]
