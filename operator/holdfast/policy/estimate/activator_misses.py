"""Requests that waited for a replica to start: judged by what their clients saw, not by what the engine saw.

An engine counts a request from its arrival there. Who has waited for a cold start missed its TTFT all the same: such
requests are bad, and as many verdicts of the engine are taken back, whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from holdfast.domain.activator import NO_WAITS, Activator, Waits, longer_than
from holdfast.domain.service import Slo
from holdfast.domain.signals import History, RateSample
from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Budget, Verdicts, amended

MOST_PROCESSES = 8
"""An activator that is being replaced answers beside the next one; one that crashes is another each time."""

GONE_SECONDS = 60.0
"""A process that has not been heard for so long has ended: beside another one it is asked at every other look."""


class Counted(NamedTuple):
    """One process of the activator at the last look at it; `given_up` of those it holds were judged without it."""

    boot: str
    forwarded: Waits = NO_WAITS
    gone: Waits = NO_WAITS
    turned_away: int = 0
    waiting: int = 0
    seen_at: float = 0.0
    given_up: int = 0


@value
class ActivatorMisses:
    """What was counted, the last looked at last, and requests judged bad that an engine has yet to judge.

    `recalled`: Prometheus told what activators had counted before. `unknown_at`: when an activator was met that had
    counted requests which nobody could tell of.
    """

    counted: tuple[Counted, ...] = ()
    owed: float = 0.0
    recalled: bool = False
    unknown_at: float | None = None

    def incomplete(self, window_seconds: float, now: float) -> bool:
        """Whether requests of the window are missing from the verdicts."""
        return self.unknown_at is not None and now - self.unknown_at < window_seconds


class Missed(NamedTuple):
    """Requests that were passed on late, and those that came to nothing."""

    late: float = 0.0
    lost: float = 0.0


def from_history(history: History) -> tuple[ActivatorMisses, History]:
    """Put what activators counted into the verdicts that Prometheus remembers."""
    return ActivatorMisses(recalled=history.held is not None), replace(history, samples=tuple(_recalled(history)))


def _recalled(history: History) -> Iterator[RateSample]:
    """Samples with their verdicts put right; those of the activator alone have no arrivals at an engine."""
    engines = {sample.at: sample for sample in history.samples}
    held = {sample.at: Missed(sample.late, sample.lost) for sample in history.held or ()}
    owed = 0.0
    for at in sorted(engines.keys() | held.keys()):
        sample = engines.get(at) or RateSample(at, 0.0, 0.0, 0.0, 0.0)
        owed, more = _judged(owed, held.get(at, Missed()), Verdicts(sample.good, sample.bad))
        yield replace(sample, good=max(0.0, sample.good + more.good), bad=max(0.0, sample.bad + more.bad))


def account(
    memory: ActivatorMisses, told: Activator | None, budget: Budget, slo: Slo, now: float
) -> tuple[ActivatorMisses, Budget]:
    """Put what was held into the verdicts; what was counted before the first look of all is Prometheus' to know.

    Of a process that is new beside known ones everything counts: it has started since. What one held that is heard no
    more is lost with it.
    """
    if told is None:
        return memory, budget
    memory, missed = _looked(memory, told, slo, now) if told.answers else (memory, Missed())
    counted, lost = _given_up(memory.counted, now)
    owed, more = _judged(memory.owed, Missed(missed.late, missed.lost + lost), budget.latest)
    memory = replace(memory, counted=counted, owed=owed)
    return memory, budget if more == Verdicts() else amended(budget, more, now)


def _looked(memory: ActivatorMisses, told: Activator, slo: Slo, now: float) -> tuple[ActivatorMisses, Missed]:
    """What is new since the last look at this process."""
    others = tuple(process for process in memory.counted if process.boot != told.boot)
    before = next((process for process in memory.counted if process.boot == told.boot), None)
    shown = Counted(told.boot, told.forwarded, told.gone, told.turned_away, told.waiting, now)
    missed = _missed(before or Counted(told.boot), shown, slo)
    if before is None and not others:
        unknown = not memory.recalled and missed.late + missed.lost > 0.0
        return replace(memory, counted=(shown,), unknown_at=now if unknown else memory.unknown_at), Missed()
    judged = 0 if before is None else before.given_up
    left = _less(missed, judged)
    kept = shown._replace(given_up=min(judged - round(sum(missed) - sum(left)), told.waiting))
    return replace(memory, counted=(*others, kept)[-MOST_PROCESSES:]), left


def _missed(before: Counted, shown: Counted, slo: Slo) -> Missed:
    """By how long each had waited, so that another `slo.ttft` judges those that come after it only."""
    late, given_up = (
        longer_than(tuple(max(0, new - old) for new, old in zip(waits, earlier, strict=True)), slo.ttft_seconds)
        for waits, earlier in ((shown.forwarded, before.forwarded), (shown.gone, before.gone))
    )
    return Missed(late, given_up + max(0, shown.turned_away - before.turned_away))


def _less(missed: Missed, judged: int) -> Missed:
    """Without those that were judged already, when their process seemed to have ended."""
    late = min(missed.late, judged)
    return Missed(missed.late - late, missed.lost - min(missed.lost, judged - late))


def _given_up(counted: tuple[Counted, ...], now: float) -> tuple[tuple[Counted, ...], int]:
    """Judge what processes held that have ended, as it seems, and note how many that were."""
    kept, lost = [], 0
    for process in counted:
        ended = now - process.seen_at >= GONE_SECONDS
        more = max(0, process.waiting - process.given_up) if ended else 0
        kept.append(process._replace(given_up=process.given_up + more) if more else process)
        lost += more
    return tuple(kept), lost


def _judged(owed: float, missed: Missed, judged: Verdicts) -> tuple[float, Verdicts]:
    """What is still owed, and by what verdicts of engines change: each late one takes one of these back."""
    taken = min(owed + missed.late, judged.judged)
    bad = taken * judged.bad_share
    return owed + missed.late - taken, Verdicts(bad - taken, missed.late + missed.lost - bad)
