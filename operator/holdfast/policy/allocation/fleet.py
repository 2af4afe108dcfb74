"""Services that compete for the same accelerators: who gets how many where what all want does not fit.

A second step after the decisions that services make alone. It changes none of them unless accelerators are really
short: the nodes do not hold what all want together, and a replica has waited for longer than nodes take to come (or
did so a short while ago). Where nodes may still come, asking for more is what makes them come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.value import value
from holdfast.policy.allocation.capacity_pool import CapacityPool, capacity_pools
from holdfast.policy.allocation.plan import share
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.memory import Fleet, Promise, Selector, Shortage
from holdfast.policy.placement.node_inventory import Inventory
from holdfast.policy.settings import PolicySettings

MOST_NAMED = 3
"""Services that a sentence names."""


def allocate(
    requests: Mapping[ServiceKey, CapacityRequest],
    fleet: Fleet,
    inventory: Inventory,
    now: float,
    settings: PolicySettings,
    services: Iterable[ServiceSnapshot] | None = None,
) -> tuple[dict[ServiceKey, Allocation], Fleet]:
    """Return what the services that must give way may have, and what to remember.

    GPUs that pods of other services hold are left out where the `services` are given.
    """
    if fleet.is_idle(requests):
        return {}, Fleet()
    if services is not None:
        inventory = inventory.available_to(each for each in services if each.spec.key in requests)
    promised, requests = requests, _housed(requests, inventory)
    pools = capacity_pools(requests.values(), inventory)
    tight = [pool for pool in pools if pool.wanted > pool.gpus]
    contested = _contested(tight)
    known = _watched(fleet.shortages, contested, now, settings)
    active = {shortage.of for shortage in known if now < shortage.until}
    scarce = [pool for pool in contested if any(_selector(request) in active for request in pool.requests)]
    inner = [pool for pool in tight if pool not in scarce and any(_is_within(pool, wider) for wider in scarce)]
    sharing = share([*scarce, *inner], requests, inventory)
    allocated = {**sharing.replicas, **dict.fromkeys(sharing.moved, 0)}
    holders = _holders(scarce, allocated)
    kept = {key: max(replicas, promised[key].least) for key, replicas in sharing.replicas.items()}
    losers = [requests[key] for key, replicas in kept.items() if replicas < requests[key].want]
    losers = [request for request in losers if not any(_fills(pool, request, allocated) for pool in inner)]
    allocations = {request.key: _grant(request, kept[request.key], holders[request.key]) for request in losers}
    allocations |= {key: _moved(requests[key], to, holders[key]) for key, to in sharing.moved.items()}
    return allocations, Fleet(known, dict(_promised(fleet.promises, tight, allocated, now)))


def _promised(
    before: Mapping[ServiceKey, Promise], tight: Iterable[CapacityPool], allocated: Mapping[ServiceKey, int], now: float
) -> Iterable[tuple[ServiceKey, Promise]]:
    """Those that wait for more than they hold, and get it once others have scaled down or moved away."""
    for pool in tight:
        keepers = sum(bool(request.kept) for request in pool.requests)
        for request in pool.requests:
            others_keep = pool.kept > 0 and keepers > bool(request.kept)
            if request.short and (others_keep or allocated.get(request.key, 0) > request.running):
                known, name = before.get(request.key), request.option.name
                goes_on = known is not None and known.accelerator == name and known.since <= now
                yield request.key, known if goes_on and known else Promise(name, now)


def _contested(tight: list[CapacityPool]) -> list[CapacityPool]:
    """Leave out those of a service that is alone there: what it waits for is taken from nobody."""
    keys = {request.key for pool in tight if len(pool.requests) > 1 or pool.paired for request in pool.requests}
    return [pool for pool in tight if any(request.key in keys for request in pool.requests)]


def _housed(requests: Mapping[ServiceKey, CapacityRequest], inventory: Inventory) -> dict[ServiceKey, CapacityRequest]:
    """The claims, with no more of the least than the nodes they may run on could hold: others' GPUs do not help it."""
    most: dict[tuple[str, frozenset[str], int], int] = {}
    found = dict(requests)
    for key, request in requests.items():
        place = request.option.resource, inventory.room(request.option).names, request.option.gpus_per_replica
        if place not in most:
            most[place] = inventory.gpus(*place) // request.option.gpus_per_replica
        if place[1] and most[place] + request.outside < request.least:
            found[key] = replace(request, least=most[place] + request.outside)
    return found


def _is_within(pool: CapacityPool, wider: CapacityPool) -> bool:
    return {request.key for request in pool.requests} <= {request.key for request in wider.requests}


def _fills(pool: CapacityPool, request: CapacityRequest, allocated: Mapping[ServiceKey, int]) -> bool:
    """Whether a claim is bounded by its own nodes, which have not proved short: if it goes on asking, some may come."""
    left = pool.gpus - sum(each.gpus(allocated[each.key]) for each in pool.requests)
    return request in pool.requests and left < request.option.gpus_per_replica


def _selector(request: CapacityRequest) -> Selector:
    option = request.option
    tolerated = sorted((each.key, each.operator, each.value, each.effect) for each in option.tolerations)
    return option.resource, option.node_selector, tuple(tolerated)


def _watched(
    shortages: tuple[Shortage, ...], tight: Iterable[CapacityPool], now: float, settings: PolicySettings
) -> tuple[Shortage, ...]:
    """Note what is found to be short; what fits is forgotten."""
    before = {shortage.of: shortage for shortage in shortages}
    found: dict[Selector, Shortage] = {}
    for request, waits in [(request, pool.waits) for pool in tight for request in pool.requests]:
        of = _selector(request)
        known = before.get(of)
        if (request.short or waits) and (known is None or now >= known.until):
            found[of] = _next(known, of, now, settings)
        elif known is not None:
            found.setdefault(of, known)
    return tuple(found[of] for of in sorted(found))


def _next(known: Shortage | None, of: Selector, now: float, settings: PolicySettings) -> Shortage:
    delay = settings.retry_seconds if known is None else min(2.0 * known.delay_seconds, settings.longest_retry_seconds)
    return Shortage(of, now + delay, delay)


@value
class _Holders:
    """Who has GPUs: how many services, those that come first in each namespace, and who of them gives up no more."""

    count: int
    first: Mapping[str, Sequence[CapacityRequest]]
    least: frozenset[ServiceKey]

    @classmethod
    def of(cls, having: Sequence[CapacityRequest], allocated: Mapping[ServiceKey, int]) -> Self:
        first = _first(having)
        named = (request for near in first.values() for request in near)
        return cls(len(having), first, frozenset(c.key for c in named if allocated[c.key] <= c.least))

    def others(self, request: CapacityRequest, replicas: int) -> str:
        """The others that have GPUs: whoever reads a status need not know what runs in other namespaces."""
        near = [other for other in self.first.get(request.key.namespace, ()) if other.key != request.key][:MOST_NAMED]
        named = ", ".join(f"{other.key} (priority {other.priority}{self._must(other)})" for other in near)
        more = self.count - len(near) - bool(replicas)
        if not near:
            return f"{more} {'service' if more == 1 else 'services'} in other namespaces" if more else ""
        return f"{named} and {more} more" if more else named

    def _must(self, request: CapacityRequest) -> str:
        return ", at its minimum" if request.key in self.least else ""


def _first(requests: Iterable[CapacityRequest]) -> dict[str, list[CapacityRequest]]:
    """Those that come first in each namespace."""
    first: dict[str, list[CapacityRequest]] = {}
    for request in sorted(requests, key=lambda request: (-request.priority, request.key)):
        near = first.setdefault(request.key.namespace, [])
        if len(near) <= MOST_NAMED:
            near.append(request)
    return first


def _holders(pools: Iterable[CapacityPool], allocated: Mapping[ServiceKey, int]) -> dict[ServiceKey, _Holders]:
    """For each claim those that have GPUs where most others compete for them."""
    found: dict[ServiceKey, _Holders] = {}
    for pool in sorted(pools, key=lambda pool: len(pool.requests)):
        holders = _Holders.of([request for request in pool.requests if allocated[request.key]], allocated)
        found.update(dict.fromkeys((request.key for request in pool.requests), holders))
    return found


def _grant(request: CapacityRequest, replicas: int, holders: _Holders) -> Allocation:
    """Say what one more GPU would give, and who has those that there are."""
    others = holders.others(request, replicas)
    went = f"; GPUs went to {others}" if others else ""
    gain = request.worth(replicas + 1) / request.option.gpus_per_replica
    share = f", {gain / request.demand_rps:.1%} of its sized load" if gain > 0.0 else ""
    left = f"the fleet allocation gives {replicas} of {request.want} wanted replicas at priority {request.priority}"
    remedy = "add nodes or raise spec.priority"
    return Allocation(replicas, f"{left}{went}; one more GPU would add {gain:.2g} req/s{share}; {remedy}")


def _moved(request: CapacityRequest, to: CapacityRequest, holders: _Holders) -> Allocation:
    """Say who has the GPUs that are left."""
    others = holders.others(request, 0)
    return Allocation(
        to.want,
        f"its GPUs are allocated to {others}" if others else "its GPUs are fully allocated",
        request.option.name,
        to.option.name,
    )
