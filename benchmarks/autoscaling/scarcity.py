"""What is lost while capacity is short, and how long it takes until nothing is: for whoever cannot see the future.

Work is in seconds of one replica at the capacity that the bench finds. Replicas can carry what they finish within what
the objectives leave a request, TTFT + TPOT x the mean answer: work that finds more than that before it is lost, whoever
decides, as if it had not come. Capacity is short from when the queue began in which that happens until the last time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from holdfast.twin.arrays.timers import Floats

WINDOW_SECONDS = 60.0
"""Goodput is back where as large a share as the objective of what arrives in so long is good."""

EPSILON = 1e-6
"""Of a request: what floats make of whole numbers."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds of a run."""

    begins: float
    ends: float


@dataclass(frozen=True, slots=True)
class Steps:
    """How many replicas serve, in parts where one is slow: `worth[i]` from second `since[i]` on, the first from 0."""

    since: Floats
    worth: Floats

    def at(self, seconds: Floats) -> Floats:
        """Replicas at those moments."""
        return np.asarray(self.worth[np.searchsorted(self.since, seconds, "right") - 1])

    def sums(self, seconds: Floats) -> Floats:
        """Seconds of one replica up to those moments."""
        before = np.concatenate([[0.0], np.cumsum(np.diff(self.since) * self.worth[:-1])])
        place = np.searchsorted(self.since, seconds, "right") - 1
        return np.asarray(before[place] + (seconds - self.since[place]) * self.worth[place])


@dataclass(frozen=True, slots=True)
class Played:
    """One service in one run: requests in order of arrival, and who served them. All times in seconds of the run.

    `work` is in seconds of one replica. `answered_at` is when the first token came, infinite where none did; `queued`
    says which requests waited for it or for ever, and were neither refused nor lost. `losses` are when faults took
    capacity away, `blind` while there were no metrics. A request may take `patience_seconds`; what is ordered serves
    after `reaction_seconds` at the latest. Counts what arrives from `warmup_seconds` on.
    """

    at: Floats
    work: Floats
    good: NDArray[np.bool_]
    answered_at: Floats
    queued: NDArray[np.bool_]
    serving: Steps
    most_replicas: int
    objective: float
    patience_seconds: float
    reaction_seconds: float
    warmup_seconds: float
    ends: float
    losses: Sequence[float] = ()
    blind: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long goodput was below the objective; infinite where it did not come back.

    None where the run ends before it can be told whether it took longer than allowed.
    """

    began_at_seconds: float
    seconds: float | None
    allowed_seconds: float

    @property
    def late_seconds(self) -> float:
        """How much longer than allowed; minus infinity where it cannot be told."""
        return -math.inf if self.seconds is None else self.seconds - self.allowed_seconds


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What a run lost while capacity was short, and its latest recovery; None where there was nothing of the kind.

    `goodput_share` is of what the replicas in place can carry.
    """

    short_seconds: float
    goodput_share: float | None
    recovery: Recovery | None


def scarcity(run: Played) -> Scarcity:
    """Judge a run."""
    spans, carried = short(run.at, run.work, run.serving, run.patience_seconds)
    spans = [span for span in spans if span.ends >= run.warmup_seconds]
    return Scarcity(
        sum(span.ends - span.begins for span in spans),
        _goodput_share(run, spans, carried),
        max(recoveries(run, spans), key=lambda each: each.late_seconds, default=None),
    )


def middle(found: Sequence[Scarcity]) -> Scarcity | None:
    """Of several seeds: medians, and the recovery that is the median by how late it is, the later of two."""
    if not found:
        return None
    shares = [each.goodput_share for each in found if each.goodput_share is not None]
    known = [each.recovery for each in found if each.recovery is not None]
    return Scarcity(
        median(each.short_seconds for each in found),
        median(shares) if shares else None,
        sorted(known, key=lambda each: each.late_seconds)[len(known) // 2] if known else None,
    )


def short(at: Floats, work: Floats, serving: Steps, patience_seconds: float) -> tuple[list[Span], Floats]:
    """Spans in which capacity is short, and how much of the work of each request the replicas can carry."""
    room = (patience_seconds * serving.at(at)).tolist()
    done = np.diff(serving.sums(at), prepend=0.0).tolist()
    carried, spans = work.copy(), list[Span]()
    inside, began, lost = 0.0, 0.0, False
    for place, (moment, task) in enumerate(zip(at.tolist(), work.tolist(), strict=True)):
        if place == 0 or done[place] > inside:
            began, lost = moment, False
        inside = max(0.0, inside - done[place])
        taken = min(task, max(0.0, room[place] - inside))
        inside += taken
        if taken < task:
            carried[place] = taken
            spans[-1 if lost else len(spans) :] = [Span(began, moment)]
            lost = True
    return spans, carried


def _goodput_share(run: Played, spans: Sequence[Span], carried: Floats) -> float | None:
    """Good requests of those that came in the spans, over those that can be carried: as many as of their work."""
    in_time = could = 0.0
    for span in spans:
        inside = (run.at >= max(span.begins, run.warmup_seconds)) & (run.at <= span.ends)
        in_time += float(run.good[inside].sum())
        could += float(inside.sum() * carried[inside].sum() / run.work[inside].sum())
    return in_time / could if could > 0.0 else None


def recoveries(run: Played, spans: Sequence[Span]) -> Iterator[Recovery]:
    """From when capacity became short, and from when a fault took some away.

    The clock stands still while there are no metrics, and while the largest fleet would not carry what comes either.
    """
    largest = Steps(np.zeros(1), np.full(1, float(run.most_replicas)))
    excused = _joined([*short(run.at, run.work, largest, run.patience_seconds)[0], *run.blind])
    for span in (*_joined(spans, WINDOW_SECONDS), *(Span(moment, moment) for moment in run.losses)):
        due = _after(span.begins, run.reaction_seconds, excused)
        allowed = run.reaction_seconds + _drain_seconds(run, due)
        back = _back_at(run, span)
        seconds: float | None = _elapsed(span.begins, back, excused)
        if back == math.inf and _elapsed(span.begins, run.ends - WINDOW_SECONDS, excused) <= allowed:
            seconds = None
        yield Recovery(span.begins, seconds, allowed)


def _joined(spans: Sequence[Span], apart_seconds: float = 0.0) -> list[Span]:
    """The same in the order of time; one of those that overlap or are no further apart."""
    found = list[Span]()
    for span in sorted(spans, key=lambda each: each.begins):
        if found and span.begins <= found[-1].ends + apart_seconds:
            found[-1] = Span(found[-1].begins, max(found[-1].ends, span.ends))
        else:
            found.append(span)
    return found


def _elapsed(begins: float, ends: float, excused: Sequence[Span]) -> float:
    """Seconds between that are in none of the spans."""
    inside = sum(max(0.0, min(ends, span.ends) - max(begins, span.begins)) for span in excused)
    return max(0.0, ends - begins - inside)


def _after(begins: float, seconds: float, excused: Sequence[Span]) -> float:
    """When so many seconds that are in none of the spans have passed."""
    due = begins + seconds
    for span in excused:
        if span.begins < due:
            due += max(0.0, span.ends - max(begins, span.begins))
    return due


def _drain_seconds(run: Played, moment: float) -> float:
    """How long what waits at a moment takes those who serve in the next window beside what arrives in it.

    0 where they have nothing to spare: what does not drain is no excuse.
    """
    waits = run.queued & (run.at <= moment) & (run.answered_at > moment)
    comes = (run.at > moment) & (run.at <= moment + WINDOW_SECONDS)
    begins, ends = run.serving.sums(np.array([moment, moment + WINDOW_SECONDS]))
    spare = float(ends - begins - run.work[comes].sum()) / WINDOW_SECONDS
    return float(run.work[waits].sum()) / spare if spare > 0.0 else 0.0


def _back_at(run: Played, span: Span) -> float:
    """When the first window that holds the objective begins, after the last in the span that does not."""
    last = run.ends - WINDOW_SECONDS
    within = np.append(run.at[(run.at >= span.begins) & (run.at <= span.ends)], span.ends)
    missed = within[~_holds(run, within)]
    if not len(missed):
        return span.begins
    later = run.at[(run.at > missed[-1]) & (run.at <= last)]
    held = later[_holds(run, later)]
    return float(held[0]) if len(held) else math.inf


def _holds(run: Played, begins: Floats) -> NDArray[np.bool_]:
    """Whether in the windows that begin there no more is bad than the objective leaves, rounded up to whole requests.

    Of 20 requests no share but 1 is above 99 %: one that is bad tells nothing.
    """
    sums = np.concatenate([[0], np.cumsum(~run.good)])
    first, last = np.searchsorted(run.at, begins), np.searchsorted(run.at, begins + WINDOW_SECONDS)
    left = np.ceil((1.0 - run.objective) * (last - first) - EPSILON)
    return np.asarray(sums[last] - sums[first] <= left)
