"""`holdfast savings`: GPU-hours that a service used, and what Holdfast would have used for the same load."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.act.api import ApiPort
from holdfast.api.llmservice import InvalidLLMService, LLMService
from holdfast.api.quantities import counted, utc
from holdfast.cli import reading
from holdfast.cli.adopt import labels_of
from holdfast.cli.terminal import said
from holdfast.cli.waiting import simulating
from holdfast.control.tick.targets import autoscalers_in, read_target
from holdfast.domain.service import ServiceSpec
from holdfast.observe.adoption.adoption import adopted
from holdfast.observe.objects.cluster import Invalid, ServiceParts
from holdfast.observe.objects.spec import to_spec
from holdfast.observe.series.client import PrometheusClient
from holdfast.observe.series.samples import QueryError
from holdfast.runtime.prometheus import prometheus_address
from holdfast.runtime.settings import OF_PROMETHEUS, Settings, SettingsError, read_settings
from holdfast.tools.plan import savings
from holdfast.tools.plan.perfect import HOLDFAST, STOCK
from holdfast.tools.plan.prices import with_prices
from holdfast.tools.plan.savings import Recorded, Savings
from holdfast.twin.policy_port import BadPolicy
from holdfast.twin.runs.peak import STATIC_PEAK
from holdfast.twin.runs.results import attainment, cost_dollars, gpu_hours, summary
from holdfast.twin.runs.run import Finished
from holdfast.twin.scenarios.inputs import BadInput

_TIMEOUT_SECONDS = 60.0


def run(arguments: argparse.Namespace) -> int:
    """Print the figures; 1 where cluster or Prometheus does not answer, 2 where too little is known."""
    try:
        settings = read_settings(arguments, os.environ, OF_PROMETHEUS)
    except SettingsError as problem:
        return said("savings", 2, str(problem))
    return reading.read("savings", arguments, lambda api: told(api, arguments, settings))


async def told(api: ApiPort, arguments: argparse.Namespace, settings: Settings) -> int:
    """Print what Prometheus and the twin say of a service; the exit code."""
    before, _, name = arguments.name.rpartition("/")
    body = await api.request("GET", reading.services_path(before or arguments.namespace, name))
    try:
        service, spec = await _declared(api, LLMService.parse(body))
        spec = with_prices(spec, arguments.cost)
        history = await asyncio.to_thread(_history, spec, arguments.since, settings)
        with simulating() as show:
            with_plugin = service.spec.target is None and service.spec.engine.plugin == "Auto"  # by its spec
            found = savings.savings(service, spec, history, with_plugin, show)
    except QueryError as problem:
        return said("savings", 1, str(problem))
    except (InvalidLLMService, BadInput, BadPolicy) as problem:
        return said("savings", 2, str(problem))
    if arguments.json:
        print(json.dumps(_as_json(found), indent=1))
    else:
        _print(service, found)
    return 0


async def _declared(api: ApiPort, service: LLMService) -> tuple[LLMService, ServiceSpec]:
    """The service with model and accelerators; those of a target are read of its Deployment."""
    if service.spec.target is None:
        return service, to_spec(service)
    namespace, name = service.metadata.namespace, service.spec.target.name
    state = await read_target(api, namespace, name, lambda: autoscalers_in(api, namespace))
    part = adopted(ServiceParts(service, to_spec(service)), state, await labels_of(api, state))
    if isinstance(part, Invalid):
        raise BadInput(part.message)
    return part.service, part.spec


def _history(spec: ServiceSpec, span_seconds: float, settings: Settings) -> Recorded:
    first, last, step = savings.steps(time.time(), span_seconds)
    client = PrometheusClient(prometheus_address(settings))
    try:
        rows = client.range(savings.query(spec.key), first, last, step, _TIMEOUT_SECONDS)
    finally:
        client.close()
    return savings.read(rows, spec.key, first, last, step)


def _print(service: LLMService, found: Savings) -> None:
    history = found.history
    ends = history.begins_at + len(history.rate_rps) * history.step_seconds
    span = " to ".join(utc(at, "%Y-%m-%d %H:%M") for at in (history.begins_at, ends))
    mode = "Recommend" if service.spec.only_recommends else "Auto"
    requests = len(found.holdfast.services[0].fleet.requests)
    console = Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{service.metadata.namespace}/{service.metadata.name} ({mode}), {span}, {requests} requests")
    table = Table(box=None)
    for head in ("", "GPU-hours", "$", "good requests"):
        table.add_column(head, justify="right" if head else "left")
    for run in (found.as_it_ran, found.holdfast, found.best_size):
        table.add_row(*_row(run))
    console.print(table, soft_wrap=False)
    for line in (*_saved(found), *_sureness(found)):
        console.print(line)


def _row(run: Finished) -> tuple[str, ...]:
    (service,) = run.services
    dollars = cost_dollars(service, run.scenario.duration)
    good = f"{100.0 * attainment(run, service):.2f} %"
    return _plainly(run.policy), f"{gpu_hours(run):.1f}", "-" if dollars is None else f"{dollars:.2f}", good


def _plainly(policy: str) -> str:
    """What a run is of, in words."""
    kind, _, size = policy.partition(":")
    if kind == STATIC_PEAK:
        return f"one size, {counted(int(size), 'replica')}"
    return {HOLDFAST: "Holdfast with its plugin", STOCK: "Holdfast, stock engines"}.get(kind, policy)


def _saved(found: Savings) -> Iterator[str]:
    if why := savings.doubt(found):
        yield f"No saving is claimed: {why}."
        return
    used, ours = gpu_hours(found.as_it_ran), gpu_hours(found.holdfast)
    share = f"{abs(used - ours):.1f} GPU-hours ({100.0 * abs(used - ours) / used:.0f} %)"
    yield f"Holdfast would have used {share} {'less' if ours <= used else 'more'} than was used."


def _sureness(found: Savings) -> Iterator[str]:
    """How far to believe the table: what was not recorded, and where the twin is known to be wrong."""
    history, (service,) = found.history, found.as_it_ran.services
    yield f"How sure: {100.0 * history.known_share:.0f} % of the time is recorded; gaps are filled with straight lines."
    played = 100.0 * attainment(found.as_it_ran, service)
    if history.attainment is not None:
        measured = 100.0 * history.attainment
        yield f"With the recorded sizes the twin has {played:.2f} % good; measured were {measured:.2f} %."
    yield (
        f"It used {gpu_hours(found.as_it_ran):.1f} GPU-hours there; recorded are {_recorded_hours(history)}. "
        "Lengths are drawn around the recorded means."
    )
    yield "No prefix is reused in the twin, and cached tokens count as prompts: its engines do more work than yours."


def _recorded_hours(history: Recorded) -> str:
    own = history.gpu_hours.get(history.accelerator)
    others = {name: hours for name, hours in history.gpu_hours.items() if name != history.accelerator}
    told = f"{'none' if own is None else f'{own:.1f}'} on {history.accelerator}"
    return told + "".join(f", {hours:.1f} on {name} (not played)" for name, hours in others.items())


def _as_json(found: Savings) -> dict[str, Any]:
    history = found.history
    runs = [summary(run, 0.0) for run in (found.as_it_ran, found.holdfast, found.best_size)]
    return {
        "begins_at": history.begins_at,
        "seconds": len(history.rate_rps) * history.step_seconds,
        "known_share": history.known_share,
        "measured_attainment": history.attainment,
        "recorded_gpu_hours": dict(history.gpu_hours),
        "no_saving_because": savings.doubt(found) or None,
        "runs": runs,
    }
