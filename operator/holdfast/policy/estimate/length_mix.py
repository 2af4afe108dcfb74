"""Average the observed lengths of requests over minutes; with the arrival rate they make up the load."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import NamedTuple

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

SETTLED_SECONDS, LONGEST_SECONDS = 60.0, 900.0
"""Time after a backlog within which the last of its requests finish, and the longest time for which it counts apart."""

MATERIAL = 0.1
"""Relative change of a mean below which capacities are not recomputed."""


class Sums(NamedTuple):
    """Requests and tokens: `all_tokens` and `cached_tokens` of `begun` requests, the others of finished ones."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    all_tokens: float = 0.0
    cached_tokens: float = 0.0
    begun: float = 0.0

    def times(self, factor: float) -> Sums:
        """Return that many times these sums."""
        return Sums(*[factor * each for each in self])

    def plus(self, other: Sums) -> Sums:
        """Return the sums over both."""
        return Sums(*map(operator.add, self, other))


PRIOR = Sums(PRIOR_REQUESTS, PRIOR_REQUESTS * PRIOR_PROMPT_TOKENS, PRIOR_REQUESTS * PRIOR_OUTPUT_TOKENS)


@value
class Backlog:
    """What was served while more requests waited than ran, and shortly after; `last_at`: when they last did.

    `counts`: it was longer than what was known, and stands for that since then.
    """

    served: Sums
    since: float
    last_at: float
    counts: bool = False

    def is_settled(self, now: float) -> bool:
        """Return whether everything that waited was served, or so much that the order makes no difference."""
        return now - self.last_at >= SETTLED_SECONDS or now - self.since >= LONGEST_SECONDS


@value
class Lengths:
    """Exponentially decayed sums over requests; at `changed_at` requests last had other lengths than these.

    What engines did then says nothing about them. A `backlog` is served short requests first, and long ones in the end:
    it is a sample of what came when it is complete, and counts until then only where it is longer even so.
    """

    sums: Sums = PRIOR
    counted_at: float | None = None
    changed_at: float = -math.inf
    backlog: Backlog | None = None

    @property
    def prompt_mean(self) -> float:
        """Mean prompt length in tokens, at least 1."""
        sums = self.sums
        return max(1.0, sums.prompt_tokens / sums.requests) if sums.requests > 0.0 else PRIOR_PROMPT_TOKENS

    @property
    def output_mean(self) -> float:
        """Mean output length in tokens, at least 1."""
        sums = self.sums
        return max(1.0, sums.output_tokens / sums.requests) if sums.requests > 0.0 else PRIOR_OUTPUT_TOKENS

    @property
    def cached_share(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        sums = self.sums
        return min(1.0, sums.cached_tokens / sums.all_tokens) if sums.all_tokens > 0.0 else 0.0

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
    told = _told(total)
    added, backlog = told.times(passed / interval), _backlog(memory, total, now)
    if backlog is not None:
        return _with_backlog(memory, replace(backlog, served=backlog.served.plus(added)), now)
    if any(_changes(memory.sums, told)):
        return Lengths(told, now, changed_at=now)
    sums = memory.sums.times(1.0 / (1.0 + passed / MEMORY_SECONDS)).plus(added)
    return replace(memory, sums=sums, counted_at=now)


def _told(total: AcceleratorTraffic) -> Sums:
    """The sums of an interval; prompts that begin are not counted without their tokens, so that their mean holds."""
    return Sums(
        requests=total.length_samples,
        prompt_tokens=total.prompt_length_sum,
        output_tokens=total.output_length_sum,
        all_tokens=total.prompt_tokens,
        cached_tokens=min(total.cached_prompt_tokens, total.prompt_tokens),
        begun=total.ttft_count if total.prompt_tokens > 0.0 else 0.0,
    )


def _backlog(memory: Lengths, total: AcceleratorTraffic, now: float) -> Backlog | None:
    """The backlog that is being served; nothing counts apart from a prior that weighs more than what was observed."""
    known = memory.backlog
    if total.waiting <= total.running or memory.sums.begun <= PRIOR_REQUESTS:
        return known
    return Backlog(Sums(), now, now) if known is None else replace(known, last_at=now)


def _with_backlog(memory: Lengths, backlog: Backlog, now: float) -> Lengths:
    changes, settled = _changes(memory.sums, backlog.served), backlog.is_settled(now)
    counts = backlog.counts or max(changes) > 0.0
    left = None if settled else replace(backlog, counts=counts)
    if counts or (settled and any(changes)):
        return Lengths(backlog.served, now, memory.changed_at if backlog.counts else now, left)
    sums = memory.sums.plus(backlog.served) if settled else memory.sums
    return replace(memory, sums=sums, counted_at=now, backlog=left)


def _changes(before: Sums, after: Sums) -> tuple[float, float]:
    """Relative changes of the means of prompts that began and of answers that ended; 0 for one that may be chance.

    Prompts count when they begin: by the time that such requests have ended, engines have long served others.
    """
    return (
        _change(before.all_tokens, before.begun, after.all_tokens, after.begun),
        _change(before.output_tokens, before.requests, after.output_tokens, after.requests),
    )


def _change(tokens_before: float, before: float, tokens: float, requests: float) -> float:
    if min(tokens, requests, tokens_before, before) <= 0.0:
        return 0.0
    chance = 3.0 * SPREAD * math.sqrt(1.0 / requests + 1.0 / before)
    change = tokens / requests * before / tokens_before - 1.0
    return change if abs(change) > CHANGED + chance else 0.0


def moved(one: Lengths, other: Lengths) -> bool:
    """Return whether the means differ enough to change what a replica carries.

    In a backlog the spread of lengths is that of what was served, too: after it, what was computed is computed anew.
    """
    means = ((one.prompt_mean, other.prompt_mean), (one.output_mean, other.output_mean))
    changed = any(abs(mean - before) > MATERIAL * before for mean, before in means)
    over = one.backlog is not None and other.backlog is None
    return changed or over or abs(one.cached_share - other.cached_share) > MATERIAL
