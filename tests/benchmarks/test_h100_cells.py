from __future__ import annotations

import pytest

from benchmarks.h100_cells import calm_rows, capacities, cells, overload_rows


def test_table_of_the_h100_names_every_cell_and_what_was_missed() -> None:
    found, searched = cells(), capacities()
    rows = [*overload_rows(found, sum(searched) / 2)]
    assert searched == pytest.approx([35.5, 38.8], abs=0.05)
    assert [row.split("|")[1].strip() for row in rows if "missed" in row] == ["Queue 2.0"]
    assert len(rows) == 8
    assert all(len(runs) >= 2 for runs in found.values())
    assert [("missed" in row) for row in calm_rows(found)] == [True, True, False]
