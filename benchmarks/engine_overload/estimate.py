"""What a campaign will run and how long it takes, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.engine_overload.campaign import SATURATION
from benchmarks.engine_overload.cells import Cell, Variant
from benchmarks.engine_overload.plan import Extent, Planned, plan
from benchmarks.engine_overload.search import FINALISTS, glances
from benchmarks.engine_overload.windows import Seconds, expected_seconds

# A vLLM server imports for most of a minute: search, plugin and stock once, stock tuned for every cell.
_SERVER_SECONDS = 45.0
_SHARED_SERVERS = 3
# Runs that are thrown away and made again, as a share of all.
_REPEATED_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class Part:
    """Some runs of a cell."""

    name: str
    runs: int
    seconds: float


def parts(number: int, cell: Cell, seconds: Seconds, extent: Extent, servers: int) -> list[Part]:
    """The runs of one cell, and its starts of servers."""
    found = [Part("servers start", 0, servers * _SERVER_SECONDS)]
    count = glances(cell.effort)
    # Three times as much as can be served.
    search = (
        3.0 * SATURATION.seconds + expected_seconds(SATURATION) + count * expected_seconds(seconds.of_glance(cell.slo))
    )
    found.append(Part("search: rounds over limits and rates", count + 1, search))
    fresh = FINALISTS * cell.effort.confirmations
    full = expected_seconds(seconds.of_load(None, cell.slo))
    found.append(Part("search: fresh runs of the finalists", fresh, fresh * full))
    runs = plan({number: cell}, extent)
    found += [
        _part("stock at C, twice in every block", [each for each in runs if each.load is None], cell, seconds),
        _part("plugin in overload", [each for each in runs if _is_overload(each, plugin=True)], cell, seconds),
        _part("pairs below capacity", [each for each in runs if each.load and each.load <= 1.0], cell, seconds),
        _part("stock in overload", [each for each in runs if _is_overload(each, plugin=False)], cell, seconds),
    ]
    again = _REPEATED_SHARE * sum(part.seconds for part in found[1:])
    found.append(Part(f"runs thrown away, guessed as {_REPEATED_SHARE:.0%}", 0, again))
    return found


def lines(cells: dict[int, Cell], seconds: Seconds, extent: Extent) -> Iterator[str]:
    """For people."""
    for order, (number, cell) in enumerate(cells.items()):
        found = parts(number, cell, seconds, extent, servers=1 if order else 1 + _SHARED_SERVERS)
        yield f"cell {number}: {cell.name}"
        yield from (f"  {part.runs or '':>3} {part.name:45} {part.seconds / 60.0:5.1f} min" for part in found)
        total = sum(part.seconds for part in found)
        yield f"  {sum(part.runs for part in found):>3} {'in all':45} {total / 60.0:5.1f} min"


def _is_overload(planned: Planned, plugin: bool) -> bool:
    above = planned.load is not None and planned.load > 1.0
    return above and (planned.variant in (Variant.QUEUE, Variant.REJECT)) is plugin


def _part(name: str, runs: list[Planned], cell: Cell, seconds: Seconds) -> Part:
    return Part(name, len(runs), sum(expected_seconds(seconds.of_load(each.load, cell.slo)) for each in runs))
