"""What reality does: one day in the digital twin with one accident at a time, and the bars beside the figures.

    python benchmarks/reality.py --data DIR [--accident NAME ...] [--seeds 1 2 3] [--workers 1] [--results FILE]
    python benchmarks/reality.py --print NAME

The plain day: Llama-3.1-8B on L40S, 4 h, lengths of Azure's conversations of 2023 (DIR holds azure2023/), Poisson
arrivals between 6 and 24 req/s, TTFT 2 s, TPOT 100 ms, 99 %; the first 15 minutes are warm-up. Static is the smallest
size that attains the objective on the same seed with the same accident, which nobody knows beforehand. Each run is a
line of the results file, and is not made again while its scenario and its code are the same. Figures are means of the
seeds. `--print` writes the scenario of an accident, for `holdfast simulate`.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.accidents import ACCIDENTS, CELLS, SLOW, STATIC, WITH, Accident, Bar
from benchmarks.autoscaling.journal import code_digest
from benchmarks.lines import Lines
from holdfast.api.reasons import Reason
from holdfast.domain.decision import Decision
from holdfast.domain.snapshot import Snapshot
from holdfast.twin.policies import Holdfast, Static
from holdfast.twin.policy_port import Policy
from holdfast.twin.runs.peak import smallest
from holdfast.twin.runs.results import attainment, counted, good, gpu_hours
from holdfast.twin.runs.run import Finished, simulate

RESULTS = Path("benchmarks/results/reality.jsonl")
WINDOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Key:
    """What tells a run from all others: `scenario` and `code` are digests."""

    accident: str
    policy: str
    seed: int
    scenario: str
    code: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one run was worth: shares from 0 to 1, `worst` that of the worst five minutes after the warm-up.

    `named_seconds` passed from when a further replica served until uneven load was named; None where it never was.
    """

    attainment: float
    gpu_hours: float
    largest: int
    changes: int
    worst: float
    named_seconds: float | None = None


class Watched(Holdfast):
    """Holdfast, and when it first named uneven load."""

    named_at: float | None = None

    def decisions(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """The same decisions."""
        found = super().decisions(snapshot)
        reasons = {condition.reason for each in found for condition in each.conditions}
        if self.named_at is None and Reason.LOAD_IMBALANCED in reasons:
            self.named_at = snapshot.now
        return found


def play(accident: Accident, data: Path, policy: str, seed: int) -> Row:
    """One run, of `static` the cheapest that attains the objective."""
    scenario, services = accident.declared(policy, data, seed)
    run = partial(simulate, scenario, services, seed=seed)
    if policy != STATIC:
        watched = Watched(fast_loop=policy == WITH)
        return _row(run(watched), watched)
    tried = cache(lambda size: _row(run(Static(size)), Static(size)))
    most = services[0].spec.max_replicas
    return tried(smallest(lambda size: tried(size).attainment >= services[0].spec.slo.objective, most))


def _row(run: Finished, policy: Policy) -> Row:
    (service,), (sizes,) = run.services, run.sizes
    held = [sum(each) for each in zip(sizes.ready, sizes.starting, strict=True)]
    named = policy.named_at if isinstance(policy, Watched) else None
    if named is not None:
        first = sizes.ready[0]
        grown = next((at for at, ready in zip(sizes.at, sizes.ready, strict=True) if ready > first), 0.0)
        named -= run.scenario.begins.timestamp() + grown
    return Row(attainment(run, service), gpu_hours(run), max(held), len(run.changes), _worst(run), named)


def _worst(run: Finished) -> float:
    """Good share of the five minutes with the smallest one."""
    (service,) = run.services
    inside = counted(run, service)
    windows = (service.fleet.requests["at"][inside] // WINDOW_SECONDS).astype(np.int64)
    came = np.bincount(windows)
    shares = np.bincount(windows, good(service)[inside])[came > 0] / came[came > 0]
    return float(shares.min()) if len(shares) else 1.0


class Runs:
    """The runs of a file; those of other scenarios or other code stay there, and do not count."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)
        read = [json.loads(line) for line in self._lines.found]
        self.rows = {Key(**each["key"]): Row(**each["row"]) for each in read}

    def add(self, key: Key, row: Row) -> None:
        """Write a run down."""
        self.rows[key] = row
        self._lines.add(json.dumps({"key": asdict(key), "row": asdict(row)}))

    def of(self, accident: str, policy: str) -> list[Row]:
        """The runs of an accident under a policy, by seed."""
        found = [(key.seed, row) for key, row in self.rows.items() if (key.accident, key.policy) == (accident, policy)]
        return [row for _, row in sorted(found, key=lambda each: each[0])]


def key_of(accident: Accident, policy: str, seed: int) -> Key:
    """The key of a run by the present scenario and code."""
    content = json.dumps(accident.content(policy), sort_keys=True).encode()
    code = code_digest("static:1" if policy == STATIC else policy)
    return Key(accident.name, policy, seed, hashlib.sha256(content).hexdigest()[:12], code)


def make(names: Sequence[str], data: Path, seeds: Sequence[int], runs: Runs, workers: int) -> Runs:
    """Make the runs that are missing; returns those of the present code."""
    accidents = [ACCIDENTS[name] for name in names]
    keys = {key_of(each, policy, seed): each for seed in seeds for each in accidents for policy in each.policies}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = {
            pool.submit(play, each, data, key.policy, key.seed): key
            for key, each in keys.items()
            if key not in runs.rows
        }
        for done in as_completed(waiting):
            runs.add(waiting[done], done.result())
            print(f"{waiting[done]} {done.result()}", file=sys.stderr, flush=True)
    present = copy.copy(runs)
    present.rows = {key: runs.rows[key] for key in keys}
    return present


def misses(bar: Bar, rows: Sequence[Row], static: Sequence[Row], other: Sequence[Row], objective: float) -> list[str]:
    """What a bar asks for and these runs miss; empty where it is met."""
    hours = mean(row.gpu_hours for row in rows)
    asked = objective if bar.attains is None else bar.attains
    below = sum(row.attainment < objective for row in rows)
    named = [math.inf if row.named_seconds is None else row.named_seconds for row in rows]
    checks = [
        (bar.sized_only or bar.seeds_below is not None or mean(row.attainment for row in rows) >= asked, "attainment"),
        (bar.seeds_below is None or below <= bar.seeds_below * len(rows), f"{below} of {len(rows)} seeds below"),
        (bar.of_static is None or not static or hours <= bar.of_static * _hours(static), "GPU-hours"),
        (bar.of_other is None or not other or hours <= bar.of_other[0] * _hours(other), "GPU-hours"),
        (bar.hours is None or hours <= bar.hours, "GPU-hours"),
        (bar.largest is None or max(row.largest for row in rows) <= bar.largest, "largest size"),
        (bar.named_within is None or max(named) <= bar.named_within, "not named in time"),
    ]
    return list(dict.fromkeys(told for met, told in checks if not met))


def _hours(rows: Sequence[Row]) -> float:
    return mean(row.gpu_hours for row in rows)


def table(runs: Runs, names: Iterable[str]) -> Iterator[str]:
    """Lines of Markdown: an accident under a policy each, as far as there are runs."""
    yield f"| {' | '.join(CELLS)} |"
    yield "|" + "---|" * len(CELLS)
    for accident in (ACCIDENTS[name] for name in names):
        static = runs.of(accident.name, STATIC)
        for policy, words in ((WITH, "with"), (SLOW, "without")):
            rows = runs.of(accident.name, policy)
            if rows:
                bar = accident.bars.get(policy)
                other = runs.of(bar.of_other[1], policy) if bar and bar.of_other else []
                missed = misses(bar, rows, static, other, accident.objective) if bar else []
                verdict = "" if bar is None else f"missed: {', '.join(missed)}" if missed else "met"
                told = "" if bar is None else bar.told(accident.objective)
                yield f"| {accident.name} | {words} | {_cells(rows, static)} | {told} | {verdict} |"


def _cells(rows: Sequence[Row], static: Sequence[Row]) -> str:
    shares = [100.0 * row.attainment for row in rows]
    spread = f"{mean(shares):.2f} ({min(shares):.1f} to {max(shares):.1f})"
    hours = f"{_hours(rows):.1f}" + (f" ({_hours(static):.1f})" if static else "")
    worst = 100.0 * min(row.worst for row in rows)
    changes = mean(row.changes for row in rows)
    return f"{len(rows)} | {spread} | {worst:.0f} | {hours} | {max(row.largest for row in rows)} | {changes:.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the accidents and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--accident", action="append", choices=[*ACCIDENTS], metavar="NAME", help="may be repeated")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="runs at a time; default 1")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--recorded", action="store_true", help="the table of the file as it is; nothing is played")
    parser.add_argument("--print", choices=[*ACCIDENTS], metavar="NAME", help="the scenario of an accident, as YAML")
    given = parser.parse_args(arguments)
    if given.print is not None:
        print(yaml.safe_dump(dict(ACCIDENTS[given.print].content(WITH)), sort_keys=False), end="")
        return 0
    names, runs = given.accident or [*ACCIDENTS], Runs(given.results)
    found = runs if given.recorded else make(names, given.data, given.seeds, runs, given.workers)
    for line in table(found, names):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
