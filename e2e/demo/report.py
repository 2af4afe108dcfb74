"""The report of a run: `report.png` and a self-contained `report.html` that a stranger can read.

python -m e2e.demo.report demo        # draw the report of a finished run again
"""

from __future__ import annotations

import base64
import html
import pathlib
import sys
from collections.abc import Iterable, Sequence

from e2e.demo import figure, run
from e2e.demo.figure import percent
from e2e.demo.run import Run
from e2e.demo.watch import Decision
from e2e.load import verdict
from holdfast.api.quantities import counted

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2933; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.9rem; margin: 0 0 .3rem; } h2 { margin: 2.4rem 0 .6rem; font-size: 1.25rem; }
p { max-width: 46rem; } .lead { color: #52606d; font-size: 1.05rem; }
.badge { display: inline-block; padding: .15rem .7rem; border-radius: 1rem; color: white; font-weight: 600; }
.good { background: #2f9e77; } .bad { background: #d1495b; } .pale { opacity: .6; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.4rem 0; }
.figures div { border: 1px solid #e4e7eb; border-radius: .6rem; padding: .7rem 1.1rem; min-width: 8.5rem; }
.figures b { display: block; font-size: 1.5rem; } .figures span { color: #697586; font-size: .9rem; }
img { width: 100%; height: auto; } table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; color: #697586; font-weight: 600; } th, td { padding: .4rem .7rem .4rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e4e7eb; } td.number { text-align: right; white-space: nowrap; padding-right: 1.2rem; }
code { background: #f3f5f7; padding: .1rem .3rem; border-radius: .25rem; } .note { color: #697586; font-size: .9rem; }
@media (prefers-color-scheme: dark) { body { background: white; } }
"""


def write(finished: Run, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Write both files into a folder and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "report.png", folder / "report.html"
    figure.write(finished, picture)
    page.write_text(_page(finished, picture.read_bytes()), encoding="utf-8")
    return picture, page


def conclusion(finished: Run) -> str:
    """Return what the run showed, in one sentence."""
    result = finished.verdict
    wanted = percent(result.share)
    if not finished.complete:
        return "The run was stopped before its end: nothing is concluded from it."
    if finished.passed:
        return (
            f"In every {finished.facts.scenario.window_seconds:.0f} s window outside one cold start after the step at "
            f"least {wanted} of the requests were good, and no request was lost."
        )
    problems = []
    if result.failing:
        starts = ", ".join(f"{w.span.start - finished.facts.start:.0f} s" for w in result.failing)
        problems.append(f"attainment was below {wanted} in the windows that begin at {starts}")
    if result.lost:
        problems.append(f"{counted(len(result.lost), 'request', 'was', 'were')} lost")
    if not problems:
        problems.append("no window had requests to judge")
    return f"The run failed: {' and '.join(problems)}."


def _page(finished: Run, picture: bytes) -> str:
    title = html.escape(f"{finished.facts.service} under a load step")
    image = base64.b64encode(picture).decode()
    parts = [
        f"<h1>{title}</h1>",
        _lead(finished),
        _figures(finished),
        f'<img alt="Load, attainment, latencies, replicas, decisions over time" src="data:image/png;base64,{image}">',
        "<h2>What the operator decided, and why</h2>",
        "<p>Numbers stand in the lowest panel of the picture. Texts are the operator's own, as in the Events of the "
        "service.</p>",
        _decisions(finished.changes, finished.facts.start),
        _comparison(finished),
        _notes(finished),
        "<h2>Attainment by window</h2>",
        _windows(finished),
        "<h2>How to read this</h2>",
        _explanation(finished),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _lead(finished: Run) -> str:
    word = "stopped" if not finished.complete else "held" if finished.passed else "not held"
    badge = f'<span class="badge {"good" if finished.passed else "bad"}">{word}</span>'
    return f'<p class="lead">{badge} {html.escape(conclusion(finished))}</p>'


def _figures(finished: Run) -> str:
    result = finished.verdict
    first, most, last = finished.replicas_range
    cells = (
        (percent(result.attainment), "good over the whole run"),
        (str(result.arrivals), "requests arrived"),
        (str(result.rejected), "rejected (503)"),
        (str(len(result.lost)), "lost"),
        (f"{first} → {most} → {last}", "ready replicas"),
        (f"{finished.facts.cold_start_seconds:.0f} s", "one cold start"),
    )
    boxes = "".join(f"<div><b>{html.escape(value)}</b><span>{name}</span></div>" for value, name in cells)
    return f'<div class="figures">{boxes}</div>'


def _decisions(decisions: Sequence[Decision], start: float) -> str:
    rows = [
        (f"{number}", f"{decision.at - start:+.0f} s", decision.action, decision.reason, decision.message)
        for number, decision in enumerate(decisions, start=1)
    ]
    return _table(("", "time", "action", "reason", "in its own words"), rows) if rows else "<p>None.</p>"


def compared(finished: Run) -> str:
    """Return in one sentence what the same load did to the service without the fast loop; empty where none ran."""
    other = finished.comparison
    if other is None:
        return ""
    first, most, last = other.replicas_range
    return (
        f"without the fast loop (engine.plugin: Disabled), same load at the same time: {other.verdict.good} of "
        f"{other.verdict.arrivals} good ({percent(other.verdict.attainment)}), worst window "
        f"{percent(other.lowest_share)} (with it: {percent(finished.lowest_share)}), {other.verdict.rejected} "
        f"rejected, {len(other.verdict.lost)} lost; ready replicas {first} -> {most} -> {last}"
    )


def _comparison(finished: Run) -> str:
    if finished.comparison is None:
        return ""
    text = html.escape(compared(finished))
    windows = _windows(finished.comparison)
    return f"<h2>The same without the fast loop</h2><p>{text[0].upper()}{text[1:]}.</p>{windows}"


def _notes(finished: Run) -> str:
    rows = [
        (f"{said.at - finished.facts.start:+.0f} s", said.reason, said.message)
        for said in finished.decisions
        if not said.action
    ]
    return "<h2>What its conditions said meanwhile</h2>" + _table(("time", "reason", "message"), rows) if rows else ""


def _windows(finished: Run) -> str:
    result, start = finished.verdict, finished.facts.start
    rows = []
    for window in result.windows:
        if window.excused:
            judgement = "forgiven: cold start"
        elif not window.arrivals:
            judgement = "empty: says nothing"
        else:
            judgement = "met" if window.meets(result.share) else "MISSED"
        span = f"{window.span.start - start:.0f} to {window.span.end - start:.0f} s"
        rows.append((span, str(window.arrivals), str(window.good), percent(window.attainment), judgement))
    lost = [
        (f"request {r.index}", f"{r.scheduled_at - start:.1f} s", r.status, r.replica, r.error) for r in result.lost
    ]
    lost_table = "<h2>Lost requests</h2>" + _table(("", "sent at", "status", "replica", "what the client saw"), lost)
    return _table(("arrived", "requests", "good", "share", "judgement"), rows) + (lost_table if lost else "")


def _explanation(finished: Run) -> str:
    facts, result, scenario = finished.facts, finished.verdict, finished.facts.scenario
    ttft = [verdict.ttft_seconds(record) for record in finished.records if record.status == "ok"]
    tpot = [verdict.tpot_seconds(record) for record in finished.records if record.status == "ok"]
    percentiles = ", ".join(
        f"p{q * 100:.0f} {verdict.percentile(ttft, q):.2f} s / {verdict.percentile(tpot, q) * 1e3:.1f} ms"
        for q in (0.5, 0.95, 0.99)
    )
    late = f"p99 {result.lateness_p99_seconds * 1e3:.1f} ms"
    paragraphs = (
        f"A request is good when it finishes with every token, its first token comes within "
        f"{facts.objectives.ttft_seconds:g} s (TTFT) and the others every {facts.objectives.tpot_seconds * 1e3:g} ms "
        f"on average (TPOT). The objective: {percent(result.share)} of all requests that arrive. A rejected request "
        f"is bad; a lost one was taken and not answered completely.",
        f"{facts.model} on {', '.join(facts.accelerators)}. The engines are emulated: they answer the OpenAI API and "
        f"export vLLM's metrics, in the time vLLM takes on that accelerator; everything else is real: API server, "
        f"scheduler, kubelet, pods, Prometheus, the operator from its chart, HTTP connections.",
        f"Arrivals and lengths come from the recorded production trace {facts.trace} "
        f"({scenario.base_rps:g} req/s, x{scenario.factor:g} between second {scenario.step_start_seconds:.0f} and "
        f"{scenario.step_end_seconds:.0f}). The client never waits for an answer before the next request; it sent "
        f"{late} late{', TOO LATE to trust these figures' if result.client_overloaded else ''}. "
        f"{result.retried} requests were repeated because an idle connection had been closed.",
        f"Forgiven is only one cold start ({facts.cold_start_seconds:.0f} s, measured on the first replica before the "
        f"load) and two ticks of {scenario.tick_seconds:g} s after the step: nobody can have a new replica sooner. "
        f"TTFT / TPOT of all finished requests: {percentiles}.",
    )
    return "".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heading = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"


def main(arguments: Sequence[str]) -> int:
    """Write the report of the run in a folder once more."""
    folder = pathlib.Path(arguments[0] if arguments else "demo")
    picture, page = write(run.read(folder), folder)
    print(f"{page} {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
