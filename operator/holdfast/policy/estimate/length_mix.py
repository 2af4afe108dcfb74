"""Average the observed lengths of requests over minutes; with the arrival rate they make up the load."""

from __future__ import annotations

import math

from holdfast.domain.signals import AcceleratorTraffic, LengthHistogram
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

CHANGED, SPREAD = 0.25, 1.5
"""Relative difference of an interval's mean from the remembered one by which the lengths change, beyond chance.

The second is the relative standard deviation of lengths that chance is computed with. Azure's conversations of 2023
have 1.0 (prompts) and 0.8 (answers), its code completions 1.0 and 2.2.
"""

MATERIAL = 0.1
"""Relative change of a mean below which capacities are not recomputed."""


@value
class Lengths:
    """Exponentially decayed sums over requests, in requests and tokens; cached tokens are summed over prompts.

    `all_tokens` are those of `begun` requests, the others of requests that finished. At `changed_at` requests last had
    other lengths than these: what engines did then says nothing about them.
    """

    requests: float = PRIOR_REQUESTS
    prompt_tokens: float = PRIOR_REQUESTS * PRIOR_PROMPT_TOKENS
    output_tokens: float = PRIOR_REQUESTS * PRIOR_OUTPUT_TOKENS
    all_tokens: float = 0.0
    cached_tokens: float = 0.0
    counted_at: float | None = None
    changed_at: float = -math.inf
    begun: float = 0.0

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
    """Add the lengths of the requests that finished since the last observation; others than before replace them."""
    total, interval = seen.total, seen.interval_seconds
    if not (seen.countable and seen.visible):
        return memory
    passed = interval if memory.counted_at is None else min(now - memory.counted_at, interval)
    if passed <= 0.0 or total.length_samples < 1.0:
        return memory
    others = _are_others(memory, total)
    share, decay = (1.0, 0.0) if others else (passed / interval, 1.0 / (1.0 + passed / MEMORY_SECONDS))
    return Lengths(
        requests=decay * memory.requests + share * total.length_samples,
        prompt_tokens=decay * memory.prompt_tokens + share * total.prompt_length_sum,
        output_tokens=decay * memory.output_tokens + share * total.output_length_sum,
        all_tokens=decay * memory.all_tokens + share * total.prompt_tokens,
        cached_tokens=decay * memory.cached_tokens + share * min(total.cached_prompt_tokens, total.prompt_tokens),
        counted_at=now,
        changed_at=now if others else memory.changed_at,
        begun=decay * memory.begun + share * total.ttft_count,
    )


def _are_others(memory: Lengths, total: AcceleratorTraffic) -> bool:
    """Return whether prompts that began or answers that ended are clearly longer or shorter than those before.

    Prompts count when they begin: by the time that such requests have ended, engines have long served others.
    """
    prompts = _differ(total.prompt_tokens, total.ttft_count, memory.all_tokens, memory.begun)
    return prompts or _differ(total.output_length_sum, total.length_samples, memory.output_tokens, memory.requests)


def _differ(tokens: float, requests: float, tokens_before: float, before: float) -> bool:
    """Return whether the means of two groups of requests differ by more than by chance."""
    if min(tokens, requests, tokens_before, before) <= 0.0:
        return False
    chance = 3.0 * SPREAD * math.sqrt(1.0 / requests + 1.0 / before)
    return abs(tokens / requests * before / tokens_before - 1.0) > CHANGED + chance


def moved(one: Lengths, other: Lengths) -> bool:
    """Return whether the means differ enough to change what a replica carries."""
    means = ((one.prompt_mean, other.prompt_mean), (one.output_mean, other.output_mean))
    changed = any(abs(mean - before) > MATERIAL * before for mean, before in means)
    return changed or abs(one.cached_share - other.cached_share) > MATERIAL
