"""The cheapest schedule of whole replicas for someone who knows every arrival.

Work arrives in slots, in seconds of one engine at its capacity. Level k is the k-th replica: it carries what is above
k - 1 replicas and below k. Levels do not depend on each other, so that the best schedule of each is found on its own:
it is kept through a gap that is shorter than what a start and a drain cost. Then the budget of misses is spent where a
replica's time saves the least work. What comes out is run in the twin, and counts only if it attains the objective.
It is the cheapest schedule found, and thus from above an estimate of the cheapest there is.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.decision import PlacementTarget
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import Snapshot
from holdfast.simulator.twin.capacity import Bench, Lengths
from holdfast.simulator.twin.cluster import EPOCH_SECONDS
from holdfast.simulator.twin.fleet import EngineKind, Workload
from holdfast.simulator.twin.port import Move
from holdfast.simulator.twin.results import attainment, attains, gpu_hours
from holdfast.simulator.twin.run import Declared, Finished, engine_kind, simulate
from holdfast.simulator.twin.scenario import AcceleratorEntry, Scenario
from holdfast.simulator.twin.timers import Floats, Integers

ORACLE = "oracle"
SLOT_SECONDS = 15.0
DECODES = 32
SMOOTH_SLOTS = (3, 9)
"""Windows of a triangle over which work is spread: bursts of half a minute count, or only what lasts for two."""

LOADS = (0.7, 0.8, 0.87, 0.94, 1.0, 1.07, 1.15, 1.25, 1.4)
"""Shares of its capacity that an engine is loaded with: what is not yet known of bursts and routing is tried."""

BUDGETS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0)
"""Work left undone, as multiples of the misses that the objective allows."""


class Schedule:
    """Sizes by slot, ordered so early that they are ready when they are needed."""

    name = ORACLE
    tick_seconds = SLOT_SECONDS
    admission = False
    fast_loop = False

    def __init__(self, sizes: Integers, lead_seconds: float, began_at: float = EPOCH_SECONDS) -> None:
        self._began_at = began_at
        slots = round(np.ceil(lead_seconds / SLOT_SECONDS))
        padded = np.append(sizes, np.full(slots, sizes[-1]))
        self._ordered = [int(padded[at : at + slots + 1].max()) for at in range(len(sizes))]
        self.start: int | None = int(sizes[0])

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
    """The cheapest of the schedules that attain the objective; where none does, the one that attains the most."""
    (each,) = declared
    entry = scenario.cluster.accelerators[each.spec.accelerators[0].name]
    kind = engine_kind(each, each.spec.accelerators[0], entry, admission=False)
    needs = _needs(scenario, each, kind, entry)
    best: Finished | None = None
    for slots, load in itertools.product(SMOOTH_SLOTS, LOADS):
        spread = np.convolve(needs.work, np.bartlett(slots + 2)[1:-1] * 2.0 / (slots + 1), "same")
        found = _spend(scenario, declared, replace(needs, work=spread / load), entry, seed, progress)
        best = found if best is None or _better(found, best) else best
    assert best is not None
    return best


def _spend(
    scenario: Scenario,
    declared: Sequence[Declared],
    needs: Needs,
    entry: AcceleratorEntry,
    seed: int,
    progress: Callable[[float], None],
) -> Finished:
    """The largest budget that still attains, by halving the list; the run without one where none does."""
    allowed = 1.0 - declared[0].spec.slo.objective
    lead = entry.cold_start * (1.0 + entry.cold_start_jitter)

    def run(place: int) -> Finished:
        sizes = schedule(needs, BUDGETS[place] * allowed)
        return simulate(scenario, declared, Schedule(sizes, lead, scenario.begins.timestamp()), seed, progress)

    found, low, high = run(0), 0, len(BUDGETS) - 1
    while low < high and attains(found):
        middle = (low + high + 1) // 2
        tried = run(middle)
        if attains(tried):
            found, low = tried, middle
        else:
            high = middle - 1
    return found


def _better(found: Finished, best: Finished) -> bool:
    if attains(found) and attains(best):
        return gpu_hours(found) < gpu_hours(best)
    return attainment(found, found.services[0]) > attainment(best, best.services[0])


def _needs(scenario: Scenario, each: Declared, kind: EngineKind, entry: AcceleratorEntry) -> Needs:
    """Work by slot in replicas: requests weighted by their tokens, over what a replica carries of them."""
    load, seconds = each.workload, work_seconds(each.workload, kind)
    slots = int(np.ceil(scenario.duration / SLOT_SECONDS))
    rate = Bench(kind, each.spec.slo, Lengths(load.prompt_tokens, load.output_tokens)).rate(1.0 / seconds.mean())
    weights = seconds / seconds.mean()
    arrived = np.bincount((load.at / SLOT_SECONDS).astype(np.int64), weights, slots)[:slots]
    carried = max(rate.rate_rps, 1e-3) * SLOT_SECONDS
    drain = each.spec.slo.ttft_seconds + each.spec.slo.tpot_seconds * float(load.output_tokens.mean())
    restart = (entry.cold_start + drain) / SLOT_SECONDS
    return Needs(arrived / carried, max(1, each.spec.min_replicas), each.spec.max_replicas, restart)


def work_seconds(load: Workload, kind: EngineKind) -> Floats:
    """Seconds of an engine that each request takes: its prompt in full steps, its answer among decodes."""
    size = kind.limits.max_num_batched_tokens
    context = float(load.prompt_tokens.mean() + 0.5 * load.output_tokens.mean())
    prompt = kind.timer.step_seconds(((size, 0),), 0, 0.0) / size
    answer = kind.timer.step_seconds((), DECODES, context) / DECODES
    return np.asarray(prompt * (load.prompt_tokens - load.cached_tokens) + answer * load.output_tokens, np.float64)


def schedule(needs: Needs, budget: float) -> Integers:
    """Replicas by slot when a share of the work may be left undone."""
    levels = _levels(needs)
    left = budget * float(needs.work.sum())
    for level, first, last, lost in _cheapest(levels, needs):
        if lost > left:
            break
        left -= lost
        levels[level, first:last] = False
    return np.asarray(needs.lowest + levels.sum(axis=0), np.int64)


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
    before: list[Stretch] = []
    for level, row in enumerate(levels):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]])))
        here = [(level, int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]
        for stretch in here:
            resting[stretch] = 0
            under = next((each for each in before if each[1] <= stretch[1] and stretch[2] <= each[2]), None)
            if under is not None:
                below[stretch] = under
                resting[under] += 1
        before = here
    return below, resting
