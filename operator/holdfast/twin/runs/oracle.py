"""The cheapest schedule of whole replicas for someone who knows every arrival.

Work arrives in slots, in seconds of one engine at its capacity. Level k is the k-th replica: it carries what is above
k - 1 replicas and below k. Levels do not depend on each other, so that the best schedule of each is found on its own:
it is kept through a gap that is shorter than what a start and a drain cost. Then the budget of misses is spent where a
replica's time saves the least work. What comes out is run in the twin, and counts only if it attains the objective.
It is the cheapest schedule found, and thus from above an estimate of the cheapest there is.

Where requests have classes, an engine's capacity is what the hardest of them allows, and each must attain its own.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.enginemodel.class_mix import each_class, shares_ahead
from holdfast.twin.arrays.fleet import EngineSpec, Workload
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.pods.cluster import EPOCH_SECONDS
from holdfast.twin.policy_port import Move
from holdfast.twin.replica.capacity import Bench, LengthPairs
from holdfast.twin.runs.results import attains, gpu_hours, no_batch, shortfall
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import Declared, engine_kind
from holdfast.twin.scenarios.scenario import AcceleratorEntry, Scenario

ORACLE = "oracle"
SLOT_SECONDS = 15.0
DECODES = 32
SMOOTH_SLOTS = (3, 9)
"""Windows of a triangle over which work is spread: bursts of half a minute count, or only what lasts for two."""

LOADS = (1.0, 1.07, 0.94, 1.15, 0.87, 1.25, 0.8, 1.4, 0.7)
"""Shares of its capacity that an engine is loaded with: what is not yet known of bursts and routing is tried.

The likeliest first: what is planned for more than has been found is not played.
"""

BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Work left undone, as multiples of the misses that the objective allows."""


class SizePlan:
    """Sizes by slot, ordered so early that they are ready when they are needed; engines may have the plugin."""

    name = ORACLE
    tick_seconds = SLOT_SECONDS
    admission = False
    sizes_foreknown = True

    def __init__(
        self, sizes: Integers, lead_seconds: float, began_at: float = EPOCH_SECONDS, fast_loop: bool = False
    ) -> None:
        self.fast_loop = fast_loop
        self._began_at = began_at
        slots = round(np.ceil(lead_seconds / SLOT_SECONDS))
        padded = np.append(sizes, np.full(slots, sizes[-1]))
        self._ordered = [int(padded[at : at + slots + 1].max()) for at in range(len(sizes))]
        self.start: int | None = int(sizes[0])
        self.planned_slots = sum(self._ordered)

    def decide(self, snapshot: Snapshot) -> Mapping[ServiceKey, Move]:
        """The size of the slot."""
        (service,) = snapshot.services
        slot = min(int((snapshot.now - self._began_at) / SLOT_SECONDS), len(self._ordered) - 1)
        target = PlacementTarget(service.spec.accelerators[0].name, self._ordered[slot])
        return {service.spec.key: Move((target,), "Oracle")}


@dataclass(frozen=True, slots=True)
class Needs:
    """Replicas' worth of work that arrives in each slot, bounds of the size, and a start and a drain in slots."""

    work: Floats
    lowest: int
    highest: int
    restart_slots: float


def oracle(
    scenario: Scenario, declared: Sequence[Declared], seed: int, progress: Callable[[float], None] = lambda share: None
) -> Finished:
    """The cheapest of the schedules that attain the objective; where none does, the one that misses it by the least.

    Where requests have classes, engines have the plugin, as no others know them; each class must attain its own.
    """
    (each,) = declared
    entry = scenario.cluster.accelerators[each.spec.accelerators[0].name]
    kind = engine_kind(each, each.spec.accelerators[0], entry, admission=False)
    needs = _needs(scenario, each, kind, entry)
    allowed = math.fsum(share * each.spec.slo.of(name).budget_share for name, share in _shares(each).items())
    lead = entry.cold_start * (1.0 + entry.cold_start_jitter)
    search = _Search(
        lambda sizes: SizePlan(sizes, lead, scenario.begins.timestamp(), each.workload.of_class is not None),
        lambda tried: simulate(scenario, declared, tried, seed, progress),
    )
    for load, slots in itertools.product(LOADS, SMOOTH_SLOTS):
        spread = np.convolve(needs.work, np.bartlett(slots + 2)[1:-1] * 2.0 / (slots + 1), "same")
        search.spend(replace(needs, work=spread / load), allowed)
    assert search.best is not None
    return search.best


class _Search:
    """The best run so far; no schedule is played that is planned for as much as it or more."""

    def __init__(self, ordered: Callable[[Integers], SizePlan], play: Callable[[SizePlan], Finished]) -> None:
        self.best: Finished | None = None
        self._planned_slots = math.inf
        self._ordered = ordered
        self._play = play

    def spend(self, needs: Needs, allowed: float) -> None:
        """Look for the largest budget that still attains, by halving the list; where none does, by its least alone."""
        planned = map(self._ordered, schedules(needs, [budget * allowed for budget in BUDGETS]))
        leaner = [each for each in planned if self._is_leaner(each)]
        low, middle, high = 0, 0, len(leaner)
        while low < high:
            tried = leaner[middle]
            is_enough = not self._is_leaner(tried) or self._attains(tried)
            low, high = (middle + 1, high) if is_enough else (low, middle)
            middle = (low + high) // 2

    def _is_leaner(self, tried: SizePlan) -> bool:
        return tried.planned_slots < self._planned_slots

    def _attains(self, tried: SizePlan) -> bool:
        found = self._play(tried)
        if self.best is None or _better(found, self.best):
            self.best = found
            self._planned_slots = tried.planned_slots if attains(found) else math.inf
        return attains(found)


def _better(found: Finished, best: Finished) -> bool:
    missed, least = shortfall(found), shortfall(best)
    return missed < least or (missed == least == 0.0 and gpu_hours(found) < gpu_hours(best))


def _needs(scenario: Scenario, each: Declared, kind: EngineSpec, entry: AcceleratorEntry) -> Needs:
    """Work by slot in replicas: requests weighted by their tokens, over what a replica carries of them."""
    load = without_batch(each)
    seconds = work_seconds(load, kind)
    slots = int(np.ceil(scenario.duration / SLOT_SECONDS))
    weights = seconds / seconds.mean()
    arrived = np.bincount((load.at / SLOT_SECONDS).astype(np.int64), weights, slots)[:slots]
    carried = max(_carried_rps(each, load, kind, 1.0 / seconds.mean()), 1e-3) * SLOT_SECONDS
    drain = each.spec.slo.ttft_seconds + each.spec.slo.tpot_seconds * float(load.output_tokens.mean())
    restart = (entry.cold_start + drain) / SLOT_SECONDS
    return Needs(arrived / carried, max(1, each.spec.min_replicas), each.spec.max_replicas, restart)


def _carried_rps(each: Declared, load: Workload, kind: EngineSpec, guess_rps: float) -> float:
    """Requests/s of all classes that a replica carries, by the class that allows the least of those it can serve."""
    slo = each.spec.slo if load.of_class is not None else replace(each.spec.slo, classes=())
    ahead, lengths = shares_ahead(slo, _shares(each)), LengthPairs(load.prompt_tokens, load.output_tokens)
    alone = {one.name: Bench(kind, one, lengths) for one in each_class(slo) if one.name in ahead}
    rates = [bench.rate(guess_rps).rate_rps / ahead[name] for name, bench in alone.items()]
    return min((rate for rate in rates if rate > 0.0), default=0.0)


def _shares(each: Declared) -> dict[str, float]:
    """Share of each class in the requests that are demand; "" is the service's own."""
    load = without_batch(each)
    if load.of_class is None:
        return {"": 1.0}
    names = ["", *(one.name for one in each.service.spec.slo.classes)]
    return dict(zip(names, (np.bincount(load.of_class, minlength=len(names)) / len(load)).tolist(), strict=True))


def without_batch(each: Declared) -> Workload:
    """The requests that are demand."""
    load = each.workload
    demand = no_batch(load, (one.name for one in each.service.spec.all_classes), each.spec.slo)
    tokens = load.prompt_tokens[demand], load.output_tokens[demand], load.cached_tokens[demand]
    return Workload(load.at[demand], *tokens, None if load.of_class is None else load.of_class[demand])


def work_seconds(load: Workload, kind: EngineSpec) -> Floats:
    """Seconds of an engine that each request takes: its prompt in full steps, its answer among decodes."""
    size = kind.limits.max_num_batched_tokens
    context = float(load.prompt_tokens.mean() + 0.5 * load.output_tokens.mean())
    prompt = kind.timer.step_seconds(((size, 0),), 0, 0.0) / size
    answer = kind.timer.step_seconds((), DECODES, context) / DECODES
    return np.asarray(prompt * (load.prompt_tokens - load.cached_tokens) + answer * load.output_tokens, np.float64)


def schedules(needs: Needs, budgets: Sequence[float]) -> Iterator[Integers]:
    """Replicas by slot when a share of the work may be left undone: for each such budget, from the smallest on."""
    levels, work = _levels(needs), float(needs.work.sum())
    cheapest = _cheapest(levels, needs)
    following, spent = next(cheapest, None), 0.0
    for budget in budgets:
        while following is not None and spent + following[3] <= budget * work:
            level, first, last, lost = following
            levels[level, first:last] = False
            following, spent = next(cheapest, None), spent + lost
        yield np.asarray(needs.lowest + levels.sum(axis=0), np.int64)


def _levels(needs: Needs) -> NDArray[np.bool_]:
    """Where each replica above the lowest size is on: where work reaches it, and in gaps too short to leave."""
    count = max(0, min(needs.highest, int(np.ceil(needs.work.max()))) - needs.lowest)
    levels = np.zeros((count, len(needs.work)), bool)
    for level in range(count):
        wanted = np.flatnonzero(needs.work > needs.lowest + level)
        levels[level, wanted] = True
        for before, after in itertools.pairwise(wanted):
            if 1 < after - before <= needs.restart_slots:
                levels[level, before:after] = True
    return levels


Stretch = tuple[int, int, int]
"""A level, and the slots from the first to before the last."""


def _cheapest(levels: NDArray[np.bool_], needs: Needs) -> Iterator[tuple[int, int, int, float]]:
    """Stretches of replicas with the work that is lost without them, from the least work per replica time.

    A stretch is offered only once all that stand upon it were taken.
    """
    below, resting = _tree(levels)
    waiting: list[tuple[float, Stretch, float]] = []

    def offer(stretch: Stretch) -> None:
        level, first, last = stretch
        lost = float(np.clip(needs.work[first:last] - needs.lowest - level, 0.0, 1.0).sum())
        heapq.heappush(waiting, (lost / (last - first + needs.restart_slots), stretch, lost))

    for stretch, count in resting.items():
        if count == 0:
            offer(stretch)
    while waiting:
        _, stretch, lost = heapq.heappop(waiting)
        yield *stretch, lost
        under = below.get(stretch)
        if under is not None:
            resting[under] -= 1
            if resting[under] == 0:
                offer(under)


def _tree(levels: NDArray[np.bool_]) -> tuple[dict[Stretch, Stretch], dict[Stretch, int]]:
    """What each stretch stands upon, and how many stand upon each."""
    below: dict[Stretch, Stretch] = {}
    resting: dict[Stretch, int] = {}
    before: list[Stretch] = []  # of the level beneath, by their beginnings
    for level, row in enumerate(levels):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
        here = [(level, int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
        for stretch in here:
            resting[stretch] = 0
            place = bisect.bisect_right(before, stretch[1], key=lambda each: each[1]) - 1
            if place >= 0 and stretch[2] <= before[place][2]:
                below[stretch] = before[place]
                resting[before[place]] += 1
        before = here
    return below, resting
