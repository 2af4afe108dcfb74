"""Days that nobody tuned to: Holdfast beside the oracle, the best static size and two tuned peers on drawn days.

    python benchmarks/days.py --data DIR [--seed N ...] [--fixed K] [--no-peers] [--workers 1] [--check]

A day of 24 h follows from its seed (`drawn_days.py`). Without `--seed` a fresh one is drawn and printed. `--fixed K`
plays the first K of ten days whose seeds follow from the hash of the tree before this benchmark was written. Holdfast
plays with the plugin and without; the oracle, the smallest static size and the peers' knobs are known in hindsight, for
this very day. Who misses the objective pays for the smallest static size that attains it, if that is more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.autoscaling.bars import Verdict
from benchmarks.autoscaling.campaign import Campaign
from benchmarks.autoscaling.compare import Comparison, Figures, Outcome
from benchmarks.autoscaling.journal import Journal
from benchmarks.autoscaling.table import tell_bars
from benchmarks.drawn_days import SEEDS, Day, drawn
from benchmarks.lines import Lines

RESULTS = Path("benchmarks/results/days")
PEERS = ("keda-token", "keda-queue")
"""The two that came closest where knobs were swept in hindsight: one in each scenario, and one over all."""

THREADS = 8
"""They only wait for the processes that simulate."""

COLUMNS = (
    *("day", "has", "with plugin", "without", "oracle", "static", "better tuned peer"),
    *("with / oracle", "without / oracle"),
)
MEDIAN, WORST, SLOW_MEDIAN, SLOW_MISSES = 1.05, 1.20, 1.15, 0.1
PEERS_MEDIAN, PEERS_WORST = 0.85, 1.03


@dataclass(frozen=True, slots=True)
class Played:
    """Attainment and GPU-hours."""

    attainment: float
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class DayFigures:
    """What a day was worth to each; `peer` is the better tuned one, None where none was played."""

    seed: int
    objective: float
    fast: Played
    slow: Played
    oracle: Played
    static: Played
    static_label: str
    peer: Played | None = None
    peer_label: str = ""

    def paid(self, played: Played) -> float:
        """GPU-hours at the objective: the static size's, if that is more, where it is missed."""
        attains = played.attainment >= self.objective
        return played.gpu_hours if attains else max(played.gpu_hours, self.static.gpu_hours)

    def ratio(self, played: Played, other: Played) -> float:
        """GPU-hours at the objective, as a multiple of another's."""
        return self.paid(played) / self.paid(other)


def figures_of(seed: int, outcome: Outcome) -> DayFigures:
    """The figures of a day that was played."""
    best = [(name, found[1]) for name, found in outcome.swept.items() if found is not None]
    name, peer = min(best, key=lambda each: each[1].gpu_hours, default=("", None))
    if peer is None and outcome.swept:
        name, peer = outcome.static.label, outcome.static
    return DayFigures(
        seed,
        outcome.objective,
        _played(outcome.own["holdfast"]),
        _played(outcome.own["holdfast-slow"]),
        _played(outcome.oracle),
        _played(outcome.static),
        outcome.static.label,
        None if peer is None else _played(peer),
        name,
    )


def _played(found: Figures) -> Played:
    return Played(found.attainment, found.gpu_hours)


def play(seeds: Sequence[int], data: Path, results: Path, peers: Sequence[str], workers: int) -> Iterator[DayFigures]:
    """Play days, one after the other; finished runs are not made again."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as processes, ThreadPoolExecutor(THREADS) as threads:
        campaign = Campaign(Journal(results), data, processes)
        for seed in seeds:
            comparison = Comparison(campaign, [seed], peers, threads=threads)
            yield figures_of(seed, comparison.outcome(Day(f"day {seed}"), fast_loop=True))


def table(days: Iterable[DayFigures]) -> Iterator[str]:
    """Lines of Markdown."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for day in days:
        peer = "" if day.peer is None else f"{day.peer_label} {day.peer.gpu_hours:.1f}"
        cells = (
            f"{day.seed}",
            _has(day.seed),
            *(f"{100 * each.attainment:.2f} % {each.gpu_hours:.1f}" for each in (day.fast, day.slow, day.oracle)),
            f"{day.static_label.removeprefix('static:')}: {day.static.gpu_hours:.1f}",
            peer,
            *(f"{day.ratio(each, day.oracle):.2f}" for each in (day.fast, day.slow)),
        )
        yield f"| {' | '.join(cells)} |"


def _has(seed: int) -> str:
    day = drawn(seed)
    sources = [day.source] if day.mix is None else [day.source, day.mix.source]
    return f"{' to '.join(sources)}; {', '.join(name for name in day.features if name != 'mix')}"


def verdicts(days: Sequence[DayFigures]) -> Iterator[Verdict]:
    """The bars; those of the peers are not judged where they were not played."""
    fast, slow = ([day.ratio(each, day.oracle) for day, each in pairs] for pairs in _own(days))
    yield _at_most("with plugin: median GPU-hours over the oracle's", median(fast), MEDIAN)
    yield _at_most("with plugin: GPU-hours over the oracle's on the worst day", max(fast), WORST)
    missed = [day.seed for day in days if day.fast.attainment < day.objective]
    yield Verdict("with plugin: objective on every day", not missed, f"missed on {len(missed)} of {len(days)}")
    missed = [day.seed for day in days if day.slow.attainment < day.objective]
    enough = len(missed) <= SLOW_MISSES * len(days)
    yield Verdict("without: objective in nine of ten", enough, f"missed on {len(missed)} of {len(days)}")
    yield _at_most("without: median GPU-hours over the oracle's", median(slow), SLOW_MEDIAN)
    peers = [day.ratio(day.fast, day.peer) for day in days if day.peer is not None]
    for name, found, bar in (("median", median, PEERS_MEDIAN), ("worst day", max, PEERS_WORST)):
        title = f"with plugin: GPU-hours over those of the better tuned peer, {name}"
        yield _at_most(title, found(peers), bar) if peers else Verdict(title, None, "no peer was played")


def _own(days: Sequence[DayFigures]) -> tuple[list[tuple[DayFigures, Played]], list[tuple[DayFigures, Played]]]:
    return [(day, day.fast) for day in days], [(day, day.slow) for day in days]


def _at_most(name: str, ratio: float, bar: float) -> Verdict:
    return Verdict(name, ratio <= bar, f"{ratio:.2f} x, bar {bar:g} x")


def read(path: Path) -> list[DayFigures]:
    """Figures that were recorded: the last of each day, in the order in which the days were first played."""
    found: dict[int, DayFigures] = {}
    for line in Lines(path).found:
        told = json.loads(line)
        peer = told.pop("peer")
        runs = {name: Played(**told.pop(name)) for name in ("fast", "slow", "oracle", "static")}
        found[told["seed"]] = DayFigures(**told, **runs, peer=None if peer is None else Played(**peer))
    return list(found.values())


def report(days: Sequence[DayFigures]) -> Iterator[str]:
    """The table and the bars."""
    yield from table(days)
    yield ""
    yield from tell_bars(list(verdicts(days)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the days and print the ratios; 1 where a bar is missed and `--check` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--seed", type=_seed, action="append", help="may be repeated; a fresh one by default")
    chosen.add_argument("--fixed", type=int, choices=range(1, 1 + len(SEEDS)), metavar="K", help="the first K of ten")
    parser.add_argument("--no-peers", action="store_true", help="leave out the peers, whose knobs take many runs")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time; default 1")
    parser.add_argument(
        "--results", type=Path, help=f"folder of finished runs; default {RESULTS} with --fixed, else none"
    )
    parser.add_argument("--record", type=Path, help="a file to add the figures of each day to")
    parser.add_argument("--recorded", type=Path, help="print the report of such a file; nothing is played")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bar is missed")
    given = parser.parse_args(arguments)
    days = _played_as(given) if given.recorded is None else read(given.recorded)
    for line in report(days):
        print(line)
    return 1 if given.check and any(each.met is False for each in verdicts(days)) else 0


def _played_as(given: argparse.Namespace) -> list[DayFigures]:
    """Play the days that were asked for, and record each as soon as it is finished."""
    seeds = given.seed or (SEEDS[: given.fixed] if given.fixed else [secrets.randbelow(2**31)])
    print(f"seed {', '.join(map(str, seeds))}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = given.results or (RESULTS if given.fixed else Path(folder))
        days = []
        for day in play(seeds, given.data, results, () if given.no_peers else PEERS, given.workers):
            days.append(day)
            if given.record is not None:
                Lines(given.record).add(json.dumps(asdict(day)))
    return days


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(2**31)):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 0 to 9,999,999,999")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
