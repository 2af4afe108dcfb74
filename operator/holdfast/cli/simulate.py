"""`holdfast simulate`: runs scenarios on the digital twin under policies, and prints what each was worth."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from holdfast.api.llmservice import InvalidLLMService, LLMService
from holdfast.api.quantities import format_duration
from holdfast.api.yamltext import read_yaml
from holdfast.cli.parsers.simulate import DATA_VARIABLE, DEFAULT_POLICY
from holdfast.cli.terminal import unwritten
from holdfast.cli.waiting import waiting
from holdfast.domain.schedules import unknown_timezone
from holdfast.observe.objects.spec import to_spec
from holdfast.tools.reports import page, report, table
from holdfast.tools.reports.files import check_folders
from holdfast.twin.policies import (
    knobs_of,
    make_policy,
    sweep_of,
    without_argument,
)
from holdfast.twin.policy_port import BadPolicy, Scheduling
from holdfast.twin.runs.oracle import ORACLE, oracle
from holdfast.twin.runs.peak import STATIC_PEAK, room, static_peak
from holdfast.twin.runs.results import summary
from holdfast.twin.runs.run import Finished, simulate
from holdfast.twin.scenarios.declared_service import Declared, class_numbers, too_long
from holdfast.twin.scenarios.inputs import ALL_POLICIES, BadInput
from holdfast.twin.scenarios.scenario import Scenario, ServiceEntry
from holdfast.twin.scenarios.workload import make_workload, with_classes

SEARCHED = {STATIC_PEAK: static_peak, ORACLE: oracle}
"""What is found by many runs, for scenarios of one service."""


def run(arguments: argparse.Namespace) -> int:
    """Run every policy with every seed; 2 for bad input."""
    try:
        return _run(arguments)
    except (BadInput, BadPolicy) as problem:
        print(f"holdfast simulate: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as problem:
        print(f"holdfast simulate: {unwritten(problem)}", file=sys.stderr)
        return 1


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A policy with its knobs, and what its runs are called."""

    name: str
    knobs: Mapping[str, float]
    label: str | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """One run and its line of results."""

    finished: Finished
    result: Mapping[str, Any]


def _run(arguments: argparse.Namespace) -> int:
    scenario = Scenario.read(arguments.scenario)
    entrants = _entrants(arguments, scenario)
    for each in entrants:
        _check(each, scenario)
    if arguments.plot is not None:
        page.require()
    check_folders(arguments, "json", "plot")
    folder = data_folder(arguments.data, arguments.scenario, scenario.files, os.environ)
    told, first = [], []
    for seed in range(1, arguments.seeds + 1):
        with waiting("reading the requests"):
            declared = [declare(scenario, entry, arguments.scenario, folder, seed) for entry in scenario.services]
        if seed == 1:
            _check_sizes(entrants, scenario, declared)
            _tell_of_too_long(scenario, declared)
            _tell_of_timezones(declared)
        for each in entrants:
            told.append(_simulated(scenario, declared, each, seed))
            if seed == 1:
                first.append(told[-1].finished)
                _tell_of_absent(first[-1])
    results = {"scenario": scenario.name, "runs": [each.result for each in told]}
    if arguments.json != "-":
        table.write(scenario.name, [each.result for each in told])
    # Files come last: one that cannot be written takes nothing along of what was found.
    if arguments.json is not None:
        _write_json(results, arguments.json)
    if arguments.plot is not None:
        report.write(first, [each.result for each in told], arguments.plot)
    return 0


def _tell_of_too_long(scenario: Scenario, declared: Sequence[Declared]) -> None:
    """Report requests that are bad under every policy and with any size, before they spoil all results."""
    for each in declared:
        for option in each.spec.accelerators:
            count, room_tokens = too_long(scenario, each, option)
            if count:
                print(
                    f"holdfast simulate: service {each.spec.key.name}: {count} of {len(each.workload)} requests "
                    f"(seed 1) have more tokens than the KV cache of an engine on {option.name} holds ({room_tokens}): "
                    "it refuses them; filter them out, or raise count",
                    file=sys.stderr,
                )


def _tell_of_timezones(declared: Sequence[Declared]) -> None:
    """A floor that does not hold in the cluster holds here neither."""
    for each in declared:
        told = unknown_timezone(each.spec.schedules)
        if told:
            print(f"holdfast simulate: service {each.spec.key.name}: {told}", file=sys.stderr)


def _tell_of_absent(run: Finished) -> None:
    """A fault of a replica that is not there strikes another one: who reads the results must know."""
    for each in run.absent:
        place, at = run.scenario.faults.index(each.fault), format_duration(each.fault.at)
        remedy = f"another one was hit; give a number below {each.ready}" if each.ready else "no replica was hit"
        print(
            f"holdfast simulate: faults[{place}].replica: {each.fault.replica}: {each.service} had {each.ready} ready "
            f"replicas at {at} under {run.policy} (seed {run.seed}), counted from 0: {remedy}",
            file=sys.stderr,
        )


def _entrants(arguments: argparse.Namespace, scenario: Scenario) -> list[_Entrant]:
    """Every policy asked for, once for each setting of its knobs."""
    asked = arguments.policy or [DEFAULT_POLICY]
    names = (
        each for name in asked for each in (_everyone(scenario, arguments.scenario) if name == ALL_POLICIES else [name])
    )
    distinct = list(dict.fromkeys(names))
    if not arguments.sweep_knob:
        knobs = _knobs(arguments.knob, distinct)
        return [_Entrant(name, knobs) for name in distinct]
    return [_Entrant(name, knobs, _label(name, knobs)) for name in distinct for knobs in sweep_of(name)]


def _label(name: str, knobs: Mapping[str, float]) -> str | None:
    """`hpa:waiting=2.5`; None where there is no knob to tell."""
    return ":".join([name, *(f"{knob}={value:g}" for knob, value in knobs.items())]) if knobs else None


def _everyone(scenario: Scenario, path: Path) -> list[str]:
    """What needs no argument and can play the scenario: some keep no schedules, some are for one service."""
    if any(to_spec(_service(entry, path)).schedules for entry in scenario.services):
        return [name for name in without_argument() if isinstance(make_policy(name, {}), Scheduling)]
    return [*without_argument(), *(SEARCHED if len(scenario.services) == 1 else ())]


def data_folder(given: Path | None, scenario: Path, files: Sequence[str], environment: Mapping[str, str]) -> Path:
    """What a scenario's paths start from: --data, else HOLDFAST_DATA where all of them are, else its own folder."""
    shared = environment.get(DATA_VARIABLE)
    if given is None and shared and all(Path(shared, each).is_file() for each in files):
        return Path(shared)
    return given or scenario.parent


def _simulated(scenario: Scenario, declared: Sequence[Declared], entrant: _Entrant, seed: int) -> _Told:
    started, name = time.monotonic(), entrant.name
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"{entrant.label or name}, seed {seed}", total=1.0)
        if name in SEARCHED:
            finished = SEARCHED[name](scenario, declared, seed, lambda share: progress.update(task, completed=share))
        else:
            policy = make_policy(name, entrant.knobs)
            finished = simulate(scenario, declared, policy, seed, lambda share: progress.update(task, completed=share))
    finished = replace(finished, policy=entrant.label or finished.policy)
    return _Told(finished, summary(finished, time.monotonic() - started))


def _check(entrant: _Entrant, scenario: Scenario) -> None:
    """Tell of a wrong name before anything runs."""
    if entrant.name not in SEARCHED:
        make_policy(entrant.name, entrant.knobs, SEARCHED)
    elif len(scenario.services) > 1:
        raise BadPolicy(f"{entrant.name} supports one service only: give sizes with static:N")


def _check_sizes(entrants: Sequence[_Entrant], scenario: Scenario, declared: Sequence[Declared]) -> None:
    """Reject static sizes without GPUs: the results would name a number of replicas that never ran."""
    sizes = [(each.name, make_policy(each.name, each.knobs).start) for each in entrants if each.name not in SEARCHED]
    for name, size in sizes:
        for service in declared:
            fits, accelerator = room(scenario, service.spec), service.spec.accelerators[0].name
            if size is not None and size > fits:
                place = (
                    f"the GPUs of cluster.accelerators.{accelerator} hold {fits} replicas of {service.spec.key.name}"
                )
                raise BadPolicy(f"{name}: {place}: {f'use static:{fits}, or ' if fits else ''}raise its gpus")


def declare(scenario: Scenario, entry: ServiceEntry, path: Path, folder: Path, seed: int) -> Declared:
    """The object of a service as the API server would hold it, and its requests."""
    service = _service(entry, path)
    spec = to_spec(service)
    if not spec.accelerators:
        remedy = "give its model and accelerators in place of target"
        raise BadInput(f"{path}: services {entry.name}: has a target, which no cluster of a scenario runs: {remedy}")
    missing = [each.name for each in spec.accelerators if each.name not in scenario.cluster.accelerators]
    if missing:
        raise BadInput(f"{path}: services {entry.name}: no accelerator {missing[0]!r} in cluster.accelerators: add it")
    by_name = [
        *(("initialReplicas", name) for name in entry.initial_replicas),
        *(("kvTokens", name) for name in entry.kv_tokens),
    ]
    strange = [f"{field}.{name}" for field, name in by_name if spec.accelerator(name) is None]
    if strange:
        raise BadInput(f"{path}: services {entry.name}: {strange[0]} is not an accelerator of its spec")
    try:
        workload = make_workload(entry.workload, scenario.duration, folder, seed)
    except BadInput as problem:
        raise BadInput(f"{path}: services {entry.name}: {problem}") from None
    if entry.workload.classes:
        try:
            workload = with_classes(workload, class_numbers(service.spec, entry.workload.classes), seed)
        except BadInput as problem:
            raise BadInput(f"{path}: services {entry.name}: workload.classes: {problem}") from None
    return Declared(service, spec, workload, entry.initial_replicas, reality=entry.reality, kv_tokens=entry.kv_tokens)


def _service(entry: ServiceEntry, path: Path) -> LLMService:
    metadata = {"name": entry.name, "namespace": "simulated", "uid": entry.name, "generation": 1}
    if entry.spec is not None:
        return LLMService.parse(
            {"metadata": metadata, "spec": entry.spec.model_dump(by_alias=True, exclude_unset=True, mode="json")}
        )
    manifest = path.parent / str(entry.manifest)
    try:
        content = read_yaml(manifest.read_text(encoding="utf-8"))
        return LLMService.parse({"metadata": metadata, "spec": content["spec"]})
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError, InvalidLLMService) as problem:
        raise BadInput(f"{manifest}: not an LLMService: {' '.join(str(problem).split())}") from None


def _knobs(given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    known = [knob for name in names for knob in knobs_of(name)]
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in known or not equals or not math.isfinite(number):
            raise BadPolicy(
                f"--knob {text}: give NAME=NUMBER; these policies have {', '.join(dict.fromkeys(known)) or 'no knobs'}"
            )
        found[name] = number
    return found


def _write_json(results: Mapping[str, object], to: str) -> None:
    text = json.dumps(results, indent=1) + "\n"
    if to == "-":
        sys.stdout.write(text)
    else:
        try:
            Path(to).write_text(text, encoding="utf-8")
        except OSError as problem:
            # A disk that fills up names no file.
            problem.filename = to
            raise
