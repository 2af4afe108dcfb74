"""A sweep in words, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.tools.bench.figures import roofline
from holdfast.tools.bench.figures.engine import Reported, Resource
from holdfast.tools.bench.figures.results import figures, without_nan
from holdfast.tools.bench.figures.sweep import RateTrial, SweepLoad, SweepResult
from holdfast.tools.bench.pages import report
from holdfast.tools.bench.pages.page import figures as figures_of
from holdfast.tools.reports import page
from holdfast.tools.reports.page import GOOD, INK, MISSED, STARTING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADS = ("req/s", "good", "goodput", "tokens/s", "tokens/s of a user", "TTFT p99, ms", "TPOT p99, ms", "under way", "")
LATENCY_HEADS = ("req/s", "TTFT, ms", "ITL, ms", "TPOT, ms", "E2E, ms", "not good")
BOUND = {
    Resource.KV_CACHE: "the KV cache",
    Resource.SEQUENCES: "sequences (requests wait while there is room in the KV cache)",
    Resource.TOKENS_PER_STEP: "tokens per step (requests wait while sequences and KV cache have room)",
    Resource.SEQUENCES_OR_TOKENS: "sequences or tokens per step (requests wait while there is room in the KV cache)",
    Resource.NONE: "something outside the engine: its queue is empty",
}


def asked(found: SweepResult, load: SweepLoad) -> list[tuple[str, str]]:
    """What was sent, and what was wanted of it: without these no figure says anything."""
    return [
        ("model", load.model),
        ("endpoint", f"{load.url} ({load.api})"),
        ("a good request", report.good_request(found.slo)),
        ("objective", "none: --slo gives bounds" if found.slo.is_empty else f"{100 * found.objective:g} % good"),
        ("prompts", _lengths(load.prompt_tokens_mean, load.prompt_tokens_cv, load.lengths_from)),
        ("answers", _lengths(load.output_tokens_mean, load.output_tokens_cv, load.lengths_from)),
        ("arrivals", f"{report.gaps(load.gaps_cv)}, each when it is due"),
        ("each rate", f"for {load.trial_seconds:g} s, longer where fewer than {load.least_requests} would arrive"),
    ]


def _lengths(mean: float, cv: float, trace: str | None) -> str:
    origin = "" if trace is None else f", drawn from {trace}"
    return f"{mean:.4g} tokens (CV {cv:.2g}){origin}" if cv else f"{mean:g} tokens each{origin}"


def told(found: SweepResult) -> list[str]:
    """What was found, in sentences."""
    low, high = found.operating_range_rps
    refused = [found.refused.why] if found.refused is not None else []
    if not found.carried_rps:
        lines = ["saturated at every tested rate; start lower, with --rate"]
    elif found.saturates_rps is None and refused:
        lines = [f"not saturated up to {found.carried_rps:.3g} req/s, the highest measured rate; see the last line"]
    elif found.saturates_rps is None:
        lines = [f"not saturated at {found.carried_rps:.3g} req/s, the highest tested rate; start higher, with --rate"]
    else:
        lines = [
            f"saturates between {found.carried_rps:.3g} and {found.saturates_rps:.3g} req/s",
            f"best run at {low:.3g} to {high:.3g} req/s, 50 to 70 % of that",
        ]
    return [*lines, *_attains(found), *binds(found), *refused]


def _attains(found: SweepResult) -> list[str]:
    """What is carried within the objective; nothing where no bounds were given, for then there is none."""
    if found.slo.is_empty:
        return []
    if not found.at_objective_rps:
        return [f"at no tested rate {100 * found.objective:g} % of requests were good"]
    return [f"at {100 * found.objective:g} % good requests it carries {found.at_objective_rps:.3g} req/s"]


def binds(found: SweepResult) -> list[str]:
    """What the engine had run out of at the lowest rate beyond saturation, as far as it tells."""
    if (beyond := _beyond(found)) is None:
        return []
    trial, engine = beyond
    bound = (
        f"bound by {BOUND[engine.binds]}: KV cache at most {100 * engine.peak_kv_usage:.0f} %, "
        f"{engine.peak_running:.0f} running and {engine.peak_waiting:.0f} waiting, "
        f"{engine.preemptions:.0f} preemptions at {trial.rate_rps:.3g} req/s"
    )
    position = roofline.told(engine.work, trial.results.accelerator)
    return [bound, position] if position else [bound]


def _beyond(found: SweepResult) -> tuple[RateTrial, Reported] | None:
    """The lowest rate beyond saturation at which the engine reported, and its report."""
    told = ((trial, trial.engine) for trial in found.trials if trial.saturated and trial.engine is not None)
    return next(told, None)


def rows(found: SweepResult) -> list[tuple[str, ...]]:
    """One per trial."""
    return [_row(trial, trial in found.front) for trial in found.trials]


def latencies(found: SweepResult) -> list[tuple[str, ...]]:
    """One per trial: median and p99 of every latency, and what it lost requests to."""
    shown = [report.HEADS.index(name) - 1 for name in ("p50", "p99")]

    def row(trial: RateTrial) -> tuple[str, ...]:
        cells = {each.name: each.cells for each in report.latencies(trial.results)}
        spreads = [" / ".join(cells[name][at] for at in shown) for name in LATENCY_HEADS[1:-1]]
        return f"{trial.rate_rps:.3g}", *spreads, "; ".join(report.badput(trial.results))

    return [row(trial) for trial in found.trials]


def as_json(found: SweepResult, title: str, load: SweepLoad) -> dict[str, Any]:
    """Everything, with null for what is not known."""
    told = {
        "title": title,
        "load": asdict(load),
        "slo": asdict(found.slo),
        "objective": found.objective,
        "saturation_rps": [found.carried_rps, found.saturates_rps],
        "operating_range_rps": list(found.operating_range_rps),
        "at_objective_rps": found.at_objective_rps,
        "binds": beyond[1].binds.value if (beyond := _beyond(found)) else None,
        "refused": asdict(found.refused) if found.refused is not None else None,
        "pareto_rps": [trial.rate_rps for trial in found.front],
        "trials": [
            {"rate_rps": trial.rate_rps, "saturated": trial.saturated or None, "results": figures(trial.results)}
            for trial in found.trials
        ],
    }
    return without_nan(told)  # type: ignore[no-any-return]


def write(paths: Sequence[Path], found: SweepResult, title: str, load: SweepLoad) -> None:
    """HTML pages, or PNGs where a name ends so."""
    drawn = picture(found)
    page.write(paths, document(found, title, load, drawn), drawn)


def document(found: SweepResult, title: str, load: SweepLoad, drawn: bytes) -> str:
    """A page that is read alone."""
    parts = [
        f'<p class="lead">{html.escape(title)}</p><ul>',
        *(f"<li>{html.escape(line)}</li>" for line in told(found)),
        "</ul><h2>What was asked</h2>",
        page.table(("", ""), asked(found, load)),
        page.image(drawn, "Good requests and latencies against the rate, and throughput against what a user sees"),
        "<h2>Trials</h2>",
        page.table(HEADS, rows(found)),
        "<h2>Latencies (p50 / p99), and requests that were not good</h2>",
        page.table(LATENCY_HEADS, latencies(found)),
        "<h2>Each trial in full</h2>",
        *(part for trial in found.trials for part in _whole(trial, found.objective)),
    ]
    return page.document("Saturation", parts)


def _whole(trial: RateTrial, objective: float) -> list[str]:
    """A trial as the page of a run tells it, folded."""
    verdict = f"{trial.rate_rps:.3g} req/s: {report.verdict(trial.results, objective)}"
    return [f"<details><summary>{html.escape(verdict)}</summary>", *figures_of(trial.results), "</details>"]


def picture(found: SweepResult) -> bytes:
    """A PNG."""

    def draw(figure: Figure) -> None:
        page.title(figure, headline(found), None if found.slo.is_empty else found.at_objective_rps > 0.0)
        panels = figure.subplots(2, 2)
        rates = [trial.rate_rps for trial in found.trials]
        _attainment(panels[0][0], found, rates)
        _latency(panels[0][1], found, rates)
        _front(panels[1][0], found)
        _carried(panels[1][1], found, rates)

    return page.picture(10.0, 6.4, draw)


def headline(found: SweepResult) -> str:
    """What it carries within the objective, and where it saturates."""
    limits = (
        [] if found.slo.is_empty else [f"{100 * found.objective:g} % good up to {found.at_objective_rps:.3g} req/s"]
    )
    if not found.slo.is_empty and not found.at_objective_rps:
        limits = [f"at no tested rate {100 * found.objective:g} % good"]
    if found.saturates_rps is not None and found.carried_rps:
        limits.append(f"saturates between {found.carried_rps:.3g} and {found.saturates_rps:.3g} req/s")
    return ", ".join(limits) or f"{found.carried_rps:.3g} req/s carried"


def _attainment(panel: Axes, found: SweepResult, rates: Sequence[float]) -> None:
    low, high = found.operating_range_rps
    panel.axvspan(low, high, color=GOOD, alpha=0.12, linewidth=0)
    if found.saturates_rps is not None:
        span: page.Style = {"facecolor": MISSED, "alpha": 0.2, "hatch": "///", "edgecolor": MISSED, "linewidth": 0}
        panel.axvspan(found.carried_rps, found.saturates_rps, **span)
    panel.plot(rates, [100.0 * trial.results.attainment for trial in found.trials], "o-", color=INK, markersize=4)
    panel.axhline(100.0 * found.objective, color=MISSED, linewidth=1.0, linestyle=page.BOUND)
    panel.set_ylim(-3.0, 103.0)
    panel.set_xlabel("req/s (plain: best range, hatched: saturation, dashed: objective)")
    panel.set_ylabel("good requests, %")
    page.plain(panel)


def _latency(panel: Axes, found: SweepResult, rates: Sequence[float]) -> None:
    drawn = (
        ("TTFT p99", [1000.0 * trial.results.ttft.p99 for trial in found.trials]),
        ("TTFT p50", [1000.0 * trial.results.ttft.p50 for trial in found.trials]),
        ("TPOT p99", [1000.0 * trial.results.tpot.p99 for trial in found.trials]),
        ("TPOT p50", [1000.0 * trial.results.tpot.p50 for trial in found.trials]),
    )
    for (name, values), style in zip(drawn, page.LINES, strict=True):
        panel.plot(rates, values, **style, markersize=4, linewidth=1.2, label=name)
    for name, bound, style in (
        ("TTFT", found.slo.ttft_seconds, page.LINES[0]),
        ("TPOT", found.slo.tpot_seconds, page.LINES[2]),
    ):
        if bound is not None:
            panel.axhline(1000.0 * bound, color=style["color"], linewidth=1.0, linestyle=page.BOUND)
            where: page.Style = {"xy": (1.0, 1000.0 * bound), "xycoords": ("axes fraction", "data"), "ha": "right"}
            panel.annotate(f"{name} bound", **where, xytext=(0, 2), textcoords="offset points", fontsize=7)
    panel.set_yscale("log")
    panel.set_xlabel("req/s")
    panel.set_ylabel("ms")
    panel.legend(edgecolor="none", fontsize=8)
    page.plain(panel, "both")


def _front(panel: Axes, found: SweepResult) -> None:
    """Throughput against tokens per second of a user: what all get, and what one gets."""
    for trial in found.trials:
        results = trial.results
        panel.plot(
            results.user_tokens_per_second.p50,
            results.output_tokens_per_second,
            "X" if trial.saturated else "o",
            color=MISSED if trial.saturated else GOOD,
            markersize=6,
        )
        panel.annotate(
            f"{trial.rate_rps:.3g}",
            (results.user_tokens_per_second.p50, results.output_tokens_per_second),
            xytext=(5, 3),
            textcoords="offset points",
            fontsize=7,
        )
    front = sorted(found.front, key=lambda trial: trial.results.user_tokens_per_second.p50)
    panel.plot(
        [trial.results.user_tokens_per_second.p50 for trial in front],
        [trial.results.output_tokens_per_second for trial in front],
        color=INK,
        linewidth=2.0,
        alpha=0.3,
        zorder=1,
    )
    panel.set_xlabel("tokens/s of a user, median (numbers: req/s, cross: saturated)")
    panel.set_ylabel("tokens/s of all")
    page.plain(panel, "both")


def _carried(panel: Axes, found: SweepResult, rates: Sequence[float]) -> None:
    finished, _, _, good = page.LINES
    panel.plot(rates, rates, color=STARTING, linewidth=1.0, label="arriving")
    panel.plot(rates, [each.results.request_rps for each in found.trials], **finished, markersize=4, label="finished")
    panel.plot(rates, [each.results.goodput_rps for each in found.trials], **good, markersize=4, label="good")
    panel.set_xlabel("req/s")
    panel.set_ylabel("req/s")
    panel.legend(frameon=False, fontsize=8)
    page.plain(panel)


def _row(trial: RateTrial, on_front: bool) -> tuple[str, ...]:
    results = trial.results
    return (
        f"{trial.rate_rps:.3g}",
        f"{100 * results.attainment:.1f} %",
        f"{results.goodput_rps:.3g}",
        f"{results.output_tokens_per_second:,.0f}",
        f"{results.user_tokens_per_second.p50:.3g}",
        f"{1000 * results.ttft.p99:,.0f}",
        f"{1000 * results.tpot.p99:.3g}",
        f"{results.peak_in_flight}",
        trial.saturated or ("on the Pareto front" if on_front else ""),
    )
