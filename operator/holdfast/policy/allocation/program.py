"""The competition for GPUs as an integer program: who stays with how many replicas, and who moves to which accelerator.

A service that stays has some of the replicas it wants; one that moves does so as a whole, for it runs on one
accelerator at a time. Levels are the priorities, highest first: what a level can make good is never given up for a
lower one. All worths are good requests/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from holdfast.domain.service import ServiceKey
from holdfast.domain.value import value
from holdfast.policy.allocation.capacity_pool import CapacityPool
from holdfast.policy.capacity_request import STAYING, CapacityRequest

MOVING = 0.01
"""Share of what a service makes good that a move must gain at least; up to twice that for the dearest accelerator."""

ROUNDING = 1e-6

MOST_EXACT = 24
"""Of more services only the moves are whole numbers: parts of replicas are left to be handed out in turn."""

Terms = dict[int, float]
"""Coefficients by column."""


def total(terms: Mapping[int, float], values: Sequence[float]) -> float:
    """What the terms come to."""
    return sum(factor * values[column] for column, factor in terms.items())


def add(terms: Terms, more: Terms) -> None:
    """Add to the coefficients."""
    for column, factor in more.items():
        terms[column] = terms.get(column, 0.0) + factor


@value
class Sharing:
    """Replicas of those that stay, and the claims of those that move on the accelerators that they move to."""

    replicas: Mapping[ServiceKey, int]
    moved: Mapping[ServiceKey, CapacityRequest] = field(default_factory=dict)


@value
class Row:
    """`terms` at most `upper`."""

    terms: Terms
    upper: float


@value
class Level:
    """What each service of one priority makes good, and what to maximise for all: less the price of changes so far."""

    good: tuple[Terms, ...]
    worth: Terms

    def good_rps(self, values: Sequence[float]) -> float:
        """Good requests/s of all of them."""
        return sum(total(terms, values) for terms in self.good)


@value
class Program:
    """Columns from 0 to `upper`, whole numbers but for those in `real`; one level after another is maximised.

    `moves` are the columns that say where each service goes.
    """

    upper: tuple[float, ...]
    real: frozenset[int]
    moves: tuple[tuple[int, ...], ...]
    rows: tuple[Row, ...]
    levels: tuple[Level, ...]


@value
class Columns:
    """Where one service is in the program: full replicas, the last one that is not full, what goes on, and moves."""

    request: CapacityRequest
    full: int
    rest: int
    going_on: int
    moves: tuple[int, ...]

    @property
    def last(self) -> int:
        """The highest number."""
        return max(self.going_on, *self.moves) if self.moves else self.going_on

    @property
    def most_full(self) -> int:
        """Replicas that the load fills."""
        request = self.request
        if not request.rate_rps > 0.0:
            return 0
        return math.floor(min(request.demand_rps / request.rate_rps, float(request.want)) + 1e-9)

    @property
    def rest_rps(self) -> float:
        """What one more would carry."""
        return self.request.worth(self.most_full + 1) if self.most_full < self.request.want else 0.0

    @property
    def idle(self) -> int:
        """Replicas that stay although there is no load for them."""
        return max(0, self.request.least - self.most_full - (self.rest_rps > 0.0))

    def good(self) -> Terms:
        """Good requests/s that it makes."""
        staying = {self.full: self.request.rate_rps, self.rest: self.rest_rps}
        return staying | {column: to.good_rps(to.want) for column, to in self._elsewhere()}

    def lasting(self) -> Terms:
        """What is gained where nothing changes: replicas that run go on, and nobody moves."""
        price = max((_price(to) for to in self.request.elsewhere), default=0.0) or 1.0  # own machines cost nothing
        worth = self.request.good_rps(self.request.want)
        moves = {column: -MOVING * worth * (1.0 + _price(to) / price) for column, to in self._elsewhere()}
        return {self.going_on: STAYING - 1.0} | moves

    def rows(self) -> Iterator[Row]:
        """A service that moves has nothing where it was; one that stays keeps the least; only what is there goes on."""
        request, needed = self.request, self.request.least - self.idle
        if self.moves:
            yield Row({self.full: 1.0, **dict.fromkeys(self.moves, float(self.most_full))}, float(self.most_full))
            yield Row({self.rest: 1.0, **dict.fromkeys(self.moves, 1.0)}, 1.0)
        if needed > 0:
            yield Row({self.full: -1.0, self.rest: -1.0, **dict.fromkeys(self.moves, -float(needed))}, -float(needed))
        yield Row({self.going_on: 1.0, self.full: -request.rate_rps, self.rest: -self.rest_rps}, 0.0)

    def gpus(self, on: CapacityRequest) -> tuple[Terms, float]:
        """GPUs of one accelerator: those that depend on columns, and those that are held anyhow."""
        size, name = float(on.option.gpus_per_replica), on.option.name
        if name != self.request.option.name:
            return {column: size * to.want for column, to in self._elsewhere() if to.option.name == name}, 0.0
        fixed = size * (self.idle - on.outside)
        return {self.full: size, self.rest: size, **dict.fromkeys(self.moves, -fixed)}, fixed

    def values(self, sharing: Sharing) -> Terms:
        """The values of these columns in a sharing."""
        moved = sharing.moved.get(self.request.key)
        if moved is not None:
            return {column: 1.0 for column, to in self._elsewhere() if to.option.name == moved.option.name}
        replicas = sharing.replicas[self.request.key]
        full = min(replicas, self.most_full)
        rest = float(replicas > self.most_full and self.rest_rps > 0.0)
        running = min(self.request.good_rps(self.request.running), self.request.rate_rps * full + self.rest_rps * rest)
        return {self.full: float(full), self.rest: rest, self.going_on: running}

    def read(self, values: Sequence[float]) -> tuple[int, CapacityRequest | None]:
        """Replicas that stay, or where all go, in a solution of the program."""
        to = next((to for column, to in self._elsewhere() if values[column] > 0.5), None)
        beyond = math.floor(values[self.full] + ROUNDING) + math.floor(values[self.rest] + ROUNDING)
        return (0, to) if to else (min(max(self.idle + beyond, self.request.least), self.request.want), None)

    def _elsewhere(self) -> Iterator[tuple[int, CapacityRequest]]:
        return zip(self.moves, self.request.elsewhere, strict=True)


def columns_of(requests: Iterable[CapacityRequest]) -> tuple[Columns, ...]:
    """Number the columns of all services."""
    found, next_one = [], 0
    for request in requests:
        moves = tuple(range(next_one + 3, next_one + 3 + len(request.elsewhere)))
        found.append(Columns(request, next_one, next_one + 1, next_one + 2, moves))
        next_one += 3 + len(moves)
    return tuple(found)


def program_of(columns: Sequence[Columns], rooms: Sequence[CapacityPool]) -> Program:
    """Return the program of these services in the given rooms."""
    upper = [bound for each in columns for bound in _bounds(each)]
    rows = [row for each in columns for row in each.rows()]
    by_key = {each.request.key: each for each in columns}
    rows += [_room(room, by_key) for room in rooms]
    real = {each.going_on for each in columns}
    if len(columns) > MOST_EXACT:
        real |= {column for each in columns for column in (each.full, each.rest)}
    moves = tuple(each.moves for each in columns if each.moves)
    return Program(tuple(upper), frozenset(real), moves, tuple(rows), tuple(_levels(columns)))


def _bounds(columns: Columns) -> tuple[float, ...]:
    request = columns.request
    return (
        float(columns.most_full),
        float(columns.rest_rps > 0.0),
        request.good_rps(min(request.running, request.want)),
        *(1.0 for _ in columns.moves),
    )


def _room(room: CapacityPool, by_key: Mapping[ServiceKey, Columns]) -> Row:
    terms: Terms = {}
    left = float(room.gpus)
    for request in room.requests:
        needed, fixed = by_key[request.key].gpus(request)
        left -= fixed
        add(terms, needed)
    return Row(terms, left)


def _levels(columns: Sequence[Columns]) -> Iterator[Level]:
    lasting: Terms = {}
    for priority in sorted({each.request.priority for each in columns}, reverse=True):
        members = [each for each in columns if each.request.priority == priority]
        for each in members:
            lasting |= each.lasting()
        worth = dict(lasting)
        for each in members:
            add(worth, each.good())
        yield Level(tuple(each.good() for each in members), worth)


def _price(request: CapacityRequest) -> float:
    """Dollars an hour for all it wants there, or GPUs where there are no prices."""
    cost = request.option.cost_per_replica_hour
    return request.want * (request.option.gpus_per_replica if cost is None else cost)
