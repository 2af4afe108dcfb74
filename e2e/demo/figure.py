"""The picture of a run: one time axis for load, attainment, latencies, replicas and decisions."""

from __future__ import annotations

import math
import pathlib

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from e2e.demo import timeline
from e2e.demo.run import Run

GOOD, SLOW, REJECTED, LOST = "#2f9e77", "#e8a33d", "#d1495b", "#5b1a36"
INK, MUTED, GRID, EXCUSED, STEP = "#1f2933", "#697586", "#e4e7eb", "#f3ead3", "#8d99ae"
# Not everybody sees red and green: what differs in colour differs in dashes, hatches or a sign as well.
PERCENTILES = (("p50", "#7d97a5", (0, (1, 1.2))), ("p95", "#5c7f94", (0, (5, 1.5))), ("p99", "#253f50", "-"))
OUTCOMES = (("good", GOOD, ""), ("too slow", SLOW, "////"), ("rejected", REJECTED, "xxxx"), ("lost", LOST, "...."))
STATES = (("ready", GOOD, ""), ("starting", "#b9d8ec", "...."), ("draining", SLOW, "////"))
MISSED = "✕ "
PANELS = (("load", 1.5), ("attainment", 0.42), ("without", 0.42), ("ttft", 1.35), ("tpot", 1.35), ("replicas", 1.25))


def write(run: Run, path: pathlib.Path) -> None:
    """Draw the run to a PNG; changes of size carry the numbers of the report's table."""
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": GRID, "text.color": INK}):
        figure = Figure(figsize=(13, 10.5), facecolor="white")
        FigureCanvasAgg(figure)
        panels = [panel for panel in PANELS if panel[0] != "without" or run.comparison]
        grid = figure.add_gridspec(
            len(panels), 1, height_ratios=[h for _, h in panels], hspace=0.16, left=0.075, right=0.865, top=0.885,
            bottom=0.06,
        )  # fmt: skip
        axes = {name: figure.add_subplot(grid[row]) for row, (name, _) in enumerate(panels)}
        _heading(figure, run)
        _load(axes["load"], run)
        seconds = f"{run.facts.scenario.window_seconds:.0f} s"
        _attainment(axes["attainment"], run, f"per {seconds} of arrivals;\npale: forgiven")
        if run.comparison:
            _attainment(axes["without"], run.comparison, "same load at once,\nwithout the fast loop")
        _latency(axes["ttft"], timeline.ttft(run), run.facts.objectives.ttft_seconds, "TTFT, s", 1.0)
        _latency(axes["tpot"], timeline.tpot(run), run.facts.objectives.tpot_seconds, "TPOT, ms", 1e3)
        _replicas(axes["replicas"], run)
        for name, panel in axes.items():
            _frame(panel, run, last=name == "replicas")
        _marks(axes["load"], axes["replicas"], run)
        figure.savefig(path, dpi=150)


def percent(value: float | None) -> str:
    """Return a share in percent with at most one decimal, rounded down: 94.97 % must not read as 95 %."""
    return "none" if value is None else f"{math.floor(value * 1000 + 1e-9) / 10:g} %"


def _heading(figure: Figure, run: Run) -> None:
    result, objectives = run.verdict, run.facts.objectives
    first, most, last = run.replicas_range
    figure.text(0.075, 0.955, f"{run.facts.service}: the load triples, the objective holds" if run.passed else
                f"{run.facts.service}: the objective did not hold" if run.complete else
                f"{run.facts.service}: stopped before the end", fontsize=18, weight="bold")  # fmt: skip
    figure.text(
        0.075,
        0.927,
        f"{percent(objectives.share)} of requests with TTFT ≤ {objectives.ttft_seconds:g} s and TPOT ≤ "
        f"{objectives.tpot_seconds * 1e3:g} ms.  {result.arrivals} requests: {percent(result.attainment)} good, "
        f"{result.rejected} rejected, {len(result.lost)} lost.  Ready replicas {first} → {most} → {last}.",
        fontsize=11,
        color=MUTED,
    )


def _load(panel: Axes, run: Run) -> None:
    bins = timeline.arrivals(run)
    below = bins.good * 0
    rates = (bins.good, bins.slow, bins.rejected, bins.lost)
    for (label, colour, hatch), rate in zip(OUTCOMES, rates, strict=True):
        panel.bar(bins.seconds, rate, bins.bin_seconds * 0.92, below, align="edge", label=label,
                  facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0)  # fmt: skip
        below = below + rate
    panel.set_ylim(0, max(below.max(initial=1.0) * 1.45, 1.0))
    panel.set_ylabel("arrivals, req/s")
    _legend(panel)


def _attainment(panel: Axes, run: Run, about: str) -> None:
    """Draw one cell per window, coloured by whether it met the objective; overlaps show the earlier window."""
    drawn_until = 0.0
    for window in run.verdict.windows:
        left = max(window.span.start - run.facts.start, drawn_until)
        drawn_until = window.span.end - run.facts.start
        met = window.meets(run.facts.objectives.share)
        colour = GRID if not window.arrivals else GOOD if met else REJECTED
        share = percent(window.attainment).removesuffix(" %")
        panel.bar(left, 1, drawn_until - left, align="edge", color=colour, alpha=0.45 if window.excused else 0.9,
                  edgecolor="white", linewidth=1.5)  # fmt: skip
        panel.text((left + drawn_until) / 2, 0.5, share if met or not window.arrivals else MISSED + share, ha="center",
                   va="center", color=INK if window.excused else "white" if window.arrivals else MUTED, fontsize=9,
                   weight="bold")  # fmt: skip
    panel.set_ylim(0, 1)
    panel.set_yticks([])
    panel.set_ylabel("good, %", rotation=0, ha="right", va="center")
    panel.text(1.012, 0.5, about, transform=panel.transAxes, va="center", fontsize=9, color=MUTED)


def _latency(panel: Axes, latency: timeline.Latency, objective: float, label: str, factor: float) -> None:
    for (name, colour, dashes), values in zip(PERCENTILES, (latency.p50, latency.p95, latency.p99), strict=True):
        panel.plot(latency.seconds, values * factor, color=colour, label=name, linewidth=1.6, linestyle=dashes)
    panel.axhline(objective * factor, color=REJECTED, linewidth=1.3, linestyle=(0, (9, 4)), label="objective")
    highest = max((float(v) for v in latency.p99 if v == v), default=objective)
    if highest > 4 * objective:
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
        panel.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        panel.set_ylim(top=highest * factor * 1.4)
    else:
        panel.set_ylim(0, max(highest * 1.15, objective * 1.35) * factor)
    panel.set_ylabel(label)
    _legend(panel)


def _replicas(panel: Axes, run: Run) -> None:
    seen = timeline.replicas(run)
    below = seen.ready * 0
    for (label, colour, hatch), count in zip(STATES, (seen.ready, seen.starting, seen.draining), strict=True):
        panel.fill_between(seen.seconds, below, below + count, step="post", label=label, facecolor=colour, hatch=hatch,
                           edgecolor="white", linewidth=0)  # fmt: skip
        below = below + count
    panel.set_ylim(0, max(below.max(initial=1.0) + 1.3, 2.3))
    panel.yaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True, nbins=6))
    panel.set_ylabel("replicas")
    panel.set_xlabel("seconds since the load began")
    _legend(panel)


def _frame(panel: Axes, run: Run, last: bool) -> None:
    scenario = run.facts.scenario
    panel.set_xlim(0, scenario.duration_seconds)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors=MUTED, labelbottom=last, length=3 if last else 0)
    panel.yaxis.label.set_color(INK)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.axvspan(run.excused.start - run.facts.start, run.excused.end - run.facts.start, color=EXCUSED, zorder=-2)
    for border in (scenario.step_start_seconds, scenario.step_end_seconds):
        panel.axvline(border, color=STEP, linewidth=1.0, linestyle=":", zorder=-1)


def _marks(load: Axes, replicas: Axes, run: Run) -> None:
    """Mark the load's phases above the first panel, and number the decisions in the last."""
    scenario = run.facts.scenario
    top = load.get_xaxis_transform()
    middle = (run.excused.end - run.facts.start + scenario.step_end_seconds) / 2
    for at, text in (
        (scenario.step_start_seconds / 2, "recorded load x1"),
        (middle, f"x{scenario.factor:g}"),
        ((scenario.step_end_seconds + scenario.duration_seconds) / 2, "x1"),
    ):
        load.text(at, 0.97, text, transform=top, ha="center", va="top", fontsize=10, weight="bold", color=MUTED)
    forgiven = (run.excused.start + run.excused.end) / 2 - run.facts.start
    load.text(
        forgiven, 0.86, "one cold start\n+ 2 ticks", transform=top, ha="center", va="top", fontsize=8, color=MUTED
    )
    height = replicas.get_ylim()[1]
    level, previous = 0, -1e9
    gap = scenario.duration_seconds * 0.016
    for number, decision in enumerate(run.changes, start=1):
        at = decision.at - run.facts.start
        if not 0 <= at <= scenario.duration_seconds:
            continue
        # Neighbours closer than a mark is wide step down instead of covering each other.
        level = (level + 1) % 3 if at - previous < gap else 0
        previous = at
        replicas.axvline(at, color=INK, linewidth=0.8, alpha=0.55)
        replicas.text(at, height * (0.95 - 0.15 * level), str(number), ha="center", va="center", fontsize=9,
                      color="white", weight="bold",
                      bbox={"boxstyle": "circle,pad=0.22", "facecolor": INK, "edgecolor": "white"})  # fmt: skip


def _legend(panel: Axes) -> None:
    panel.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=9, labelcolor=INK)
