"""`holdfast bench`: what a live endpoint gives, request by request."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from holdfast.api.benchmark_summary import Failed, Summary
from holdfast.cli.noresult import no_result
from holdfast.cli.terminal import printable, unwritten
from holdfast.enginemodel.catalog import find_model
from holdfast.tools.bench.figures import summary
from holdfast.tools.bench.figures.engine import Reported
from holdfast.tools.bench.figures.results import as_json, measure
from holdfast.tools.bench.generators.client import OwnGenerator, as_recorded
from holdfast.tools.bench.generators.endpoint import NoEndpoint, found_at
from holdfast.tools.bench.load import records
from holdfast.tools.bench.load.load_generator import CannotGenerate, ClientTooSlow, Endpoint, Generator, Load, Run
from holdfast.tools.bench.pages import overlay, report, sweeppage
from holdfast.tools.bench.pages import page as pages
from holdfast.tools.bench.runs import batching, checks, loads, options
from holdfast.tools.bench.runs.trials import CLIENT_REMEDY, SweepRunner, sweep_load, watched
from holdfast.tools.reports import page
from holdfast.tools.reports.files import check_files
from holdfast.twin.scenarios.inputs import BadInput

FILES = 65_536
"""Open connections that a run may need."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, or read what was measured; 0, 1 and 2 as the help says."""
    try:
        return _run(arguments)
    except BadInput as problem:
        return no_result("bench", arguments, Failed.INVALID, str(problem), 2)
    except NoEndpoint as problem:
        return no_result("bench", arguments, Failed.UNREACHABLE, str(problem))
    except ClientTooSlow as problem:
        return no_result("bench", arguments, Failed.REFUSED, str(problem))
    except CannotGenerate as problem:
        return no_result("bench", arguments, Failed.FAILED, str(problem))
    except BrokenPipeError:
        raise
    except OSError as problem:
        return no_result("bench", arguments, Failed.FAILED, unwritten(problem))


def _run(arguments: argparse.Namespace) -> int:
    """All that may go wrong comes as an exception."""
    if arguments.overlay:
        return _overlay(arguments)
    checks.check(arguments)
    check_files(arguments, "trace", "lengths")
    if arguments.plot:
        page.require()
    if arguments.source is not None:
        read = tuple(records.read(arguments.source))
        return _tell(
            arguments, Run(read, as_recorded(read), "records"), f"records of {arguments.source}", arguments.model
        )
    endpoint = replace(options.endpoint_of(arguments, os.environ), classes=tuple(arguments.classes))
    if arguments.sweep:
        return asyncio.run(_sweep(arguments, endpoint))
    if arguments.compare_batching:
        return asyncio.run(_compare(arguments, endpoint))
    return asyncio.run(_measure(arguments, endpoint, loads.load_of(arguments)))


def _overlay(arguments: argparse.Namespace) -> int:
    """Show what was measured of several endpoints before."""
    checks.check_overlay(arguments)
    if arguments.plot:
        page.require()
    spots = overlay.read(arguments.overlay)
    _write_json(arguments, overlay.as_json(spots))
    if arguments.plot:
        overlay.write(arguments.plot, spots)
    if arguments.json != "-":
        title = f"{len(arguments.overlay)} endpoints"
        _print(title, report.drawn(overlay.HEADS, overlay.rows(spots)), overlay.told(spots))
    return 0


async def _measure(arguments: argparse.Namespace, endpoint: Endpoint, chosen: loads.Chosen) -> int:
    allow_connections()
    endpoint = await found_at(endpoint)
    done, engine = await _sent(loads.generator_of(arguments, endpoint.model), endpoint, chosen.load)
    return _tell(arguments, done, f"{endpoint.model} at {endpoint.url}: {chosen.told}", endpoint.model, engine)


async def _compare(arguments: argparse.Namespace, endpoint: Endpoint) -> int:
    """0 where each of the four runs finished all its requests."""
    allow_connections()
    by_lengths = batching.planned(arguments)
    endpoint = await found_at(endpoint)
    found = []
    for cell in batching.CELLS:
        requests = by_lengths[cell.variable]
        done, _ = await _sent(OwnGenerator(), endpoint, batching.load_of(arguments, cell, requests))
        _refuse_slow(arguments, done)
        found.append(batching.measured(cell, done.records, arguments.compare_batching))
    count = len(by_lengths[True])
    title = f"{endpoint.model} at {endpoint.url}: 4 x {count} requests, {arguments.compare_batching} at a time"
    _write_json(arguments, batching.as_json(found, title))
    if arguments.json != "-":
        _print(title, report.drawn(batching.HEADS, map(batching.row, found)), batching.told(found))
    return 0 if all(each.finished == count for each in found) else 1


async def _sweep(arguments: argparse.Namespace, endpoint: Endpoint) -> int:
    """0 where a rate was found that attains the objective."""
    allow_connections()
    load = sweep_load(arguments, endpoint)
    endpoint = await found_at(endpoint)
    load = replace(load, model=endpoint.model)
    told = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    found = await SweepRunner(arguments, endpoint, told.print).sweep()
    title = f"{endpoint.model} at {endpoint.url}: {len(found.trials)} rates"
    _write_json(arguments, sweeppage.as_json(found, title, load))
    if arguments.plot:
        sweeppage.write(arguments.plot, found, title, load)
    if arguments.json != "-":
        lines = [*report.lines(sweeppage.asked(found, load)[2:]), *sweeppage.told(found)]
        _print(title, report.drawn(sweeppage.HEADS, sweeppage.rows(found)), lines)
    return _measured(arguments, summary.of_sweep(found), bool(found.at_objective_rps))


def _refuse_slow(arguments: argparse.Namespace, done: Run) -> None:
    """ClientTooSlow where figures would be the client's own."""
    gap = measure(done.records, arguments.slo, 0.0, 0.0).itl.p50
    refused = done.client.overloaded(arguments.max_client_lag, gap) if done.client is not None else ""
    if refused:
        raise ClientTooSlow(f"result rejected, the client was too slow: {refused}; {CLIENT_REMEDY}")


def _measured(arguments: argparse.Namespace, found: Summary, attained: bool) -> int:
    """0 where the objective is attained; with --summary, who reads that judges."""
    if arguments.summary is None:
        return 0 if attained else 1
    summary.write(arguments.summary, found)
    return 0


async def _sent(generator: Generator, endpoint: Endpoint, load: Load) -> tuple[Run, Reported | None]:
    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(), refresh_per_second=2
    ) as progress:
        task = progress.add_task("requests ended", total=load.expected or None)
        run, watch = await watched(generator, endpoint, load, lambda record: progress.advance(task))
        return run, watch.reported


def _tell(arguments: argparse.Namespace, done: Run, title: str, model: str, engine: Reported | None = None) -> int:
    """Write what is asked for; 0 where the objective is attained."""
    if arguments.records is not None:
        records.write(arguments.records, done.records)
    if not done.records:
        raise CannotGenerate("no request was sent; raise --duration")
    cuts = arguments.warm_up, arguments.cool_down
    if arguments.latency or arguments.throughput:
        cuts = arguments.warm_up or 0.0, arguments.cool_down or 0.0
    cost, thresholds = arguments.cost_per_hour, arguments.threshold
    found = measure(done.records, arguments.slo, *cuts, cost, done.client, thresholds, arguments.classes)
    if not found.requests:
        raise BadInput(f"--warm-up and --cool-down exclude all {found.left_out} requests; lower them")
    kv_model = arguments.kv_model or find_model(model)
    found = replace(found, kv_model=kv_model, engine=engine, accelerator=arguments.accelerator)
    refused = found.client.overloaded(arguments.max_client_lag, found.itl.p50) if found.client is not None else ""
    _write_json(arguments, as_json(found, title, done.generator, arguments.objective, refused))
    if refused:
        raise ClientTooSlow(f"result rejected, the client was too slow: {refused}; {CLIENT_REMEDY}")
    if arguments.json != "-":
        rows = [(row.name, *row.cells) for row in report.latencies(found)]
        _print(title, report.drawn(report.HEADS, rows), report.told(found, arguments.objective))
    if arguments.plot:
        pages.write(arguments.plot, found, done.records, title, arguments.objective)
    return _measured(arguments, summary.of_run(found), found.attains(arguments.objective))


def _write_json(arguments: argparse.Namespace, told: dict[str, Any]) -> None:
    text = json.dumps(told, indent=1)
    if arguments.json == "-":
        print(text)
    elif arguments.json:
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")


def _print(title: str, table: Table, lines: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150, soft_wrap=True, markup=False, highlight=False)
    console.print(printable(title))
    console.print(table, soft_wrap=False)
    for line in lines:
        console.print(printable(line))


def allow_connections() -> None:
    """Each stream under way is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
