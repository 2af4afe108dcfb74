"""`holdfast status`: services, attainment, budget, replicas and the reason of the worst condition."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from holdfast.act.api import ApiPort
from holdfast.cli import reading
from holdfast.cli.reading import Body
from holdfast.cli.terminal import printable

_PIPE_WIDTH = 240
COLUMNS = (
    "NAMESPACE",
    "NAME",
    "READY",
    "SLO",
    "ATTAINMENT",
    "BUDGET",
    "REPLICAS",
    "RPS",
    "TTFT-P95",
    "TPOT-P95",
    "REASON",
)


def run(arguments: argparse.Namespace) -> int:
    """Print a line per service; 1 when one of them misses its objective."""
    return reading.read("status", arguments, lambda api: told(api, arguments))


async def told(api: ApiPort, arguments: argparse.Namespace) -> int:
    """Print what the cluster holds; the exit code."""
    namespace = None if arguments.all_namespaces else arguments.namespace
    services = (await api.request("GET", reading.services_path(namespace))).get("items", [])
    show(services, as_json=arguments.json)
    return int(any(condition(service, "SLOMet") == "False" for service in services))


def show(services: list[Body], *, as_json: bool) -> None:
    """Print the services."""
    if as_json:
        print(json.dumps([{**service["metadata"], "status": service.get("status", {})} for service in services]))
        return
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for service in services:
        table.add_row(*row(service))
    # A pipe has no width of its own, and cut names would be of no use to its reader.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False, emoji=False).print(table)


def row(service: Body) -> list[str]:
    """Return one line of the table; what is not known is a dash."""
    meta, status = service["metadata"], service.get("status", {})
    slo, replicas = status.get("slo", {}), status.get("replicas", {})
    cells = [
        meta["namespace"],
        meta["name"],
        condition(service, "Ready"),
        condition(service, "SLOMet"),
        slo.get("attainment"),
        slo.get("budgetRemaining"),
        f"{replicas.get('ready', 0)}/{replicas.get('desired', 0)}",
        slo.get("arrivalRps"),
        slo.get("ttftP95"),
        slo.get("tpotP95"),
        status.get("reason"),
    ]
    return ["-" if cell is None else printable(str(cell)) for cell in cells]


def condition(service: Body, kind: str) -> str:
    """Return the status of a condition, `-` where it was never written."""
    conditions = service.get("status", {}).get("conditions", ())
    return next((str(item["status"]) for item in conditions if item["type"] == kind), "-")
