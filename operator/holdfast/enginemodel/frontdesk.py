"""The API server as a queue: one thread that reads requests and writes tokens, first come, first served."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.enginemodel.host import FrontEnd
from holdfast.enginemodel.scheduler import Sequence


@dataclass(slots=True)
class FrontDesk:
    """The thread of one API server; `free_at` is when it has done what it was given, in seconds."""

    front_end: FrontEnd
    free_at: float = -math.inf

    def read(self, now: float, prompt_tokens: int) -> tuple[float, float]:
        """Read a request that comes now; returns when the thread turns to it, and when the engine has it."""
        front_end = self.front_end
        begun_at = max(now, self.free_at)
        self.free_at = begun_at + (front_end.request_seconds + front_end.prompt_seconds * prompt_tokens)
        return begun_at, self.free_at + front_end.transit_seconds

    def turn_away(self, now: float) -> None:
        """Answer a request without reading it."""
        self.free_at = max(now, self.free_at) + self.front_end.door_seconds

    def write(self, emitted: Iterable[Sequence], now: float) -> None:
        """Write the tokens of a step that ends now, one sequence after the other, and say when clients see them."""
        front_end, begun_at, count = self.front_end, max(now, self.free_at), 0
        for sequence in emitted:
            count += 1
            sequence.last_seen_at = begun_at + front_end.token_seconds * count + front_end.reply_seconds
            if sequence.first_seen_at is None:
                sequence.first_seen_at = sequence.last_seen_at
        self.free_at = begun_at + front_end.token_seconds * count
