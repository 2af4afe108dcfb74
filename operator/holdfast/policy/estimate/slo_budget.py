"""The error budget: who was judged good or bad over the window, and how fast the budget burns.

Verdicts go into a ring of at most `BUCKETS` spans of the window. They are the plugins' own where every engine has one
at work. Else good is the lower Frechet bound: of those that finished, each miss of TTFT, TPOT or E2E takes away one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from holdfast.domain.service import Slo
from holdfast.domain.signals import History
from holdfast.domain.value import value
from holdfast.policy.estimate.traffic import Seen

BUCKETS = 120

SHORTER = 12.0
"""An alert also asks for its rate over a window that much shorter, so that it ends when the burning does."""

REACHABLE = 0.8
"""No alert waits for a larger share of bad requests than this, however large the budget."""


LEAST_GAP_SECONDS, LEAST_GAP_SHARE = 1800.0, 0.125
"""What may be missing from the window in silence: a first start, and steps of the history that do not fill it."""


class Gap(StrEnum):
    """Why requests of the window are not in its verdicts."""

    FORGOTTEN = "Prometheus remembered none of them when the operator started, keep its retention at {window} or more"
    UNANSWERED = "Prometheus did not answer for them when the operator started, whose log says why"
    EDITED = "slo.window was edited then"


@value
class BurnWindow:
    """An alert: this share of the budget spent within 1/`divisor` of the window."""

    budget_share: float
    divisor: float

    def threshold(self, slo: Slo) -> float:
        """Burn rate (1 spends the budget exactly over the window), low enough to be reachable."""
        return min(self.budget_share * self.divisor, REACHABLE / slo.budget_share)


FAST = BurnWindow(0.05, 60.0)
SLOW = BurnWindow(0.10, 12.0)


@value
class Verdicts:
    """Requests judged."""

    good: float = 0.0
    bad: float = 0.0

    @property
    def judged(self) -> float:
        return self.good + self.bad

    @property
    def bad_share(self) -> float:
        return self.bad / self.judged if self.bad > 0.0 else 0.0


NONE = Verdicts()


@value
class Bucket:
    """Verdicts of one span of the ring, `index` spans after the epoch."""

    index: int
    verdicts: Verdicts


@value
class Budget:
    """Verdicts over the window; `older` sums all buckets but the newest.

    `owed`: requests already judged by their first token that have yet to finish. `latest`: the verdicts that the last
    look added, `exact` where plugins judged them. Requests before `since` are not in it, by cause of `gap`; None where
    all are.
    """

    buckets: tuple[Bucket, ...] = ()
    older: Verdicts = NONE
    owed: float = 0.0
    judged_at: float | None = None
    window_seconds: float = 0.0
    latest: Verdicts = NONE
    exact: bool = False
    since: float | None = None
    gap: Gap = Gap.FORGOTTEN

    def incomplete(self, born_at: float | None, now: float) -> bool:
        """Whether much of the window is missing that a service of that age had; it never begins again by itself."""
        if self.since is None or born_at is None:
            return False
        missing = self.since - max(now - self.window_seconds, born_at)
        return missing > max(LEAST_GAP_SECONDS, LEAST_GAP_SHARE * self.window_seconds)

    @property
    def total(self) -> Verdicts:
        return plus(self.older, self.buckets[-1].verdicts) if self.buckets else self.older


@value
class SloState:
    """What verdicts mean: None where too few were judged for one bad request not to matter."""

    attainment: float | None
    budget_remaining: float | None
    fast_burn: bool
    slow_burn: bool
    judged: float

    @property
    def burning(self) -> bool:
        return self.fast_burn or self.slow_burn


def budget_from_history(history: History, slo: Slo, now: float) -> Budget:
    """Rebuild from what Prometheus remembers; samples that make no sense are left out."""
    since = now if history.since is None else history.since
    memory = Budget(
        window_seconds=slo.window_seconds, since=since, gap=Gap.FORGOTTEN if history.whole else Gap.UNANSWERED
    )
    for sample in sorted(history.samples, key=lambda sample: sample.at):
        verdicts = Verdicts(sample.good, sample.bad)
        if now - slo.window_seconds < sample.at <= now and _sensible(verdicts):
            memory = _add(memory, verdicts, sample.at)
    return replace(memory, judged_at=now, latest=NONE) if memory.buckets else memory


def account(memory: Budget, seen: Seen, slo: Slo, now: float) -> Budget:
    """Add the verdicts since the last look, by the share of the counting interval that is new."""
    if memory.window_seconds != slo.window_seconds:
        since = now if memory.window_seconds else None
        memory = replace(memory, buckets=(), older=NONE, window_seconds=slo.window_seconds, since=since, gap=Gap.EDITED)
    if not (seen.countable and seen.visible):
        return _add(memory, NONE, now)
    interval = seen.interval_seconds
    passed = interval if memory.judged_at is None else min(now - memory.judged_at, interval)
    if passed <= 0.0:
        return _add(memory, NONE, now)
    share, exact = passed / interval, seen.total.exact
    verdicts, owed = judge_requests(seen, share, memory.owed)  # owed is kept up for the day the plugin is off
    if exact is not None:
        verdicts = Verdicts(exact.good * share, exact.bad * share)
    buckets, older = _put(memory, verdicts, now)
    return Budget(
        buckets=buckets,
        older=older,
        owed=owed,
        judged_at=now,
        window_seconds=memory.window_seconds,
        latest=verdicts,
        exact=exact is not None,
        since=memory.since,
        gap=memory.gap,
    )


def judge_requests(seen: Seen, share: float, owed: float) -> tuple[Verdicts, float]:
    """Verdicts in this share of the interval, and how many of those judged have yet to finish.

    A request is judged once: bad when its first token was late, else when it finishes. No more can be owed than are
    in flight.
    """
    total = seen.total
    finished = total.finished * share
    late_start = max(0.0, total.ttft_count - total.ttft_within) * share
    late_end = (max(0.0, total.tpot_count - total.tpot_within) + max(0.0, total.e2e_count - total.e2e_within)) * share
    owing = owed + late_start
    paid = min(owing, finished)
    good = max(0.0, finished - paid - late_end)
    bad = late_start + (finished - paid - good) + (total.failed + total.rejected) * share
    return Verdicts(good, bad), min(owing - paid, total.running + total.waiting)


def slo_state(memory: Budget, slo: Slo, now: float) -> SloState:
    """Read attainment, what is left of the budget and the burn alerts."""
    total = memory.total
    if total.judged * slo.budget_share < 1.0:
        return SloState(None, None, False, False, total.judged)
    return SloState(
        attainment=1.0 - total.bad_share,
        budget_remaining=1.0 - total.bad_share / slo.budget_share,
        fast_burn=_burns(memory, slo, now, FAST),
        slow_burn=_burns(memory, slo, now, SLOW),
        judged=total.judged,
    )


def _burns(memory: Budget, slo: Slo, now: float, window: BurnWindow) -> bool:
    """Both the window and a much shorter one burn faster than the threshold."""
    if memory.total.bad <= 0.0:
        return False
    seconds, limit = slo.window_seconds / window.divisor, window.threshold(slo)
    return all(recent(memory, now, span).bad_share >= limit * slo.budget_share for span in (seconds, seconds / SHORTER))


def recent(memory: Budget, now: float, seconds: float) -> Verdicts:
    """Verdicts of about the last `seconds`, in whole buckets and at least in the newest two."""
    span = memory.window_seconds / BUCKETS
    first = math.floor(now / span) - max(1, round(seconds / span) - 1)
    good = bad = 0.0
    for bucket in reversed(memory.buckets):
        if bucket.index < first:
            break
        good += bucket.verdicts.good
        bad += bucket.verdicts.bad
    return Verdicts(good, bad)


def _add(memory: Budget, verdicts: Verdicts, now: float) -> Budget:
    buckets, older = _put(memory, verdicts, now)
    return replace(memory, buckets=buckets, older=older, latest=verdicts)


def _put(memory: Budget, verdicts: Verdicts, now: float) -> tuple[tuple[Bucket, ...], Verdicts]:
    """The ring with verdicts in its newest bucket; opening one drops what left the window, the rest is summed anew."""
    index = math.floor(now / (memory.window_seconds / BUCKETS))
    buckets, older = memory.buckets, memory.older
    if buckets and index <= buckets[-1].index:
        buckets = (*buckets[:-1], Bucket(buckets[-1].index, plus(buckets[-1].verdicts, verdicts)))
    elif buckets or verdicts.judged > 0.0:
        kept = tuple(bucket for bucket in buckets if bucket.index > index - BUCKETS)
        good = math.fsum(bucket.verdicts.good for bucket in kept)
        older = Verdicts(good, math.fsum(bucket.verdicts.bad for bucket in kept))
        buckets = (*kept, Bucket(index, verdicts))
    return buckets, older


def amended(memory: Budget, by: Verdicts, now: float) -> Budget:
    """Put verdicts of another source beside those that the last look added; a negative number takes some of them back.

    No more may be taken back than the last look has added.
    """
    return replace(_add(memory, by, now), latest=plus(memory.latest, by))


def plus(one: Verdicts, other: Verdicts) -> Verdicts:
    """Return the verdicts of both."""
    return Verdicts(one.good + other.good, one.bad + other.bad)


def _sensible(verdicts: Verdicts) -> bool:
    return 0.0 <= verdicts.good < 1e12 and 0.0 <= verdicts.bad < 1e12
