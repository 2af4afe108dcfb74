"""The error budget: good and bad verdicts over the SLO window, and the burn rate.

Verdicts are stored in a ring of at most `BUCKETS` spans of the window. Where every engine runs the active plugin, its
exact verdicts are used. Otherwise the good requests are the lower Frechet bound: each miss of TTFT, TPOT or E2E is
assumed to hit a different finished request.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import StrEnum

from holdfast.domain.burn_rate import FAST, SHORTER, SLOW, BurnWindow
from holdfast.domain.service import Slo
from holdfast.domain.signals import History, abandoned
from holdfast.domain.valid_traffic import Seen
from holdfast.domain.value import value

BUCKETS = 120

LEAST_GAP_SECONDS, LEAST_GAP_SHARE = 1800.0, 0.125
"""Part of the window that may be missing without a report.

A service's first start and the step of the history leave such gaps.
"""


class Gap(StrEnum):
    """Why requests of the window are missing from its verdicts."""

    FORGOTTEN = "Prometheus had no data for them when the operator started; set its retention to {window} or more"
    UNANSWERED = "Prometheus did not return them when the operator started; see the operator's log"
    EDITED = "slo.window was changed then"


@value
class Verdicts:
    """Numbers of requests judged good and bad."""

    good: float = 0.0
    bad: float = 0.0

    @property
    def judged(self) -> float:
        """Requests judged."""
        return self.good + self.bad

    @property
    def bad_share(self) -> float:
        """Share of the judged requests that were bad; 0 without any."""
        return self.bad / self.judged if self.bad > 0.0 else 0.0


NONE = Verdicts()


@value
class Budget:
    """Verdicts over the window, as `good` and `bad` of consecutive spans.

    The last span has the number `newest` since the epoch. Plain numbers take a quarter of the memory of objects.

    `owed`: requests already judged by their first token that have yet to finish. `begun`: at most so many have their
    first token and go on; None where that is unknown. `latest`: the verdicts that the last
    tick added; they are `exact` where plugins judged them, and `engine_timed` where some did so by the times of the
    engine. Requests before `since` are missing because of `gap`; None where none are missing.
    """

    good: tuple[float, ...] = ()
    bad: tuple[float, ...] = ()
    newest: int = 0
    owed: float = 0.0
    begun: float | None = None
    judged_at: float | None = None
    window_seconds: float = 0.0
    latest: Verdicts = NONE
    exact: bool = False
    engine_timed: bool = False
    since: float | None = None
    gap: Gap = Gap.FORGOTTEN

    def incomplete(self, born_at: float | None, now: float) -> bool:
        """Return whether a large part of the window is missing, for a service of that age."""
        if self.since is None or born_at is None:
            return False
        missing = self.since - max(now - self.window_seconds, born_at)
        return missing > max(LEAST_GAP_SECONDS, LEAST_GAP_SHARE * self.window_seconds)

    @property
    def total(self) -> Verdicts:
        """Verdicts of the whole window."""
        return Verdicts(math.fsum(self.good), math.fsum(self.bad))


@value
class SloState:
    """What the verdicts mean; None where so few were judged that one bad request would exceed the budget.

    `burning`: a burn-rate alert fires. They are those of a `share` of the requests: of one class, or of all.
    """

    attainment: float | None
    budget_remaining: float | None
    burning: bool
    judged: float
    share: float = 1.0


def budget_from_history(history: History, slo: Slo, now: float) -> Budget:
    """Rebuild the budget from the history of Prometheus; samples with impossible numbers are skipped.

    Requests after the newest sample are judged by what the next tick counts.
    """
    sums: dict[int, Verdicts] = {}
    judged_at: float | None = None
    for sample in history.samples:
        verdicts, at = Verdicts(sample.good, sample.bad), sample.at
        possible = 0.0 <= verdicts.good < 1e12 and 0.0 <= verdicts.bad < 1e12
        if possible and now - slo.window_seconds < at <= now:
            index, judged_at = math.floor(at / (slo.window_seconds / BUCKETS)), max(judged_at or at, at)
            sums[index] = plus(sums.get(index, NONE), verdicts)
    newest = max(sums, default=0)
    spans = [sums.get(index, NONE) for index in range(min(sums, default=1), newest + 1)]
    return Budget(
        good=tuple([span.good for span in spans]),
        bad=tuple([span.bad for span in spans]),
        newest=newest,
        judged_at=judged_at,
        window_seconds=slo.window_seconds,
        since=now if history.since is None else history.since,
        gap=Gap.FORGOTTEN if history.whole else Gap.UNANSWERED,
    )


def account(memory: Budget, seen: Seen, slo: Slo, now: float) -> Budget:
    """Add the verdicts since the last tick, in proportion to the new part of the counting interval."""
    if memory.window_seconds != slo.window_seconds:
        since = now if memory.window_seconds else None
        memory = replace(memory, good=(), bad=(), window_seconds=slo.window_seconds, since=since, gap=Gap.EDITED)
    if not (seen.countable and seen.visible):
        return replace(add(memory, NONE, now), begun=None)
    interval = seen.interval_seconds
    passed = interval if memory.judged_at is None else min(now - memory.judged_at, interval)
    if passed <= 0.0:
        return add(memory, NONE, now)
    share, exact = passed / interval, seen.total.exact
    verdicts, owed = judge_requests(seen, share, memory.owed)  # owed is maintained in case the plugin is turned off
    begun = memory.begun if memory.judged_at is not None and now - memory.judged_at <= interval else None
    late, begun = abandoned(seen.total, slo.ttft_seconds, interval, share, begun)
    verdicts = Verdicts(verdicts.good, verdicts.bad + late + seen.hidden * share)
    if exact is not None:
        verdicts = Verdicts(exact.good * share, exact.bad * share)
    return replace(
        add(memory, verdicts, now),
        owed=owed,
        begun=begun,
        judged_at=now,
        exact=exact is not None,
        engine_timed=exact is not None and exact.engine_timed > 0,
    )


def judge_requests(seen: Seen, share: float, owed: float) -> tuple[Verdicts, float]:
    """Return the verdicts in this share of the interval, and how many judged requests have yet to finish.

    Each request is judged once: bad when its first token is late, otherwise when it finishes. The number still to
    finish is bounded by the requests in flight.
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


def slo_state(memory: Budget, slo: Slo, now: float, share: float = 1.0) -> SloState:
    """Return attainment, the remaining budget and the burn-rate alerts, of this share of the requests."""
    total = memory.total
    if total.judged * slo.budget_share < 1.0:
        return SloState(None, None, False, total.judged, share)
    return SloState(
        attainment=1.0 - total.bad_share,
        budget_remaining=1.0 - total.bad_share / slo.budget_share,
        burning=any(burns(memory, slo, now, window) for window in (FAST, SLOW)),
        judged=total.judged,
        share=share,
    )


def burns(memory: Budget, slo: Slo, now: float, window: BurnWindow) -> bool:
    """Return whether both the window and the shorter one burn faster than the threshold."""
    if memory.total.bad <= 0.0:
        return False
    seconds, limit = slo.window_seconds / window.divisor, window.threshold(slo)
    return all(recent(memory, now, span).bad_share >= limit * slo.budget_share for span in (seconds, seconds / SHORTER))


def recent(memory: Budget, now: float, seconds: float) -> Verdicts:
    """Return the verdicts of about the last `seconds`: whole spans, and at least the newest two."""
    span = memory.window_seconds / BUCKETS
    first = math.floor(now / span) - max(1, round(seconds / span) - 1)
    spans = max(0, memory.newest - first + 1)
    return Verdicts(sum(memory.good[-spans:]), sum(memory.bad[-spans:])) if spans else NONE


def add(memory: Budget, verdicts: Verdicts, now: float) -> Budget:
    """Return the budget with these verdicts as the latest ones, added to the newest span."""
    good, bad, newest = memory.good, memory.bad, memory.newest
    index = math.floor(now / (memory.window_seconds / BUCKETS))
    more = verdicts.good or 0.0, verdicts.bad or 0.0  # all zeros are one object: a ring is mostly made of them
    if good and index <= newest:
        good, bad = (*good[:-1], good[-1] + more[0]), (*bad[:-1], bad[-1] + more[1] or 0.0)
    elif good or verdicts.judged > 0.0:
        empty = (0.0,) * min(BUCKETS, index - newest - 1) if good else ()
        good, bad, newest = (*good, *empty, more[0])[-BUCKETS:], (*bad, *empty, more[1])[-BUCKETS:], index
    return replace(memory, good=good, bad=bad, newest=newest, latest=verdicts)


def plus(one: Verdicts, other: Verdicts) -> Verdicts:
    """Return the sum of both verdicts."""
    return Verdicts(one.good + other.good, one.bad + other.bad)
