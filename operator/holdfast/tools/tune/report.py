"""What was found, in words, as JSON and as a page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from holdfast.tools.bench.figures.results import without_nan
from holdfast.tools.reports import page
from holdfast.tools.reports.page import GOOD, INK, MISSED
from holdfast.tools.tune.engine_port import Tried
from holdfast.tools.tune.goal import TuningGoal
from holdfast.tools.tune.search import TuningResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("trial", "sequences", "tokens/step", "memory", "req/s", "good", "TTFT p50, ms", "TPOT p50, ms", "s", "")


@dataclass(frozen=True, slots=True)
class Report:
    """One search: whose it is, what was asked for, and what was found. `simulated`: no engine was asked.

    `mean_tokens` are those of prompts and answers that were sent.
    """

    title: str
    accelerator: str
    wanted: TuningGoal
    found: TuningResult
    simulated: bool
    notes: tuple[str, ...] = ()
    mean_tokens: tuple[float, float] | None = None


def told(report: Report) -> list[str]:
    """What was found, in sentences; then flags and manifest."""
    found, lines = report.found, list(report.notes)
    if found.exhausted:
        lines.append("the search ran out of trials or time; raise --most-trials or --time-limit")
    if found.ended_early:
        lines.append(f"the search ended early: {found.ended_early}")
    if found.best is None:
        return [*impossible(report), *lines]
    return [
        f"{found.best}: {found.rate_rps:.3g} req/s",
        f"  {_confirmation(found)}",
        f"  {len(found.trials)} trials, {found.seconds:.0f} s {'of virtual time' if report.simulated else 'in all'}",
        *lines,
        f"vLLM: {' '.join(found.best.flags)}",
        "LLMService:",
        *(f"  {line}" for line in yaml.safe_dump({"spec": found.best.snippet}, sort_keys=False).splitlines()),
    ]


def _confirmation(found: TuningResult) -> str:
    last = found.trials[-1]
    if not found.confirmed and found.ended_early:
        return "not confirmed; measure with holdfast bench"
    if not found.confirmed:
        return (
            f"not confirmed: new requests missed the objective at {last.rate_rps:.3g} req/s; "
            "measure with holdfast bench"
        )
    low, high = last.attainment_interval
    return (
        f"{100 * last.attainment:.2f} % of {last.judged} new requests were good with it (95 % interval "
        f"{100 * low:.2f} to {100 * high:.2f} %)"
    )


def impossible(report: Report) -> list[str]:
    """Why no limits were found, and what an idle engine would keep."""
    alone, objective = report.found.alone, 100 * report.wanted.slo.objective
    if alone is None or alone.held:
        return [f"{objective:g} % of requests were good at no tested rate"]
    causes = "".join(f", {count} {what}" for what, count in alone.causes)
    told = [
        "the objectives cannot be met with any limits: "
        f"of {alone.judged} requests sent one by one {alone.bad} missed{causes}"
    ]
    bounds = asdict(report.wanted.bounds)
    tail = [
        (name, seconds, bounds[f"{name}_seconds"])
        for name, seconds in zip(("ttft", "tpot", "e2e"), alone.figures.tail, strict=True)
        if bounds[f"{name}_seconds"] and math.isfinite(seconds)
    ]
    if not any(seconds > bound for _, seconds, bound in tail):  # too many failed, and not for being late
        return [*told, "run holdfast bench to see how these requests fail"]
    possible = ",".join(f"{name}={_rounded_up(seconds)}" for name, seconds, _ in tail)
    return [*told, f"possible for an idle engine, for {objective:g} % of these requests: --slo {possible}"]


def _rounded_up(seconds: float) -> str:
    """As a duration of two digits."""
    milliseconds = max(1000.0 * seconds, 1.0)
    unit = 10.0 ** (math.floor(math.log10(milliseconds)) - 1)
    return f"{math.ceil(milliseconds / unit) * unit:.10g}ms"


def rows(found: TuningResult) -> list[tuple[str, ...]]:
    """One per trial, in the order they were made."""
    return [_row(str(number), tried) for number, tried in enumerate(found.trials, start=1)]


def line(number: int, tried: Tried) -> str:
    """A trial in one line, while the search goes on."""
    return f"trial {number}: {tried.setting}: {tried.rate_rps:.3g} req/s: {verdict(tried)}, {tried.seconds:.0f} s"


def verdict(tried: Tried) -> str:
    """Whether it held, and what cost it most."""
    cause = f", {tried.causes[0][1]} {tried.causes[0][0]}" if tried.causes else ""
    early = f", ended after {tried.judged}" if tried.ended else ""
    restarted = ", restarted" if tried.restarted else ""
    return f"{'held' if tried.held else 'missed'}{early}{cause}{restarted}"


def _row(number: str, tried: Tried) -> tuple[str, ...]:
    setting, figures = tried.setting, tried.figures
    memory = setting.gpu_memory_utilization
    return (
        number,
        str(setting.max_num_seqs),
        str(setting.max_num_batched_tokens),
        "" if memory is None else f"{memory:g}",
        f"{tried.rate_rps:.3g}",
        f"{100 * tried.attainment:.1f} %",
        _milliseconds(figures.ttft_seconds),
        _milliseconds(figures.tpot_seconds),
        f"{tried.seconds:.0f}",
        verdict(tried),
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g}" if math.isfinite(seconds) else "-"


def as_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Everything, with null for what is not known."""
    return {"results": [without_nan(_told(report)) for report in reports]}


def _told(report: Report) -> dict[str, Any]:
    found = report.found
    best = None if found.best is None else asdict(found.best) | {"rate_rps": found.rate_rps}
    return {
        "title": report.title,
        "source": "twin" if report.simulated else "endpoint",
        "accelerator": report.accelerator or None,
        "slo": asdict(report.wanted.bounds) | {"objective": report.wanted.slo.objective},
        "best": best,
        "confirmed": found.confirmed,
        "missed_rps": found.missed_rps,
        "vllm_flags": None if found.best is None else found.best.flags,
        "llmservice": None if found.best is None else {"spec": found.best.snippet},
        "seconds": found.seconds,
        "exhausted": found.exhausted,
        "ended_early": found.ended_early or None,
        "kv_cache_full": found.memory_full,
        "alone": None if found.alone is None else _as_mapping(found.alone),
        "trials": [_as_mapping(tried) for tried in found.trials],
        "notes": list(report.notes),
    }


def _as_mapping(tried: Tried) -> dict[str, Any]:
    return asdict(tried) | {"attainment": tried.attainment, "causes": dict(tried.causes)}


def write(paths: Sequence[Path], reports: Sequence[Report]) -> None:
    """HTML pages, or PNGs where a name ends so."""
    caption = "Trials: the rate of each against tokens per step: a dot where it held, a cross where it missed"
    sections = [(report.title, told(report), page.table(HEADS, rows(report.found))) for report in reports]
    write_sections(paths, "Batching limits", picture(reports), caption, sections)


def write_sections(
    paths: Sequence[Path], heading: str, drawn: bytes, caption: str, sections: Iterable[tuple[str, Sequence[str], str]]
) -> None:
    """A picture (PNG), then title, words and table (HTML) of each section; a name that ends in .png gets the former."""
    parts = [page.image(drawn, caption)]
    for title, words, rows_html in sections:
        parts += [f"<h2>{html.escape(title)}</h2>", f"<pre>{html.escape(chr(10).join(words))}</pre>", rows_html]
    page.write(paths, page.document(heading, parts), drawn)


def headline(report: Report) -> str:
    """Which limits carry how much, and whether new requests confirmed it."""
    found, of = report.found, f"{report.accelerator}: " if report.accelerator else ""
    if found.best is None:
        return f"{of}✕ no limits hold"
    verdict = "✓ confirmed" if found.confirmed else "not confirmed"
    return f"{of}{found.rate_rps:.3g} req/s, {verdict}\n{found.best}"


def picture(reports: Sequence[Report]) -> bytes:
    """A PNG: one panel per search."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(reports), squeeze=False)[0]
        for panel, report in zip(panels, reports, strict=True):
            for tried in report.found.trials:
                best = tried.setting == report.found.best
                panel.plot(
                    tried.setting.max_num_batched_tokens,
                    tried.rate_rps,
                    "o" if tried.held else "X",
                    color=GOOD if tried.held else MISSED,
                    markersize=9 if best else 5,
                    markeredgecolor=INK if best else "none",
                )
            steps = sorted({tried.setting.max_num_batched_tokens for tried in report.found.trials})
            panel.set_xscale("log", base=2)
            panel.set_xticks(steps, [str(each) for each in steps])
            panel.set_xticks([], minor=True)
            panel.set_xlabel("tokens per step (dot held, cross missed, ringed: chosen)")
            panel.set_ylabel("req/s")
            panel.set_ylim(bottom=0.0)
            panel.set_title(headline(report), fontsize=10, weight="bold", loc="left")
            page.plain(panel, "both")

    return page.picture(4.0 + 3.5 * len(reports), 3.8, draw)
