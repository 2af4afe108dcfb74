"""What a comparison would run, and how long that takes by the runs that are written down, of this code or of any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from benchmarks.autoscaling.campaign import APART, OWN, SHIPPED
from benchmarks.autoscaling.cases import Case
from benchmarks.autoscaling.journal import Journal, kind_of
from holdfast.twin.runs.oracle import ORACLE

FRONT_RUNS = 8
"""Runs that the search of one knob takes as a rule, what is shipped among them."""

NEAR_RUNS = 4
"""The same where it begins at the best knob of the same scenario on another cluster, or without fixed limits."""

SIZES = 4
"""Sizes that the search of the smallest that attains tries as a rule."""

PEER = "peer"
STATIC = "static"
SLOW = "holdfast-slow"


def outlook(
    cases: Sequence[Case],
    journal: Journal,
    peers: Sequence[str],
    *,
    seeds: int,
    scarce_seeds: int,
    fast_loop: bool,
    tuned: bool,
    workers: int,
) -> Iterator[str]:
    """Lines of Markdown: runs by scenario, and minutes. What was never run in it is guessed from other scenarios."""
    known = _known(journal)
    total, lacking = 0.0, False
    yield "| scenario | runs | minutes of one core | of it guessed | never run anywhere |"
    yield "|---|---|---|---|---|"
    for case in cases:
        runs = _runs(case, len(peers), scarce_seeds if case.scarce else seeds, fast_loop, tuned)
        sure = sum(count * known.get((case.name, kind), 0.0) for kind, count in runs.items()) / 60.0
        new = {kind: _guess(known, case.name, kind) for kind in runs if (case.name, kind) not in known}
        guessed = sum(runs[kind] * (seconds or 0.0) for kind, seconds in new.items()) / 60.0
        unknown = sorted(kind for kind, seconds in new.items() if seconds is None)
        total, lacking = total + sure + guessed, lacking or bool(unknown)
        yield f"| {case.title} | {sum(runs.values())} | {sure + guessed:.1f} | {guessed:.1f} | {', '.join(unknown)} |"
    yield ""
    yield f"{'At least ' if lacking else 'About '}{total / workers:.0f} min on {workers} cores. Finished runs count."


def _runs(case: Case, peers: int, seeds: int, fast_loop: bool, tuned: bool) -> dict[str, int]:
    """By kind: a front on the first seed; as shipped, the best, its neighbour and the common knob on the others."""
    swept = (FRONT_RUNS if case.variation is None else NEAR_RUNS + 1) + 4 * (seeds - 1)
    hindsights = (2 if case.variation is None else 1) if tuned and case.compared else 0
    swept += hindsights * (NEAR_RUNS + 2 * (seeds - 1))
    own = {name: seeds for name in OWN if name != "holdfast" or fast_loop}
    if case.shared:
        return {**own, APART: seeds}
    if case.alone:
        return {"holdfast" if fast_loop else SLOW: seeds}
    sizes = SIZES * (1 + case.unavoidable + hindsights)
    return {**own, STATIC: seeds * sizes, ORACLE: seeds, PEER: peers * swept}


def _guess(known: Mapping[tuple[str, str], float], name: str, kind: str) -> float | None:
    """Seconds of a kind of runs, by Holdfast's in this scenario and by what it takes in others beside Holdfast's."""
    ratios = [
        seconds / known[other, SLOW]
        for (other, what), seconds in known.items()
        if what == kind and (other, SLOW) in known
    ]
    return mean(ratios) * known[name, SLOW] if ratios and (name, SLOW) in known else None


def _known(journal: Journal) -> dict[tuple[str, str], float]:
    """Mean seconds by scenario and kind."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for key, row in journal.rows():
        kind = PEER if key.policy in SHIPPED else kind_of(key.policy)
        seconds[key.case.partition(",")[0], kind].append(row.wall_seconds)
    return {place: mean(each) for place, each in seconds.items()}
