"""A ladder in words, as a table, as JSON and as a page: which rung, and what binds on each side of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from holdfast.api.quantities import counted
from holdfast.tools.bench.figures.engine import Reported, Resource
from holdfast.tools.bench.figures.results import figures, without_nan
from holdfast.tools.bench.pages.report import badput
from holdfast.tools.reports import page
from holdfast.tools.reports.page import INK
from holdfast.tools.tune.goal import TuningGoal
from holdfast.tools.tune.ladder import Climb, Rung
from holdfast.tools.tune.report import write_sections

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = (
    "sequences",
    "req/s",
    "good",
    "good req/s",
    "decode, ms",
    "TPOT p99, ms",
    "TTFT p99, ms",
    "E2E p99, ms",
    "KV cache",
    "running",
    "waiting",
    "",
)


@dataclass(frozen=True, slots=True)
class LadderReport:
    """One ladder: which engine and load, what was wanted, and what was found; `notes` say what is guessed."""

    title: str
    load: str
    wanted: TuningGoal
    found: Climb
    simulated: bool
    notes: tuple[str, ...] = ()


def told(report: LadderReport) -> list[str]:
    """Which rung and why, in sentences; then flags and manifest."""
    found = report.found
    chosen, objective = found.chosen, 100.0 * report.wanted.slo.objective
    if chosen is None:
        return [f"no request was good with any number of sequences, of {report.load}", _lost(found), _end(found)]
    verdict = f"{_named(chosen)}: {chosen.goodput_rps:.3g} good req/s; {_bound(chosen)}"
    if not found.holds:
        verdict += f"; {objective:g} % good is attained with no number of sequences, this is the most"
    below, above = found.neighbours
    return [
        verdict,
        "below: " + ("this is the first rung" if below is None else _below(below, chosen)),
        *([f"above: {found.ended}"] if above is None else [f"above: {_above(above, chosen)}", _end(found)]),
        *report.notes,
        f"vLLM: {' '.join(chosen.setting.flags)}",
        "LLMService:",
        *(f"  {line}" for line in yaml.safe_dump({"spec": chosen.setting.snippet}, sort_keys=False).splitlines()),
    ]


def _end(found: Climb) -> str:
    return f"the ladder ends at {found.rungs[-1].sequences}: {found.ended}"


def _below(rung: Rung, chosen: Rung) -> str:
    """What fewer sequences run out of."""
    return f"{_compared(rung, chosen)}; {_bound(rung)}{_causes(rung)}"


def _above(rung: Rung, chosen: Rung) -> str:
    """What more sequences cost."""
    before, after = chosen.results.tpot.p50, rung.results.tpot.p50
    decode = f"; a decode takes {_ms(after)} ms instead of {_ms(before)} ms" if math.isfinite(before + after) else ""
    return f"{_compared(rung, chosen)}{decode}; {_bound(rung)}{_causes(rung)}"


def _compared(rung: Rung, chosen: Rung) -> str:
    change = rung.goodput_rps / chosen.goodput_rps - 1.0
    how = "as many" if abs(change) < 0.005 else f"{abs(100 * change):.0f} % {'more' if change > 0.0 else 'less'}"
    told_of = counted(rung.sequences, "sequence", "gives", "give")
    return f"{told_of} {rung.goodput_rps:.3g} good req/s, {how}"


def _named(rung: Rung) -> str:
    return counted(rung.sequences, "sequence")


def _bound(rung: Rung) -> str:
    """What its requests waited for, by the engine's own figures."""
    engine = rung.engine
    if engine is None:
        return "the engine reports nothing of its queue"
    binds, waiting = engine.binds, f"up to {engine.peak_waiting:.0f} requests wait"
    if rung.results.peak_in_flight <= rung.sequences and binds is not Resource.KV_CACHE:
        return f"sequences do not bind: at most {rung.results.peak_in_flight} requests are under way"
    if binds is Resource.KV_CACHE:
        return f"the KV cache binds: {_usage(engine)} full, {engine.preemptions:.0f} preemptions, {waiting}"
    if binds is Resource.SEQUENCES:
        return (
            f"sequences bind: {engine.peak_running:.0f} of {rung.sequences} run, {waiting}, KV cache {_usage(engine)}"
        )
    if binds is Resource.NONE:
        return f"nothing waits in the engine, KV cache {_usage(engine)}"
    return f"tokens per step bind: {engine.peak_running:.0f} of {rung.sequences} run, {waiting}"


def _causes(rung: Rung) -> str:
    lost = badput(rung.results)
    return f"; not good: {', '.join(lost[:2])}" if lost else ""


def _lost(found: Climb) -> str:
    rung = max(found.rungs, key=lambda each: each.results.request_rps)
    lost = "; ".join(badput(rung.results)[:2])
    return f"with {_named(rung)}: {lost}; lower the load, or loosen the objective"


def line(rung: Rung) -> str:
    """A rung in one line, while the ladder goes on."""
    results = rung.results
    return f"{_named(rung)}: {rung.goodput_rps:.3g} good of {results.request_rps:.3g} req/s"


def rows(found: Climb) -> list[tuple[str, ...]]:
    """One per rung."""
    return [_row(rung, found) for rung in found.rungs]


def _row(rung: Rung, found: Climb) -> tuple[str, ...]:
    results, engine = rung.results, rung.engine
    return (
        str(rung.sequences),
        _short(results.request_rps),
        f"{100 * results.attainment:.1f} %",
        _short(rung.goodput_rps),
        _ms(results.tpot.p50),
        _ms(results.tpot.p99),
        _ms(results.ttft.p99),
        _ms(results.e2e.p99),
        "-" if engine is None else _usage(engine),
        "-" if engine is None else f"{engine.peak_running:.0f}",
        "-" if engine is None else f"{engine.peak_waiting:.0f}",
        "chosen" if rung is found.chosen else "",
    )


def _usage(engine: Reported) -> str:
    return f"{100 * engine.peak_kv_usage:.3g} %"


def _ms(seconds: float) -> str:
    milliseconds = 1000.0 * seconds
    if not math.isfinite(milliseconds):
        return "-"
    return f"{milliseconds:.3g}" if milliseconds < 1000.0 else f"{milliseconds:,.0f}"


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"


def as_json(reports: Sequence[LadderReport]) -> dict[str, Any]:
    """Everything, with null for what is not known."""
    return {"results": [without_nan(_mapping(report)) for report in reports]}


def _mapping(report: LadderReport) -> dict[str, Any]:
    found, chosen = report.found, report.found.chosen
    return {
        "title": report.title,
        "source": "twin" if report.simulated else "endpoint",
        "load": report.load,
        "slo": asdict(report.wanted.bounds) | {"objective": report.wanted.slo.objective},
        "attained": found.holds,
        "chosen": None if chosen is None else asdict(chosen.setting),
        "vllm_flags": None if chosen is None else chosen.setting.flags,
        "ended": found.ended,
        "why": told(report),
        "rungs": [
            {
                **asdict(rung.setting),
                "goodput_rps": rung.goodput_rps,
                "binds": None if rung.engine is None else str(rung.engine.binds),
                "results": figures(rung.results),
            }
            for rung in found.rungs
        ],
    }


def write(paths: Sequence[Path], reports: Sequence[LadderReport]) -> None:
    """HTML pages, or PNGs where a name ends so."""
    caption = "Good requests, decode time, tail latencies and KV cache against sequences"
    sections = [(report.title, told(report), page.table(HEADS, rows(report.found))) for report in reports]
    write_sections(paths, "Ladder of sequences", picture(reports), caption, sections)


def picture(reports: Sequence[LadderReport]) -> bytes:
    """A PNG: a row of four panels for each ladder."""

    def draw(figure: Figure) -> None:
        rows = figure.subfigures(len(reports), 1, squeeze=False)[:, 0]
        for row, report in zip(rows, reports, strict=True):
            _panels(row.subplots(1, 4), report.found)
            page.title(row, *headline(report))

    return page.picture(13.0, 3.3 * len(reports), draw)


def headline(report: LadderReport) -> tuple[str, bool]:
    """Whose ladder, which rung carries how much; whether the objective is attained."""
    found, chosen = report.found, report.found.chosen
    if chosen is None:
        return f"{report.title}: no request was good", False
    good = f"{100 * chosen.results.attainment:.4g} % good, objective {100 * report.wanted.slo.objective:g} %"
    return f"{report.title}: {_named(chosen)}, {chosen.goodput_rps:.3g} good req/s ({good})", found.holds


def _panels(panels: Sequence[Axes], found: Climb) -> None:
    results = [rung.results for rung in found.rungs]
    engines = [rung.engine for rung in found.rungs]
    nothing = math.nan
    drawn = (
        ("req/s", [("finished", [each.request_rps for each in results]),
                   ("good", [rung.goodput_rps for rung in found.rungs])]),
        ("decode time, ms", [("TPOT p50", [1000.0 * each.tpot.p50 for each in results]),
                             ("TPOT p99", [1000.0 * each.tpot.p99 for each in results])]),
        ("tail latency, ms", [("TTFT p99", [1000.0 * each.ttft.p99 for each in results]),
                              ("E2E p99", [1000.0 * each.e2e.p99 for each in results])]),
        ("KV cache at most, %", [("", [nothing if each is None else 100.0 * each.peak_kv_usage for each in engines])]),
    )  # fmt: skip
    for panel, (name, series) in zip(panels, drawn, strict=True):
        for (label, values), style in zip(series, page.LINES, strict=False):
            sequences = [rung.sequences for rung in found.rungs]
            panel.plot(sequences, values, **style, markersize=4, linewidth=1.3, label=label)
        _axis(panel, name, found)
        if len(series) > 1:
            panel.legend(frameon=False, fontsize=8)
    panels[2].set_yscale("log")
    panels[2].autoscale(axis="y")


def _axis(panel: Axes, name: str, found: Climb) -> None:
    sequences = [rung.sequences for rung in found.rungs]
    panel.set_xscale("log", base=2)
    panel.set_xticks(sequences, [str(each) for each in sequences])
    panel.set_xlabel("sequences (line: chosen)")
    panel.set_ylabel(name)
    panel.set_ylim(bottom=0.0)
    if found.chosen is not None:
        panel.axvline(found.chosen.sequences, color=INK, linewidth=1.0, linestyle=page.BOUND, alpha=0.6)
    page.plain(panel, "both")
