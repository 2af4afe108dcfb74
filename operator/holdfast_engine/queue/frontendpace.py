"""How fast prompts may start so that the API server keeps up with writing the tokens of their answers.

One thread of the API server reads requests and writes tokens. Where more tokens come than it can write, its lag grows
without bound, and no first token reaches its client in time. Fewer sequences would not help: they decode faster. So the
prompt tokens per second are limited, and with them the answers: by a fifth at once while the lag is too long, then by
some percent per second upwards.
"""

from __future__ import annotations

import math

# Shares of the TTFT bound. Up to the first, requests are started so much earlier; below the second there is room.
TOO_LONG, ROOM = 0.5, 0.25
SLOWER, FASTER = 0.8, 1.02
ADJUST_SECONDS = 1.0
# Answers that run go on writing: what starts less shows only when they have ended.
HOLD_SECONDS = 5.0


class FrontEndPace:
    """`tps` are the prompt tokens per second that may be computed, infinite while the front end keeps up."""

    def __init__(self) -> None:
        self.tps = math.inf
        self._tokens = 0.0
        self._adjusted_at = -math.inf
        self._slowed_at = -math.inf
        self._stepped_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether to `adjust`: once per second, and when the clock went backwards."""
        return not 0.0 <= now - self._adjusted_at < ADJUST_SECONDS

    def adjust(self, now: float, lag_seconds: float, ttft_seconds: float) -> None:
        """Compare the present lag with the bound on TTFT."""
        passed = now - self._adjusted_at
        rate = self._tokens / passed if 0.0 < passed < math.inf else math.inf
        if lag_seconds > TOO_LONG * ttft_seconds:
            if not 0.0 <= now - self._slowed_at < HOLD_SECONDS:
                self.tps, self._slowed_at = SLOWER * min(rate, self.tps), now
        elif lag_seconds < ROOM * ttft_seconds:
            # A limit far above what is computed is none.
            self.tps = FASTER * self.tps if self.tps < 2.0 * rate else math.inf
        self._adjusted_at, self._tokens = now, 0.0

    def computed(self, prompt_tokens: float) -> None:
        """A step computes so many prompt tokens."""
        self._tokens += prompt_tokens

    def tokens(self, now: float) -> float:
        """Prompt tokens that the step which begins now may compute."""
        passed, self._stepped_at = now - self._stepped_at, now
        return math.inf if math.isinf(self.tps) else self.tps * min(max(0.0, passed), ADJUST_SECONDS)
