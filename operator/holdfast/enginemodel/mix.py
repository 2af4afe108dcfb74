"""Lengths of requests as the few moments the step law needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.signals import LengthHistogram

DEFAULT_CV = 1.0
"""Coefficient of variation assumed where only means are known; production chat traces have 0.8 .. 1.2."""


SELDOM = 0.005
"""Share of the answers that may be shorter than what is taken for the shortest."""

MOST_OF_MEAN = 0.9
"""The shortest answer has at most so much of the mean: the two are not of the same minutes."""

LENGTH_EDGES = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""vLLM's edges of prompt and answer lengths, up to a context of half a million tokens."""

TOKEN_GRID, CACHED_GRID, VARIATION_GRID = 0.05, 0.05, 0.25
"""Grid steps of a mix: of the logarithm of a mean, of a share, of a coefficient of variation."""

MOST_TOKENS = 1e7
"""A length beyond any context; it keeps absurd counts finite."""


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Moments over requests, in tokens: P prompt, Pc the part of it that is computed (not cached), O output.

    E[P], E[Pc], E[O], E[Pc²], E[a] (attention pairs: Pc (P - Pc) + Pc² / 2), E[O P] and E[O²]. Quantiles, where a
    formula needs them, are those of lognormals with these moments; answers have `shortest_output` tokens and a
    lognormal number more: of a lognormal alone many are shorter than any that a model gives.
    """

    prompt_tokens: float
    computed_tokens: float
    output_tokens: float
    computed_squared: float
    prefill_pairs: float
    output_prompt: float
    output_squared: float
    shortest_output: float = 0.0

    @classmethod
    def from_means(
        cls,
        prompt_tokens: float,
        output_tokens: float,
        *,
        cached_share: float = 0.0,
        prompt_cv: float = DEFAULT_CV,
        output_cv: float = DEFAULT_CV,
        shortest_output: float = 0.0,
    ) -> LengthMix:
        """Independent prompt and output lengths with these means and coefficients of variation (assumed, not known)."""
        prompt, output = max(1.0, prompt_tokens), max(1.0, output_tokens)
        return cls._from_moments(
            prompt,
            prompt**2 * (1 + prompt_cv**2),
            output,
            output**2 * (1 + output_cv**2),
            prompt * output,
            cached_share,
            shortest_output,
        )

    @classmethod
    def from_pairs(cls, lengths: Iterable[tuple[float, float]], *, cached_share: float = 0.0) -> LengthMix:
        """The exact moments of (prompt tokens, output tokens) pairs; at least one is needed."""
        pairs = [(max(1.0, prompt), max(1.0, output)) for prompt, output in lengths]
        if not pairs:
            raise ValueError("a length mix needs at least one request")
        mean = [
            math.fsum(column) / len(pairs)
            for column in zip(*((p, p * p, o, o * o, p * o) for p, o in pairs), strict=True)
        ]
        edges, outputs = LENGTH_EDGES, np.sort([output for _, output in pairs])
        shortest = shortest_tokens(edges, np.searchsorted(outputs, edges, side="right").tolist())
        return cls._from_moments(mean[0], mean[1], mean[2], mean[3], mean[4], cached_share, shortest)

    @classmethod
    def _from_moments(
        cls, p1: float, p2: float, o1: float, o2: float, po: float, cached_share: float, shortest: float
    ) -> LengthMix:
        """The cached share is taken to be the same for every request; of the mean prompt a token is computed at least.

        vLLM computes the last token even of a prompt that is cached whole (v1/core/kv_cache_manager.py).
        """
        computed = max(1.0 - min(max(cached_share, 0.0), 0.999), 1.0 / p1)
        return cls(
            prompt_tokens=p1,
            computed_tokens=computed * p1,
            output_tokens=o1,
            computed_squared=computed**2 * p2,
            prefill_pairs=(computed * (1.0 - computed) + 0.5 * computed**2) * p2,
            output_prompt=po,
            output_squared=o2,
            shortest_output=min(shortest, MOST_OF_MEAN * o1),
        )

    def in_steps(self, tokens_per_step: float) -> LengthMix:
        """The same requests with lengths of answers in decode steps of so many tokens each (speculation).

        A step reads as many KV tokens as before. The context that grows faster than by one token a step counts as part
        of the prompt.
        """
        if tokens_per_step == 1.0:
            return self
        squared = self.output_squared / tokens_per_step**2
        return replace(
            self,
            output_tokens=self.output_tokens / tokens_per_step,
            output_squared=squared,
            output_prompt=self.kv_token_steps / tokens_per_step - 0.5 * squared,
            shortest_output=self.shortest_output / tokens_per_step,
        )

    @property
    def output_cv(self) -> float:
        """Coefficient of variation of the output length."""
        return _cv(self.output_tokens, self.output_squared)

    @property
    def output_bins(self) -> NDArray[np.float64]:
        """Tokens of answers that stand for the bins of BIN_WEIGHTS."""
        above = self.output_tokens - self.shortest_output
        return self.shortest_output + lognormal_bins(above, self.output_cv * self.output_tokens / above)

    @property
    def computed_cv(self) -> float:
        """Coefficient of variation of the computed prompt length."""
        return _cv(self.computed_tokens, self.computed_squared)

    @property
    def kv_token_steps(self) -> float:
        """KV tokens read over all decode steps of a mean request, E[O P] + E[O²] / 2."""
        return self.output_prompt + 0.5 * self.output_squared


def histogram_moments(edges: Sequence[float], cumulative: Sequence[float]) -> tuple[float, float] | None:
    """First and second moment of a cumulative histogram whose mass is uniform in log x inside a bucket.

    The open last bucket counts at its lower edge; None where nothing was counted or the counts make no sense.
    """
    total = first = second = 0.0
    lower, seen = 0.0, 0.0
    for edge, count in zip(edges, cumulative, strict=False):
        if not (math.isfinite(count) and count >= seen and edge > lower):
            return None
        weight, seen = count - seen, count
        low, high = max(1.0, lower), edge if math.isfinite(edge) else lower
        mean, square = _log_uniform(low, high)
        total, first, second = total + weight, first + weight * mean, second + weight * square
        lower = edge
    return (first / total, second / total) if total > 0.0 else None


def shortest_tokens(edges: Sequence[float], cumulative: Sequence[float]) -> float:
    """The highest edge of a cumulative histogram that next to no answer is below; 0 where there are too few to say.

    The share below is estimated by the rule of succession, (below + 1) / (all + 2).
    """
    if histogram_moments(edges, cumulative) is None:
        return 0.0
    counted = list(zip(edges, cumulative, strict=False))
    below = SELDOM * (counted[-1][1] + 2.0) - 1.0
    return max((edge for edge, count in counted if count <= below and math.isfinite(edge)), default=0.0)


def mix_on_grid(
    prompt_tokens: float, output_tokens: float, cached_share: float, prompts: LengthHistogram, outputs: LengthHistogram
) -> LengthMix:
    """The mix of requests with these means, on a grid, so that nearly equal mixes are computed only once.

    The spread comes from the histograms, where they exist.
    """
    return LengthMix.from_means(
        _on_grid(prompt_tokens),
        _on_grid(output_tokens),
        cached_share=round(cached_share / CACHED_GRID) * CACHED_GRID,
        prompt_cv=_variation(prompts),
        output_cv=_variation(outputs),
        shortest_output=shortest_tokens(outputs.edges_tokens, outputs.cumulative),
    )


def _on_grid(tokens: float) -> float:
    """Return the nearest grid point of a mean length."""
    return math.exp(round(math.log(min(tokens, MOST_TOKENS)) / TOKEN_GRID) * TOKEN_GRID)


def _variation(lengths: LengthHistogram) -> float:
    """Return the coefficient of variation of a histogram, on the grid; the default without data."""
    moments = histogram_moments(lengths.edges_tokens, lengths.cumulative)
    if moments is None or moments[0] <= 0.0:
        return DEFAULT_CV
    return min(4.0, round(_cv(*moments) / VARIATION_GRID) * VARIATION_GRID)


@lru_cache(maxsize=4096)
def lognormal_nodes(mean: float, cv: float, count: int) -> NDArray[np.float64]:
    """Midpoint quantiles of a lognormal, scaled to its mean: `count` equally likely values that stand for it."""
    return _scaled_nodes(mean, cv, *_equal_bins(count))


@lru_cache(maxsize=4096)
def lognormal_bins(mean: float, cv: float) -> NDArray[np.float64]:
    """Values that stand for the bins of BIN_WEIGHTS of a lognormal, scaled to its mean: fine where objectives look."""
    return _scaled_nodes(mean, cv, _BIN_MIDDLES, BIN_WEIGHTS)


def _scaled_nodes(
    mean: float, cv: float, quantiles: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    values = np.exp(math.sqrt(math.log1p(cv * cv)) * quantiles)
    values *= mean / (values @ weights)
    values.flags.writeable = False
    return values


@cache
def _equal_bins(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return _normal_quantiles([(index + 0.5) / count for index in range(count)]), np.full(count, 1.0 / count)


def _normal_quantiles(shares: Sequence[float]) -> NDArray[np.float64]:
    normal = NormalDist()
    return np.array([normal.inv_cdf(share) for share in shares])


_BIN_EDGES = np.array(
    [
        *(0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.75),
        *(0.85, 0.92, 0.96, 0.975, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999, 1.0),
    ]
)
BIN_WEIGHTS: NDArray[np.float64] = np.diff(_BIN_EDGES)
"""Shares of requests in bins that are narrow where the shortest answers and the longest prompts decide."""

_BIN_MIDDLES = _normal_quantiles((0.5 * (_BIN_EDGES[1:] + _BIN_EDGES[:-1])).tolist())


def _log_uniform(low: float, high: float) -> tuple[float, float]:
    """E[x] and E[x²] of a variable uniform in log x over (low, high]."""
    if high <= low * (1 + 1e-9):
        value = max(low, 1.0)
        return value, value * value
    width = math.log(high / low)
    return (high - low) / width, (high**2 - low**2) / (2.0 * width)


def _cv(first: float, second: float) -> float:
    return math.sqrt(max(0.0, second / first**2 - 1.0)) if first > 0 else 0.0
