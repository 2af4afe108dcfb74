"""Batching limits that were chosen for engines, in place of the limits that their service declares.

They are flags, so that another choice is another revision. The Deployment remembers it in an annotation, together with
the revision of the declared engine that it was made for: with another model, image or argument it is void.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from holdfast.api.llmservice import LLMService
from holdfast.domain.service import BatchingLimits

TRIAL_SECONDS = 1800
"""How long the first replica with other limits holds up the rest (minReadySeconds), even if nobody watches it."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Limits chosen for engines of a revision; on trial while `before` says what they replace."""

    limits: BatchingLimits
    before: BatchingLimits | None = None
    revision: str = ""

    def to_json(self) -> str:
        """Text for an annotation."""
        before = None if self.before is None else _pair(self.before)
        return json.dumps({"limits": _pair(self.limits), "before": before, "revision": self.revision})

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Read what `to_json` wrote; None for anything else."""
        try:
            found = json.loads(text)
            before = found["before"]
            return cls(_limits(found["limits"]), None if before is None else _limits(before), str(found["revision"]))
        except (KeyError, RecursionError, TypeError, ValueError):
            return None


def with_limits(service: LLMService, limits: BatchingLimits) -> LLMService:
    """The service as if it declared these limits; where they leave one open, its own stays."""
    if limits == BatchingLimits():
        return service
    declared = service.spec.batching
    batching = declared.model_copy(
        update={
            "max_num_seqs": limits.max_num_seqs or declared.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens or declared.max_num_batched_tokens,
        }
    )
    return service.model_copy(update={"spec": service.spec.model_copy(update={"batching": batching})})


def _pair(limits: BatchingLimits) -> list[int | None]:
    return [limits.max_num_seqs, limits.max_num_batched_tokens]


def _limits(pair: list[int | None]) -> BatchingLimits:
    sequences, tokens = (None if value is None else _whole(value) for value in pair)
    return BatchingLimits(sequences, tokens)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is no limit")
    return value
