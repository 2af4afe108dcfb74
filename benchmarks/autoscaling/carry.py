"""Carry finished runs over to code that plays the same, instead of making them all again.

    python -m benchmarks.autoscaling.carry --data DIR [--most-seconds S]

For a change that is to leave every run as it is: a field more, a faster loop. Of each policy in each scenario, one run
of other code is made again, drawn by lot. Where all of a policy's come out the same to the last digit, its runs count
as runs of the code of now; where one does not, they stay what they are, and the benchmark makes them again.
`--most-seconds` leaves the longest runs out of the draw; a policy of which none is left is not carried.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.autoscaling.campaign import simulated
from benchmarks.autoscaling.cases import CASES, SHARED, VARIATIONS, Case, relaxed, varied
from benchmarks.autoscaling.journal import Journal, Key, Row, code_digest, kind_of

Group = tuple[str, str]
"""A policy, without its size, and the digest of its code."""


def main(words: Sequence[str] | None = None) -> int:
    """Draw, play again, and carry over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the traces that scenarios name")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/autoscaling"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most-seconds", type=float, default=600.0)
    given = parser.parse_args(words)
    drawn = draw(Journal(given.results).rows(), given.most_seconds)
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as workers:
        same = equal(drawn, partial(workers.map, partial(_again, given.data)))
    for group, (alike, made) in sorted(same.items()):
        print(f"{group[0]} of {group[1]}: {alike} of {made} runs again as they were")
    kept = {group for group, (alike, made) in same.items() if alike == made}
    carried = sum(carry(path, kept) for path in sorted(given.results.glob("*.jsonl")))
    print(f"{carried} runs are runs of the code of now")
    return 0


def draw(rows: Iterable[tuple[Key, Row]], most_seconds: float, seed: int = 1) -> list[tuple[Key, Row]]:
    """One run of each policy in each scenario whose code is another one by now, the shortest first."""
    cases = {case.title: case for case in _cases()}
    places: dict[tuple[str, Group], list[tuple[Key, Row]]] = defaultdict(list)
    for key, row in rows:
        case = cases.get(key.case)
        stale = key.code != code_digest(key.policy)
        if case is not None and case.digest() == key.case_digest and stale and row.wall_seconds <= most_seconds:
            places[key.case, _group(key)].append((key, row))
    lot = random.Random(seed)
    return sorted((lot.choice(found) for _, found in sorted(places.items())), key=lambda run: run[1].wall_seconds)


def equal(
    drawn: Sequence[tuple[Key, Row]], play: Callable[[Sequence[Key]], Iterable[Row]]
) -> Mapping[Group, tuple[int, int]]:
    """How many runs of each group came out as they were, and of how many."""
    found: dict[Group, tuple[int, int]] = {}
    for (key, row), again in zip(drawn, play([key for key, _ in drawn]), strict=True):
        alike, made = found.get(_group(key), (0, 0))
        is_alike = replace(again, wall_seconds=row.wall_seconds) == row
        found[_group(key)] = (alike + is_alike, made + 1)
        print(f"{key.case} {key.policy} seed {key.seed}: {'as it was' if is_alike else 'another'}", file=sys.stderr)
    return found


def carry(path: Path, kept: set[Group]) -> int:
    """Let the runs of these groups in a file be of the code of now; returns how many there are."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ours = [line["key"] for line in lines if (kind_of(line["key"]["policy"]), line["key"]["code"]) in kept]
    for key in ours:
        key["code"] = code_digest(key["policy"])
    if ours:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return len(ours)


def _again(data: Path, key: Key) -> Row:
    (case,) = (case for case in _cases() if case.title == key.case)
    return simulated(case, data, key.policy, key.knob, key.seed, key.limits)


def _cases() -> Iterator[Case]:
    yield from (*CASES.values(), SHARED)
    yield from map(relaxed, CASES.values())
    for variation in VARIATIONS:
        yield from varied(variation)


def _group(key: Key) -> Group:
    return kind_of(key.policy), key.code


if __name__ == "__main__":
    sys.exit(main())
