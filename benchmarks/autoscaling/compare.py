"""What everybody pays at equal attainment: each peer with its own best knob, and with one knob for all scenarios."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from statistics import median
from types import MappingProxyType
from typing import TypeVar

from benchmarks.autoscaling.campaign import HIGHEST, LOWEST, OWN, SHIPPED, Campaign, cheapest
from benchmarks.autoscaling.cases import Case
from benchmarks.autoscaling.fixed_limits import Limits
from benchmarks.autoscaling.journal import Row
from benchmarks.autoscaling.scarcity import Scarcity, middle
from holdfast.twin.runs.oracle import ORACLE
from holdfast.twin.runs.peak import smallest

S = TypeVar("S")
T = TypeVar("T")

NOWHERE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Figures:
    """Median over seeds of one policy in one scenario, and from which to which its attainment goes."""

    label: str
    attainment: float
    worst: float
    best: float
    gpu_hours: float
    cost_dollars: float
    ttft_p99_seconds: float
    tpot_p99_seconds: float
    window_goodput_rps: float | None = None
    scarcity: Scarcity | None = None


def figures(rows: Sequence[Row]) -> Figures:
    """Medians."""
    reached = [row.attainment for row in rows]
    windows = [row.window_goodput_rps for row in rows if row.window_goodput_rps is not None]
    return Figures(
        rows[0].label if len({row.label for row in rows}) == 1 else rows[0].label.partition(":")[0],
        median(reached),
        min(reached),
        max(reached),
        median(row.gpu_hours for row in rows),
        median(row.cost_dollars for row in rows),
        median(row.ttft_p99_seconds for row in rows),
        median(row.tpot_p99_seconds for row in rows),
        median(windows) if windows else None,
        middle([row.scarcity for row in rows if row.scarcity is not None]),
    )


Best = tuple[int, Figures]
"""The place of a peer's best knob, and what that pays."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """With fixed limits: of each peer the best knob, and the smallest static size; None where the target is missed."""

    limits: Limits
    swept: Mapping[str, Best | None]
    static: Figures | None


@dataclass(slots=True)
class Outcome:
    """One scenario: `own` policies, and of each peer what is shipped and the best knob (None where none attains).

    `target` is the attainment at which GPU-hours are compared, `static` the smallest size that attains it (the largest
    there is where none does). Where it was asked for, `tuned` is with the best fixed limits, and `capped` with the best
    cap on queued prompts on top of them.
    """

    case: Case
    objective: float
    target: float
    own: Mapping[str, Figures]
    static: Figures
    oracle: Figures
    shipped: dict[str, Figures] = field(default_factory=dict)
    swept: dict[str, Best | None] = field(default_factory=dict)
    tuned: Tuned | None = None
    capped: Tuned | None = None

    @property
    def holdfast(self) -> Figures:
        """Both loops where they were run, else the slow one."""
        return self.own.get("holdfast") or self.own["holdfast-slow"]

    @property
    def places(self) -> dict[str, int]:
        """Where each peer's best knob is."""
        return places(self.swept)

    def ratio(self, gpu_hours: float) -> float:
        """A multiple of what Holdfast pays at the target: of the static size's, if that is more, where it misses it."""
        ours = self.holdfast
        paid = ours.gpu_hours if ours.attainment >= self.target else max(ours.gpu_hours, self.static.gpu_hours)
        return gpu_hours / paid


class Comparison:
    """All scenarios that were asked for; knobs are swept on the first seed, medians are over all.

    How soon capacity is back differs so much between seeds that scarce scenarios may have `scarce_seeds` of their own.
    """

    def __init__(
        self,
        campaign: Campaign,
        seeds: Sequence[int],
        peers: Sequence[str],
        tuned: bool = False,
        threads: Executor | None = None,
        scarce_seeds: Sequence[int] = (),
    ) -> None:
        self._campaign = campaign
        self._seeds = seeds
        self._scarce_seeds = scarce_seeds or seeds
        self._peers = peers
        self._tuned = tuned
        self._threads = threads

    def alone(self, case: Case, fast_loop: bool) -> tuple[Figures, float]:
        """What Holdfast attains, and the objective."""
        return self._figures(case, "holdfast" if fast_loop else "holdfast-slow"), self._campaign.bounds(case)[0]

    def outcome(self, case: Case, fast_loop: bool, near: Mapping[str, int] = NOWHERE) -> Outcome:
        """Run a scenario under everybody; each peer's best knob is looked for from its place in `near` on."""
        names = [name for name in OWN if name != "holdfast" or fast_loop]
        own = {name: self._figures(case, name) for name in names}
        objective, most = self._campaign.bounds(case)
        reached = (own.get("holdfast") or own["holdfast-slow"]).attainment
        target = min(objective, reached) if case.unavoidable else objective
        oracle = self._begun(lambda policy: self._figures(case, policy), (ORACLE,))
        peak = self._begun(lambda share: self._static(case, most, share), (target,))
        swept = self._swept(case, target, None, near)
        found = Outcome(case, objective, target, own, next(peak), next(oracle), swept=dict(swept))
        # After the sweeps, which make the same runs on the first seed.
        shipped = self._begun(lambda peer: self._figures(case, peer, 0), self._peers)
        found.shipped = dict(zip(self._peers, shipped, strict=True))
        found.oracle = _bounded(found, self._static(case, most, objective))
        if self._tuned and case.compared:
            limits = self._campaign.best_limits(case)
            found.tuned = self._with_limits(case, most, target, limits, found.places)
            # Other clusters have no bar with the cap, whose knobs would take as many runs once more.
            if case.variation is None:
                capped = self._campaign.best_capped(case, limits)
                found.capped = self._with_limits(case, most, target, capped, places(found.tuned.swept))
        return found

    def _with_limits(self, case: Case, most: int, target: float, limits: Limits, near: Mapping[str, int]) -> Tuned:
        """Each peer's best knob with these limits, looked for from its place in `near` on, and the static size."""
        swept = dict(self._swept(case, target, limits, near))
        static = self._static(case, most, target, limits)
        return Tuned(limits, swept, static if static.attainment >= target else None)

    def _swept(
        self, case: Case, target: float, limits: Limits | None, near: Mapping[str, int]
    ) -> Iterator[tuple[str, Best | None]]:
        """Each peer's best knob."""
        found = self._begun(lambda peer: self._best(case, peer, target, limits, near.get(peer, 0)), self._peers)
        return zip(self._peers, found, strict=True)

    def _begun(self, make: Callable[[S], T], each: Sequence[S]) -> Iterator[T]:
        """One for each: all are begun at once where there are threads, else each when it is asked for."""
        return map(make, each) if self._threads is None else self._threads.map(make, each)

    def _static(self, case: Case, most: int, target: float, limits: Limits | None = None) -> Figures:
        """The smallest size that attains the target, one for all seeds; `most` where none does."""

        def sized(replicas: int) -> Figures:
            return self._figures(case, f"static:{replicas}", None, limits)

        return sized(smallest(lambda replicas: sized(replicas).attainment >= target, most))

    def _best(self, case: Case, peer: str, target: float, limits: Limits | None, near: int) -> Best | None:
        """The knob at which the first seed's front attains for the least, or one near it: medians decide."""

        def attained(*tried: int) -> Iterator[Best]:
            there = (place for place in tried if LOWEST <= place <= HIGHEST)
            known = ((place, self._figures(case, peer, place, limits)) for place in there)
            return ((place, found) for place, found in known if found.attainment >= target)

        front = self._campaign.front(case, peer, self._seeds[0], target, limits, near)
        least = cheapest(front, target)
        place = least[0] if least is not None else max(front, key=lambda each: front[each].attainment)
        able = list(attained(place, place + 1)) or list(islice(attained(*range(place - 1, place - 5, -1)), 1))
        return min(able, key=lambda each: each[1].gpu_hours, default=None)

    def one_knob(self, outcomes: Sequence[Outcome], peer: str) -> tuple[int, list[float]]:
        """The knob that is best over all scenarios, and what it costs in each, as a multiple of Holdfast's GPU-hours.

        Where it does not attain the target, the static size that does counts. It is one of the scenarios' best knobs,
        or what is shipped: between two of those the same scenarios attain, and the leaner the knob the less they cost.
        """
        tried = sorted({0} | {outcome.places[peer] for outcome in outcomes if peer in outcome.places})
        paid = self._begun(lambda place: self.ratios(outcomes, peer, place), tried)
        ratios = dict(zip(tried, paid, strict=True))
        best = min(ratios, key=lambda place: geometric_mean(ratios[place]))
        return best, ratios[best]

    def ratios(self, outcomes: Sequence[Outcome], peer: str, place: int = 0) -> list[float]:
        """What a knob costs in each scenario, as a multiple of Holdfast's GPU-hours; by default the one shipped."""
        return [self._ratio(outcome, peer, place) for outcome in outcomes]

    def _ratio(self, outcome: Outcome, peer: str, place: int) -> float:
        found = self._figures(outcome.case, peer, place)
        return outcome.ratio(found.gpu_hours if found.attainment >= outcome.target else outcome.static.gpu_hours)

    def _figures(self, case: Case, policy: str, place: int | None = None, limits: Limits | None = None) -> Figures:
        seeds = self._scarce_seeds if case.scarce else self._seeds
        return figures([self._campaign.run(case, policy, seed, place, limits) for seed in seeds])


def _bounded(outcome: Outcome, static: Figures) -> Figures:
    """The oracle, or whoever attains the objective for less: someone who knows all arrivals could do the same."""
    others = [each[1] for each in outcome.swept.values() if each is not None]
    able = [each for each in (*others, *outcome.own.values(), static) if each.attainment >= outcome.objective]
    least = min((outcome.oracle, *able), key=lambda each: each.gpu_hours)
    return outcome.oracle if least is outcome.oracle else replace(least, label=f"oracle, as {least.label}")


def places(swept: Mapping[str, Best | None]) -> dict[str, int]:
    """Where each peer's best knob is."""
    return {peer: best[0] for peer, best in swept.items() if best is not None}


class Hindsight(IntEnum):
    """What others may have looked up beforehand, of what was run: each includes what comes before it."""

    NONE = 0
    LIMITS = 1
    CAPPED = 2


def swept_ratios(outcomes: Sequence[Outcome], peer: str, hindsight: Hindsight = Hindsight.LIMITS) -> list[float]:
    """What each scenario's own best knob costs, as a multiple of Holdfast's GPU-hours; else what the static size does.

    With what hindsight allows or without, whichever is cheapest.
    """
    found = []
    for outcome in outcomes:
        tried = outcome.swept[peer], *(tuned.swept[peer] for tuned in _tuned(outcome, hindsight))
        paid = [best[1].gpu_hours for best in tried if best is not None]
        found.append(outcome.ratio(min(paid)) if paid else _static_ratio(outcome, hindsight))
    return found


def static_ratios(outcomes: Sequence[Outcome], hindsight: Hindsight) -> list[float]:
    """The same of the smallest static size that attains the target."""
    return [_static_ratio(outcome, hindsight) for outcome in outcomes]


def _static_ratio(outcome: Outcome, hindsight: Hindsight) -> float:
    able = outcome.static, *(tuned.static for tuned in _tuned(outcome, hindsight))
    return outcome.ratio(min(each.gpu_hours for each in able if each is not None))


def _tuned(outcome: Outcome, hindsight: Hindsight) -> list[Tuned]:
    return [found for found in (outcome.tuned, outcome.capped)[:hindsight] if found is not None]


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


PEERS = tuple(SHIPPED)
