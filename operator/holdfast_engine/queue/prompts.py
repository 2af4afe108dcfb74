"""What the prompts that come are like: how long they are, and how much of them has to be computed."""

from __future__ import annotations

import math

from holdfast_engine.law.arithmetic import MEAN_COUNT, moved_mean


class MovingMean:
    """Mean of the first values, then of about the last 64; NaN before the first."""

    def __init__(self) -> None:
        self.value = math.nan
        self._count = 0

    def add(self, value: float) -> None:
        """One more value."""
        self._count = min(self._count + 1, MEAN_COUNT)
        self.value = moved_mean(self.value, self._count, value)


class PromptAverages:
    """Moving means over the requests of late, in tokens."""

    def __init__(self) -> None:
        self._arrived = MovingMean()
        self._started = MovingMean()
        self._computed = MovingMean()

    @property
    def mean_tokens(self) -> float:
        """Length of a prompt; NaN before the first."""
        return self._arrived.value

    @property
    def computed_share(self) -> float:
        """Share of the prompt tokens that the prefix cache did not hold; 1 before anything has started."""
        return self._computed.value / self._started.value if self._started.value > 0.0 else 1.0

    @property
    def computed_tokens(self) -> float:
        """Tokens to compute of a prompt of mean length."""
        return self.mean_tokens * self.computed_share

    def arrive(self, tokens: int) -> None:
        """A request came."""
        self._arrived.add(tokens)

    def start(self, tokens: int, cached_tokens: int) -> None:
        """A request began; so many tokens of its prompt were found in the prefix cache."""
        self._started.add(tokens)
        self._computed.add(tokens - min(cached_tokens, tokens))
