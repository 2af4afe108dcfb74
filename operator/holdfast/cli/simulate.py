"""`holdfast simulate`: runs scenarios on the digital twin under policies, and prints what each was worth."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from holdfast.api.llmservice import InvalidLLMService, LLMService
from holdfast.api.yamltext import read_yaml
from holdfast.observe.spec import to_spec
from holdfast.simulator.twin import page, report, table
from holdfast.simulator.twin.oracle import ORACLE, oracle
from holdfast.simulator.twin.peak import STATIC_PEAK, static_peak
from holdfast.simulator.twin.policies import POLICIES, knobs_of, make_policy
from holdfast.simulator.twin.port import BadPolicy
from holdfast.simulator.twin.results import summary
from holdfast.simulator.twin.run import Declared, Finished, simulate
from holdfast.simulator.twin.scenario import BadInput, Scenario, ServiceEntry
from holdfast.simulator.twin.workload import make_workload

EXAMPLE = """examples:
  holdfast simulate examples/scenarios/step.yaml
  holdfast simulate step.yaml --policy holdfast-slow --policy static:4 --policy hpa --seeds 5 --json - --plot step.html

Without a GPU and without a cluster: engines are simulated step by step with measured step times."""
DEFAULT_POLICY = "holdfast-slow"
SEARCHED = {STATIC_PEAK: static_peak, ORACLE: oracle}
"""What is found by many runs, for scenarios of one service."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="the digital twin: scenarios under policies, without a GPU",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="what arrives, where it runs, what breaks")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"{', '.join((*POLICIES, *SEARCHED))} (static:4 is a size); may be repeated; default {DEFAULT_POLICY}",
    )
    parser.add_argument("--knob", action="append", default=[], metavar="NAME=VALUE", help="a policy's own setting")
    parser.add_argument("--seeds", type=_seeds, default=1, help="runs of each policy, with seeds 1, 2, ... (default 1)")
    parser.add_argument("--data", type=Path, default=None, metavar="DIR", help="what paths in the scenario start from")
    parser.add_argument("--json", default=None, metavar="FILE", help="write all results as JSON; - is standard output")
    parser.add_argument("--plot", "--html", type=Path, default=None, metavar="FILE.html", help="write a report")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every policy with every seed; 2 for bad input."""
    try:
        return _run(arguments)
    except (BadInput, BadPolicy) as problem:
        print(f"holdfast simulate: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"holdfast simulate: cannot write {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1


@dataclass(frozen=True, slots=True)
class _Told:
    """One run and its line of results."""

    finished: Finished
    result: Mapping[str, Any]


def _run(arguments: argparse.Namespace) -> int:
    scenario = Scenario.read(arguments.scenario)
    names = arguments.policy or [DEFAULT_POLICY]
    knobs = _knobs(arguments.knob, names)
    for name in names:
        _check(name, knobs, scenario)
    if arguments.plot is not None:
        page.require()
    folder = arguments.data or arguments.scenario.parent
    told, first = [], []
    for seed in range(1, arguments.seeds + 1):
        declared = [declare(scenario, entry, arguments.scenario, folder, seed) for entry in scenario.services]
        for name in names:
            told.append(_simulated(scenario, declared, name, knobs, seed))
            if seed == 1:
                first.append(told[-1].finished)
    results = {"scenario": scenario.name, "runs": [each.result for each in told]}
    if arguments.plot is not None:
        report.write(first, [each.result for each in told], arguments.plot)
    if arguments.json is not None:
        _write_json(results, arguments.json)
    if arguments.json != "-":
        table.write(scenario.name, [each.result for each in told])
    return 0


def _simulated(
    scenario: Scenario, declared: Sequence[Declared], name: str, knobs: Mapping[str, float], seed: int
) -> _Told:
    started = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"{name}, seed {seed}", total=1.0)
        if name in SEARCHED:
            finished = SEARCHED[name](scenario, declared, seed, lambda share: progress.update(task, completed=share))
        else:
            policy = make_policy(name, knobs)
            finished = simulate(scenario, declared, policy, seed, lambda share: progress.update(task, completed=share))
    return _Told(finished, summary(finished, time.monotonic() - started))


def _check(name: str, knobs: Mapping[str, float], scenario: Scenario) -> None:
    """Tell of a wrong name before anything runs."""
    if name not in SEARCHED:
        make_policy(name, knobs)
    elif len(scenario.services) > 1:
        raise BadPolicy(f"{name} is for scenarios of one service: name sizes with static:N")


def declare(scenario: Scenario, entry: ServiceEntry, path: Path, folder: Path, seed: int) -> Declared:
    """The object of a service as the API server would hold it, and its requests."""
    service = _service(entry, path)
    spec = to_spec(service)
    missing = [each.name for each in spec.accelerators if each.name not in scenario.cluster.accelerators]
    if missing:
        raise BadInput(f"{path}: services {entry.name}: no accelerator {missing[0]!r} in cluster.accelerators: add it")
    strange = [name for name in entry.initial_replicas if spec.accelerator(name) is None]
    if strange:
        raise BadInput(f"{path}: services {entry.name}: initialReplicas.{strange[0]} is no accelerator of its spec")
    return Declared(
        service, spec, make_workload(entry.workload, scenario.duration, folder, seed), entry.initial_replicas
    )


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
        raise BadInput(f"{manifest}: no LLMService: {' '.join(str(problem).split())}") from None


def _knobs(given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    known = knobs_of(names)
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in known or not equals or not math.isfinite(number):
            raise BadPolicy(f"--knob {text}: give NAME=NUMBER; these policies have {', '.join(known) or 'no knobs'}")
        found[name] = number
    return found


def _seeds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 to 1000")
    return int(text)


def _write_json(results: Mapping[str, object], to: str) -> None:
    text = json.dumps(results, indent=1) + "\n"
    if to == "-":
        sys.stdout.write(text)
    else:
        Path(to).write_text(text, encoding="utf-8")
