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
from holdfast.domain.value import value
from holdfast.policy.allocation import solver
from holdfast.policy.allocation.capacity_pool import Pool, pools_of
from holdfast.policy.allocation.plan import Solver, share
from holdfast.policy.capacity_request import Claim, Grant, HandOver
from holdfast.policy.memory import Fleet, Promise, Selector, Shortage
from holdfast.policy.placement.node_inventory import Inventory
from holdfast.policy.settings import PolicySettings

MOST_NAMED = 3
"""Services that a sentence names."""


def arbitrate(
    claims: Mapping[ServiceKey, Claim],
    fleet: Fleet,
    inventory: Inventory,
    now: float,
    settings: PolicySettings,
    solve: Solver = solver.solve,
) -> tuple[dict[ServiceKey, Grant], Fleet]:
    """Return what the services that must give way may have, and what to remember."""
    if fleet.is_idle(claims):
        return {}, Fleet()
    promised, claims = claims, _housed(claims, inventory)
    pools = pools_of(claims.values(), inventory)
    tight = [pool for pool in pools if pool.wanted > pool.gpus]
    contested = _contested(tight)
    known = _watched(fleet.shortages, contested, now, settings)
    active = {shortage.of for shortage in known if now < shortage.until}
    scarce = [pool for pool in contested if any(_selector(claim) in active for claim in pool.claims)]
    inner = [pool for pool in tight if pool not in scarce and any(_is_within(pool, wider) for wider in scarce)]
    sharing = share([*scarce, *inner], claims, inventory, solve)
    granted = {**sharing.replicas, **dict.fromkeys(sharing.moved, 0)}
    holders = _holders(scarce, granted)
    kept = {key: max(replicas, promised[key].least) for key, replicas in sharing.replicas.items()}
    losers = [claims[key] for key, replicas in kept.items() if replicas < claims[key].want]
    losers = [claim for claim in losers if not any(_fills(pool, claim, granted) for pool in inner)]
    grants = {claim.key: _grant(claim, kept[claim.key], holders[claim.key]) for claim in losers}
    grants |= {key: _moved(claims[key], to, holders[key]) for key, to in sharing.moved.items()}
    grants |= {c.key: _stopped(c, grants.get(c.key), rivals) for c, rivals in _rivals(pools, inventory)}
    return grants, Fleet(known, dict(_promised(fleet.promises, tight, granted, now)))


def _promised(
    before: Mapping[ServiceKey, Promise], tight: Iterable[Pool], granted: Mapping[ServiceKey, int], now: float
) -> Iterable[tuple[ServiceKey, Promise]]:
    """Those that wait for more than they hold, and get it once others have scaled down or moved away."""
    for pool in tight:
        keepers = sum(bool(claim.kept) for claim in pool.claims)
        for claim in pool.claims:
            others_keep = pool.kept > 0 and keepers > bool(claim.kept)
            if claim.short and (others_keep or granted.get(claim.key, 0) > claim.running):
                known, name = before.get(claim.key), claim.option.name
                goes_on = known is not None and known.accelerator == name and known.since <= now
                yield claim.key, known if goes_on and known else Promise(name, now)


def _contested(tight: list[Pool]) -> list[Pool]:
    """Leave out those of a service that is alone there: what it waits for is taken from nobody."""
    keys = {claim.key for pool in tight if len(pool.claims) > 1 or pool.beside for claim in pool.claims}
    return [pool for pool in tight if any(claim.key in keys for claim in pool.claims)]


def _housed(claims: Mapping[ServiceKey, Claim], inventory: Inventory) -> dict[ServiceKey, Claim]:
    """The claims, with no more of the least than the nodes they may run on could hold: others' GPUs do not help it."""
    most: dict[tuple[str, frozenset[str], int], int] = {}
    found = dict(claims)
    for key, claim in claims.items():
        place = claim.option.resource, inventory.room(claim.option).names, claim.option.gpus_per_replica
        if place not in most:
            most[place] = inventory.gpus(*place) // claim.option.gpus_per_replica
        if place[1] and most[place] + claim.outside < claim.least:
            found[key] = replace(claim, least=most[place] + claim.outside)
    return found


def _is_within(pool: Pool, wider: Pool) -> bool:
    return {claim.key for claim in pool.claims} <= {claim.key for claim in wider.claims}


def _fills(pool: Pool, claim: Claim, granted: Mapping[ServiceKey, int]) -> bool:
    """Whether a claim is bounded by its own nodes, which have not proved short: if it goes on asking, some may come."""
    left = pool.gpus - sum(each.gpus(granted[each.key]) for each in pool.claims)
    return claim in pool.claims and left < claim.option.gpus_per_replica


def _selector(claim: Claim) -> Selector:
    option = claim.option
    tolerated = sorted((each.key, each.operator, each.value, each.effect) for each in option.tolerations)
    return option.resource, option.node_selector, tuple(tolerated)


def _watched(
    shortages: tuple[Shortage, ...], tight: Iterable[Pool], now: float, settings: PolicySettings
) -> tuple[Shortage, ...]:
    """Note what is found to be short; what fits is forgotten."""
    before = {shortage.of: shortage for shortage in shortages}
    found: dict[Selector, Shortage] = {}
    for claim, waits in [(claim, pool.waits) for pool in tight for claim in pool.claims]:
        of = _selector(claim)
        known = before.get(of)
        if (claim.short or waits) and (known is None or now >= known.until):
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
    first: Mapping[str, Sequence[Claim]]
    least: frozenset[ServiceKey]

    @classmethod
    def of(cls, having: Sequence[Claim], granted: Mapping[ServiceKey, int]) -> Self:
        first = _first(having)
        named = (claim for near in first.values() for claim in near)
        return cls(len(having), first, frozenset(c.key for c in named if granted[c.key] <= c.least))

    def beside(self, claim: Claim, replicas: int) -> str:
        """The others that have GPUs: whoever reads a status need not know what runs in other namespaces."""
        near = [other for other in self.first.get(claim.key.namespace, ()) if other.key != claim.key][:MOST_NAMED]
        named = ", ".join(f"{other.key} (priority {other.priority}{self._must(other)})" for other in near)
        more = self.count - len(near) - bool(replicas)
        if not near:
            return f"{more} of other namespaces" if more else ""
        return f"{named} and {more} more" if more else named

    def _must(self, claim: Claim) -> str:
        return ", which gives up no more" if claim.key in self.least else ""


def _first(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """Those that come first in each namespace."""
    first: dict[str, list[Claim]] = {}
    for claim in sorted(claims, key=lambda claim: (-claim.priority, claim.key)):
        near = first.setdefault(claim.key.namespace, [])
        if len(near) <= MOST_NAMED:
            near.append(claim)
    return first


def _holders(pools: Iterable[Pool], granted: Mapping[ServiceKey, int]) -> dict[ServiceKey, _Holders]:
    """For each claim those that have GPUs where most others compete for them."""
    found: dict[ServiceKey, _Holders] = {}
    for pool in sorted(pools, key=lambda pool: len(pool.claims)):
        holders = _Holders.of([claim for claim in pool.claims if granted[claim.key]], granted)
        found.update(dict.fromkeys((claim.key for claim in pool.claims), holders))
    return found


def _grant(claim: Claim, replicas: int, holders: _Holders) -> Grant:
    """Say what one more GPU would give, and who has those that there are."""
    others = holders.beside(claim, replicas)
    went = f", GPUs went to {others}" if others else ""
    gain = claim.worth(replicas + 1) / claim.option.gpus_per_replica
    share = f", {gain / claim.demand_rps:.1%} of what it is sized for" if gain > 0.0 else ""
    left = f"{claim.want} wanted, {replicas} left for priority {claim.priority}"
    most = replicas + _besides(claim) if claim.hands_over else None
    return Grant(replicas, f"{left}{went}; one more GPU would give {gain:.2g} req/s{share}", most=most)


def _besides(claim: Claim) -> int:
    return sum(count for _, count in (*claim.kept, *claim.beside))


def _rivals(pools: Iterable[Pool], inventory: Inventory) -> Iterable[tuple[Claim, _Holders]]:
    """Who hands over, and who waits on the same nodes for what must run: for longer than nodes take, or in vain.

    The scheduler knows no priorities of services: it may give those each place that is given up. Not who finds a free
    one where they cannot go.
    """
    for pool in pools:
        vain = sum(claim.gpus(claim.least) for claim in pool.claims) > pool.gpus + pool.kept
        waiting = [claim for claim in pool.claims if (vain or claim.short) and _waits_for_gpus(claim, inventory)]
        handing: dict[tuple[frozenset[str], int], list[Claim]] = {}
        for claim in (claim for claim in pool.claims if waiting and claim.hands_over):
            nodes = inventory.room(claim.option).names
            handing.setdefault((nodes, claim.option.gpus_per_replica), []).append(claim)
        for (nodes, _), claims in handing.items():
            near = [claim for claim in waiting if inventory.room(claim.option).names & nodes]
            theirs = frozenset[str]().union(*(inventory.room(claim.option).names for claim in near))
            if not inventory.room(claims[0].option, apart_from=theirs).free_replicas:
                rivals = _Holders(len(near), _first(near), frozenset())
                yield from ((claim, rivals) for claim in claims if len(near) > (claim in near))


def _waits_for_gpus(claim: Claim, inventory: Inventory) -> bool:
    """Whether it has less than it must have, and not because its pods find something else missing."""
    return claim.running < claim.least and not (claim.short and inventory.room(claim.option).free_replicas)


def _stopped(claim: Claim, granted: Grant | None, rivals: _Holders) -> Grant:
    """No more of the next ones than were asked for; of the others those stay that are needed, as far as granted."""
    now = claim.hands_over or HandOver()
    replicas = claim.want if granted is None else granted.replicas
    others = rivals.beside(claim, int(claim.running < claim.least))
    taken = f"each place given up would go to {others}, short of what must run there"
    most = replicas + _besides(claim) - now.surplus + now.coming
    return Grant(now.size, f"{claim.want} wanted, {taken}", most=most, stands=True)


def _moved(claim: Claim, to: Claim, holders: _Holders) -> Grant:
    """Say who has the GPUs that are left."""
    others = holders.beside(claim, 0)
    return Grant(
        to.want, f"its GPUs go to {others}" if others else "its GPUs are short", claim.option.name, to.option.name
    )
