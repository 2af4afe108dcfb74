"""`make demo`: set everything up, triple a recorded load, watch the objective kept, report.

Exit status: 0 if and only if every judged window of the service met the objective and no request of it was lost; 1
otherwise; 2 when the demo could not be set up; 130 when it was stopped (the report of the part that was played is
written all the same). A second service, which gets the same load without the fast loop, decides nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import pathlib
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from e2e.cluster import nodes
from e2e.cluster.provider import NEEDS_OWN, OWN
from e2e.demo import install, report, run, terminal
from e2e.demo.figure import percent
from e2e.demo.play import Side, play
from e2e.demo.run import Facts, Run
from e2e.demo.scenario import Scenario
from e2e.kubectl import Kubectl
from e2e.load import trace
from e2e.load.client import ClientSettings

DEFAULT_MANIFEST = install.REPOSITORY / "examples/chat.yaml"
DEFAULT_TRACE = install.REPOSITORY / "examples/traces/azure-conv-excerpt.csv"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo."""
    options = _options(argv)
    # Whoever stops the demo by SIGTERM gets a report as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    started = time.monotonic()
    try:
        scenario = scenario_of(options)
        arrivals = load(options, scenario)
        services = set_up(options, scenario)
    except (install.SetUpError, trace.TraceError, OSError, KeyError) as error:
        print(f"The demo could not be set up: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    sides, screens = sides_of(options, services, scenario), list[terminal.Screen]()
    stopped = send(sides, arrivals, console, terminal.watch(Kubectl(options.namespace).run, scenario, screens))
    terminal.write(screens, options.out / terminal.PICTURE)
    return conclude(options.out, console, stopped, time.monotonic() - started)


def load(options: argparse.Namespace, scenario: Scenario) -> list[trace.Arrival]:
    """Return the arrivals of the scenario."""
    arrivals = trace.stepped(trace.read(options.trace), scenario.load(), scenario.seed)
    return trace.clip_lengths(arrivals, options.max_prompt_tokens, options.max_output_tokens)


def set_up(options: argparse.Namespace, scenario: Scenario) -> list[install.Service]:
    """Set the cluster up, leaving the manifests that were applied in the output folder."""
    if os.environ.get("HOLDFAST_CLUSTER") != OWN:
        raise install.SetUpError(NEEDS_OWN)
    print("Setting up", flush=True)
    manifests = [install.manifest(options.manifest, scenario)]
    if options.comparison:
        manifests.append(install.without_fast_loop(manifests[0]))
    clear(options.out)
    text = yaml.safe_dump_all(manifests, sort_keys=False)
    (options.out / "llmservice.yaml").write_text(text, encoding="utf-8")
    return install.set_up(manifests, options.namespace, scenario)


def clear(folder: pathlib.Path) -> None:
    """Make the folder of the report, without the files of an earlier run."""
    for place in (folder, folder / run.COMPARISON):
        place.mkdir(parents=True, exist_ok=True)
        for name in (run.FACTS, run.RECORDS, run.SAMPLES, "report.png", "report.html", terminal.PICTURE):
            (place / name).unlink(missing_ok=True)


def sides_of(options: argparse.Namespace, services: Sequence[install.Service], scenario: Scenario) -> list[Side]:
    """Return what is played: the service under test, then the one it is compared with."""
    folders = (options.out, options.out / run.COMPARISON)
    return [
        Side(
            facts_of(options, service, scenario),
            ClientSettings(service.url, service.served_model, options.connections),
            folder,
        )
        for service, folder in zip(services, folders, strict=False)
    ]


def facts_of(options: argparse.Namespace, service: install.Service, scenario: Scenario) -> Facts:
    """Return what is known before the load begins."""
    return Facts(
        service=f"{service.namespace}/{service.name}",
        model=service.model,
        accelerators=service.accelerators,
        objectives=service.objectives,
        scenario=scenario,
        start=time.time(),
        cold_start_seconds=service.cold_start_seconds,
        trace=options.trace.name,
    )


def send(
    sides: Sequence[Side], arrivals: Sequence[trace.Arrival], console: Console, beside: Coroutine[Any, Any, None]
) -> bool:
    """Play the load, and whatever is done `beside` it; return whether somebody stopped it."""
    urls = " and ".join(side.settings.url for side in sides)
    print(f"A cold start took {sides[0].facts.cold_start_seconds:.0f} s; the load begins: {urls}", flush=True)
    try:
        asyncio.run(_both(play(sides, arrivals, nodes.connect(), console), beside))
    except KeyboardInterrupt:
        return True
    return False


async def _both(work: Coroutine[Any, Any, None], beside: Coroutine[Any, Any, None]) -> None:
    """Do both until the work is done."""
    other = asyncio.create_task(beside)
    try:
        await work
    finally:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)


def conclude(folder: pathlib.Path, console: Console, stopped: bool, wall_seconds: float) -> int:
    """Write the report, print the summary and return the exit status."""
    try:
        finished = run.read(folder)
    except FileNotFoundError:
        return 130
    picture, page = report.write(finished, folder)
    console.print(windows_table(finished))
    print(summary(finished))
    print(f"{page}\n{picture}\n{wall_seconds:.0f} s with set-up")
    if stopped:
        return 130
    return 0 if finished.passed else 1


def summary(finished: Run) -> str:
    """Return the figures of the whole run and what it showed."""
    result = finished.verdict
    first, most, last = finished.replicas_range
    lines = [
        report.conclusion(finished),
        f"whole run: {result.good} of {result.arrivals} good ({percent(result.attainment)}), {result.rejected} "
        f"rejected, {len(result.lost)} lost, {result.retried} repeated on a closed connection; ready replicas "
        f"{first} -> {most} -> {last}",
    ]
    if finished.comparison is not None:
        lines.append(report.compared(finished))
    lines += [f"lost: request {r.index} ({r.status}, {r.replica or 'no replica'}): {r.error}" for r in result.lost[:10]]
    if result.client_overloaded:
        late = result.lateness_p99_seconds
        lines.append(f"the client itself sent late (p99 {late:.2f} s): this machine is too busy for a fair judgement")
    return "\n".join(lines)


def windows_table(finished: Run) -> Table:
    """Return attainment by window."""
    table = Table(title="attainment by window of arrivals", box=None, title_justify="left")
    for heading in ("seconds", "requests", "good", "share", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    start, wanted = finished.facts.start, finished.verdict.share
    for window in finished.verdict.windows:
        met = window.arrivals and window.meets(wanted)
        judgement = "forgiven" if window.excused else "empty" if not window.arrivals else "met" if met else "MISSED"
        span = f"{window.span.start - start:.0f} - {window.span.end - start:.0f}"
        table.add_row(span, str(window.arrivals), str(window.good), percent(window.attainment), judgement)
    return table


def scenario_of(options: argparse.Namespace) -> Scenario:
    """Return the scenario with the flags of this run."""
    return Scenario(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Scenario)})


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=pathlib.Path, default=DEFAULT_MANIFEST, help="an LLMService")
    parser.add_argument("--namespace", default="default", help="where it is applied")
    parser.add_argument("--trace", type=pathlib.Path, default=DEFAULT_TRACE)
    parser.add_argument("--out", type=pathlib.Path, default=install.REPOSITORY / "demo", help="folder of the report")
    # A crowd of users: each request comes over a connection of its own.
    parser.add_argument("--connections", type=int, default=0, help="keep-alive pool; 0: a connection per request")
    parser.add_argument("--max-prompt-tokens", type=int, default=8192)
    parser.add_argument("--max-output-tokens", type=int, default=1024)
    parser.add_argument(
        "--comparison",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send the same load to a second service, without the fast loop, at the same time",
    )
    for field in dataclasses.fields(Scenario):
        default = field.default
        kind = int if isinstance(default, int) else float
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=default, help=f"default {default}; see scenario.py")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
