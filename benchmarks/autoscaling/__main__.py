"""Holdfast beside what others ship, a static size and an oracle, on the digital twin.

    python -m benchmarks.autoscaling --data DIR [--subset] [--scenario NAME ...] [--seeds N] [--check]

Every run is a line of the results file: what is there is not run again, unless its scenario or the code behind it has
changed. Peers' knobs are swept on the first seed. `--subset` is what CI runs: two scenarios, one seed, the slow loop.
`--check` ends with 1 where a bar is missed. Tables are Markdown, on standard output; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.autoscaling.bars import verdicts
from benchmarks.autoscaling.campaign import Campaign
from benchmarks.autoscaling.cases import CASES, Case
from benchmarks.autoscaling.compare import PEERS, Comparison
from benchmarks.autoscaling.fixed_limits import carried_rps
from benchmarks.autoscaling.journal import Journal
from benchmarks.autoscaling.table import tell
from holdfast.simulator.twin.capacity import DRAWS

SUBSET = ("step", "smooth")


def main() -> int:
    """Run, print and check."""
    given = _arguments()
    names = given.scenario or (SUBSET if given.subset else list(CASES))
    cases = [CASES[name] for name in names]
    peers = given.peer or PEERS
    seeds = range(1, 1 + (1 if given.subset else given.seeds))
    comparison = Comparison(Campaign(Journal(given.results), given.data), seeds, peers, given.tuned)
    outcomes = [comparison.outcome(case, fast_loop=not given.subset and not given.slow_only) for case in cases]
    capacity = {case.name: _largest_fleet_rps(case, given.data) for case in cases if case.window is not None}
    found = list(verdicts(outcomes, comparison, peers, capacity))
    for line in tell(outcomes, comparison, peers, found):
        print(line)
    return 1 if given.check and not all(each.met for each in found) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces that scenarios name")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/autoscaling.jsonl"))
    parser.add_argument("--scenario", action="append", choices=list(CASES), help="may be repeated; all by default")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be repeated; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--subset", action="store_true", help=f"{' and '.join(SUBSET)}, one seed, the slow loop")
    parser.add_argument("--slow-only", action="store_true", help="leave out Holdfast's fast loop, which takes minutes")
    parser.add_argument("--tuned", action="store_true", help="peers with the best fixed limits of each scenario, too")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    return parser.parse_args()


def _largest_fleet_rps(case: Case, data: Path) -> float:
    """What the largest fleet carries at the objective, by simulation of one replica."""
    scenario = case.scenario()
    (each,) = case.declared(scenario, data, seed=1)
    return carried_rps(scenario, each, None, DRAWS) * each.spec.max_replicas


if __name__ == "__main__":
    sys.exit(main())
