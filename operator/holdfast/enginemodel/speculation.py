"""Speculative decoding in the engine model: a step verifies drafted tokens, and gives a sequence those accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.domain.speculation import Speculation
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.steplaw import Chunk, StepTimer


@dataclass(frozen=True, slots=True)
class VerifyingTimer:
    """A GPU whose decodes compute `drafts` tokens more each, and read their KV cache once.

    Not in it: what drafting takes, which is next to nothing for n-grams and about a layer a token for EAGLE.
    """

    timer: StepTimer
    drafts: int

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        seconds = self.timer.step_seconds
        reading = seconds(chunks, decodes, mean_kv) - seconds(chunks, decodes, 0.0)
        return seconds(chunks, decodes * (1 + self.drafts), 0.0) + reading


def verifying(timer: EngineTimer, speculation: Speculation) -> EngineTimer:
    """The same engine with drafts; itself without any."""
    return EngineTimer(VerifyingTimer(timer.gpu, speculation.tokens), timer.host) if speculation.tokens else timer
