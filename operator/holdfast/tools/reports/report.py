"""The report of a simulation: one self-contained page with a table of policies and their runs side by side."""

from __future__ import annotations

import html
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.tools.reports import page
from holdfast.tools.reports.page import DRAINING, GOOD, INK, MISSED, MUTED, STARTING
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.pods.cluster import Service
from holdfast.twin.runs.results import budget_left, cost_dollars, good, latencies
from holdfast.twin.runs.run import Finished, SizeHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 240
PANELS = (
    ("arrivals, req/s", 1.2),
    ("good, %", 1.0),
    ("error budget left, %", 1.0),
    ("TTFT p99 / objective", 0.9),
    ("replicas", 1.1),
    ("GPU-hours", 0.8),
    ("cost, $", 0.8),
)

LEAST_COLUMN_PX = 360
"""Of each policy: three fit the page, and more are scrolled."""

LEAST_BUDGET = -100.0
"""Per cent below which an overdrawn budget is drawn at the edge."""


def write(runs: Sequence[Finished], results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the page: `runs` are drawn, `results` of all seeds stand in the table."""
    scenario = runs[0].scenario
    parts = [_lead(runs), "<h2>Policies</h2>", _table(results), *_services(results)]
    for place, service in enumerate(runs[0].services):
        name = service.spec.key.name
        told = f"Arrivals, attainment, budget, latency, replicas, GPU-hours and cost of {name}, policies side by side"
        parts += [
            f"<h2>Service {html.escape(name)}, seed {runs[0].seed}</h2>",
            page.image(_picture(runs, place), told, LEAST_COLUMN_PX * len(runs)),
        ]
    parts += ["<h2>What changed sizes, and why</h2>", *(_changes(run) for run in runs)]
    path.write_text(page.document(scenario.name, parts), encoding="utf-8")


def _lead(runs: Sequence[Finished]) -> str:
    scenario, services = runs[0].scenario, runs[0].services
    told = [
        f"{service.spec.key.name}: {100 * service.spec.slo.objective:g} % of requests with TTFT ≤ "
        f"{service.spec.slo.ttft_seconds:g} s and TPOT ≤ {1000 * service.spec.slo.tpot_seconds:g} ms, "
        f"{len(service.fleet.workload)} requests"
        for service in services
    ]
    router = scenario.cluster.router
    return (
        f'<p class="lead">{html.escape("; ".join(told))}. {scenario.duration / 60:g} min of arrivals, the first '
        f"{scenario.warmup / 60:g} min not counted; router {router}; policies see what a scrape every "
        f"{scenario.scrape_interval:g} s shows. Simulated: measured step times, no GPU.</p>"
    )


def _holds(of: Sequence[Mapping[str, Any]], service: str) -> bool:
    """Whether the median of a service's attainment is the objective's."""
    told = [each["services"][service] for each in of]
    shares: list[float] = [1.0 if each["attainment"] is None else each["attainment"] for each in told]
    return bool(median(shares) >= told[0]["objective"])


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    """One row per policy: medians over the seeds, and the range of attainment; held where every service's is."""
    rows = []
    for name in dict.fromkeys(each["policy"] for each in results):
        of = [each for each in results if each["policy"] == name]
        shares = sorted(each["attainment"] or 0.0 for each in of)
        share, costs = median(shares), [each["cost_dollars"] for each in of]
        cost = "unknown" if None in costs else f"{median(costs):.2f}"
        verdict = "held" if all(_holds(of, name) for name in of[0]["services"]) else "missed"
        span = f" ({100 * shares[0]:.2f} … {100 * shares[-1]:.2f})" if len(shares) > 1 else ""
        cells = (
            html.escape(name),
            f'<span class="{verdict}">{100 * share:.2f} %{span}</span>',
            f"{median(sum(s['goodput_rps'] for s in each['services'].values()) for each in of):.2f}",
            f"{median(each['gpu_hours'] for each in of):.2f}",
            cost,
            f"{median(each['scale_actions'] for each in of):g}",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ("policy", "attainment", "goodput, req/s", "GPU-hours", "cost, $", "changes of size")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def _services(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where services share GPUs: what each policy made of each of them, medians over the seeds."""
    services, policies = results[0]["services"], dict.fromkeys(each["policy"] for each in results)
    if len(services) == 1:
        return []
    rows = []
    for service, first in sorted(services.items(), key=lambda item: -item[1]["priority"]):
        cells = [html.escape(service), str(first["priority"]), f"{100 * first['objective']:g} %"]
        for name in policies:
            of = [each for each in results if each["policy"] == name]
            share = median(each["services"][service]["attainment"] or 0.0 for each in of)
            hours = median(each["services"][service]["gpu_hours"] for each in of)
            verdict = "held" if _holds(of, service) else "missed"
            cells.append(f'<span class="{verdict}">{100 * share:.2f} %</span>, {hours:.2f} GPU-hours')
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ("service", "priority", "objective", *map(html.escape, policies))
    head = "".join(f"<th>{head}</th>" for head in heads)
    return ["<h2>Services</h2>", f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>']


def _changes(run: Finished) -> str:
    rows = "".join(
        f"<tr><td>{change.at:.0f} s</td><td>{html.escape(change.service)}</td><td>{change.replicas}</td>"
        f"<td>{html.escape(change.reason)}</td><td>{html.escape(change.message)}</td></tr>"
        for change in run.changes[:500]
    )
    heads = "<tr><th>time</th><th>service</th><th>replicas</th><th>reason</th><th>in its own words</th></tr>"
    title = f"{html.escape(run.policy)}: {len(run.changes)}"
    return f"<details><summary>{title}</summary><table>{heads}{rows}</table></details>"


def _picture(runs: Sequence[Finished], place: int) -> bytes:
    """Panels under each other, policies side by side on the same scales."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(
            len(PANELS), len(runs), squeeze=False, sharex=True, sharey="row", height_ratios=[h for _, h in PANELS]
        )
        for column, run in enumerate(runs):
            panels: list[Axes] = list(axes[:, column])
            panels[0].set_title(run.policy, fontsize=12, weight="bold", color=INK)
            _draw(panels, run, place)
        for row, (label, _) in enumerate(PANELS):
            axes[row][0].set_ylabel(label)
        for panel in axes[-1]:
            panel.set_xlabel("minutes")

    return page.picture(max(9.0, 5.2 * len(runs)), 13.0, draw)


def _draw(panels: Sequence[Axes], run: Finished, place: int) -> None:
    service, duration = run.services[place], run.scenario.duration
    edges = np.linspace(0.0, duration, BINS + 1)
    arrivals, attained, budget, latency, replicas, hours, cost = panels
    _requests(arrivals, attained, service, edges)
    _budget(budget, service, edges)
    late = latencies(service.fleet).ttft / service.spec.slo.ttft_seconds
    latency.plot(edges[:-1] / 60.0, _p99(service.fleet.requests["at"], late, edges), color=INK, linewidth=1.0)
    _bound(latency, 1.0)
    latency.set_yscale("log")
    _sizes(replicas, hours, run.sizes[place])
    _cost(cost, service, edges)
    for panel in panels:
        panel.set_xlim(0.0, duration / 60.0)
        page.plain(panel)
    for panel in (arrivals, replicas):
        panel.legend(loc="upper left", frameon=False, fontsize=8, ncols=3)


def _requests(arrivals: Axes, attained: Axes, service: Service, edges: Floats) -> None:
    """Good ones and others, and the share of the good ones next to the objective."""
    at, width, minutes = service.fleet.requests["at"], edges[1], edges[:-1] / 60.0
    came, met = np.histogram(at, edges)[0], np.histogram(at[good(service)], edges)[0]
    arrivals.bar(minutes, met / width, width / 60.0, align="edge", color=GOOD, label="good")
    missed: page.Style = {"facecolor": MISSED, "hatch": "//////", "edgecolor": "white", "linewidth": 0, "label": "not"}
    arrivals.bar(minutes, (came - met) / width, width / 60.0, met / width, align="edge", **missed)
    shares = np.divide(100.0 * met, came, out=np.full(BINS, np.nan), where=came > 0)
    attained.step(minutes, shares, where="post", color=INK, linewidth=1.0)
    _bound(attained, 100.0 * service.spec.slo.objective)
    attained.set_ylim(0.0, 104.0)


def _budget(panel: Axes, service: Service, edges: Floats) -> None:
    left = np.maximum(100.0 * budget_left(service, edges), LEAST_BUDGET)
    panel.plot(edges / 60.0, left, color=INK, linewidth=1.2)
    _bound(panel, 0.0)
    panel.set_ylim(LEAST_BUDGET - 4.0, 104.0)


def _sizes(replicas: Axes, hours: Axes, sizes: SizeHistory) -> None:
    """Pods by what they do, and the GPU time of all of them so far."""
    times = np.array(sizes.at) / 60.0
    below = np.zeros(len(times))
    for label, count, colour in (
        ("ready", sizes.ready, GOOD),
        ("starting", sizes.starting, STARTING),
        ("draining", sizes.draining, DRAINING),
    ):
        replicas.fill_between(times, below, below + count, step="post", color=colour, label=label, linewidth=0)
        below = below + count
    spent = np.concatenate([[0.0], np.cumsum(np.diff(times) / 60.0 * np.array(sizes.gpus[:-1]))])
    hours.plot(times, spent, color=INK, linewidth=1.2)


def _cost(panel: Axes, service: Service, edges: Floats) -> None:
    """Dollars so far; where a service has no prices, that."""
    dollars = [cost for second in edges if (cost := cost_dollars(service, second)) is not None]
    if len(dollars) < len(edges):
        panel.text(0.5, 0.5, "no costPerHour given", transform=panel.transAxes, ha="center", color=MUTED)
    else:
        panel.plot(edges / 60.0, dollars, color=INK, linewidth=1.2)


def _bound(panel: Axes, value: float) -> None:
    panel.axhline(value, color=MISSED, linewidth=1.0, linestyle=(0, (5, 3)))


def _p99(at: Floats, values: Floats, edges: Floats) -> Floats:
    """99th percentile in each bin, NaN in an empty one; unanswered requests count as the slowest answered ones."""
    finite = values[np.isfinite(values)]
    capped = np.minimum(values, finite.max() if len(finite) else 1.0)
    borders = np.searchsorted(at, edges)
    return np.array([np.percentile(capped[a:b], 99) if b > a else np.nan for a, b in itertools.pairwise(borders)])
