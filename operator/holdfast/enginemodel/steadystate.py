"""The closed form of one replica in a steady state (control law, section 6), for many rates at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.enginemodel.mix import LengthMix, lognormal_nodes
from holdfast.enginemodel.steplaw import StepLaw

Array = NDArray[np.float64]

BLOCK_TOKENS = 16

TAIL_NODES = 500
"""Quantiles up to the longest in a thousand: beyond it, limits of models cut the tail that a lognormal would have."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica as formulas see it: law, lengths of its requests, limits; `arrival_cv` 1 is Poisson.

    `steps_ahead` are launched already when a request comes, besides the one under way: 1 with asynchronous scheduling.
    """

    law: StepLaw
    mix: LengthMix
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: float
    arrival_cv: float = 1.0
    steps_ahead: int = 0

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

    def prompt_seconds(self, prompts: Array) -> Array:
        """Prefill work of prompts of these computed lengths."""
        pairs = self.mix.prefill_pairs / max(self.mix.computed_squared, 1e-12)
        return np.asarray(self.law.c1 * prompts + self.law.c4 * pairs * prompts**2)

    @property
    def prompt_work(self) -> Array:
        """Prefill work of TAIL_NODES equally likely prompts, ascending."""
        return self.prompt_seconds(lognormal_nodes(self.mix.computed_tokens, self.mix.computed_cv, TAIL_NODES))

    @property
    def prefill_squared(self) -> float:
        """E[w²] of the prefill work."""
        work = self.prompt_work
        return float(work @ work) / TAIL_NODES

    @property
    def sequence_seconds(self) -> float:
        """What one more decoding sequence adds to a step."""
        return self.law.c2 + self.law.c3 * self.kv_per_sequence

    @property
    def kv_per_sequence(self) -> float:
        """KV tokens of a sequence while it decodes, the unused part of its last block included."""
        return self.mix.kv_token_steps / self.mix.output_tokens + 0.5 * BLOCK_TOKENS

    @property
    def kv_spread(self) -> float:
        """Squared coefficient of variation of a decoding sequence's KV tokens: its prompt, and its age in tokens.

        A lognormal's E[O³] is E[O²]³ / E[O]³; who decodes is found in proportion to O.
        """
        mix = self.mix
        output, prompt = mix.output_tokens, mix.prompt_tokens
        prompt_squared = mix.computed_squared * (prompt / mix.computed_tokens) ** 2
        age, age_squared = 0.5 * mix.output_squared / output, (mix.output_squared / output) ** 3 / (3.0 * output)
        mean = prompt + age
        return max(0.0, (prompt_squared + 2.0 * prompt * age + age_squared) / mean**2 - 1.0)

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
    prefill_noise: Array
    """Variance per second of the prefill work that arrives."""
    crowd_variance: Array
    """Variance in s² of a decode step by who decodes: how many, and how long their contexts are."""
    sequences_variance: Array
    """Variance of the decoding sequences.

    Each arrival adds itself and, as its prefill stops the decodes, the departures missed meanwhile: a jump
    J = 1 + w rate / (1 - rho_p). With the noise of departures, variance = d / slackness (E[J²] + 1) / 2; bursts of
    arrivals add (cv² - 1) E[J]².
    """


def steady_state(engine: Engine, rates: Array) -> Steady:
    """The means at each rate; all rates are below `engine.most_rate`."""
    busy = rates * engine.work_seconds
    prefill = rates * engine.prefill_seconds
    step = engine.law.c0 / (1.0 - busy)
    sequences = rates * engine.mix.output_tokens * step
    slackness = (1.0 - busy) / (1.0 - prefill)
    excess = engine.arrival_cv**2 - 1.0
    squared = engine.prefill_squared
    stopped = rates / (1.0 - prefill)
    jumps = 1.0 + 2.0 * stopped * engine.prefill_seconds + stopped**2 * squared + excess / (1.0 - prefill) ** 2
    variance = 0.5 * sequences / np.maximum(slackness, 1e-9) * (1.0 + np.maximum(jumps, 0.0))
    contexts = sequences * engine.kv_spread * (engine.law.c3 * engine.kv_per_sequence) ** 2
    return Steady(
        rates=rates,
        utilisation=busy,
        prefill_utilisation=prefill,
        step_seconds=step,
        decode_step_seconds=step * (1.0 - prefill),
        sequences=sequences,
        kv_tokens=rates * step * engine.mix.kv_token_steps,
        slackness=slackness,
        prefill_noise=rates * max(0.0, squared + excess * engine.prefill_seconds**2),
        crowd_variance=variance * engine.sequence_seconds**2 + contexts,
        sequences_variance=variance,
    )
