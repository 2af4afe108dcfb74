"""Speculative decoding as an engine is asked to do it, and what became of its drafts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speculation:
    """So many tokens are drafted for each step of a sequence; a share of them, from 0 to 1, is accepted."""

    tokens: int
    accepted_share: float

    @property
    def tokens_per_step(self) -> float:
        """Output tokens that a step gives a sequence: one, and the drafts that are accepted."""
        return 1.0 + self.tokens * self.accepted_share


NO_SPECULATION = Speculation(0, 0.0)
