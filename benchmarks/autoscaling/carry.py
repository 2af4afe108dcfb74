"""Check that the present code plays finished runs to the last digit, and say so in the manifest.

    python -m benchmarks.autoscaling.carry --data DIR [--all | --again] [--policies A,B] [--newest] [--single]
        [--most-seconds S]

For a change that must leave every run as it is: a rename, a new field, a faster loop. One run of each policy in each
scenario is drawn by lot and replayed. If all runs of a policy come out the same, the manifest (`code.json`) gets the
digest of the present code; so it does for a scenario whose requests are made by changed code. No run is touched. If one
run differs, its policy and its scenario keep their old digests, the benchmark makes their runs again, and this program
returns 1. `--most-seconds` leaves out longer runs; a policy without a replayed run keeps its digest. Carry before the
benchmark makes new runs: the manifest keeps one label for each policy and scenario.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.autoscaling.campaign import SHIPPED, simulated
from benchmarks.autoscaling.cases import CASES, SHARED, VARIATIONS, Case, relaxed, varied
from benchmarks.autoscaling.journal import BESIDES, Code, Journal, Key, Row, code_digest, kind_of

KINDS = (*BESIDES, *SHIPPED)

Run = tuple[Key, Row]
Part = tuple[str, str]
"""A kind of policy and the label of its code, or the title of a scenario and its label."""
Play = Callable[[Sequence[Key]], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which runs are replayed; `again`: also those whose code the manifest already names.

    `newest`: those of make bench, which has no other clusters, with the labels that were written last of each policy in
    each scenario.
    """

    most_seconds: float = 600.0
    kinds: Sequence[str] = KINDS
    newest: bool = False
    single: bool = False
    again: bool = False
    every: bool = False


def main(words: Sequence[str] | None = None) -> int:
    """Replay and update the manifest; 1 where a run came out different."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces that scenarios name")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/autoscaling"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most-seconds", type=float, default=600.0, help="longest run to replay; default 600")
    parser.add_argument("--policies", type=_kinds, default=KINDS, help="only these, separated by commas")
    parser.add_argument("--newest", action="store_true", help="the last runs of make bench, without older code")
    parser.add_argument("--single", action="store_true", help="leave out the scenario with several services")
    parser.add_argument("--again", action="store_true", help="also draw runs whose code is current")
    parser.add_argument("--all", action="store_true", help="replay every run, current ones included")
    given = parser.parse_args(words)
    again = given.again or given.all
    scope = Scope(given.most_seconds, given.policies, given.newest, given.single, again, given.all)
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as workers:
        return carry(Journal(given.results), scope, partial(workers.map, partial(_replayed, given.data)))


def carry(journal: Journal, scope: Scope, play: Play) -> int:
    """Replay what the scope asks for, update the manifest and print the result; 1 where a run came out different."""
    found = replayable(journal, scope)
    found = found if scope.every else draw(found)
    different = compare(found, play)
    for key in different:
        knob = "" if key.knob is None else f" knob {key.knob:.3g}"
        limits = "" if key.limits is None else f" limits {tuple(key.limits)}"
        print(f"different: {key.case}, {key.policy}{knob}{limits}, seed {key.seed}")
    made = Counter(part for key, _ in found for part in _parts(key))
    unlike = Counter(part for key in different for part in _parts(key))
    for (name, label), count in sorted(made.items()):
        if name in KINDS:
            print(f"{name} of {label}: {count - unlike[name, label]} of {count} runs are the same")
    codes = confirmed(journal, [part for part in made if not unlike[part]])
    if codes != journal.codes:
        journal.write_codes(codes)
    print(f"{len(found) - len(different)} of {len(found)} replayed runs are the same")
    return 1 if different or (scope.again and not found) else 0


def replayable(journal: Journal, scope: Scope) -> list[Run]:
    """The runs within the scope; those with the same requests follow each other."""
    found = [case for case in _cases() if not (scope.single and case.shared)]
    cases = [case for case in found if not (scope.newest and case.variation)]
    labels = {case.title: journal.case_label(case.title, case.digest()) for case in cases}
    last = {(key.case, kind_of(key.policy)): (key.case_digest, key.code) for key, _ in journal.rows()}

    def fits(key: Key, row: Row) -> bool:
        return (
            kind_of(key.policy) in scope.kinds
            and key.case in labels
            and row.wall_seconds <= scope.most_seconds
            and (not scope.newest or last[key.case, kind_of(key.policy)] == (key.case_digest, key.code))
            and (scope.again or (key.case_digest, key.code) != (labels[key.case], journal.label(key.policy)))
        )

    return sorted((run for run in journal.rows() if fits(*run)), key=lambda run: (run[0].case, run[0].seed))


def draw(runs: Iterable[Run], seed: int = 1) -> list[Run]:
    """One run of each policy in each scenario, the shortest first."""
    places: dict[tuple[Part, ...], list[Run]] = defaultdict(list)
    for key, row in runs:
        places[_parts(key)].append((key, row))
    lot = random.Random(seed)
    return sorted((lot.choice(found) for _, found in sorted(places.items())), key=lambda run: run[1].wall_seconds)


def compare(runs: Sequence[Run], play: Play) -> list[Key]:
    """Replay runs and return those that came out different in anything but the time they took."""
    different = []
    for (key, row), again in zip(runs, play([key for key, _ in runs]), strict=True):
        same = replace(again, wall_seconds=row.wall_seconds) == row
        print(f"{key.case} {key.policy} seed {key.seed}: {'same' if same else 'different'}", file=sys.stderr)
        if not same:
            different.append(key)
    return different


def confirmed(journal: Journal, alike: Iterable[Part]) -> Mapping[str, Code]:
    """The manifest with the present digest for each of these parts.

    Where several labels of one name qualify, the present one included, the label with the most runs is taken.
    """
    count = Counter(part for key, _ in journal.rows() for part in _parts(key))
    cases = {case.title: case.digest() for case in _cases()}
    codes = dict(journal.codes)
    for name, label in sorted(alike, key=lambda part: count[part]):
        digest = cases[name] if name in cases else code_digest(name)
        present = journal.case_label(name, digest) if name in cases else journal.label(name)
        if label != present and count[name, label] >= count[name, present]:
            codes[name] = Code(label, digest)
    return codes


def _kinds(text: str) -> Sequence[str]:
    kinds = text.split(",")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    return kinds


def _replayed(data: Path, key: Key) -> Row:
    (case,) = (case for case in _cases() if case.title == key.case)
    return simulated(case, data, key.policy, key.knob, key.seed, key.limits)


def _cases() -> Iterator[Case]:
    yield from (*CASES.values(), SHARED)
    yield from map(relaxed, CASES.values())
    for variation in VARIATIONS:
        yield from varied(variation)


def _parts(key: Key) -> tuple[Part, Part]:
    return (key.case, key.case_digest), (kind_of(key.policy), key.code)


if __name__ == "__main__":
    sys.exit(main())
