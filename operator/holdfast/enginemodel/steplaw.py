"""How long one engine step takes: T = c0 + c1 p + c2 d + c3 k + c4 a."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Protocol

from holdfast.domain.engine import StepSums

Chunk = tuple[int, int]
"""Prompt tokens computed in a step, and the tokens of the same request before them."""


class StepTimer(Protocol):
    """Anything that can say how long a step takes."""

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        ...


class PartedTimer(StepTimer, Protocol):
    """A timer whose fixed part and prompts' part can be made longer or shorter."""

    def parted(self, fixed: float, prompt: float) -> StepTimer:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        ...


@dataclass(frozen=True, slots=True)
class StepLaw:
    """Coefficients in seconds; all are >= 0.

    c0 per step, c1 per prompt token, c2 per decoding sequence, c3 per KV token read by decodes, c4 per pair of a
    prompt token and a token before it. The pairs of a chunk are chunk x (prefix + chunk / 2), so that the pairs of a
    prompt add up to the same however it is cut.
    """

    c0: float
    c1: float
    c2: float
    c3: float
    c4: float

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        tokens, pairs = prefill_work(chunks)
        return self.c0 + self.c1 * tokens + (self.c2 + self.c3 * mean_kv) * decodes + self.c4 * pairs

    def sums_seconds(self, sums: StepSums) -> float:
        """Seconds of steps whose work was summed up."""
        work = self.c1 * sums.prefill_tokens + self.c2 * sums.decodes + self.c3 * sums.kv_tokens + self.c4 * sums.pairs
        return self.c0 * sums.steps + work

    def scaled(self, gain: float) -> StepLaw:
        """The law of an engine whose every step takes `gain` times as long."""
        return StepLaw(*(gain * coefficient for coefficient in astuple(self)))

    def parted(self, fixed: float, prompt: float) -> StepLaw:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        return replace(self, c0=fixed * self.c0, c1=prompt * self.c1, c4=prompt * self.c4)


def prefill_work(chunks: Sequence[Chunk]) -> tuple[int, float]:
    """Prompt tokens and attention pairs of a step's chunks."""
    tokens, pairs = 0, 0.0
    for chunk, prefix in chunks:
        tokens += chunk
        pairs += chunk * (prefix + 0.5 * chunk)
    return tokens, pairs
