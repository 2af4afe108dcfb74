"""The pictures of a run: latencies by arrival and how they are spread, and what was under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from holdfast.tools.bench import definitions
from holdfast.tools.bench.definitions import Floats
from holdfast.tools.bench.records import RequestRecord
from holdfast.tools.bench.results import Results
from holdfast.tools.reports import page
from holdfast.tools.reports.page import GOOD, INK, MISSED, STARTING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 20_000
"""Dots drawn: more cannot be told apart."""


def picture(results: Results, records: Sequence[RequestRecord]) -> bytes:
    """A PNG."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2)
        timed = definitions.timed(records)
        origin = min((record.scheduled_at for record in timed), default=0.0)
        bounds = results.slo
        _over_time(panels[0][0], "TTFT, ms", timed, definitions.ttft_seconds, origin, results, bounds.ttft_seconds)
        _over_time(panels[0][1], "TPOT, ms", timed, definitions.tpot_seconds, origin, results, bounds.tpot_seconds)
        _spread(panels[1][0], results.window.of(timed))
        _under_way(panels[1][1], timed, origin)

    return page.picture(10.0, 6.0, draw)


def _over_time(
    panel: Axes,
    name: str,
    records: Sequence[RequestRecord],
    figure: definitions.Figure,
    origin: float,
    results: Results,
    bound: float | None,
) -> None:
    """One dot per request; what does not count is pale, what is too late is red."""
    shown = records[:: max(1, len(records) // MOST_POINTS)]
    at = np.array([record.scheduled_at - origin for record in shown])
    values = np.array([figure(record) for record in shown]) * 1000.0
    late = values > (np.inf if bound is None else 1000.0 * bound)
    counts = np.full(len(shown), True) if results.window.whole else _inside(at + origin, results)
    for chosen, colour in ((counts & ~late, GOOD), (counts & late, MISSED), (~counts, STARTING)):
        panel.plot(at[chosen], values[chosen], ".", color=colour, markersize=3)
    if bound is not None:
        panel.axhline(1000.0 * bound, color=MISSED, linewidth=1.0, linestyle=(0, (5, 3)))
    panel.set_ylim(bottom=0.0)
    panel.set_ylabel(name)
    panel.set_xlabel("s, arrival (pale: not counted)")
    page.plain(panel)


def _inside(arrivals: Floats, results: Results) -> npt.NDArray[np.bool_]:
    return (arrivals >= results.window.begin) & (arrivals < results.window.end)


def _spread(panel: Axes, records: Sequence[RequestRecord]) -> None:
    """The share of requests (ITL: of gaps) that are faster than so many milliseconds."""
    gaps = [definitions.itl_seconds(record) for record in records]
    series = (
        ("TTFT", np.array([definitions.ttft_seconds(record) for record in records]), INK),
        ("ITL", np.concatenate(gaps) if gaps else np.zeros(0), MISSED),
        ("TPOT", np.array([definitions.tpot_seconds(record) for record in records]), GOOD),
    )
    for name, values, colour in series:
        known = np.sort(values[np.isfinite(values)]) * 1000.0
        if len(known):
            kept = np.unique(np.linspace(0, len(known) - 1, 500).astype(int))
            panel.plot(np.maximum(known[kept], 1e-3), (kept + 1) / len(known), color=colour, linewidth=1.4, label=name)
            panel.legend(frameon=False, fontsize=8)
    panel.set_xscale("log")
    panel.set_ylim(0.0, 1.02)
    panel.set_xlabel("ms")
    panel.set_ylabel("share at most")
    page.plain(panel, "both")


def _under_way(panel: Axes, records: Sequence[RequestRecord], origin: float) -> None:
    at = np.array([record.sent_at for record in records] + [record.ended_at for record in records]) - origin
    change = np.repeat([1, -1], len(records))
    order = np.argsort(at, kind="stable")
    panel.step(at[order], np.cumsum(change[order]), where="post", color=INK, linewidth=1.0)
    panel.set_ylim(bottom=0.0)
    panel.set_ylabel("requests under way")
    panel.set_xlabel("s")
    page.plain(panel)
