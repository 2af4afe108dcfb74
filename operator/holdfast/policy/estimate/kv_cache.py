"""Predict how many tokens of KV cache the requests of a service will take within the lead time.

Answers that become longer fill the cache minutes before the first of them ends, and only then their length is known. So
the tokens in use are followed by themselves: level and trend (Holt's linear method). They also grow with the number of
requests, which the forecast of arrivals knows. What tells the two apart is what each request holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import replicas_for

LEVEL_SECONDS, TREND_SECONDS = 30.0, 90.0
"""Time over which a sample loses 1 - 1/e of its weight for the level and for the trend."""

FULL = 0.8
"""Share of the cache that is planned for: replicas are not loaded alike, and the number of tokens varies."""

GROWTH = 3.5
"""How often growth counts: longer answers grow ever faster, and new replicas relieve full ones late."""

STAYS = 2.0
"""Stays of a request for which tokens may go on to grow: answers that become longer stay longer than those before."""

MOST_WAITING = 2.0
"""Requests that wait for each that runs, above which the queue is a backlog."""

USUAL_SECONDS, LEAST_LONGER = 600.0, 0.1
"""Time constant of what a request usually holds, and the share by which it holds clearly more at least."""


@value
class KvCache:
    """Tokens in use by all replicas and how fast they grow, per second; `counted_at` is None while nothing is known.

    `stay_seconds` is how long requests stay. The tokens of a steady load do not grow for much longer than that.
    `each_tokens` is what a running request holds, `usual_tokens` what it usually did, `running` how many do.
    """

    tokens: float = 0.0
    tokens_per_second: float = 0.0
    stay_seconds: float = 0.0
    counted_at: float | None = None
    each_tokens: float = 0.0
    usual_tokens: float = 0.0
    running: float = 0.0

    @property
    def is_longer(self) -> bool:
        """Whether requests hold more than usual, by more than chance makes the mean of so many differ."""
        by_chance = 1.0 / math.sqrt(max(1.0, self.running))
        return self.each_tokens > (1.0 + max(LEAST_LONGER, by_chance)) * self.usual_tokens

    def peak_tokens(self, lead_seconds: float) -> float:
        """Return the tokens in use at the end of the lead time where they grow; else 0, as they are held already."""
        seconds = min(lead_seconds, STAYS * self.stay_seconds)
        return self.tokens + self.tokens_per_second * seconds if self.tokens_per_second > 0.0 else 0.0

    def replicas(self, lead_seconds: float, kv_tokens: float | None) -> int:
        """Return how many replicas hold the tokens with room for growth.

        0 where the cache of a replica is unknown, or only the number of requests grows.
        """
        if not kv_tokens or self.tokens_per_second <= 0.0 or not self.is_longer:
            return 0
        growth = self.peak_tokens(lead_seconds) - self.tokens
        return replicas_for(self.tokens + GROWTH * growth, FULL * kv_tokens)


def watch_kv_cache(memory: KvCache, seen: Seen, kv_tokens: Mapping[str, float], now: float) -> KvCache:
    """Add the usage that engines report; `kv_tokens` is the cache of one engine by accelerator.

    Behind a long queue the cache fills with the backlog, and its growth says nothing about the load.
    """
    known = [(counts, kv_tokens[name]) for name, counts in seen.by_accelerator if name in kv_tokens]
    used = math.fsum(each.kv_usage * each.engines * kv for each, kv in known if 0.0 <= each.kv_usage <= 1.0)
    total = seen.total
    if not seen.fresh or total.waiting > MOST_WAITING * total.running:
        return KvCache(usual_tokens=memory.usual_tokens)
    if not used > 0.0:
        return memory
    passed = 0.0 if memory.counted_at is None else now - memory.counted_at
    memory = _with_each(memory, used, total.running, max(0.0, passed))
    if not passed > 0.0:
        same = memory.counted_at == now
        return memory if same else replace(memory, tokens=used, tokens_per_second=0.0, counted_at=now)
    expected = memory.tokens + memory.tokens_per_second * passed
    level = expected + -math.expm1(-passed / LEVEL_SECONDS) * (used - expected)
    trend = -math.expm1(-passed / TREND_SECONDS) * ((level - memory.tokens) / passed - memory.tokens_per_second)
    begun_rps = total.ttft_count / seen.interval_seconds
    return replace(
        memory,
        tokens=level,
        tokens_per_second=memory.tokens_per_second + trend,
        stay_seconds=total.running / begun_rps if begun_rps > 0.0 else memory.stay_seconds,
        counted_at=now,
    )


def _with_each(memory: KvCache, held: float, running: float, passed: float) -> KvCache:
    """Follow what a request holds, and what it usually does."""
    if not running > 0.0:
        return memory
    each = held / running
    usual = memory.usual_tokens or each
    usual += -math.expm1(-passed / USUAL_SECONDS) * (each - usual)
    return replace(memory, each_tokens=each, usual_tokens=usual, running=running)
