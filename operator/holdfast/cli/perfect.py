"""`holdfast plan --perfect`: how many GPU-hours a whole trace takes, of a perfect system and of others."""

from __future__ import annotations

import argparse
import json

from holdfast.api.llmservice import LLMService
from holdfast.cli.parsers.plan import COLD_START_SECONDS, DEFAULT_PEER
from holdfast.cli.waiting import simulating, waiting
from holdfast.domain.service import ServiceSpec
from holdfast.tools.plan import perfect
from holdfast.tools.reports import table
from holdfast.tools.reports.files import check_files
from holdfast.twin.policy_port import BadPolicy
from holdfast.twin.runs.results import summary
from holdfast.twin.scenarios.inputs import BadInput
from holdfast.twin.scenarios.traces import read_trace


def run(arguments: argparse.Namespace, service: LLMService, spec: ServiceSpec) -> int:
    """Print what the whole trace takes; 1 where no sizes attain the objective."""
    if arguments.trace is None or arguments.plot is not None:
        raise BadInput("--perfect: give --trace FILE and no --plot: recorded requests are played, and nothing is drawn")
    if arguments.max_num_seqs:
        raise BadInput("--max-num-seqs and --perfect, whose engines have the limits of the spec: omit one of them")
    if arguments.speculate is not None:
        raise BadInput("--speculate and --perfect, whose engines draft no tokens: omit one of them")
    check_files(arguments, "trace")
    with waiting("reading the trace"):
        load = read_trace(arguments.trace, arguments.format)
    cold_start = COLD_START_SECONDS if arguments.cold_start is None else arguments.cold_start
    try:
        with simulating() as show:
            runs = perfect.needs(service, spec, load, cold_start, arguments.peer or DEFAULT_PEER, show)
    except BadPolicy as problem:
        raise BadInput(str(problem)) from None
    results = [summary(run, 0.0) for run in runs]
    if arguments.json:
        print(json.dumps({"runs": results}, indent=1))
    else:
        table.write(f"{arguments.trace} on {spec.accelerators[0].name}", results)
        print(perfect.told(runs))
    return 0 if perfect.perfect(runs) else 1
