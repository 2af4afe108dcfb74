"""The closed form of one replica in a steady state (control law, section 2), for many rates at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.steplaw import StepLaw

Array = NDArray[np.float64]

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica as formulas see it: law, lengths of its requests, limits; `arrival_cv` 1 is Poisson."""

    law: StepLaw
    mix: LengthMix
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: float
    arrival_cv: float = 1.0

    @property
    def prefill_seconds(self) -> float:
        """Work of the mean prompt, E[w]."""
        return self.law.c1 * self.mix.computed_tokens + self.law.c4 * self.mix.prefill_pairs

    @property
    def decode_seconds(self) -> float:
        """Work of the mean answer over all its steps."""
        return self.law.c2 * self.mix.output_tokens + self.law.c3 * self.mix.kv_token_steps

    @property
    def work_seconds(self) -> float:
        """Work of the mean request, prefill and decode."""
        return self.prefill_seconds + self.decode_seconds

    @property
    def prefill_dispersion(self) -> float:
        """Variance per arrival of the prefill work that arrives in a time: E[w²] + (cv² - 1) E[w]²."""
        mean, cv2 = self.mix.computed_tokens, self.mix.computed_cv**2
        pairs = self.mix.prefill_pairs / max(self.mix.computed_squared, 1e-12)
        c1, c4 = self.law.c1, self.law.c4 * pairs
        # Moments of a lognormal: E[x^n] = mean^n (1 + cv²)^(n (n - 1) / 2).
        square, cube, fourth = mean**2 * (1 + cv2), mean**3 * (1 + cv2) ** 3, mean**4 * (1 + cv2) ** 6
        second = c1 * c1 * square + 2 * c1 * c4 * cube + c4 * c4 * fourth
        return max(0.0, second + (self.arrival_cv**2 - 1.0) * self.prefill_seconds**2)

    @property
    def kv_per_sequence(self) -> float:
        """KV tokens of a sequence while it decodes, the unused part of its last block included."""
        return self.mix.kv_token_steps / self.mix.output_tokens + 0.5 * BLOCK_TOKENS

    @property
    def kv_sequences(self) -> float:
        """Sequences for which the KV cache has room."""
        return self.kv_tokens / self.kv_per_sequence

    @property
    def sequences(self) -> float:
        """Most sequences that can decode at once."""
        return min(float(self.max_num_seqs), self.kv_sequences)

    @property
    def most_rate(self) -> float:
        """Rate at which the engine is surely unstable: no time, no sequence or no token of the budget is left.

        Each bound solves T(rate) = c0 / (1 - rate w) for the rate at which Little's law meets the limit.
        """
        c0, work, output = self.law.c0, self.work_seconds, self.mix.output_tokens
        per_step = self.mix.computed_tokens + output
        slots, budget = self.sequences, float(self.max_num_batched_tokens)
        return min(
            1.0 / max(work, 1e-12),
            slots / max(output * c0 + slots * work, 1e-12),
            budget / max(per_step * c0 + budget * work, 1e-12),
        )


@dataclass(frozen=True, slots=True)
class Steady:
    """Steady state at each of `rates`; seconds, tokens and sequences."""

    rates: Array
    utilisation: Array
    prefill_utilisation: Array
    step_seconds: Array
    decode_step_seconds: Array
    sequences: Array
    kv_tokens: Array
    slackness: Array
    """How fast a surplus of sequences drains, relative to a load-independent step: 1 idle, 0 saturated."""


def steady_state(engine: Engine, rates: Array) -> Steady:
    """The means at each rate, all of which are below `engine.most_rate`."""
    busy = rates * engine.work_seconds
    prefill = rates * engine.prefill_seconds
    step = engine.law.c0 / (1.0 - busy)
    return Steady(
        rates=rates,
        utilisation=busy,
        prefill_utilisation=prefill,
        step_seconds=step,
        decode_step_seconds=step * (1.0 - prefill),
        sequences=rates * engine.mix.output_tokens * step,
        kv_tokens=rates * step * engine.mix.kv_token_steps,
        slackness=(1.0 - busy) / (1.0 - prefill),
    )
