"""Which runs are made, again where the machine was unsteady, and by what names their results are found again."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.engine_overload.cells import (
    DEFAULT_LIMITS,
    QUEUED_SHARE_OF_TTFT,
    Cell,
    Variant,
    Window,
)
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import SEARCH_SEED, Attempt, Circumstances, Journal, RunKey
from benchmarks.engine_overload.plan import Planned
from benchmarks.engine_overload.probe import Sampled
from benchmarks.engine_overload.search import Capacity, Point, Questions, find_capacity
from benchmarks.engine_overload.speed import TOLERANCE, Reference, unsteady
from benchmarks.engine_overload.trace import mean_tokens
from benchmarks.engine_overload.windows import Seconds, expected_seconds

# What a flooded engine serves shows in the drain.
SATURATION = Window(0.0, 5.0, 0.0)
_FIRST_RATE_RPS = 30.0
# Confirming runs of the search, whose traces differ from those of its rounds.
_CONFIRMING_SEED = SEARCH_SEED + 100

Run = Callable[[RunKey], Attempt]


class NotMeasuredError(Exception):
    """A run that a figure needs has not been made."""


class UnsteadyError(Exception):
    """The machine was too unsteady in every attempt at a run."""


class BudgetSpentError(Exception):
    """The next run would end too late."""


class MachineChangedError(Exception):
    """The machine is not what it was when the rates were chosen."""


class Results:
    """Figures by what they are for; `run` is asked for those that are needed."""

    def __init__(self, cells: dict[int, Cell], seconds: Seconds, run: Run) -> None:
        self.cells = cells
        self._seconds = seconds
        self._run = run
        self._capacities: dict[int, Capacity] = {}

    def capacity(self, cell: int) -> Capacity:
        """C of a cell as the search found it; offered loads are multiples of it."""
        if cell not in self._capacities:
            effort = self.cells[cell].effort
            self._capacities[cell] = find_capacity(self._questions(cell), effort, _FIRST_RATE_RPS, cell)
        return self._capacities[cell]

    def of(self, planned: Planned) -> Attempt:
        """A planned run."""
        return self._run(self.key(planned))

    def key(self, planned: Planned) -> RunKey:
        """The run that is meant, which takes C."""
        capacity = self.capacity(planned.cell)
        load, point = planned.load, capacity.point
        limited = planned.variant in (Variant.SEARCH, Variant.TUNED)
        return RunKey(
            planned.cell,
            planned.variant,
            round(point.rate_rps * planned.rate_share if load is None else load * capacity.goodput_rps, 3),
            self._seconds.of_load(load, self.cells[planned.cell].slo),
            planned.repetition,
            limits=point.limits if limited else None,
            queued_tokens=self._queued_tokens(planned.cell) if planned.variant is Variant.TUNED else None,
            take=planned.take,
        )

    def _queued_tokens(self, number: int) -> int:
        cell = self.cells[number]
        prompt_tps = self.capacity(number).goodput_rps * mean_tokens(cell.mix.prompt)
        return max(1, round(QUEUED_SHARE_OF_TTFT * cell.slo.ttft_seconds * prompt_tps))

    def _questions(self, cell: int) -> Questions:
        slo = self.cells[cell].slo
        glances, full = self._seconds.of_glance(slo), self._seconds.of_load(None, slo)

        def figure(point: Point, window: Window, seed: int, name: str) -> float:
            key = RunKey(cell, Variant.SEARCH, point.rate_rps, window, seed, limits=point.limits)
            try:
                return float(getattr(self._run(key).figures, name))
            except UnsteadyError:
                return math.nan

        return Questions(
            lambda rate: figure(Point(DEFAULT_LIMITS, rate), SATURATION, SEARCH_SEED, "served_rps"),
            lambda point, number: figure(point, glances, SEARCH_SEED + number, "goodput_rps"),
            lambda point, number: figure(point, full, _CONFIRMING_SEED + number, "goodput_rps"),
            self._seconds.glance,
        )


def recorded(journal: Journal, first: bool = False) -> Run:
    """Runs that have been made; others are not measured.

    `first`: the first attempt at each run of the comparison, steady or not, to see what was gained by throwing away.
    """

    def run(key: RunKey) -> Attempt:
        attempts = journal.of(key)
        found = attempts[0] if first and attempts and not key.is_search else journal.get(key)
        if found is None and len(attempts) >= Patience.attempts:
            raise UnsteadyError(str(key))
        if found is None:
            raise NotMeasuredError(str(key))
        return found

    return run


@dataclass(frozen=True)
class Patience:
    """How unsteady the machine may be: `in_a_row` runs thrown away one after the other end the campaign."""

    tolerance: float = TOLERANCE
    attempts: int = 3
    in_a_row: int = 6
    wait_seconds: float = 20.0


class Rig(Protocol):
    """What makes the runs."""

    def prepare(self, key: RunKey) -> None:
        """Have the engine of a run ready and idle, which is no part of the run."""

    def run(self, key: RunKey, number: int) -> Figures:
        """Make it; `number` tells its prompts from those of all others."""


class Meter(Protocol):
    """What measures the machine."""

    def wait_until_steady(self, against: Reference | None, tolerance: float, most_seconds: float) -> float:
        """Seconds waited."""

    def during(self) -> AbstractContextManager[Sampled]:
        """Sample while the body runs."""


class Campaign:
    """Makes the runs that are missing until the budget is spent."""

    def __init__(
        self,
        journal: Journal,
        rig: Rig,
        meter: Meter,
        patience: Patience,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._journal, self._rig, self._meter = journal, rig, meter
        self._patience = patience
        self._deadline = deadline
        self._say = say
        self._commit = commit()
        self._thrown_in_a_row = 0

    def run(self, key: RunKey) -> Attempt:
        """A steady attempt at a run, made now where there is none."""
        while (found := self._journal.get(key)) is None:
            if len(self._journal.of(key)) >= self._patience.attempts:
                raise UnsteadyError(str(key))
            if time.monotonic() + expected_seconds(key.window) > self._deadline:
                raise BudgetSpentError
            self._attempt(key)
        return found

    def run_all(self, results: Results, planned: Iterable[Planned]) -> bool:
        """Make all runs but those for which the machine is never steady; returns whether the budget sufficed."""
        try:
            for each in planned:
                try:
                    results.of(each)
                except UnsteadyError:
                    self._say(f"left out, the machine was unsteady {self._patience.attempts} times: {each}")
        except BudgetSpentError:
            return False
        return True

    def _attempt(self, key: RunKey) -> None:
        self._rig.prepare(key)
        began, against = time.monotonic(), self._journal.reference(key.cell)
        circumstances = Circumstances(time.strftime("%Y-%m-%dT%H:%M:%S%z"), self._commit, round(os.getloadavg()[0], 2))
        self._meter.wait_until_steady(against, self._patience.tolerance, self._patience.wait_seconds)
        with self._meter.during() as sampled:
            figures = self._rig.run(key, len(self._journal))
        why = unsteady(sampled.speed, against, self._patience.tolerance)
        attempt = Attempt(key, figures, sampled.speed, why, time.monotonic() - began, circumstances)
        self._journal.add(attempt)
        self._say(_line(attempt))
        self._thrown_in_a_row = self._thrown_in_a_row + 1 if why else 0
        if self._thrown_in_a_row >= self._patience.in_a_row:
            raise MachineChangedError(
                f"{self._thrown_in_a_row} runs one after the other were thrown away, the last because {why}: the "
                "machine is busy, or no longer what it was in the search; go on later, or take another --out"
            )


def commit() -> str:
    """The commit of the checkout, with a plus where the plugin differs from it."""
    here = Path(__file__).parent
    found = _git(here, "rev-parse", "--short", "HEAD")
    changed = _git(here, "status", "--porcelain", "--", ":/operator/holdfast_engine")
    return f"{found}+" if changed else found


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _line(attempt: Attempt) -> str:
    key, found = attempt.key, attempt.figures
    limits = "" if key.limits is None else f" ({key.limits.sequences} sequences, {key.limits.tokens} tokens)"
    verdict = f"  thrown away: {attempt.unsteady}" if attempt.unsteady else ""
    return (
        f"cell {key.cell}  {key.variant}{limits}  {key.rate_rps:.2f}/s  seed {key.seed}: {found.goodput_rps:.2f} good/s"
        f"  TTFT {1000 * found.ttft_p50_seconds:.0f} ms  TPOT {1000 * found.tpot_p50_seconds:.1f} ms"
        f"  {attempt.seconds:.0f} s  machine {attempt.speed.during_ms:.2f} ms{verdict}"
    )
