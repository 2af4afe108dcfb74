"""What a campaign found, in words and as one JSON line a schedule."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from e2e.campaign.runner import Outcome
from e2e.campaign.timeline import CHECKS, broken, taken_requests


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One schedule; `recovered_seconds` None: not in time."""

    number: int
    faults: tuple[str, ...]
    requests: int
    taken: int
    recovered_seconds: float | None
    broken: dict[str, list[str]]


def line(outcome: Outcome) -> Line:
    """The figures of a schedule."""
    seen = outcome.seen
    names = tuple(fault.kind.name for fault in outcome.schedule.faults)
    found = {name: faults for name, faults in broken(seen).items() if faults}
    recovered = None if seen.recovered_seconds is None else round(seen.recovered_seconds, 1)
    return Line(outcome.schedule.number, names, len(seen.records), taken_requests(seen), recovered, found)


def told(each: Line, outcome: Outcome) -> str:
    """A schedule that has just been played, with how to play it again if it broke something."""
    recovery = "not whole again" if each.recovered_seconds is None else f"whole after {each.recovered_seconds:.1f} s"
    requests = f"{each.requests} requests, {each.taken} of them taken by the fault"
    words = [f"{each.number:4d}  {outcome.schedule.name}: {recovery}, {requests}"]
    words += [f"      {name}: {fault}" for name, faults in each.broken.items() for fault in faults[:5]]
    if each.broken:
        words.append(f"      again: --seed {outcome.schedule.seed} --only {each.number}")
    return "\n".join(words)


def as_json(each: Line) -> str:
    """A line of the journal."""
    return json.dumps(dataclasses.asdict(each))


def summary(lines: Sequence[Line]) -> str:
    """The counts that must be 0, and how fast the system was whole again."""
    counts: dict[str, int] = {name: sum(len(each.broken.get(name, ())) for each in lines) for name in CHECKS}
    words = [f"{len(lines)} schedules, {sum(each.requests for each in lines)} requests"]
    words += [f"{name}: {count}" for name, count in counts.items()]
    words.append(f"requests that a fault itself took with its engine: {sum(each.taken for each in lines)}")
    words.append(_recovery("recovery", lines))
    words += [_recovery(f"  {kind}", [each for each in lines if kind in each.faults]) for kind in _kinds(lines)]
    return "\n".join(words)


def _recovery(what: str, lines: Sequence[Line]) -> str:
    known = [each.recovered_seconds for each in lines if each.recovered_seconds is not None]
    if not known:
        return f"{what}: none of {len(lines)}"
    return f"{what}: p50 {statistics.median(known):.1f} s, worst {max(known):.1f} s of {len(known)}"


def _kinds(lines: Iterable[Line]) -> list[Any]:
    return sorted(Counter(kind for each in lines for kind in each.faults))
