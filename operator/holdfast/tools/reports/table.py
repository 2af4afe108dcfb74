"""What runs were worth, in the terminal: a line for each run, and for each service where several share GPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Result = Mapping[str, Any]
"""A run as results.summary tells it, or one service of it."""

COLUMNS = ("attainment", "goodput/s", "GPU-h", "$", "TTFT p99", "TPOT p99", "actions")


def write(title: str, results: Sequence[Result]) -> None:
    """Print the runs."""
    several = any(len(each["services"]) > 1 for each in results)
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("policy")
    table.add_column("seed", justify="right")
    for column in ("service", "priority", "objective") if several else ():
        table.add_column(column, justify="left" if column == "service" else "right")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for each in results:
        for row in _rows(each) if several else _of_one(each):
            table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _rows(run: Result) -> Iterator[tuple[str, ...]]:
    """The run, and below it its services in order of priority."""
    yield *_of(run), "all", "", "", *_worth(_whole(run))
    ranked = sorted(run["services"].items(), key=lambda item: -item[1]["priority"])
    for name, service in ranked:
        yield "", "", name, str(service["priority"]), f"{100.0 * service['objective']:g} %", *_worth(service)
        for of_class, each in service.get("classes", {}).items():
            asked = "" if each["objective"] is None else f"{100.0 * each['objective']:g} %"
            yield "", "", _named(of_class, each), "", asked, *_met(each)


def _of_one(run: Result) -> Iterator[tuple[str, ...]]:
    """The run of a single service, and below it its classes."""
    yield *_of(run), *_worth(_whole(run))
    for service in run["services"].values():
        for name, each in service.get("classes", {}).items():
            yield _named(name, each), "", *_met(each)


def _named(of_class: str, of: Result) -> str:
    name = f"  class {of_class}" if of_class else "  no class"
    return name if of["objective"] is not None else f"{name}, done"


def _met(of: Result) -> tuple[str, ...]:
    """What is known of a class: its attainment, of batch the share that is done, and latencies."""
    return f"{100.0 * of['attainment']:.2f} %", "", "", "", *_latencies(of), ""


def _of(run: Result) -> tuple[str, str]:
    return run["policy"], str(run["seed"])


def _whole(run: Result) -> Result:
    """The run in the fields of a service: goodput together, latencies of the worst."""
    services = run["services"].values()
    latencies = {
        name: max((service[name] for service in services if service[name] is not None), default=None)
        for name in ("ttft_p99_seconds", "tpot_p99_seconds")
    }
    return {**run, **latencies, "goodput_rps": sum(service["goodput_rps"] for service in services)}


def _worth(of: Result) -> tuple[str, ...]:
    cost, attainment = of["cost_dollars"], of["attainment"]
    return (
        "-" if attainment is None else f"{100.0 * attainment:.2f} %",
        f"{of['goodput_rps']:.2f}",
        f"{of['gpu_hours']:.2f}",
        "-" if cost is None else f"{cost:.2f}",
        *_latencies(of),
        str(of["scale_actions"]),
    )


def _latencies(of: Result) -> tuple[str, str]:
    ttft, tpot = of["ttft_p99_seconds"], of["tpot_p99_seconds"]
    return "-" if ttft is None else f"{ttft:.2f} s", "-" if tpot is None else f"{1000.0 * tpot:.0f} ms"
