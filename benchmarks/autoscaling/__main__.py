"""Holdfast beside what others ship, a static size and an oracle, on the digital twin.

    python -m benchmarks.autoscaling --data DIR [--subset] [--scenario NAME ...] [--seeds N] [--sensitivity] [--check]

Every run is a line of a file in the results folder: what is there is not run again, unless its scenario or the code
behind it has changed. Peers' knobs are swept on the first seed. `--subset` is two short scenarios, one seed.
`--check` ends with 1 where a bar is missed. Tables are Markdown, on standard output; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from benchmarks.autoscaling.bars import Verdict, attained, verdicts, write
from benchmarks.autoscaling.campaign import Campaign
from benchmarks.autoscaling.cases import CASES, SHARED, SUBSET, VARIATIONS, Case, relaxed, varied
from benchmarks.autoscaling.compare import NOWHERE, PEERS, Comparison, Outcome
from benchmarks.autoscaling.fixed_limits import carried_rps
from benchmarks.autoscaling.journal import Journal
from benchmarks.autoscaling.outlook import outlook
from benchmarks.autoscaling.shared import shared
from benchmarks.autoscaling.table import tell, tell_bars
from holdfast.twin.replica.capacity import DRAWS
from holdfast.twin.scenarios.inputs import BadInput

THREADS = 32
"""They only wait for the processes that simulate."""


def main(words: Sequence[str] | None = None) -> int:
    """Run, print and check; 1 where a bar is missed and asked for, 2 for bad input."""
    given = _arguments(words)
    try:
        return _run(given)
    except BadInput as problem:
        print(f"benchmarks.autoscaling: {problem}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    asked = given.scenario or (SUBSET if given.subset else [*CASES, SHARED.name])
    names = [name for name in asked if name in CASES]
    elsewhere = [varied(each, names) for each in VARIATIONS if given.sensitivity]
    groups = [[CASES[name] for name in names], *filter(None, elsewhere)]
    alone = [relaxed(CASES[name]) for name in names if CASES[name].attains]
    peers, seeds = given.peer or PEERS, 1 if given.subset else given.seeds
    scarce = max(seeds, given.scarce_seeds)
    fast_loop = not given.slow_only
    journal = Journal(given.results)
    if given.dry_run:
        cases = [*itertools.chain(*groups), *alone, *([SHARED] if SHARED.name in asked else [])]
        for line in outlook(
            cases,
            journal,
            peers,
            seeds=seeds,
            scarce_seeds=scarce,
            fast_loop=fast_loop,
            tuned=given.tuned,
            workers=given.workers,
        ):
            print(line)
        return 0
    # Threads are here when workers start: a fork would copy whatever locks they hold.
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(given.workers, context) as workers,
        ThreadPoolExecutor(THREADS) as scenarios,
        ThreadPoolExecutor(THREADS) as sweeps,
    ):
        campaign = Campaign(journal, given.data, workers)
        comparison = Comparison(campaign, range(1, 1 + seeds), peers, given.tuned, sweeps, range(1, 1 + scarce))
        others = [(case, scenarios.submit(comparison.alone, case, fast_loop)) for case in alone]
        several = scenarios.submit(shared, campaign, range(1, 1 + seeds), fast_loop) if SHARED.name in asked else None
        found = _compared(groups, comparison, peers, fast_loop, given.data, scenarios)
        found += [attained(case, *result.result()) for case, result in others]
        if several is not None:
            lines, judged = several.result()
            print("\n".join(lines), flush=True)
            found += judged
    for line in tell_bars(found):
        print(line)
    if given.record is not None:
        write(given.record, found)
    return 1 if given.check and not all(each.met is not False for each in found) else 0


def _compared(
    groups: Sequence[Sequence[Case]],
    comparison: Comparison,
    peers: Sequence[str],
    fast_loop: bool,
    data: Path,
    threads: Executor,
) -> list[Verdict]:
    """Tables of each group as it is finished, and all their bars."""
    found: list[Verdict] = []
    for outcomes in _outcomes(groups, comparison, fast_loop, threads):
        cases = [outcome.case for outcome in outcomes]
        capacity = {case.title: _largest_fleet_rps(case, data) for case in cases if case.window is not None}
        found += verdicts(outcomes, comparison, peers, capacity)
        for line in tell(outcomes, comparison, peers):
            print(line, flush=True)
    return found


def _outcomes(
    groups: Sequence[Sequence[Case]], comparison: Comparison, fast_loop: bool, threads: Executor
) -> Iterator[list[Outcome]]:
    """Of the first group, then of the others: there a scenario's best knobs are near those it had in the first."""
    first, *others = groups
    outcomes = list(threads.map(lambda case: comparison.outcome(case, fast_loop), first))
    yield outcomes
    near = {outcome.case.name: outcome.places for outcome in outcomes}
    running = [
        [threads.submit(comparison.outcome, case, fast_loop, near.get(case.name, NOWHERE)) for case in cases]
        for cases in others
    ]
    for group in running:
        yield [each.result() for each in group]


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=_folder, required=True, help="folder of the traces that scenarios name")
    parser.add_argument("--results", type=_writable, default=Path("benchmarks/results/autoscaling"))
    parser.add_argument(
        "--scenario", action="append", choices=[*CASES, SHARED.name], help="may be repeated; all by default"
    )
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be repeated; all by default")
    parser.add_argument("--seeds", type=_count, default=5, help="runs of each kind; default 5")
    parser.add_argument(
        "--scarce-seeds", type=_count, default=1, help="where capacity runs short, if more than --seeds"
    )
    parser.add_argument("--workers", type=_count, default=os.cpu_count() or 1, help="runs at a time; default all cores")
    parser.add_argument("--subset", action="store_true", help=f"{' and '.join(SUBSET)}, one seed")
    parser.add_argument("--slow-only", action="store_true", help="leave out Holdfast's fast loop")
    parser.add_argument("--tuned", action="store_true", help="peers with the best fixed limits of each scenario, too")
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help=f"the compared scenarios on other clusters, too: {', '.join(each.name for each in VARIATIONS)}",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the bars to a file, for benchmarks/money.py")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and how long by finished runs")
    return parser.parse_args(words)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > len("1000") or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 to 1000")
    return int(text)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such folder")
    return Path(text)


def _writable(text: str) -> Path:
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        if os.access(text, os.W_OK):
            return Path(text)
        problem = "it cannot be written"
    except OSError as error:
        problem = str(error.strerror)
    raise argparse.ArgumentTypeError(f"{text!r}: results cannot be kept there: {problem}")


def _largest_fleet_rps(case: Case, data: Path) -> float:
    """What the largest fleet carries at the objective, by simulation of one replica."""
    scenario = case.scenario()
    (each,) = case.declared(scenario, data, seed=1)
    return carried_rps(scenario, each, None, DRAWS) * each.spec.max_replicas


if __name__ == "__main__":
    sys.exit(main())
