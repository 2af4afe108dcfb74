"""A run as a page that is read alone, or as its picture."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.figures.thresholds import Judged
from holdfast.tools.bench.load.records import RequestRecord
from holdfast.tools.bench.pages import report
from holdfast.tools.bench.pages.picture import picture
from holdfast.tools.reports import page


def write(
    paths: Sequence[Path], found: Results, records: Sequence[RequestRecord], title: str, objective: float
) -> None:
    """HTML pages, or PNGs where a name ends so."""
    drawn = picture(found, records, objective)
    held = _held(found.attains(objective))
    parts = [
        f'<p class="lead">{html.escape(title)}</p>',
        f'<p class="{held}">{html.escape(report.verdict(found, objective))}</p>',
        *(f'<p class="{_held(each.passed)}">{html.escape(line)}</p>' for each, line in _thresholds(found)),
        page.image(drawn, "Latencies by arrival, how they are spread, and the requests under way"),
        *figures(found),
    ]
    page.write(paths, page.document("Benchmark", parts), drawn)


def _held(held: bool) -> str:
    return "held" if held else "missed"


def _thresholds(found: Results) -> list[tuple[Judged, str]]:
    return list(zip(found.thresholds, report.thresholds(found), strict=True))


def figures(found: Results) -> list[str]:
    """All figures of a run, without its verdict and its picture."""
    return [
        "<h2>Latencies</h2>",
        page.table(report.HEADS, [(row.name, *row.cells) for row in report.latencies(found)]),
        "<h2>Per second, and in all</h2>",
        page.table(("", ""), report.rates(found)),
        *_list("Good requests by class", report.classes(found)),
        *_list("Requests that were not good", report.badput(found)),
        *_list("Notes", report.notes(found)),
    ]


def _list(head: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    return [f"<h2>{head}</h2><ul>", *(f"<li>{html.escape(item)}</li>" for item in items), "</ul>"]
