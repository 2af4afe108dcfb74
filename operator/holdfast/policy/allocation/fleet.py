"""Services that compete for the same accelerators: who gets how many where what all want does not fit.

A second step after the decisions that services make alone. It changes none of them unless accelerators are really
short: the nodes do not hold what all want together, and a replica has waited for longer than nodes take to come (or
did so a short while ago). Where nodes may still come, asking for more is what makes them come.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

from holdfast.api.quantities import MOST_NAMED, counted
from holdfast.domain.cluster import GpuCap
from holdfast.domain.gpu_caps import without
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import ServiceKey
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.policy.allocation.capacity_pool import CapacityPool, capacity_pools, capped_pools
from holdfast.policy.allocation.plan import share
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.memory import Fleet, Promise, Selector, Shortages
from holdfast.policy.settings import PolicySettings


def allocate(
    requests: Mapping[ServiceKey, CapacityRequest],
    fleet: Fleet,
    inventory: Inventory,
    now: float,
    settings: PolicySettings,
    services: Sequence[ServiceSnapshot] = (),
    caps: Iterable[GpuCap] = (),
) -> tuple[dict[ServiceKey, Allocation], Fleet]:
    """Return what the services that must give way may have, and what to remember.

    GPUs that pods of other services hold are left out. `caps` of namespaces bind at once: nodes that come do not help.
    """
    inventory = replace(inventory, caps=without(requests, caps, services))
    competing = bool(fleet.shortages) or any(request.short or request.waits for request in requests.values())
    if not competing and not any(map(_is_short, capped_pools(requests.values(), inventory))):
        return {}, Fleet()
    inventory = inventory.available_to(each for each in services if each.spec.key in requests)
    promised, requests = requests, _housed(requests, inventory)
    pools = capacity_pools(requests.values(), inventory)
    capped = [pool for pool in pools if pool.cap and _is_short(pool)]
    tight = [pool for pool in pools if not pool.cap and _is_short(pool)]
    # What a service that is alone in a pool waits for is taken from nobody.
    rivals = frozenset[ServiceKey]().union(*(pool.keys for pool in tight if len(pool.requests) > 1 or pool.paired))
    contested = [pool for pool in tight if pool.keys & rivals]
    known = _watched(fleet.shortages, contested, now, settings)
    active = {of for of, (until, _) in known.items() if now < until}
    scarce = [pool for pool in contested if any(_selector(request) in active for request in pool.requests)]
    inner = [pool for pool in tight if pool not in scarce and any(pool.keys <= wider.keys for wider in scarce)]
    scarce += capped
    sharing = share([*scarce, *inner], requests, inventory)
    allocated = {**sharing.replicas, **dict.fromkeys(sharing.moved, 0)}
    holders = _holders(scarce, allocated)
    kept = {key: max(replicas, promised[key].least) for key, replicas in sharing.replicas.items()}
    short = {key: replicas for key, replicas in kept.items() if replicas < requests[key].want}
    bound = {key: pool.cap for pool in capped for key in short if _fills(pool, requests[key], allocated)}
    late = {key for key in short if any(_fills(pool, requests[key], allocated) for pool in inner)}
    short = {key: replicas for key, replicas in short.items() if key in bound or key not in late}
    others = {key: _others(requests[key], holders[key], allocated) for key in (*short, *sharing.moved)}
    allocations = {key: _grant(requests[key], n, others[key], bound.get(key)) for key, n in short.items()}
    allocations |= {key: _moved(requests[key], to, others[key]) for key, to in sharing.moved.items()}
    return allocations, Fleet(known, dict(_promised(fleet.promises, tight, allocated, now)))


def _is_short(pool: CapacityPool) -> bool:
    return pool.wanted > pool.gpus


def _promised(
    before: Mapping[ServiceKey, Promise], tight: Iterable[CapacityPool], allocated: Mapping[ServiceKey, int], now: float
) -> Iterable[tuple[ServiceKey, Promise]]:
    """Promises to services that wait for more GPUs than they hold, until others have scaled down or moved away."""
    for pool in tight:
        keepers = sum(bool(request.kept) for request in pool.requests)
        for request in pool.requests:
            others_keep = pool.kept > 0 and keepers > bool(request.kept)
            if request.short and (others_keep or allocated.get(request.key, 0) > request.running):
                new = Promise(request.option.name, now)
                known = before.get(request.key, new)
                goes_on = known.accelerator == new.accelerator and known.since <= now
                yield request.key, known if goes_on else new


def _housed(requests: Mapping[ServiceKey, CapacityRequest], inventory: Inventory) -> dict[ServiceKey, CapacityRequest]:
    """The requests, with no more of the least than their nodes could hold: others' GPUs do not help it."""
    found, gpus = dict(requests), cache(inventory.gpus)
    for key, request in requests.items():
        option, names = request.option, inventory.room(request.option).names
        most = request.outside + gpus(option.resource, names, option.gpus_per_pod) // option.gpus_per_replica
        if names and most < request.least:
            found[key] = replace(request, least=most)
    return found


def _fills(pool: CapacityPool, request: CapacityRequest, allocated: Mapping[ServiceKey, int]) -> bool:
    """Whether a claim is bounded by its own nodes, which have not proved short: if it goes on asking, some may come."""
    left = pool.gpus - sum(each.gpus(allocated[each.key]) for each in pool.requests)
    return request in pool.requests and left < request.option.gpus_per_replica


def _selector(request: CapacityRequest) -> Selector:
    option = request.option
    tolerated = sorted((each.key, each.operator, each.value, each.effect) for each in option.tolerations)
    return option.resource, option.node_selector, tuple(tolerated)


def _watched(
    before: Shortages, tight: Iterable[CapacityPool], now: float, settings: PolicySettings
) -> dict[Selector, tuple[float, float]]:
    """Note what is found to be short; what fits is forgotten."""
    found: dict[Selector, tuple[float, float]] = {}
    for request, waits in [(request, pool.waits) for pool in tight for request in pool.requests]:
        of = _selector(request)
        until, last = before.get(of, (-math.inf, 0.0))
        if (request.short or waits) and now >= until:
            delay = min(max(settings.retry_seconds, 2.0 * last), settings.longest_retry_seconds)
            found[of] = now + delay, delay
        elif of in before:
            found.setdefault(of, before[of])
    return found


Holders = Mapping[str, Sequence[CapacityRequest]]
"""Claims that have GPUs, by namespace, the highest priority first."""


def _holders(pools: Iterable[CapacityPool], allocated: Mapping[ServiceKey, int]) -> dict[ServiceKey, Holders]:
    """Return for each request the claims with GPUs: where a cap binds, else in the pool with the most claims."""
    found: dict[ServiceKey, Holders] = {}
    for pool in sorted(pools, key=lambda pool: (bool(pool.cap), len(pool.requests))):
        holders: defaultdict[str, list[CapacityRequest]] = defaultdict(list)
        for request in sorted(pool.requests, key=lambda request: (-request.priority, request.key)):
            if allocated[request.key]:
                holders[request.key.namespace].append(request)
        found.update(dict.fromkeys(pool.keys, holders))
    return found


def _others(request: CapacityRequest, holders: Holders, allocated: Mapping[ServiceKey, int]) -> str:
    """Name the others that have GPUs; services of other namespaces are only counted, for readers of one status."""
    others = (other for other in holders.get(request.key.namespace, ()) if other.key != request.key)
    near = list(islice(others, MOST_NAMED))
    more = sum(map(len, holders.values())) - len(near) - bool(allocated[request.key])
    if not near:
        return f"{counted(more, 'service')} in other namespaces" if more else ""
    least = {other.key for other in near if allocated[other.key] <= other.least}
    named = (f"{o.key} (priority {o.priority}{', at its minimum' if o.key in least else ''})" for o in near)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _grant(request: CapacityRequest, replicas: int, others: str, cap: GpuCap | None) -> Allocation:
    """Say what one more GPU would give, and which services have the GPUs."""
    went = f"; GPUs went to {others}" if others else ""
    gain = request.worth(replicas + 1) / request.option.gpus_per_replica
    share = f", {gain / request.demand_rps:.1%} of its sized load" if gain > 0.0 else ""
    left = counted(replicas, "wanted replica", of=request.want)
    left = f"the fleet allocation gives {left} at priority {request.priority}"
    remedy = "add nodes or raise spec.priority"
    if cap is not None:
        used = f", {cap.used} in use by other pods" if cap.used else ""
        left = f"{left}; {cap.name} allows namespace {cap.namespace} {cap.gpus} {cap.resource}{used}"
        remedy = f"raise {cap.name.partition(' (')[0]} or spec.priority"
    return Allocation(replicas, f"{left}{went}; one more GPU would add {gain:.2g} req/s{share}; {remedy}")


def _moved(request: CapacityRequest, to: CapacityRequest, others: str) -> Allocation:
    """Say who has the GPUs that are left."""
    told = f"its GPUs are allocated to {others}" if others else "its GPUs are fully allocated"
    return Allocation(to.want, told, request.option.name, to.option.name)
