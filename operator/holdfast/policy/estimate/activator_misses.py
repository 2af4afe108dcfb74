"""Judge requests that waited in the activator by the latency their clients saw, not by the engine's counters.

An engine measures TTFT from the arrival at the engine. A request that waited for a cold start may have missed its TTFT
before that. Such a request counts as bad. The verdict that the engine later gives for it is subtracted, so that no
request is judged twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from holdfast.domain.activator import NO_WAITS, Activator, Waits, longer_than
from holdfast.domain.service import Slo
from holdfast.domain.signals import History, RateSample
from holdfast.domain.value import value
from holdfast.policy.estimate.slo_budget import Budget, Verdicts, add, plus

MOST_PROCESSES = 8
"""Activator processes remembered: during a rollout two processes answer, and each crash starts a new process."""

GONE_SECONDS = 60.0
"""Silence after which a process counts as ended.

While two processes run, each of them answers about every second poll.
"""


class Counted(NamedTuple):
    """Counters of one activator process at its last answer.

    `given_up`: requests it holds that were already judged bad, because the process seemed to have ended.
    """

    boot: str
    forwarded: Waits = NO_WAITS
    gone: Waits = NO_WAITS
    turned_away: int = 0
    waiting: int = 0
    seen_at: float = 0.0
    given_up: int = 0


@value
class ActivatorMisses:
    """Counters of each known process, the latest one last, and the verdicts that engines still owe.

    `owed`: requests judged bad here that an engine has yet to judge. `recalled`: Prometheus reported the activator's
    earlier counts. `unknown_at`: when an activator was found whose earlier counts no source could report.
    """

    counted: tuple[Counted, ...] = ()
    owed: float = 0.0
    recalled: bool = False
    unknown_at: float | None = None

    def incomplete(self, window_seconds: float, now: float) -> bool:
        """Return whether verdicts of the window lack requests that an activator held."""
        return self.unknown_at is not None and now - self.unknown_at < window_seconds


class Missed(NamedTuple):
    """Requests that were forwarded late, and requests that were never forwarded."""

    late: float = 0.0
    lost: float = 0.0


def from_history(history: History) -> tuple[ActivatorMisses, History]:
    """Return the state after a restart, and the history with the activator's verdicts added."""
    corrected = replace(history, samples=tuple(_recalled(history))) if history.held else history
    return ActivatorMisses(recalled=history.held is not None), corrected


def _recalled(history: History) -> Iterator[RateSample]:
    """Yield samples with corrected verdicts; a sample that only the activator reported has no engine arrivals."""
    engines = {sample.at: sample for sample in history.samples}
    held = {sample.at: Missed(sample.late, sample.lost) for sample in history.held or ()}
    owed = 0.0
    for at in sorted(engines.keys() | held.keys()):
        sample = engines.get(at) or RateSample(at, 0.0, 0.0, 0.0, 0.0)
        owed, more = _judged(owed, held.get(at, Missed()), Verdicts(sample.good, sample.bad))
        yield replace(sample, good=max(0.0, sample.good + more.good), bad=max(0.0, sample.bad + more.bad))


def account(
    memory: ActivatorMisses, activator: Activator | None, budget: Budget, slo: Slo, now: float
) -> tuple[ActivatorMisses, Budget]:
    """Add the verdicts about held requests to the error budget.

    The first process ever observed sets the baseline: Prometheus reports what it counted before. Every other new
    process started since the last observation, so all of its counts are added. Requests held by a process that has
    ended are lost.
    """
    if activator is None:
        return memory, budget
    memory, missed = _observed(memory, activator, slo, now) if activator.answers else (memory, Missed())
    counted, lost = _given_up(memory.counted, now)
    owed, more = _judged(memory.owed, Missed(missed.late, missed.lost + lost), budget.latest)
    memory = replace(memory, counted=counted, owed=owed)
    if more == Verdicts():
        return memory, budget
    # Negative numbers retract verdicts, never more than the last tick added.
    return memory, replace(add(budget, more, now), latest=plus(budget.latest, more))


def _observed(memory: ActivatorMisses, activator: Activator, slo: Slo, now: float) -> tuple[ActivatorMisses, Missed]:
    """Return the memory with this process's counters, and the requests missed since its last answer.

    Requests that were judged when the process seemed to have ended are not missed again.
    """
    others = tuple(process for process in memory.counted if process.boot != activator.boot)
    before = next((process for process in memory.counted if process.boot == activator.boot), None)
    answered = Counted(
        activator.boot, activator.forwarded, activator.gone, activator.turned_away, activator.waiting, now
    )
    missed = _missed(before or Counted(activator.boot), answered, slo)
    if before is None and not others:
        unknown = not memory.recalled and missed.late + missed.lost > 0.0
        return replace(memory, counted=(answered,), unknown_at=now if unknown else memory.unknown_at), Missed()
    judged = 0 if before is None else before.given_up
    late = min(missed.late, judged)
    remaining = Missed(missed.late - late, missed.lost - min(missed.lost, judged - late))
    updated = answered._replace(given_up=min(judged - round(sum(missed) - sum(remaining)), activator.waiting))
    return replace(memory, counted=(*others, updated)[-MOST_PROCESSES:]), remaining


def _missed(before: Counted, answered: Counted, slo: Slo) -> Missed:
    """Return the requests missed between two answers of one process.

    The counters are histograms of waiting times. After an edit of `slo.ttft` only later requests use the new objective.
    """
    late, given_up = (
        longer_than(tuple(max(0, new - old) for new, old in zip(waits, earlier, strict=True)), slo.ttft_seconds)
        for waits, earlier in ((answered.forwarded, before.forwarded), (answered.gone, before.gone))
    )
    return Missed(late, given_up + max(0, answered.turned_away - before.turned_away))


def _given_up(counted: tuple[Counted, ...], now: float) -> tuple[tuple[Counted, ...], int]:
    """Judge the requests held by processes that seem to have ended, and record how many were judged."""
    processes, lost = [], 0
    for process in counted:
        ended = now - process.seen_at >= GONE_SECONDS
        more = max(0, process.waiting - process.given_up) if ended else 0
        processes.append(process._replace(given_up=process.given_up + more) if more else process)
        lost += more
    return tuple(processes), lost


def _judged(owed: float, missed: Missed, judged: Verdicts) -> tuple[float, Verdicts]:
    """Return the verdicts still owed and the change of verdicts: each late request replaces one engine verdict."""
    taken = min(owed + missed.late, judged.judged)
    bad = taken * judged.bad_share
    return owed + missed.late - taken, Verdicts(bad - taken, missed.late + missed.lost - bad)
