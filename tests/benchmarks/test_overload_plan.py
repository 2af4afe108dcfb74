"""Which runs the comparison makes, in which order, and how long it takes."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.engine_overload.cells import CELLS, PROMISED, Cell, Variant
from benchmarks.engine_overload.estimate import lines, parts
from benchmarks.engine_overload.plan import Extent, Planned, plan
from benchmarks.engine_overload.windows import Seconds

ALL = dict(enumerate(CELLS))


def blocks(runs: list[Planned]) -> list[list[Planned]]:
    """Of one cell, by where they lie."""
    size = len(plan({0: CELLS[0]}, Extent(1))) - _beside(CELLS[0])
    return [runs[start : start + size] for start in (0, size, 2 * size)]


def _beside(cell: Cell) -> int:
    return 2 * len(cell.overloads) + 2


def test_no_run_is_planned_twice_and_every_promise_is_in_every_block() -> None:
    runs = plan(ALL, Extent(blocks=3, pairs_per_block=2))
    assert len(set(runs)) == len(runs)
    for number, cell in ALL.items():
        for load in (*cell.overloads, *cell.calm_loads):
            found = Counter(each.variant for each in runs if (each.cell, each.load, each.take) == (number, load, 0))
            if load in cell.overloads:
                assert found == {**dict.fromkeys(PROMISED, 3), Variant.STOCK: 1, Variant.TUNED: 1}
            else:
                assert found == {Variant.QUEUE: 6, Variant.STOCK: 6}


def test_every_block_has_everything_once_in_another_order_with_stock_at_c() -> None:
    found = blocks(plan({0: CELLS[0]}, Extent()))
    kinds = [Counter((each.variant, each.load) for each in block) for block in found]
    assert kinds[0] == kinds[1] == kinds[2]
    assert all(kind[Variant.SEARCH, None] == 2 for kind in kinds)
    assert len({tuple((each.variant, each.load) for each in block) for block in found}) == 3


def test_pairs_follow_each_other_and_take_turns() -> None:
    runs = plan({1: CELLS[1]}, Extent())
    for load in CELLS[1].calm_loads:
        first = [each for each in runs if each.load == load][::2]
        for each in first:
            other = runs[runs.index(each) + 1]
            assert (other.load, other.repetition) == (load, each.repetition)
            assert other.variant is not each.variant
        assert Counter(each.variant for each in first) == {Variant.STOCK: 3, Variant.QUEUE: 3}


def test_more_blocks_go_on_where_fewer_ended() -> None:
    fewer, more = (plan({0: CELLS[0]}, Extent(count)) for count in (3, 5))
    assert set(fewer) < set(more)


def test_every_load_is_promised_something() -> None:
    loads = {load for cell in CELLS for load in cell.overloads}
    assert all(set(promised) == loads for promised in PROMISED.values())


@pytest.mark.parametrize("cell", CELLS)
def test_an_overload_s_queue_has_filled_when_its_window_begins(cell: Cell) -> None:
    for load in cell.overloads:
        window = Seconds().of_load(load, cell.slo)
        assert window.warm_up_seconds * (load - 1.0) >= cell.slo.ttft_seconds or window.warm_up_seconds == 12.0
        assert window.tail_seconds >= cell.slo.ttft_seconds


def test_one_cell_with_all_rates_takes_less_than_fifty_minutes_and_the_others_less_than_twenty() -> None:
    found = [
        sum(part.seconds for part in parts(number, cell, Seconds(), Extent(), servers=1 if number else 4)) / 60.0
        for number, cell in ALL.items()
    ]
    assert found[0] <= 50.0
    assert max(found[1:]) <= 20.0


def test_the_plan_names_every_run_and_a_sum() -> None:
    text = "\n".join(lines({1: CELLS[1]}, Seconds(), Extent()))
    count = sum(part.runs for part in parts(1, CELLS[1], Seconds(), Extent(), servers=4))
    assert f"{count:>3} in all" in text
    assert "cell 1: code" in text
