"""The pictures of a run: latencies by arrival and how they are spread, and what was under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from holdfast.tools.bench.figures import definitions
from holdfast.tools.bench.figures.definitions import Floats
from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.load.records import RequestRecord
from holdfast.tools.reports import page
from holdfast.tools.reports.page import GOOD, INK, MISSED, STARTING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 20_000
"""Dots drawn: more cannot be distinguished."""


MOST_RATIO = 1000.0
"""Of both ends of a logarithmic axis: gaps between tokens of one packet are all but zero."""

ROOM = 1.25
"""How far an axis reaches beyond the 99th percentile: few outliers must not press all others together."""


def picture(results: Results, records: Sequence[RequestRecord], objective: float) -> bytes:
    """A PNG."""

    def draw(figure: Figure) -> None:
        page.title(figure, headline(results, objective), results.attains(objective))
        panels = figure.subplots(2, 2)
        timed = definitions.timed(records)
        origin = min((record.scheduled_at for record in timed), default=0.0)
        bounds = results.slo
        _over_time(panels[0][0], "TTFT, ms", timed, definitions.ttft_seconds, origin, results, bounds.ttft_seconds)
        _over_time(panels[0][1], "TPOT, ms", timed, definitions.tpot_seconds, origin, results, bounds.tpot_seconds)
        _spread(panels[1][0], results.window.of(timed))
        _under_way(panels[1][1], timed, origin)

    return page.picture(10.0, 6.0, draw)


def headline(results: Results, objective: float) -> str:
    """The rate that arrived, and the verdict."""
    good, seconds = results.verdicts.get(definitions.GOOD, 0), results.window.seconds
    arriving = f"{results.requests / seconds:.3g} req/s: " if seconds > 0.0 else ""
    against = "" if results.slo.is_empty else f", objective {100 * objective:g} %"
    share = f"{100 * results.attainment:.4g} %" if results.requests else "none"
    return f"{arriving}{good} of {results.requests} requests good ({share}{against})"


def _over_time(
    panel: Axes,
    name: str,
    records: Sequence[RequestRecord],
    figure: definitions.Figure,
    origin: float,
    results: Results,
    bound: float | None,
) -> None:
    """One mark per request: a dot in time, a cross too late, a ring not counted, a triangle beyond the axis."""
    shown = records[:: max(1, len(records) // MOST_POINTS)]
    at = np.array([record.scheduled_at - origin for record in shown])
    values = np.array([figure(record) for record in shown]) * 1000.0
    limit = np.inf if bound is None else 1000.0 * bound
    late, top = values > limit, reach(values, limit)
    counts = np.full(len(shown), True) if results.window.whole else _inside(at + origin, results)
    seen = values <= top
    looks: tuple[tuple[npt.NDArray[np.bool_], page.Style], ...] = (
        (counts & ~late, {"marker": "o", "color": GOOD}),
        (counts & late, {"marker": "x", "color": MISSED}),
        (~counts, {"marker": "o", "color": STARTING, "markerfacecolor": "none"}),
    )
    for chosen, look in looks:
        panel.plot(at[chosen & seen], values[chosen & seen], linestyle="none", markersize=2.5, **look)
    beyond = np.isfinite(values) & (values > top)
    panel.plot(at[beyond], np.full(beyond.sum(), 0.985 * top), "^", color=INK, markersize=4)
    if limit <= top:
        panel.axhline(limit, color=MISSED, linewidth=1.0, linestyle=page.BOUND)
    panel.set_ylim(0.0, top)
    panel.set_ylabel(name)
    more = [f"bound: {limit:g} ms{', above' if limit > top else ''}"] if np.isfinite(limit) else []
    more += ["x: too late"] if (counts & late).any() else []
    more += ["rings: not counted"] if not counts.all() else []
    more += [f"triangles: {beyond.sum()} beyond the axis"] if beyond.any() else []
    panel.set_xlabel("; ".join(("s, arrival", *more)))
    page.plain(panel)


def reach(values: Floats, limit: float) -> float:
    """The top of an axis, by the 99th percentile; a bound stays in sight where it is no more than twice as far."""
    known = values[np.isfinite(values)]
    top = ROOM * float(np.percentile(known, 99)) if len(known) else 0.0
    if not top > 0.0:
        top = limit if math.isfinite(limit) else 1.0
    return max(top, 1.1 * limit) if limit <= 2.0 * top else top


def _inside(arrivals: Floats, results: Results) -> npt.NDArray[np.bool_]:
    return (arrivals >= results.window.begin) & (arrivals < results.window.end)


def _spread(panel: Axes, records: Sequence[RequestRecord]) -> None:
    """The share of requests (ITL: of gaps) that are faster than so many milliseconds."""
    gaps = [definitions.itl_seconds(record) for record in records]
    series = (
        ("TTFT", np.array([definitions.ttft_seconds(record) for record in records])),
        ("ITL", np.concatenate(gaps) if gaps else np.zeros(0)),
        ("TPOT", np.array([definitions.tpot_seconds(record) for record in records])),
    )
    ends: list[float] = []
    for (name, values), style in zip(series, page.LINES, strict=False):
        known = np.maximum(np.sort(values[np.isfinite(values)]) * 1000.0, 1e-3)
        if len(known):
            kept = np.unique(np.linspace(0, len(known) - 1, 500).astype(int))
            low, high = np.percentile(known, (1, 99))
            ends += [low / ROOM, ROOM * high]
            label = f"{name}, 99 % in {high:.3g} ms"
            shares = (kept + 1) / len(known)
            panel.plot(known[kept], shares, **style, linewidth=1.4, markersize=4, markevery=0.12, label=label)
            panel.legend(frameon=False, fontsize=8)
    panel.set_xscale("log")
    if ends:
        panel.set_xlim(max(min(ends), max(ends) / MOST_RATIO), max(ends))
    panel.set_ylim(0.0, 1.02)
    panel.set_xlabel("ms, from the 1st to the 99th percentile")
    panel.set_ylabel("share at most")
    page.plain(panel, "both")


def _under_way(panel: Axes, records: Sequence[RequestRecord], origin: float) -> None:
    at = np.array([record.sent_at for record in records] + [record.ended_at for record in records]) - origin
    change = np.repeat([1, -1], len(records))
    order = np.argsort(at, kind="stable")
    panel.step(at[order], np.cumsum(change[order]), where="post", color=INK, linewidth=1.0)
    panel.set_ylim(bottom=0.0)
    page.whole(panel.yaxis)
    panel.set_ylabel("requests under way")
    panel.set_xlabel("s")
    page.plain(panel)
