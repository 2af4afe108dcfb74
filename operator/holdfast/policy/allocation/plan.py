"""GPUs shared out by integer program, where that can do better than one claim after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.domain.service import ServiceKey
from holdfast.policy.allocation.capacity_pool import CapacityPool, capacity_pools
from holdfast.policy.allocation.greedy import share_out
from holdfast.policy.allocation.program import Columns, Program, Sharing, columns_of, program_of, total
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.placement.node_inventory import Inventory

MOST_SERVICES = 400
"""More that compete are shared out one after another."""

MOST_PRIORITIES = 8
"""Each is a program of its own."""

TOLERANCE = 1e-6
"""Relative; what differs by less is the same."""

Solver = Callable[[Program, Sequence[float]], Sequence[float] | None]
"""From a program and a solution to start from to one that is at least as good; None in any doubt."""


def share(
    scarce: Sequence[CapacityPool], requests: Mapping[ServiceKey, CapacityRequest], inventory: Inventory, solve: Solver
) -> Sharing:
    """Return who stays with how many replicas and who moves: the program's answer where it is better than in turn.

    A small change of the fleet decides whether the program's iterations suffice. Without an answer, what runs is not
    undone where that would be worse.
    """
    in_turn = Sharing(share_out(scarce))
    rivals = sorted((requests[key] for key in in_turn.replicas), key=lambda request: request.key)
    if not _may_gain(rivals, in_turn):
        return in_turn
    columns, rooms = columns_of(rivals), _rooms(rivals, requests, inventory, in_turn)
    if rooms is None:
        return in_turn
    program = program_of(columns, rooms)
    values = solve(program, _values(columns, in_turn))
    planned = None if values is None else _planned(columns, rooms, values)
    found = planned or _going_on(columns, rooms)
    return found if found and _better(program, columns, found, in_turn) else in_turn


def _may_gain(rivals: Sequence[CapacityRequest], in_turn: Sharing) -> bool:
    """Somebody goes short, and moves or other replica sizes leave a choice that the order does not see."""
    short = any(request.good_rps(in_turn.replicas[request.key]) < request.good_rps(request.want) for request in rivals)
    sizes = {request.option.gpus_per_replica for request in rivals}
    choice = len(sizes) > 1 or any(request.elsewhere for request in rivals)
    few = len(rivals) <= MOST_SERVICES and len({request.priority for request in rivals}) <= MOST_PRIORITIES
    return short and choice and few


def _rooms(
    rivals: Sequence[CapacityRequest],
    requests: Mapping[ServiceKey, CapacityRequest],
    inventory: Inventory,
    in_turn: Sharing,
) -> list[CapacityPool] | None:
    """The pools with what rivals may have there: of those that are not scarce what all others leave.

    None where not even the least of all fits: what one leaves there is free for nobody.
    """
    found = []
    for pool in capacity_pools(
        [*requests.values(), *(to for request in rivals for to in request.elsewhere)], inventory
    ):
        mine = tuple(request for request in pool.requests if request.key in in_turn.replicas)
        theirs = sum(request.gpus(request.want) for request in pool.requests if request.key not in in_turn.replicas)
        if mine:
            held = sum(
                request.gpus(in_turn.replicas[request.key]) for request in mine if request is requests[request.key]
            )
            if held > max(0, pool.gpus - theirs):
                return None
            found.append(CapacityPool(max(0, pool.gpus - theirs), mine))
    return found


def _values(columns: Sequence[Columns], sharing: Sharing) -> list[float]:
    values = [0.0] * (columns[-1].last + 1)
    for each in columns:
        for column, value in each.values(sharing).items():
            values[column] = value
    return values


def _planned(columns: Sequence[Columns], rooms: Sequence[CapacityPool], values: Sequence[float]) -> Sharing | None:
    """What the program says, with what it leaves handed out in turn; None where it would not fit."""
    if len(values) != columns[-1].last + 1 or not all(map(math.isfinite, values)):
        return None
    read = {each.request.key: each.read(values) for each in columns}
    moved = {key: to for key, (_, to) in read.items() if to}
    return _handed_out(rooms, moved, {key: replicas for key, (replicas, _) in read.items()}, columns)


def _going_on(columns: Sequence[Columns], rooms: Sequence[CapacityPool]) -> Sharing | None:
    """All that runs and is wanted goes on, what is left is handed out in turn; None where not even that fits."""
    kept = {each.request.key: max(each.request.least, min(each.request.running, each.request.want)) for each in columns}
    return _handed_out(rooms, {}, kept, columns)


def _handed_out(
    rooms: Sequence[CapacityPool],
    moved: Mapping[ServiceKey, CapacityRequest],
    kept: Mapping[ServiceKey, int],
    columns: Sequence[Columns],
) -> Sharing | None:
    """So many of those that stay, and in turn what is left; None where they do not fit."""
    own = {each.request.key: replace(each.request, least=kept[each.request.key]) for each in columns}
    left = [_without(room, moved, own) for room in rooms]
    if any(sum(request.gpus(request.least) for request in pool.requests) > pool.gpus for pool in left):
        return None
    return Sharing(share_out(left), moved)


def _without(
    room: CapacityPool, moved: Mapping[ServiceKey, CapacityRequest], own: Mapping[ServiceKey, CapacityRequest]
) -> CapacityPool:
    """What those that move leave to those that stay."""
    gone = sum(request.gpus(request.want) for request in room.requests if moved.get(request.key) is request)
    stay = (
        own[request.key]
        for request in room.requests
        if request.key not in moved and request.option.name == own[request.key].option.name
    )
    return CapacityPool(room.gpus - gone, tuple(stay))


def _better(program: Program, columns: Sequence[Columns], planned: Sharing, in_turn: Sharing) -> bool:
    """The first priority that is served differently decides, by what is left after the price of changes."""
    ours, theirs = _values(columns, planned), _values(columns, in_turn)
    for level in program.levels:
        before = level.good_rps(theirs)
        if abs(level.good_rps(ours) - before) > TOLERANCE * max(1.0, before):
            return total(level.worth, ours) > total(level.worth, theirs)
    return False
