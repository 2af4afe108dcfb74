"""The figures of the live view at one moment, computed from what came in so far."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from e2e.demo.scenario import Scenario
from e2e.demo.watch import Decision, Sample
from e2e.load import verdict
from e2e.load.records import Record
from e2e.load.trace import Arrival
from e2e.load.verdict import Objectives

RECENT_SECONDS = 30.0
RATE_SECONDS = 10.0
BIN_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One moment. Shares are None and latencies NaN where nothing was seen; `load_rps` and `good_shares` are histories.

    `recent` figures are of the requests judged in the last 30 s, the others of the whole run.
    """

    phase: str
    elapsed_seconds: float
    duration_seconds: float
    arrival_rps: float
    in_flight: int
    recent_good: int
    recent_bad: int
    recent_attainment: float | None
    attainment: float | None
    arrivals: int
    rejected: int
    lost: int
    ttft_p95_seconds: float
    tpot_p95_seconds: float
    objectives: Objectives
    sample: Sample | None
    decisions: tuple[Decision, ...]
    start: float
    load_rps: tuple[float, ...]
    good_shares: tuple[float | None, ...]


class Board:
    """Collects records, samples and decisions, and turns them into a view."""

    def __init__(self, scenario: Scenario, objectives: Objectives, cold_start_seconds: float, start: float) -> None:
        self.arrivals: Sequence[Arrival] = ()
        self.records: list[Record] = []
        self.decisions: list[Decision] = []
        self.sample: Sample | None = None
        self._scenario = scenario
        self._objectives = objectives
        self._cold_start_seconds = cold_start_seconds
        self._start = start

    def view(self, now: float) -> View:
        """Return the figures of this moment (epoch seconds)."""
        elapsed = now - self._start
        done = verdict.judged(self.records)
        good = [record for record in done if verdict.is_good(record, self._objectives)]
        recent = [record for record in done if record.finished_at > now - RECENT_SECONDS]
        recent_good = sum(verdict.is_good(record, self._objectives) for record in recent)
        sent = [arrival.at_seconds for arrival in self.arrivals if arrival.at_seconds <= elapsed]
        answered = [record for record in recent if record.first_token_at is not None]
        return View(
            phase=self._scenario.phase(elapsed, self._cold_start_seconds),
            elapsed_seconds=elapsed,
            duration_seconds=self._scenario.duration_seconds,
            arrival_rps=sum(at > elapsed - RATE_SECONDS for at in sent) / RATE_SECONDS,
            in_flight=len(sent) - len(self.records),
            recent_good=recent_good,
            recent_bad=len(recent) - recent_good,
            recent_attainment=recent_good / len(recent) if recent else None,
            attainment=len(good) / len(done) if done else None,
            arrivals=len(sent),
            rejected=sum(record.status == "rejected" for record in done),
            lost=sum(verdict.is_lost(record) for record in done),
            ttft_p95_seconds=verdict.percentile(map(verdict.ttft_seconds, answered), 0.95),
            tpot_p95_seconds=verdict.percentile(map(verdict.tpot_seconds, answered), 0.95),
            objectives=self._objectives,
            sample=self.sample,
            decisions=tuple(self.decisions),
            start=self._start,
            load_rps=self._load_history(elapsed),
            good_shares=self._good_history(done, elapsed),
        )

    def _load_history(self, elapsed: float) -> tuple[float, ...]:
        counts = [0] * _bins(elapsed)
        for arrival in self.arrivals:
            if arrival.at_seconds < len(counts) * BIN_SECONDS:
                counts[int(arrival.at_seconds / BIN_SECONDS)] += 1
        return tuple(count / BIN_SECONDS for count in counts)

    def _good_history(self, done: Sequence[Record], elapsed: float) -> tuple[float | None, ...]:
        """Return the share of good requests by time of arrival; a bin may still change while answers come in."""
        counts = [[0, 0] for _ in range(_bins(elapsed))]
        for record in done:
            place = int((record.scheduled_at - self._start) / BIN_SECONDS)
            if 0 <= place < len(counts):
                counts[place][0] += verdict.is_good(record, self._objectives)
                counts[place][1] += 1
        return tuple(good / total if total else None for good, total in counts)


def _bins(elapsed: float) -> int:
    return max(math.floor(elapsed / BIN_SECONDS), 0)
