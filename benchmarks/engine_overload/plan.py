"""The runs of the comparison, in blocks: each holds everything once, in random order, with a fresh run of stock at C.

A ratio is formed within its block, minutes apart. Stock collapses a little above the rate where it is best, and which
one that is varies with the machine: it runs a little below the search's rate too, and the better of both is C. At loads
that stock can carry, a run and the one it is compared with follow each other and take turns.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.engine_overload.cells import PROMISED, Cell, Variant

# Rates at which every block measures C, in units of the search's.
REFERENCE_SHARES = (1.0, 0.9)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run at a load in units of C, None for the point where C was found; `take` 1 repeats the run of take 0.

    `repetition` is the number of the block, or of the pair at a load that stock can carry; `rate_share` is that of C's
    rate, where there is no load.
    """

    cell: int
    variant: Variant
    load: float | None
    repetition: int
    take: int = 0
    rate_share: float = 1.0


@dataclass(frozen=True)
class Extent:
    """How many blocks there are, and how many pairs at each load that stock can carry a block holds."""

    blocks: int = 3
    pairs_per_block: int = 2

    @property
    def pairs(self) -> int:
        """Of one load."""
        return self.blocks * self.pairs_per_block


def plan(cells: dict[int, Cell], extent: Extent) -> list[Planned]:
    """All runs: cell after cell the blocks, then what stands beside them."""
    runs: list[Planned] = []
    for number, cell in cells.items():
        for block in range(extent.blocks):
            runs += _block(number, cell, extent, block)
        runs += _beside(number, cell)
    return runs


def reference(cell: int, block: int, rate_share: float) -> Planned:
    """A block's run of stock vLLM where C was found, or a little below."""
    return Planned(cell, Variant.SEARCH, None, block, rate_share=rate_share)


def _block(number: int, cell: Cell, extent: Extent, block: int) -> list[Planned]:
    groups = [[reference(number, block, share)] for share in REFERENCE_SHARES]
    groups += [[Planned(number, variant, load, block)] for variant in PROMISED for load in cell.overloads]
    for load in cell.calm_loads:
        first = block * extent.pairs_per_block
        groups += [_pair(number, load, pair) for pair in range(first, first + extent.pairs_per_block)]
    return _shuffled(groups, f"{number} block {block}")


def _pair(number: int, load: float, pair: int) -> list[Planned]:
    """Whoever comes second finds another machine: take turns."""
    variants = (Variant.STOCK, Variant.QUEUE)
    return [Planned(number, variant, load, pair) for variant in (variants if pair % 2 == 0 else variants[::-1])]


def _beside(number: int, cell: Cell) -> list[Planned]:
    """Stock in overload, once; in the cell with all loads the noise too: runs at C and in overload once more."""
    groups = [
        [Planned(number, variant, load, 0)] for load in cell.overloads for variant in (Variant.STOCK, Variant.TUNED)
    ]
    if len(cell.overloads) > 1:
        groups.append([Planned(number, Variant.SEARCH, None, 0, take=1)])
        groups.append([Planned(number, Variant.QUEUE, cell.overloads[0], 0, take=1)])
    return _shuffled(groups, f"{number} beside")


def _shuffled(groups: list[list[Planned]], seed: str) -> list[Planned]:
    random.Random(seed).shuffle(groups)
    return [each for group in groups for each in group]
