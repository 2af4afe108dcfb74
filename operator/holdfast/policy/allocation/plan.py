"""GPUs shared out in turn, then improved by exchanges between the services that compete.

An exchange moves one service as a whole to another accelerator, guarantees one service another replica, or leaves all
that runs where it is. It is made if the first priority that it serves differently is served better, by more than what
stops and moves is worth. The search is bounded by work and not by time: the same snapshot gets the same answer however
slow the machine is. Source: docs/designs/0003-fleet.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceKey
from holdfast.domain.value import value
from holdfast.policy.allocation.capacity_pool import CapacityPool, capacity_pools
from holdfast.policy.capacity_request import STAYING, CapacityRequest

MOST_TRIALS = 200
"""Exchanges that are tried, for all services together."""

MOVING = 0.01
"""Share of what a service makes good that a move must gain at least; up to twice that for the dearest accelerator."""

TOLERANCE = 1e-6
"""Relative; what differs by less is the same."""

Requests = Mapping[ServiceKey, CapacityRequest]


@value
class Sharing:
    """`replicas` of the services that stay. `moved` services have their request on the new accelerator.

    `asked`: what each was taken to ask for, with its guaranteed replicas as the least.
    """

    replicas: Mapping[ServiceKey, int]
    moved: Requests = field(default_factory=dict)
    asked: Requests = field(default_factory=dict)


def share_out(pools: Sequence[CapacityPool]) -> dict[ServiceKey, int]:
    """Return how many replicas each request gets in turn: by priority, then by good requests per GPU.

    No request gets more than it wants, or more than fit once each has its least; the least is given even where it does
    not fit. Replicas that add no good requests come last, at any priority.
    """
    requests = {request.key: request for pool in pools for request in pool.requests}
    allocated = {key: request.least for key, request in requests.items()}
    left = [pool.gpus - sum(request.gpus(request.least) for request in pool.requests) for pool in pools]
    within: defaultdict[ServiceKey, list[int]] = defaultdict(list)
    for index, pool in enumerate(pools):
        for request in pool.requests:
            within[request.key].append(index)
    steps = [
        (worth <= 0.0, -request.priority, -worth, request.key, replicas)
        for request in requests.values()
        for replicas, worth in request.steps()
    ]
    for *_, key, wanted in sorted(steps):
        size = requests[key].option.gpus_per_replica
        replicas = max(0, min(wanted, *(left[index] // size for index in within[key])))
        allocated[key] += replicas
        for index in within[key]:
            left[index] -= replicas * size
    return allocated


def share(scarce: Sequence[CapacityPool], requests: Requests, inventory: Inventory) -> Sharing:
    """Return who stays with how many replicas and who moves."""
    best = Sharing(share_out(scarce))
    rivals = sorted((requests[key] for key in best.replicas), key=lambda request: (request.priority, request.key))
    sizes = {request.option.gpus_per_replica for request in rivals}
    # Moves and other replica sizes leave a choice that the order does not see.
    choice = len(sizes) > 1 or any(request.elsewhere for request in rivals)
    may_gain = choice and any(_goes_short(request, best) for request in rivals)
    return _improved(best, rivals, _rooms(rivals, requests, inventory)) if may_gain else best


def _goes_short(request: CapacityRequest, sharing: Sharing) -> bool:
    return request.good_rps(sharing.replicas[request.key]) < request.good_rps(request.want)


def _improved(best: Sharing, rivals: Sequence[CapacityRequest], rooms: Sequence[CapacityPool]) -> Sharing:
    """Make every exchange that is better, until none is or all trials are spent."""
    trials, before = iter(range(MOST_TRIALS)), None
    while best is not before:
        before = best
        for changed, _ in zip(_exchanges(before, rivals), trials, strict=False):
            found = _handed_out(rooms, rivals, {**best.asked, **changed})
            best = found if found is not None and _better(rivals, found, best) else best
    return best


def _exchanges(now: Sharing, rivals: Sequence[CapacityRequest]) -> Iterator[Requests]:
    """Yield what to try, each as the requests that change.

    First, all running replicas stay. Then each service that goes short gets one replica more, the highest priority
    first. Then each service moves to each other accelerator, the lowest priority first.
    """
    stay = [request for request in rivals if request.key not in now.moved]
    yield {request.key: _guaranteed(request, request.running) for request in stay}
    for request in reversed(stay):
        if _goes_short(request, now):
            yield {request.key: _guaranteed(request, now.replicas[request.key] + 1)}
    for request in stay:
        for to in request.elsewhere:
            yield {request.key: to}


def _guaranteed(request: CapacityRequest, replicas: int) -> CapacityRequest:
    return replace(request, least=max(request.least, min(replicas, request.want)))


def _rooms(rivals: Sequence[CapacityRequest], requests: Requests, inventory: Inventory) -> list[CapacityPool]:
    """The pools with the GPUs that the rivals may have there: all of a pool, less what the other services want.

    Minimums above a cap are the trouble of its namespace alone.
    """
    found, keys, moves = [], {request.key for request in rivals}, (to for each in rivals for to in each.elsewhere)
    for pool in capacity_pools([*requests.values(), *moves], inventory):
        mine = tuple(request for request in pool.requests if request.key in keys)
        theirs = sum(request.gpus(request.want) for request in pool.requests if request.key not in keys)
        if mine:
            least = sum(each.gpus(each.least) for each in mine if each is requests[each.key]) if pool.cap else 0
            found.append(CapacityPool(max(least, pool.gpus - theirs), mine))
    return found


def _handed_out(rooms: Sequence[CapacityPool], rivals: Sequence[CapacityRequest], changed: Requests) -> Sharing | None:
    """What is asked for, in turn; None where what is guaranteed and what moves does not fit."""
    asked = {request.key: changed.get(request.key, request) for request in rivals}
    pools = []
    for room in rooms:
        here = (asked[request.key] for request in room.requests if request.option is asked[request.key].option)
        pools.append(CapacityPool(room.gpus, tuple(here)))
        if sum(request.gpus(request.least) for request in pools[-1].requests) > room.gpus:
            return None
    moved = {request.key: to for request in rivals if (to := asked[request.key]).option is not request.option}
    return Sharing({key: count for key, count in share_out(pools).items() if key not in moved}, moved, changed)


def _better(rivals: Sequence[CapacityRequest], found: Sharing, best: Sharing) -> bool:
    """The first priority that is served differently decides, by what is left after the price of changes."""
    ours = theirs = 0.0
    for priority in sorted({request.priority for request in rivals}, reverse=True):
        members = [request for request in rivals if request.priority == priority]
        mine, other = (sum(_good_rps(request, each) for request in members) for each in (found, best))
        ours += sum(_kept_rps(request, found) for request in members)
        theirs += sum(_kept_rps(request, best) for request in members)
        if abs(mine - other) > TOLERANCE * max(1.0, other):
            return mine + ours > other + theirs
    return False


def _good_rps(request: CapacityRequest, sharing: Sharing) -> float:
    to = sharing.moved.get(request.key)
    return request.good_rps(sharing.replicas[request.key]) if to is None else to.good_rps(to.want)


def _kept_rps(request: CapacityRequest, sharing: Sharing) -> float:
    """What goes on running is worth in addition, in good requests/s; less the price of a move."""
    to = sharing.moved.get(request.key)
    if to is None:
        return (STAYING - 1.0) * request.good_rps(min(request.running, sharing.replicas[request.key]))
    dearest = max(map(_price, request.elsewhere)) or 1.0  # own machines cost nothing
    return -MOVING * request.good_rps(request.want) * (1.0 + _price(to) / dearest)


def _price(request: CapacityRequest) -> float:
    """Dollars an hour for all it wants there, or GPUs where there are no prices."""
    cost = request.option.cost_per_replica_hour
    return request.want * (request.option.gpus_per_replica if cost is None else cost)
