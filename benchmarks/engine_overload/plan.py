"""The order of the runs: what the promises need first, then what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.engine_overload.cells import PROMISED, Cell, Variant


@dataclass(frozen=True, slots=True)
class Planned:
    """A run at a load in units of C, None for the point where C was found; `take` 1 repeats the run of take 0."""

    cell: int
    variant: Variant
    load: float | None
    repetition: int
    take: int = 0


@dataclass(frozen=True)
class Extent:
    """How often overloads are repeated, and how many pairs there are at the loads that stock can carry."""

    repetitions: int = 3
    pairs: int = 5


def plan(cells: dict[int, Cell], extent: Extent) -> list[Planned]:
    """All runs: per cell the promises, in repetitions that hold everything once, and what they are compared with."""
    first, *others = cells
    runs = _promises(first, cells[first], extent)
    runs += _beside(first, cells[first], range(1))
    runs += _same_twice(first, cells[first])
    for number in others:
        runs += _promises(number, cells[number], extent)
        runs += _beside(number, cells[number], range(1))
    for number, cell in cells.items():
        runs += _beside(number, cell, range(1, extent.repetitions))
    return runs


def _promises(number: int, cell: Cell, extent: Extent) -> list[Planned]:
    runs = []
    for repetition in range(max(extent.repetitions, extent.pairs)):
        if repetition < extent.repetitions:
            runs.append(Planned(number, Variant.SEARCH, None, repetition))
            runs += [Planned(number, variant, load, repetition) for variant in PROMISED for load in cell.overloads]
        if repetition < extent.pairs:
            # Whoever comes second finds another machine: take turns.
            pair = (Variant.STOCK, Variant.QUEUE) if repetition % 2 == 0 else (Variant.QUEUE, Variant.STOCK)
            runs += [Planned(number, variant, load, repetition) for load in cell.calm_loads for variant in pair]
    return runs


def _beside(number: int, cell: Cell, repetitions: range) -> list[Planned]:
    return [
        Planned(number, variant, load, repetition)
        for repetition in repetitions
        for load in cell.overloads
        for variant in (Variant.STOCK, Variant.TUNED)
    ]


def _same_twice(number: int, cell: Cell) -> list[Planned]:
    """The noise of the machine: a run without overload and one with it once more."""
    calm, overload = cell.calm_loads[0], cell.overloads[0]
    return [Planned(number, Variant.STOCK, calm, 0, take=1), Planned(number, Variant.QUEUE, overload, 0, take=1)]
