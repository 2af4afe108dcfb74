"""Average the observed lengths of requests over minutes; with the arrival rate they make up the load."""

from __future__ import annotations

from holdfast.domain.signals import LengthHistogram
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.enginemodel.mix import LengthMix, mix_on_grid

PRIOR_PROMPT_TOKENS = 1155.0
PRIOR_OUTPUT_TOKENS = 211.0
"""Mean lengths assumed before a service's first request.

Source: means of the Azure conversation trace of 2023.
"""

PRIOR_REQUESTS = 20.0
"""Weight of the prior, in requests."""

MEMORY_SECONDS = 300.0
"""Time over which a request loses 1 - 1/e of its weight."""

MATERIAL = 0.1
"""Relative change of a mean below which capacities are not recomputed."""


@value
class Lengths:
    """Exponentially decayed sums over requests, in requests and tokens; cached tokens are summed over prompts."""

    requests: float = PRIOR_REQUESTS
    prompt_tokens: float = PRIOR_REQUESTS * PRIOR_PROMPT_TOKENS
    output_tokens: float = PRIOR_REQUESTS * PRIOR_OUTPUT_TOKENS
    all_tokens: float = 0.0
    cached_tokens: float = 0.0
    counted_at: float | None = None

    @property
    def prompt_mean(self) -> float:
        """Mean prompt length in tokens, at least 1."""
        return max(1.0, self.prompt_tokens / self.requests) if self.requests > 0.0 else PRIOR_PROMPT_TOKENS

    @property
    def output_mean(self) -> float:
        """Mean output length in tokens, at least 1."""
        return max(1.0, self.output_tokens / self.requests) if self.requests > 0.0 else PRIOR_OUTPUT_TOKENS

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        return min(1.0, self.cached_tokens / self.all_tokens) if self.all_tokens > 0.0 else 0.0

    def mix(self, prompts: LengthHistogram, outputs: LengthHistogram) -> LengthMix:
        """Return the moments that the engine model needs, with the spread of these histograms."""
        return mix_on_grid(self.prompt_mean, self.output_mean, self.cached_share, prompts, outputs)


def observe_lengths(memory: Lengths, seen: Seen, now: float) -> Lengths:
    """Add the lengths of the requests that finished since the last observation."""
    total, interval = seen.total, seen.interval_seconds
    if not (seen.countable and seen.visible):
        return memory
    passed = interval if memory.counted_at is None else min(now - memory.counted_at, interval)
    if passed <= 0.0 or total.length_samples < 1.0:
        return memory
    share, decay = passed / interval, 1.0 / (1.0 + passed / MEMORY_SECONDS)
    return Lengths(
        requests=decay * memory.requests + share * total.length_samples,
        prompt_tokens=decay * memory.prompt_tokens + share * total.prompt_length_sum,
        output_tokens=decay * memory.output_tokens + share * total.output_length_sum,
        all_tokens=decay * memory.all_tokens + share * total.prompt_tokens,
        cached_tokens=decay * memory.cached_tokens + share * min(total.cached_prompt_tokens, total.prompt_tokens),
        counted_at=now,
    )


def moved(one: Lengths, other: Lengths) -> bool:
    """Return whether the means differ enough to change what a replica carries."""
    return (
        abs(one.prompt_mean - other.prompt_mean) > MATERIAL * other.prompt_mean
        or abs(one.output_mean - other.output_mean) > MATERIAL * other.output_mean
        or abs(one.cached_share - other.cached_share) > MATERIAL
    )
