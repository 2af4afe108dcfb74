"""What the fast loop keeps of an overloaded vLLM's goodput, on the real engine, with load by `vllm bench serve`.

    python -m benchmarks.engine_overload --out overload --cells 0 --dry-run          # what would run, and how long
    python -m benchmarks.engine_overload --out overload --cells 0 --most-minutes 50  # one cell; again: goes on
    python -m benchmarks.engine_overload --out overload --report                     # the tables of what there is

C is the best goodput that stock vLLM reaches at any offered rate with its best fixed limits. Goodput counts good
requests among those that arrived in the steady window, per second of that window; vLLM's own figure, whose time
contains what is left of the drain, stands beside it. The plugin is told the objectives and nothing else. The engine has
one core, the client another. The machine's speed is sampled in every run: a run in which it differed from that of the
search by more than --tolerance is made again, whatever it gave. Ends with 1 where a promise was measured and missed,
with 3 where the machine has changed for good.

With --paced every step of vLLM lasts as long as that of Qwen2.5-3B on an L4, by the project's step law: scheduler, API
server, sampling, plugin and client are the real ones, the time that an accelerator would compute is waited. So the
host's changing speed shows only where its own work takes longer than a step; how much that was is reported.

Needs vLLM (`python -m e2e.vllm build`). Every finished run is a line in the folder: what was interrupted goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine_overload.campaign import Campaign, MachineChangedError, Patience, Results, recorded
from benchmarks.engine_overload.cells import CELLS, Cell
from benchmarks.engine_overload.engines import Cores, Engines, RunError, two_cores
from benchmarks.engine_overload.estimate import lines
from benchmarks.engine_overload.journal import Journal, OtherCampaignError
from benchmarks.engine_overload.plan import Extent, plan
from benchmarks.engine_overload.probe import Meter
from benchmarks.engine_overload.rehearsal import EmulatedEngines
from benchmarks.engine_overload.report import Report
from benchmarks.engine_overload.rig import Rig
from benchmarks.engine_overload.search import NoCapacityError
from benchmarks.engine_overload.speed import TOLERANCE
from benchmarks.engine_overload.surroundings import surroundings
from benchmarks.engine_overload.vllm_engines import MODEL_CONFIG, PACED_CONFIG, VllmEngines
from benchmarks.engine_overload.windows import Seconds
from e2e.vllm.environment import VERSION, Environment, environment
from holdfast.enginemodel.prior import engine_prior

# Of the pairs in the catalog one that answers about as many requests a second as the CPU does.
PACE = ("Qwen/Qwen2.5-3B-Instruct", "l4")
# A step is mostly waiting: a machine half as fast makes a difference only where that does not suffice, which is told.
PACED_TOLERANCE = 1.0


def main() -> int:
    """Make the runs that are missing, then print what all of them say."""
    options = _options()
    cells = {number: CELLS[number] for number in options.cells}
    seconds = Seconds(options.glance_seconds, options.window_seconds, options.calm_seconds)
    extent = Extent(options.blocks, options.pairs_per_block)
    if options.dry_run:
        print(*lines(cells, seconds, extent), sep="\n")
        return 0
    changed = False
    try:
        journal = Journal(options.out, _settings(options))
        if not options.report:
            _make(options, journal, cells, seconds, extent)
    except (NoCapacityError, OtherCampaignError, RunError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except MachineChangedError as problem:
        print(f"stopped: {problem}", file=sys.stderr)
        changed = True
    report = Report(Results(cells, seconds, recorded(journal)), extent)
    everything = Report(Results(cells, seconds, recorded(journal, first=True)), extent)
    command = ("python", "-m", "benchmarks.engine_overload", *sys.argv[1:])
    print(*surroundings(journal, command, _engine(options)), sep="\n\n")
    print(*report.lines(), sep="\n")
    print(*everything.sensitivity(), sep="\n")
    return 3 if changed else int(any(bar.held is False for bar in report.bars()))


def _make(
    options: argparse.Namespace, journal: Journal, cells: dict[int, Cell], seconds: Seconds, extent: Extent
) -> None:
    with _folder(options.logs) as folder:
        cores = two_cores()
        engines: Engines = EmulatedEngines(cores) if options.rehearse else _vllm(options, folder, cores)
        with Rig(engines, folder, cells) as rig:
            deadline = time.monotonic() + 60.0 * options.most_minutes
            campaign = Campaign(journal, rig, Meter(cores.engine), Patience(options.tolerance), deadline, _say)
            if not campaign.run_all(Results(cells, seconds, campaign.run), plan(cells, extent)):
                _say("the time is spent: the same command goes on from here")


@contextlib.contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engine-overload-") as temporary:
        folder = named or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _vllm(options: argparse.Namespace, folder: Path, cores: Cores) -> Engines:
    pace = engine_prior(*PACE, {}, 1, None).law if options.paced else None
    return VllmEngines(_installed(), folder, cores, pace)


def _installed() -> Environment:
    found = environment()
    if not found.folder.exists():
        raise RunError("the real vLLM is not installed: python -m e2e.vllm build")
    return found


def _settings(options: argparse.Namespace) -> dict[str, object]:
    """What all runs of a folder have in common: with another tolerance other runs would have been thrown away."""
    model = PACED_CONFIG if options.paced else MODEL_CONFIG
    return {"engine": _engine(options), "model": model, "tolerance": options.tolerance}


def _engine(options: argparse.Namespace) -> str:
    if options.rehearse:
        return "the emulator, in a rehearsal"
    pace = ", each step as long as that of {} on an {}".format(*PACE) if options.paced else ""
    return f"vLLM {VERSION} for CPUs{pace}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and how long, and run nothing")
    parser.add_argument("--most-minutes", type=float, default=float("inf"), help="begin no run that would end later")
    numbers = range(len(CELLS))
    parser.add_argument("--cells", type=int, nargs="+", choices=numbers, default=list(numbers), help="only these")
    parser.add_argument("--blocks", type=int, default=Extent.blocks, help="each holds every run once")
    parser.add_argument("--pairs-per-block", type=int, default=Extent.pairs_per_block, help="at loads below C")
    parser.add_argument("--window-seconds", type=float, default=Seconds.full, help="that count, at C and above")
    parser.add_argument("--calm-seconds", type=float, default=Seconds.calm, help="that count, below C")
    parser.add_argument("--glance-seconds", type=float, default=Seconds.glance, help="that count, in the search")
    tolerances = f"of the machine's speed, as a share (default {TOLERANCE:g}, with --paced {PACED_TOLERANCE:g})"
    parser.add_argument("--tolerance", type=float, help=tolerances)
    parser.add_argument("--paced", action="store_true", help="steps as long as on an accelerator")
    parser.add_argument("--rehearse", action="store_true", help="the emulator in place of vLLM, to try the runner")
    parser.add_argument("--logs", type=Path, help="keep servers' logs in this folder")
    options = parser.parse_args()
    if options.tolerance is None:
        options.tolerance = PACED_TOLERANCE if options.paced else TOLERANCE
    return options


def _say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
