"""One load against more and more sequences: 1, 2, 4, ... up to a limit, until more of them are clearly worse."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from holdfast.tools.bench.figures.definitions import GOOD
from holdfast.tools.bench.figures.engine import Reported
from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.generators.endpoint import NoEndpoint
from holdfast.tools.bench.load.load_generator import Load, Planned
from holdfast.tools.bench.load.records import RequestRecord
from holdfast.tools.tune.engine_port import CannotTry
from holdfast.tools.tune.race import interval
from holdfast.tools.tune.setting import Setting
from holdfast.twin.arrays.fleet import Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.replica.capacity import LengthPairs

ALIKE = 0.97
"""Of the most good requests per second: fewer sequences that reach this are preferred, for each token comes sooner."""

WORSE = 0.95
"""Of the most so far: a rung that is below this even at the upper end of its 95 % interval is clearly worse."""

TURNS, WARM_UP = 5, 0.2
"""Requests of a rung in a closed loop, as a multiple of those under way; in an open loop, the share of the warm-up."""

MOST_SECONDS = 120.0
"""A rung of a live engine in a closed loop sends no more after this: few sequences take very long."""


@dataclass(frozen=True)
class LadderLoad:
    """The same requests for every rung: so many at a time, or arrivals of a rate (CV 1 is Poisson)."""

    lengths: LengthPairs
    requests: int
    concurrency: int = 0
    rate_rps: float = 0.0
    cv: float = 1.0
    seed: int = 1

    @property
    def count(self) -> int:
        """Requests that are sent: in a closed loop at least some turns of all that are under way."""
        return max(self.requests, TURNS * self.concurrency) + self.first

    @property
    def first(self) -> int:
        """The first that counts; in a closed loop all that came to an empty engine have ended by then."""
        return 2 * self.concurrency or math.ceil(WARM_UP * self.requests)

    @property
    def told(self) -> str:
        """In words."""
        if self.concurrency:
            return f"{self.concurrency} requests at a time"
        return f"{self.rate_rps:g} req/s ({'Poisson' if self.cv == 1.0 else f'gamma, CV {self.cv:g}'})"

    @cached_property
    def workload(self) -> Workload:
        """For the twin; in a closed loop all are there at once."""
        at, prompts, outputs = self._drawn
        return Workload(at, prompts, outputs, np.zeros(len(at), np.int64))

    def load(self, drain_seconds: float) -> Load:
        """For a live endpoint."""
        columns = (each.tolist() for each in self._drawn)
        planned = [Planned(*row) for row in zip(*columns, strict=True)]
        most = MOST_SECONDS if self.concurrency else math.inf
        return Load(planned, len(planned), self.concurrency, False, most, drain_seconds, self.seed)

    def warm_up_seconds(self, records: Sequence[RequestRecord]) -> float:
        """From the first arrival to the first that counts; all count where so few were sent."""
        arrivals = sorted(record.scheduled_at for record in records)
        return arrivals[self.first] - arrivals[0] if len(arrivals) > self.first + 1 else 0.0

    @cached_property
    def _drawn(self) -> tuple[Floats, Integers, Integers]:
        draw = np.random.default_rng([self.seed, 11])
        prompts, outputs = self.lengths.draw(self.count, draw)
        if self.concurrency:
            return np.zeros(self.count), prompts, outputs
        shape = 1.0 / self.cv**2
        return np.cumsum(draw.gamma(shape, 1.0 / shape, self.count)) / self.rate_rps, prompts, outputs


@dataclass(frozen=True, slots=True)
class Rung:
    """What one number of sequences gave; the engine's own figures are None where it reports none."""

    setting: Setting
    results: Results

    @property
    def sequences(self) -> int:
        return self.setting.max_num_seqs

    @property
    def goodput_rps(self) -> float:
        """Good requests per second; 0 where none was."""
        return self.results.goodput_rps if math.isfinite(self.results.goodput_rps) else 0.0

    @property
    def most_goodput_rps(self) -> float:
        """The same at the upper end of the 95 % interval of the share of good requests."""
        results = self.results
        high = interval(results.verdicts.get(GOOD, 0), results.requests)[1]
        return max(self.goodput_rps, results.request_rps * high if math.isfinite(results.request_rps) else 0.0)

    @property
    def engine(self) -> Reported | None:
        """Its own figures, with the share of its sequences that ran: a ladder knows the limit."""
        found = self.results.engine
        return None if found is None else replace(found, peak_sequences_share=found.peak_running / self.sequences)


@dataclass(frozen=True, slots=True)
class Climb:
    """Rungs from few sequences to many, as far as they were tried, and why the ladder ended there."""

    rungs: tuple[Rung, ...]
    objective: float
    ended: str

    @property
    def holds(self) -> bool:
        """Whether any rung attains the objective."""
        return any(rung.results.attains(self.objective) for rung in self.rungs)

    @property
    def chosen(self) -> Rung | None:
        """The fewest sequences with nearly the most good requests, of the rungs that attain the objective if any do."""
        held = [rung for rung in self.rungs if rung.results.attains(self.objective)] or self.rungs
        most = max(rung.goodput_rps for rung in held)
        return next(rung for rung in held if rung.goodput_rps >= ALIKE * most) if most > 0.0 else None

    @property
    def neighbours(self) -> tuple[Rung | None, Rung | None]:
        """The rungs just below and above the chosen one."""
        if self.chosen is None:
            return None, None
        place = self.rungs.index(self.chosen)
        return (
            self.rungs[place - 1] if place else None,
            self.rungs[place + 1] if place + 1 < len(self.rungs) else None,
        )


async def climb(
    settings: Sequence[Setting],
    measured: Callable[[Setting], Awaitable[Results]],
    objective: float,
    told: Callable[[Rung], None] = lambda rung: None,
) -> Climb:
    """Measure one rung after the other until more sequences are clearly worse, or cannot make a difference.

    A rung that cannot be tried ends the ladder, and what was found below it stands. CannotTry and NoEndpoint of the
    first one.
    """
    found: list[Rung] = []
    for setting in settings:
        try:
            found.append(Rung(setting, await measured(setting)))
        except (CannotTry, NoEndpoint) as problem:
            if not found:
                raise
            return Climb(tuple(found), objective, f"{setting.max_num_seqs} sequences cannot be tried: {problem}")
        told(found[-1])
        if ended := _ended(found):
            return Climb(tuple(found), objective, ended)
    return Climb(tuple(found), objective, "this is the last rung")


def _ended(found: Sequence[Rung]) -> str:
    """Why there is no need to go on; nothing where there is."""
    last, most = found[-1], max(rung.goodput_rps for rung in found)
    if last.most_goodput_rps < WORSE * most:
        return f"{last.goodput_rps:.3g} good req/s are clearly less than {most:.3g}"
    if last.results.peak_in_flight <= last.sequences:
        return f"at most {last.results.peak_in_flight} requests were under way, so more sequences make no difference"
    return ""
