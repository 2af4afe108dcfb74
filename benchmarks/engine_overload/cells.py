"""What is measured: mixes of lengths, objectives, loads, and what was promised for them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal distribution of tokens."""

    mean: float
    cv: float
    most: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Lengths of prompts and answers."""

    name: str
    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds of one good request in seconds."""

    ttft_seconds: float
    tpot_seconds: float


@dataclass(frozen=True, slots=True)
class FixedLimits:
    """`--max-num-seqs` and `--max-num-batched-tokens`."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Effort:
    """What the search for C is worth: its limits, how many are kept after a round, fresh runs of each finalist."""

    limits: tuple[FixedLimits, ...]
    kept: tuple[int, int]
    confirmations: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A mix, objectives, and the offered loads in units of C."""

    mix: Mix
    slo: Slo
    overloads: tuple[float, ...]
    calm_loads: tuple[float, ...]
    effort: Effort

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.mix.name}, TTFT {self.slo.ttft_seconds:g} s, TPOT {1000 * self.slo.tpot_seconds:g} ms"


class Variant(enum.StrEnum):
    """How vLLM is started.

    SEARCH is stock vLLM whose limits can be set while it runs, TUNED is stock vLLM with C's limits and
    --max-num-queued-tokens.
    """

    QUEUE = "plugin Queue"
    REJECT = "plugin Reject"
    STOCK = "stock"
    TUNED = "stock tuned"
    SEARCH = "stock at C's limits"


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds of arrivals: a warm-up, the window that counts, and a tail that keeps the load up behind it."""

    warm_up_seconds: float
    seconds: float
    tail_seconds: float

    @property
    def end_seconds(self) -> float:
        """When the last request that counts may come."""
        return self.warm_up_seconds + self.seconds

    @property
    def total_seconds(self) -> float:
        """From the first arrival to the last."""
        return self.end_seconds + self.tail_seconds


# A quarter of the lengths of the Azure traces of 2023, with their spread.
CONVERSATION = Mix("conversation", Lengths(256, 1.2, 2048), Lengths(64, 0.8, 512))
CODE = Mix("code", Lengths(512, 0.9, 2048), Lengths(16, 1.5, 512))
LONGEST = 4096
BRISK, RELAXED = Slo(1.0, 0.05), Slo(2.0, 0.1)
# Fixed limits that stock vLLM may have: C is the best goodput with any of them at any rate.
SEARCHED_LIMITS = tuple(FixedLimits(sequences, tokens) for sequences in (128, 36, 24) for tokens in (2048, 768, 384))
THOROUGH = Effort(SEARCHED_LIMITS, kept=(4, 2), confirmations=2)
BRIEF = Effort(SEARCHED_LIMITS[:6], kept=(2, 1), confirmations=1)
CELLS = (
    Cell(CONVERSATION, BRISK, overloads=(1.1, 1.25, 1.5, 2.0), calm_loads=(0.5, 0.8), effort=THOROUGH),
    Cell(CODE, BRISK, overloads=(1.5,), calm_loads=(0.8,), effort=BRIEF),
    Cell(CONVERSATION, RELAXED, overloads=(1.5,), calm_loads=(0.8,), effort=BRIEF),
    Cell(CODE, RELAXED, overloads=(1.5,), calm_loads=(0.8,), effort=BRIEF),
)
# What vLLM chooses on a CPU.
DEFAULT_LIMITS = FixedLimits(sequences=128, tokens=2048)
# Shares of C that the plugin keeps: with everybody in the queue, and with those turned away who would be late.
PROMISED = {
    Variant.QUEUE: {1.1: 0.95, 1.25: 0.95, 1.5: 0.9, 2.0: 0.85},
    Variant.REJECT: {1.1: 0.95, 1.25: 0.95, 1.5: 0.95, 2.0: 0.95},
}
# No more than this is lost where there is no overload.
PROMISED_LOSS = 0.05
# The recommended start for --max-num-queued-tokens: this share of TTFT at the rate at which prompts come at C.
QUEUED_SHARE_OF_TTFT = 0.6
