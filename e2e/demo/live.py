"""The live view of the demo: a board in a terminal, one plain line every few seconds elsewhere."""

from __future__ import annotations

import math
import types
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from e2e.demo.board import View
from e2e.demo.watch import Decision

PLAIN_SECONDS = 5.0
SHOWN_DECISIONS = 5
WITHOUT = "without fast loop"
_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = (("ready", "█", "green"), ("starting", "▒", "cyan"), ("draining", "░", "yellow"))


class LiveView:
    """Shows views as they come; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._printed_at = -math.inf
        self._known_decisions = 0

    def show(self, view: View, other: View | None = None) -> None:
        """Draw the board, or print a line when one is due and every new decision at once; `other` runs beside it."""
        if self._live is not None:
            self._live.update(render(view, other), refresh=True)
            return
        for decision in view.decisions[self._known_decisions :]:
            self._line(f"{decision.at - view.start:6.0f} s  {_action(decision)}: {decision.message}")
        self._known_decisions = len(view.decisions)
        if view.elapsed_seconds - self._printed_at >= PLAIN_SECONDS:
            self._printed_at = view.elapsed_seconds
            self._line(plain(view, other))

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _line(self, text: str) -> None:
        # A log may be a pipe: nothing may wait in a buffer, and no line may be folded.
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
        self._console.file.flush()


def render(view: View, other: View | None = None) -> RenderableType:
    """Return the board."""
    progress = ProgressBar(total=view.duration_seconds, completed=max(view.elapsed_seconds, 0.0), width=None)
    return Panel(
        Group(
            _banner(view), progress, Text(), _figures(view, other), Text(), _replicas(view), Text(), _decisions(view)
        ),
        title="Holdfast: the objective under a load step",
        title_align="left",
        box=box.ROUNDED,
        padding=(0, 1),
    )


def plain(view: View, other: View | None = None) -> str:
    """Return the board as one line."""
    ready, starting, draining = _counts(view)
    beside = f" | {WITHOUT}: good {share(other.recent_attainment)}" if other else ""
    return (
        f"{view.elapsed_seconds:6.0f} s  {view.phase} | {view.arrival_rps:.1f} req/s, {view.in_flight} in flight | "
        f"good {share(view.recent_attainment)} of the last 30 s, {share(view.attainment)} so far | "
        f"TTFT p95 {_seconds(view.ttft_p95_seconds)}, TPOT p95 {_milliseconds(view.tpot_p95_seconds)} | "
        f"replicas {ready} ready, {starting} starting, {draining} draining | "
        f"{view.rejected} rejected, {view.lost} lost{beside}"
    )


def share(value: float | None) -> str:
    """Return a share as people read it; never rounded up to 100 %."""
    if value is None:
        return "-"
    return "100 %" if value >= 1 else f"{math.floor(value * 1000) / 10:.1f} %"


def _banner(view: View) -> Text:
    colours = "bold white on dark_red" if "LOAD" in view.phase else "bold white on dark_green"
    elapsed = f"  {max(view.elapsed_seconds, 0):.0f} of {view.duration_seconds:.0f} s"
    return Text.assemble((f" {view.phase} ", colours), (elapsed, "dim"))


def _figures(view: View, other: View | None) -> Table:
    objectives = view.objectives
    table = Table.grid(padding=(0, 2), expand=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_row("load", f"{view.arrival_rps:.1f} req/s", f"{view.in_flight} in flight", sparkline(view.load_rps))
    met = view.recent_attainment is None or view.recent_attainment >= objectives.share
    table.add_row(
        "good, last 30 s",
        Text(share(view.recent_attainment), style="bold green" if met else "bold red"),
        f"objective {share(objectives.share)}",
        _good_line(view),
    )
    if other is not None:
        table.add_row(WITHOUT, share(other.recent_attainment), "same load", _good_line(other))
    table.add_row(
        "good, whole run",
        share(view.attainment),
        f"{view.arrivals} arrived",
        Text(f"{view.rejected} rejected, {view.lost} lost", style="bold red" if view.lost else ""),
    )
    table.add_row(
        "TTFT p95",
        _judged(_seconds(view.ttft_p95_seconds), view.ttft_p95_seconds, objectives.ttft_seconds),
        f"objective {_seconds(objectives.ttft_seconds)}",
    )
    table.add_row(
        "TPOT p95",
        _judged(_milliseconds(view.tpot_p95_seconds), view.tpot_p95_seconds, objectives.tpot_seconds),
        f"objective {_milliseconds(objectives.tpot_seconds)}",
    )
    return table


def _good_line(view: View) -> str:
    return sparkline(tuple(0.0 if s is None else s for s in view.good_shares), highest=1.0)


def _replicas(view: View) -> Text:
    bar = Text("replicas  ")
    for (name, mark, colour), count in zip(_MARKS, _counts(view), strict=True):
        if count:
            bar.append((mark * 3 + " ") * count, style=colour).append(f"{count} {name}  ", style="dim")
    slo = _condition(view, "SLOMet")
    return bar.append(f"\noperator  {slo}", style="dim") if slo else bar


def _decisions(view: View) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column(justify="right", no_wrap=True, width=6)
    table.add_column()
    for decision in view.decisions[-SHOWN_DECISIONS:]:
        action = (_action(decision), "bold yellow" if decision.warning else "bold")
        table.add_row(f"{decision.at - view.start:.0f} s", Text.assemble(action, f": {decision.message}"))
    if not view.decisions:
        table.add_row("", Text("no decision yet", style="dim"))
    return table


def sparkline(values: tuple[float, ...], highest: float | None = None, width: int = 40) -> str:
    """Return the last values as a line of bars, scaled to the highest value."""
    top = highest if highest is not None else max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_LEVELS[min(max(round(v / top * (len(_LEVELS) - 1)), 0), len(_LEVELS) - 1)] for v in values[-width:])


def _counts(view: View) -> tuple[int, int, int]:
    if view.sample is None:
        return (0, 0, 0)
    return (view.sample.count("ready"), view.sample.count("starting"), view.sample.count("draining"))


def _condition(view: View, kind: str) -> str:
    conditions = view.sample.conditions if view.sample else ()
    return next((f"{c.type} {c.status}, {c.reason}: {c.message}" for c in conditions if c.type == kind), "")


def _action(decision: Decision) -> str:
    return "/".join(part for part in (decision.action, decision.reason) if part)


def _judged(text: str, value: float, objective: float) -> Text:
    return Text(text, style="" if math.isnan(value) else "green" if value <= objective else "bold red")


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f} s"


def _milliseconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 1e3:.0f} ms"
