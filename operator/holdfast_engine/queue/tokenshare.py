"""How much of an engine's tokens each class had lately, for classes that may have no more than a share."""

from __future__ import annotations

import math
from collections import Counter, deque

from holdfast_engine.objectives.rules import RequestClass

SPAN_SECONDS = 60


class TokenShares:
    """Tokens of the last minute by class: of prompts when they come, of answers when they end.

    A second has one entry, whatever comes in it, so that memory is bounded.
    """

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[str]]] = deque()
        self._sums: Counter[str] = Counter()
        self._total = 0

    def add(self, name: str, tokens: int, now: float) -> None:
        """A request of this class brought or got so many tokens."""
        second = math.floor(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget(second - SPAN_SECONDS)
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][name] += tokens
        self._sums[name] += tokens
        self._total += tokens

    def has_room(self, request_class: RequestClass, now: float) -> bool:
        """Whether one more request may have this class: it has had no more than its share until now."""
        most = request_class.max_share
        if most is None:
            return True
        self._forget(math.floor(now) - SPAN_SECONDS)
        return self._sums[request_class.name] <= most * self._total

    def _forget(self, until: int) -> None:
        while self._seconds and self._seconds[0][0] <= until:
            for name, tokens in self._seconds.popleft()[1].items():
                self._sums[name] -= tokens
                self._total -= tokens
            self._sums += Counter()  # names without tokens are forgotten
