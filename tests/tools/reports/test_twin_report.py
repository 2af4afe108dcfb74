"""The report of a simulation: what it draws of every policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.tools.reports import page, report
from holdfast.twin.policies import Static
from holdfast.twin.runs.results import summary
from tests.twin.twin_builders import play, small_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("arrivals, req/s", "good, %", "error budget left, %", "replicas", "GPU-hours", "cost, $")


def test_a_picture_of_many_policies_is_scrolled_and_not_shrunk() -> None:
    assert '<div class="wide"><img style="min-width: 5760px" alt="a &lt; b"' in page.image(b"", "a < b", 5760)


@pytest.mark.slow
def test_arrivals_attainment_budget_replicas_and_cost_of_every_policy_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []

    def kept(width: float, height: float, draw: Callable[[Figure], None], dots_per_inch: int = 0) -> bytes:
        drawn.append(Figure())
        draw(drawn[-1])
        return b""

    monkeypatch.setattr(page, "picture", kept)
    runs = [play(small_scenario(), tmp_path, Static(size)) for size in (1, 2)]
    report.write(runs, [summary(run, 0.0) for run in runs], tmp_path / "report.html")
    (figure,) = drawn
    panels = figure.axes
    rows = {panel.get_ylabel(): place // len(runs) for place, panel in enumerate(panels) if panel.get_ylabel()}
    assert [panel.get_title() for panel in panels if panel.get_title()] == ["static:1", "static:2"]
    assert set(DRAWN) <= rows.keys()
    for name in DRAWN:
        for column in range(len(runs)):
            panel = panels[rows[name] * len(runs) + column]
            assert panel.lines or panel.patches or panel.collections, (name, column)
