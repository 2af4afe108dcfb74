"""Which runs are made, and by what names their results are found again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_overload.cells import DEFAULT_LIMITS, QUEUED_SHARE_OF_TTFT, Cell, Variant, Window
from benchmarks.engine_overload.goodput import Figures
from benchmarks.engine_overload.journal import Circumstances, Journal, RunKey
from benchmarks.engine_overload.plan import Planned
from benchmarks.engine_overload.search import Capacity, Point, Questions, find_capacity
from benchmarks.engine_overload.trace import mean_tokens

_SATURATION = Window(0.0, 8.0, 0.0)
_FIRST_RATE_RPS = 40.0
_SEARCH_SEED = 1000
# Starting the client, reading its records.
_RUN_SECONDS = 3.0

Run = Callable[[RunKey], Figures]


class NotMeasuredError(Exception):
    """A run that a figure needs has not been made."""


class BudgetSpentError(Exception):
    """The next run would end too late."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Of the runs that count, and of those by which limits and rates are chosen."""

    full: Window
    glance: Window


class Results:
    """Figures by what they are for; `run` is asked for those that are needed."""

    def __init__(self, cells: dict[int, Cell], windows: Windows, run: Run) -> None:
        self.cells = cells
        self._windows = windows
        self._run = run
        self._capacities: dict[int, Capacity] = {}

    def capacity(self, cell: int) -> Capacity:
        """C of a cell as the search found it; offered loads are multiples of it."""
        if cell not in self._capacities:
            self._capacities[cell] = find_capacity(self._questions(cell), _FIRST_RATE_RPS)
        return self._capacities[cell]

    def of(self, planned: Planned) -> Figures:
        """The figures of a planned run."""
        return self._run(self.key(planned))

    def confirming(self, cell: int, number: int) -> Figures:
        """One of the full runs that decided what C is."""
        return self._run(self._search_key(cell, self.capacity(cell).point, self._windows.full, number))

    def key(self, planned: Planned) -> RunKey:
        """The run that is meant, which takes C."""
        capacity = self.capacity(planned.cell)
        load, point = planned.load, capacity.point
        limited = planned.variant in (Variant.SEARCH, Variant.TUNED)
        return RunKey(
            planned.cell,
            planned.variant,
            point.rate_rps if load is None else round(load * capacity.goodput_rps, 3),
            self._windows.full,
            planned.repetition,
            limits=point.limits if limited else None,
            queued_tokens=self._queued_tokens(planned.cell) if planned.variant is Variant.TUNED else None,
            take=planned.take,
        )

    def expected_seconds(self, key: RunKey) -> float:
        """How long a run takes, with the drain that an overload leaves behind."""
        known = self._capacities.get(key.cell)
        excess = key.rate_rps / known.goodput_rps if known is not None and known.goodput_rps > 0.0 else 1.0
        return key.window.total_seconds * max(1.0, excess) + _RUN_SECONDS

    def _queued_tokens(self, number: int) -> int:
        cell = self.cells[number]
        prompt_tps = self.capacity(number).goodput_rps * mean_tokens(cell.mix.prompt)
        return max(1, round(QUEUED_SHARE_OF_TTFT * cell.slo.ttft_seconds * prompt_tps))

    def _questions(self, cell: int) -> Questions:
        def saturate(rate: float) -> float:
            return self._run(self._search_key(cell, Point(DEFAULT_LIMITS, rate), _SATURATION)).served_rps

        def glance(point: Point) -> float:
            return self._run(self._search_key(cell, point, self._windows.glance)).goodput_rps

        def confirm(point: Point, number: int) -> float:
            return self._run(self._search_key(cell, point, self._windows.full, number)).goodput_rps

        return Questions(saturate, glance, confirm)

    def _search_key(self, cell: int, point: Point, window: Window, number: int = 0) -> RunKey:
        seed = _SEARCH_SEED + number
        return RunKey(cell, Variant.SEARCH, point.rate_rps, window, seed, limits=point.limits)


def recorded(journal: Journal) -> Run:
    """Runs that have been made; others are not measured."""

    def run(key: RunKey) -> Figures:
        found = journal.get(key)
        if found is None:
            raise NotMeasuredError(str(key))
        return found

    return run


class Campaign:
    """Makes the runs that are missing until the budget is spent."""

    def __init__(
        self,
        journal: Journal,
        make: Callable[[RunKey, int], Figures],
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._make = make
        self._deadline = deadline
        self._say = say
        self._commit = commit()
        self.expected_seconds: Callable[[RunKey], float] = lambda key: 0.0

    def run(self, key: RunKey) -> Figures:
        """The figures of a run, made now where it has not been made before."""
        found = self._journal.get(key)
        if found is not None:
            return found
        if time.monotonic() + self.expected_seconds(key) > self._deadline:
            raise BudgetSpentError
        circumstances = Circumstances(time.strftime("%Y-%m-%dT%H:%M:%S%z"), self._commit, round(os.getloadavg()[0], 2))
        found = self._make(key, len(self._journal))
        self._journal.add(key, found, circumstances)
        self._say(_line(key, found))
        return found

    def run_all(self, results: Results, planned: Iterable[Planned]) -> bool:
        """Make all runs; returns whether the budget sufficed."""
        try:
            for each in planned:
                results.of(each)
        except BudgetSpentError:
            return False
        return True


def commit() -> str:
    """The commit of the checkout, with a plus where the plugin differs from it."""
    here = Path(__file__).parent
    found = _git(here, "rev-parse", "--short", "HEAD")
    changed = _git(here, "status", "--porcelain", "--", ":/operator/holdfast_engine")
    return f"{found}+" if changed else found


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _line(key: RunKey, found: Figures) -> str:
    limits = "" if key.limits is None else f" ({key.limits.sequences} sequences, {key.limits.tokens} tokens)"
    return (
        f"cell {key.cell}  {key.variant}{limits}  {key.rate_rps:.2f}/s  seed {key.seed}: {found.goodput_rps:.2f} good/s"
        f"  TTFT {1000 * found.ttft_p50_seconds:.0f} ms  TPOT {1000 * found.tpot_p50_seconds:.1f} ms"
        f"  {found.duration_seconds:.0f} s"
    )
