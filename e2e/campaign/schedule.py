"""Fault schedules, drawn: which faults meet which part of the system, when, and for how long.

Pure functions of a seed and a number, so that a schedule that breaks something is played again alone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

MOST_FAULTS = 3
_SPREAD_SECONDS = 15.0
"""Further faults begin at most that long after the first."""


class Scope(enum.Enum):
    """Whom a fault can meet."""

    SERVICE = "service"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: the part that it meets, and how long it lasts, in seconds; 0 where it is over at once.

    `asks`: it is done through the API server, which must be there for it.
    """

    name: str
    scope: Scope
    part: str
    least_seconds: float = 0.0
    most_seconds: float = 0.0
    asks: bool = False


def _of(scope: Scope, part: str, names: str, least: float = 0.0, most: float = 0.0, asks: bool = False) -> list[Kind]:
    return [Kind(name, scope, part, least, most, asks) for name in names.split()]


ROW_LIES = "nan infinite negative huge zero duplicate half frozen late"
ANSWER_LIES = "empty error hang"
KINDS = (
    *_of(Scope.SERVICE, "engine", "engine-killed"),
    *_of(Scope.SERVICE, "engine", "engine-stopped engine-partitioned", 5, 15),
    *_of(Scope.SERVICE, "engine", "replica-evicted replica-deleted", asks=True),
    *_of(Scope.SERVICE, "objects", "objects-deleted", asks=True),
    *_of(Scope.SERVICE, "answers", ROW_LIES, 20, 60),
    *_of(Scope.CLUSTER, "operator", "leader-killed operators-killed"),
    *_of(Scope.CLUSTER, "operator", "leader-stopped leader-partitioned", 5, 30),
    *_of(Scope.CLUSTER, "operator", "leader-deleted", asks=True),
    *_of(Scope.CLUSTER, "etcd", "etcd-stopped", 5, 20),
    *_of(Scope.CLUSTER, "etcd", "etcd-killed", 1, 10),
    *_of(Scope.CLUSTER, "api-server", "api-server-stopped", 5, 20),
    *_of(Scope.CLUSTER, "api-server", "api-server-killed", 1, 10),
    *_of(Scope.CLUSTER, "prometheus", "prometheus-stopped", 10, 30),
    *_of(Scope.CLUSTER, "prometheus", "prometheus-killed"),
    *_of(Scope.CLUSTER, "answers", ANSWER_LIES, 20, 60),
    *_of(Scope.CLUSTER, "crd", "services-unserved benchmarks-removed", 10, 30, asks=True),
)
_SILENCING = {"etcd", "api-server"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that begins so many seconds after its schedule does, and lasts so many."""

    kind: Kind
    at_seconds: float
    lasts_seconds: float

    @property
    def ends_seconds(self) -> float:
        """When it is over, from the start of the schedule."""
        return self.at_seconds + self.lasts_seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """One to three faults that meet different parts."""

    seed: int
    number: int
    faults: tuple[Fault, ...]

    @property
    def scope(self) -> Scope:
        """Whom it meets: one service, or all."""
        return self.faults[0].kind.scope

    @property
    def name(self) -> str:
        """Its faults in words."""
        return " + ".join(f"{fault.kind.name} {fault.lasts_seconds:.0f}s" for fault in self.faults)


def drawn(seed: int, number: int) -> Schedule:
    """A schedule. As many in a row as there are kinds of faults have each kind for their first fault."""
    turn, place = divmod(number, len(KINDS))
    first = Random(f"{seed}/turn {turn}").sample(KINDS, len(KINDS))[place]
    random = Random(f"{seed}/{number}")
    kinds = [first]
    while len(kinds) < MOST_FAULTS and random.random() < 0.4:
        others = [kind for kind in KINDS if all(_together(kind, known) for known in kinds)]
        if others:
            kinds.append(random.choice(others))
    begins = [0.0, *(random.uniform(0.0, _SPREAD_SECONDS) for _ in kinds[1:])]
    faults = (
        Fault(kind, round(at, 1), round(random.uniform(kind.least_seconds, kind.most_seconds), 1))
        for kind, at in zip(kinds, begins, strict=True)
    )
    return Schedule(seed, number, tuple(faults))


def rounds(schedules: Sequence[Schedule], services: int) -> list[list[Schedule]]:
    """Those that are played at the same time: of single services one on each, of the cluster one alone."""
    found: list[list[Schedule]] = []
    single = [each for each in schedules if each.scope is Scope.SERVICE]
    found += [single[start : start + services] for start in range(0, len(single), services)]
    found += [[each] for each in schedules if each.scope is Scope.CLUSTER]
    return sorted(found, key=lambda together: together[0].number)


def _together(kind: Kind, other: Kind) -> bool:
    """Whether two faults can meet: not on the same part, and nothing is asked of an API server that is silent."""
    silent = (kind.part in _SILENCING and other.asks) or (other.part in _SILENCING and kind.asks)
    return kind.scope is other.scope and kind.part != other.part and not silent
