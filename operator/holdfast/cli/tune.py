"""`holdfast tune`: the batching limits under which an engine carries most within an SLO."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.api.benchmark_summary import Failed
from holdfast.cli.bench import allow_connections
from holdfast.cli.noresult import no_result
from holdfast.cli.terminal import printable, unwritten
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.enginemodel.prior import PriorSource
from holdfast.tools.bench.figures import summary
from holdfast.tools.bench.figures.engine import metrics_url, read_sample
from holdfast.tools.bench.figures.results import Results
from holdfast.tools.bench.generators.endpoint import NoEndpoint, fetch, found_at
from holdfast.tools.bench.load.load_generator import CannotGenerate, Endpoint
from holdfast.tools.bench.pages.report import drawn
from holdfast.tools.bench.runs import loads, options
from holdfast.tools.reports import page
from holdfast.tools.reports.files import check_files
from holdfast.tools.tune import ladder_report, ladder_twin, report
from holdfast.tools.tune.engine_port import CannotTry, TrialEndpoint, TrialRequests, Tried, UnusableTrial
from holdfast.tools.tune.goal import (
    Believed,
    Told,
    TuningGoal,
    believed,
    check,
    counted_of,
    ladder_of,
    most_of,
    service_of,
    wanted_of,
)
from holdfast.tools.tune.ladder import LadderLoad, Rung, climb
from holdfast.tools.tune.ladder_report import LadderReport
from holdfast.tools.tune.limits import LimitsFile, LiveOrRestarted, Restart
from holdfast.tools.tune.live import Asked, LiveTrials
from holdfast.tools.tune.report import Report
from holdfast.tools.tune.search import LimitsSearch, TuningResult
from holdfast.tools.tune.setting import Setting, grid
from holdfast.tools.tune.summary import of_search
from holdfast.tools.tune.twin import TwinModel, TwinTrials
from holdfast.twin.replica.capacity import LengthPairs, fitting
from holdfast.twin.scenarios.inputs import BadInput


def run(arguments: argparse.Namespace) -> int:
    """Search and tell; 0, 1 and 2 as the help says."""
    try:
        check(arguments)
        check_files(arguments, "lengths")
        if arguments.plot:
            page.require()
        service = service_of(arguments)
        return asyncio.run(_found(arguments, service, wanted_of(arguments, service)))
    except asyncio.CancelledError:
        # Without a summary: who sends a signal to a pod tells its reason there.
        print("holdfast tune: stopped by a signal before the search ended; no limits were found", file=sys.stderr)
        return 128 + signal.SIGTERM
    except BadInput as problem:
        return no_result("tune", arguments, Failed.INVALID, str(problem), 2)
    except NoEndpoint as problem:
        return no_result("tune", arguments, Failed.UNREACHABLE, str(problem))
    except UnusableTrial as problem:
        return no_result("tune", arguments, Failed.REFUSED, str(problem))
    except (CannotGenerate, CannotTry) as problem:
        return no_result("tune", arguments, Failed.FAILED, str(problem))
    except BrokenPipeError:
        raise
    except OSError as problem:
        return no_result("tune", arguments, Failed.FAILED, unwritten(problem))


async def _found(arguments: argparse.Namespace, service: ServiceSpec | None, wanted: TuningGoal) -> int:
    if arguments.ladder is not None:
        return await _ladder(arguments, service, wanted)
    if arguments.url is not None:
        found = await _live(arguments, service, wanted)
        code = _tell(arguments, [found])
        if arguments.summary is None:
            return code
        summary.write(arguments.summary, of_search(found))
        return 0
    assert service is not None
    return _tell(arguments, [await _simulated(arguments, service, each, wanted) for each in service.accelerators])


async def _simulated(
    arguments: argparse.Namespace, service: ServiceSpec, option: AcceleratorOption, wanted: TuningGoal
) -> Report:
    """The twin as the endpoint: no engine is asked."""
    known = believed(service.model_uri, option, service.quantization)
    most = most_of(arguments, service, known.defaults)
    lengths = fitting(loads.lengths_of(arguments), known.engine.kv_tokens(most))
    title = f"{service.model_uri} on {option.name}: {wanted.told}. Simulated, without an engine."
    if not len(lengths.prompt_tokens):
        note = f"{option.name}: its memory cannot hold one of these requests in addition to the model weights"
        return Report(title, option.name, wanted, TuningResult(None, 0.0, float("inf"), ()), True, (note,))
    requests = TrialRequests(lengths, counted_of(arguments, wanted), cv=arguments.cv, seed=arguments.seed)
    found = await _search(arguments, TwinTrials(known.engine, wanted.slo, most), known, wanted, requests, most)
    return Report(title, option.name, wanted, found, True, _notes(known))


@dataclass(frozen=True, slots=True)
class _Engine:
    """A live engine: where it is, what is believed of it, and how trials reach it and its limits."""

    endpoint: Endpoint
    known: Believed
    knobs: LiveOrRestarted
    trials: LiveTrials

    def title(self, wanted: TuningGoal) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}: {wanted.told}"


async def _engine(arguments: argparse.Namespace, service: ServiceSpec | None, wanted: TuningGoal) -> _Engine:
    allow_connections()
    endpoint = options.endpoint_of(arguments, os.environ)
    endpoint = await found_at(endpoint)
    known = await _known(arguments, service, endpoint)
    knobs = _knobs(arguments, service, endpoint, wanted, known.defaults)
    asked = Asked(wanted.bounds, wanted.slo.objective, arguments.max_client_lag, arguments.drain)
    return _Engine(endpoint, known, knobs, LiveTrials(endpoint, knobs, asked))


@contextlib.asynccontextmanager
async def _restored(engine: _Engine) -> AsyncIterator[None]:
    """Leave the engine as it was found where something ends what is done with it."""
    try:
        with _ended_in_order():
            yield
    except BaseException:
        await _leave(engine.knobs.restore())
        raise


async def _live(arguments: argparse.Namespace, service: ServiceSpec | None, wanted: TuningGoal) -> Report:
    engine = await _engine(arguments, service, wanted)
    known, knobs = engine.known, engine.knobs
    lengths = loads.lengths_of(arguments)
    requests = TrialRequests(lengths, counted_of(arguments, wanted), cv=arguments.cv, seed=arguments.seed)
    async with _restored(engine):
        found = await _search(arguments, engine.trials, known, wanted, requests, await knobs.most())
    await _leave(knobs.restore() if found.best is None else knobs.apply(found.best))
    means = float(lengths.prompt_tokens.mean()), float(lengths.output_tokens.mean())
    return Report(engine.title(wanted), known.accelerator, wanted, found, False, _notes(known), means)


async def _ladder(arguments: argparse.Namespace, service: ServiceSpec | None, wanted: TuningGoal) -> int:
    """One load against more and more sequences; 0 where a number of them attains the objective."""
    if arguments.url is not None:
        reports = [await _live_ladder(arguments, service, wanted)]
    else:
        assert service is not None
        reports = [await _simulated_ladder(arguments, service, each, wanted) for each in service.accelerators]
    _tell_all(arguments, ladder_report.as_json(reports), partial(_show_ladders, reports))
    if arguments.plot:
        ladder_report.write(arguments.plot, reports)
    return 0 if any(each.found.holds for each in reports) else 1


async def _live_ladder(arguments: argparse.Namespace, service: ServiceSpec | None, wanted: TuningGoal) -> LadderReport:
    engine = await _engine(arguments, service, wanted)
    load = _ladder_load(arguments, wanted, loads.lengths_of(arguments))
    async with _restored(engine):
        settings = ladder_of(arguments, await engine.knobs.most())
        measured = partial(engine.trials.rung, load=load)
        found = await climb(settings, measured, wanted.slo.objective, _progress(ladder_report.line))
    await _leave(engine.knobs.restore() if found.chosen is None else engine.knobs.apply(found.chosen.setting))
    return LadderReport(f"{engine.title(wanted)}; {load.told}", load.told, wanted, found, simulated=False)


async def _simulated_ladder(
    arguments: argparse.Namespace, service: ServiceSpec, option: AcceleratorOption, wanted: TuningGoal
) -> LadderReport:
    known = believed(service.model_uri, option, service.quantization)
    most = most_of(arguments, service, known.defaults)
    lengths = fitting(loads.lengths_of(arguments), known.engine.kv_tokens(most))
    if not len(lengths.prompt_tokens):
        raise BadInput(f"{option.name}: its memory cannot hold one of these requests in addition to the model weights")
    load = _ladder_load(arguments, wanted, lengths)

    async def measured(setting: Setting) -> Results:
        await asyncio.sleep(0)  # who ends it is heard between two rungs
        return ladder_twin.rung(known.engine, setting, load, wanted.slo, wanted.bounds)

    settings = ladder_of(arguments, most)
    found = await climb(settings, measured, wanted.slo.objective, _progress(ladder_report.line))
    title = f"{service.model_uri} on {option.name}: {wanted.told}; {load.told}. Simulated, without an engine."
    return LadderReport(title, load.told, wanted, found, simulated=True, notes=_notes(known))


def _ladder_load(arguments: argparse.Namespace, wanted: TuningGoal, lengths: LengthPairs) -> LadderLoad:
    return LadderLoad(
        lengths,
        counted_of(arguments, wanted),
        arguments.concurrency or 0,
        arguments.rate or 0.0,
        arguments.cv,
        arguments.seed,
    )


def _progress(line: Callable[[Rung], str]) -> Callable[[Rung], None]:
    """A line on standard error for each rung."""
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    return lambda rung: console.print(line(rung))


async def _known(arguments: argparse.Namespace, service: ServiceSpec | None, endpoint: Endpoint) -> Believed:
    """What the tables say of model and accelerator, with the KV cache that the engine tells."""
    option = AcceleratorOption(arguments.accelerator, gpus_per_replica=arguments.gpus)
    if service is not None:
        named = [
            each for each in service.accelerators if each.name == arguments.accelerator or not arguments.accelerator
        ]
        if not named:
            raise BadInput(f"--accelerator {arguments.accelerator}: the LLMService does not list it")
        option = named[0]
    _, text = await fetch(metrics_url(endpoint), endpoint)
    sample = read_sample(text)
    known = sample is not None and 0.0 < sample.kv_tokens < math.inf
    told = Told(int(sample.kv_tokens), sample.memory_share) if sample is not None and known else Told()
    model, quantization = (endpoint.model, None) if service is None else (service.model_uri, service.quantization)
    return believed(model, option, quantization, told)


def _knobs(
    arguments: argparse.Namespace,
    service: ServiceSpec | None,
    endpoint: Endpoint,
    wanted: TuningGoal,
    defaults: Setting,
) -> LiveOrRestarted:
    file = LimitsFile(arguments.limits_file, endpoint, wanted.bounds) if arguments.limits_file is not None else None
    command = arguments.restart_command
    restart = Restart(command, endpoint, arguments.restart_timeout) if command is not None else None

    def largest(started: Setting | None) -> Setting:
        # What the engine says of itself counts more than a manifest, or a guess at what it runs with.
        return most_of(arguments, service, defaults) if started is None else most_of(arguments, None, started)

    return LiveOrRestarted(file, restart, largest)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM, or a terminal that goes, ends it like Ctrl-C: an engine must not stay with the limits of some trial."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    # What is started with nohup goes on without its terminal.
    heeded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    try:
        for each in heeded:
            loop.add_signal_handler(each, task.cancel)
    except (NotImplementedError, RuntimeError, ValueError):  # asyncio: no signals outside the main thread
        yield
        return
    try:
        yield
    finally:
        for each in heeded:
            loop.remove_signal_handler(each)


async def _leave(leaving: Awaitable[object]) -> None:
    """Leave the engine so; a failure is only printed, since an earlier error is the reason that counts."""
    try:
        await leaving
    except (CannotTry, NoEndpoint) as problem:
        print(printable(f"holdfast tune: the engine still has its last limits: {problem}"), file=sys.stderr)


async def _search(
    arguments: argparse.Namespace,
    trials: TrialEndpoint,
    known: Believed,
    wanted: TuningGoal,
    requests: TrialRequests,
    most: Setting,
) -> TuningResult:
    model = TwinModel(known.engine, wanted.slo, requests)
    search = LimitsSearch(
        trials,
        model,
        model.lasting(grid(most)),
        arguments.most_trials,
        arguments.time_limit or float("inf"),
        _teller(),
    )
    more = [
        replace(each, gpu_memory_utilization=share) for share in arguments.gpu_memory_utilization for each in grid(most)
    ]
    return await search.tune(grid(most), more)


def _teller() -> Callable[[Tried], None]:
    """A line on standard error for each trial."""
    console = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
    made: list[Tried] = []

    def tell(tried: Tried) -> None:
        made.append(tried)
        console.print(report.line(len(made), tried))

    return tell


def _notes(known: Believed) -> tuple[str, ...]:
    if known.source is PriorSource.TABLE:
        return ()
    why = "of data sheets" if known.source is PriorSource.ROOFLINE else "guessed: model or accelerator is unknown"
    return (f"the step times behind the proposed limits are {why}",)


def _tell_all(arguments: argparse.Namespace, told: dict[str, Any], show: Callable[[], None]) -> None:
    """On standard output in words, or as JSON, which may go to a file instead."""
    text = json.dumps(told, indent=1)
    if arguments.json == "-":
        print(text)
    else:
        show()
    # Files come last: one that cannot be written takes nothing along of what was found.
    if arguments.json not in (None, "-"):
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")


def _tell(arguments: argparse.Namespace, reports: Sequence[Report]) -> int:
    _tell_all(arguments, report.as_json(reports), partial(_show, reports))
    if arguments.plot:
        report.write(arguments.plot, reports)
    return 0 if any(each.found.best is not None for each in reports) else 1


def _show(reports: Sequence[Report]) -> None:
    for each in reports:
        trials = drawn(report.HEADS, report.rows(each.found)) if each.found.trials else None
        _print(each.title, trials, report.told(each))


def _print(title: str, table: Table | None, lines: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150, soft_wrap=True, markup=False, highlight=False)
    console.print(printable(title))
    if table is not None:
        console.print(table, soft_wrap=False)
    for line in lines:
        console.print(printable(line))


def _show_ladders(reports: Sequence[LadderReport]) -> None:
    for each in reports:
        _print(each.title, drawn(ladder_report.HEADS, ladder_report.rows(each.found)), ladder_report.told(each))
