"""What the fast loop keeps of an overloaded vLLM's goodput, on the real engine, with load by `vllm bench serve`.

    python -m benchmarks.engine_overload --out overload                      # everything, some hours
    python -m benchmarks.engine_overload --out overload --budget-minutes 60  # the most important runs; again: the next
    python -m benchmarks.engine_overload --out overload --report             # the tables of what there is

C is the best goodput that stock vLLM reaches at any offered rate with its best fixed limits. Goodput counts good
requests among those that arrived in the steady window, per second of that window; vLLM's own figure, whose time
contains the drain, stands beside it. The plugin is told the objectives and nothing else. The engine has one core, the
client another. Ends with 1 where a promise was measured and missed.

Needs vLLM (`python -m e2e.vllm build`). Every finished run is a line in the folder: what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.engine_overload.campaign import Campaign, Results, Windows, recorded
from benchmarks.engine_overload.cells import CELLS, Cell, Window
from benchmarks.engine_overload.journal import Journal, OtherCampaignError
from benchmarks.engine_overload.plan import Extent, plan
from benchmarks.engine_overload.report import Report, surroundings
from benchmarks.engine_overload.rig import MODEL_CONFIG, Rig, RunError, two_cores
from benchmarks.engine_overload.search import NoCapacityError
from e2e.vllm.environment import VERSION, Environment, environment


def main() -> int:
    """Make the runs that are missing, then print what all of them say."""
    options = _options()
    cells = {number: CELLS[number] for number in options.cells}
    windows = Windows(
        Window(options.warm_up_seconds, options.window_seconds, options.tail_seconds),
        Window(options.warm_up_seconds, options.glance_seconds, options.tail_seconds),
    )
    extent = Extent(options.repetitions, options.pairs)
    try:
        journal = Journal(options.out, {"vllm": VERSION, "model": MODEL_CONFIG})
        if not options.report:
            _make(options, journal, cells, windows, extent)
    except (NoCapacityError, OtherCampaignError, RunError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    report = Report(Results(cells, windows, recorded(journal)), extent)
    command = ("python", "-m", "benchmarks.engine_overload", *sys.argv[1:])
    print(*surroundings(journal, command, f"vLLM {VERSION} for CPUs"), sep="\n\n")
    print(*report.lines(), sep="\n")
    return 1 if any(bar.held is False for bar in report.bars()) else 0


def _make(
    options: argparse.Namespace, journal: Journal, cells: dict[int, Cell], windows: Windows, extent: Extent
) -> None:
    installed = _installed()
    with tempfile.TemporaryDirectory(prefix="engine-overload-") as temporary:
        folder = options.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with Rig(installed, folder, cells, two_cores()) as rig:
            deadline = time.monotonic() + 60.0 * options.budget_minutes
            campaign = Campaign(journal, rig.run, deadline, _say)
            results = Results(cells, windows, campaign.run)
            campaign.expected_seconds = results.expected_seconds
            if not campaign.run_all(results, plan(cells, extent)):
                _say("the budget is spent: the same command goes on from here")


def _installed() -> Environment:
    found = environment()
    if not found.folder.exists():
        raise RunError("the real vLLM is not installed: python -m e2e.vllm build")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"), help="begin no run that would end later")
    numbers = range(len(CELLS))
    parser.add_argument("--cells", type=int, nargs="+", choices=numbers, default=list(numbers), help="only these")
    parser.add_argument("--repetitions", type=int, default=Extent.repetitions, help="of overloads")
    parser.add_argument("--pairs", type=int, default=Extent.pairs, help="at loads that stock can carry")
    parser.add_argument("--warm-up-seconds", type=float, default=10.0)
    parser.add_argument("--window-seconds", type=float, default=30.0)
    parser.add_argument(
        "--glance-seconds", type=float, default=15.0, help="window of runs that choose limits and rates"
    )
    parser.add_argument("--tail-seconds", type=float, default=3.0, help="arrivals after the window")
    parser.add_argument("--logs", type=Path, help="keep servers' logs in this folder")
    return parser.parse_args()


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
