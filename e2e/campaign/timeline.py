"""What happened while a schedule was played, and what must not have: pure judgements of a recorded timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from e2e.load.records import Record

_LOST = {"error", "truncated"}
_UNREACHED_SECONDS = 3.0
"""How long kube-proxy may go on sending new connections to a replica that is gone or Ready again."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a Deployment as it was seen, and from when on (epoch seconds)."""

    at: float
    service: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Write:
    """A request of an operator that the API server carried out: when it came and when it was answered."""

    received_at: float
    answered_at: float
    writer: str
    what: str
    is_lease: bool


@dataclass(frozen=True, slots=True)
class Harm:
    """A replica whose engine a fault took away, and for how long (epoch seconds)."""

    replica: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most replicas by the spec, and how many the constant load needs."""

    least: int
    needed: int
    most: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that was seen from the start of a schedule to the recovery after it."""

    bounds: Bounds
    sizes: Sequence[Size] = ()
    records: Sequence[Record] = ()
    harms: Sequence[Harm] = ()
    writes: Sequence[Write] = ()
    recovered_seconds: float | None = None


def false_scale_downs(seen: Timeline) -> list[str]:
    """Sizes that were lowered below what the load needs, which is the same all the time."""
    return [
        f"{after.service} from {before.replicas} to {after.replicas}, and its load needs {seen.bounds.needed}"
        for before, after in _changes(seen.sizes)
        if after.replicas < min(before.replicas, seen.bounds.needed)
    ]


def sizes_out_of_bounds(seen: Timeline) -> list[str]:
    """Sizes that the spec does not allow."""
    least, most = seen.bounds.least, seen.bounds.most
    return [
        f"{each.service} had the size {each.replicas}, and may have {least} to {most}"
        for each in seen.sizes
        if not least <= each.replicas <= most
    ]


def lost_requests(seen: Timeline) -> list[str]:
    """Requests without their answer, but for those of a replica whose engine the fault itself took away."""
    return [_fate(each) for each in seen.records if each.status in _LOST and not _is_taken(each, seen.harms)]


def taken_requests(seen: Timeline) -> int:
    """Requests that were lost because the fault itself took their engine away."""
    return sum(record.status in _LOST and _is_taken(record, seen.harms) for record in seen.records)


def double_leaders(seen: Timeline) -> list[str]:
    """Writes of an operator while the Lease was another one's."""
    found, holder, since = [], "", 0.0
    for write in sorted(seen.writes, key=lambda each: each.answered_at if each.is_lease else each.received_at):
        if write.is_lease and write.writer != holder:
            holder, since = write.writer, write.answered_at
        elif holder and write.writer != holder:
            late_seconds = write.received_at - since
            found.append(f"{write.writer} wrote {write.what} {late_seconds:.1f} s after {holder} had taken the Lease")
    return found


def not_recovered(seen: Timeline) -> list[str]:
    """Whether the system was whole again in time."""
    return [] if seen.recovered_seconds is not None else ["not whole again in time"]


CHECKS: dict[str, Callable[[Timeline], list[str]]] = {
    "false scale-downs": false_scale_downs,
    "lost requests": lost_requests,
    "sizes out of bounds": sizes_out_of_bounds,
    "double leaders": double_leaders,
    "not recovered": not_recovered,
}
"""What a campaign counts; all of them must be 0."""


def broken(seen: Timeline) -> dict[str, list[str]]:
    """What each check found, by its name."""
    return {name: check(seen) for name, check in CHECKS.items()}


def _fate(record: Record) -> str:
    took_seconds = record.finished_at - record.sent_at
    return f"{record.status} after {took_seconds:.1f} s at {record.replica or 'nobody'}: {record.error}"


def _changes(sizes: Sequence[Size]) -> Iterator[tuple[Size, Size]]:
    """Each size of a service with the one after it."""
    last: dict[str, Size] = {}
    for size in sorted(sizes, key=lambda each: each.at):
        if size.service in last:
            yield last[size.service], size
        last[size.service] = size


def _is_taken(record: Record, harms: Sequence[Harm]) -> bool:
    """Whether a fault took the engine away that had the request, or the only one that could have got it."""
    return any(
        harm.since <= record.finished_at and record.sent_at <= harm.until + _UNREACHED_SECONDS
        for harm in harms
        if record.replica in ("", harm.replica)
    )
