"""Services that compete for the same accelerators: who gets how many where what all want does not fit.

A second step after the decisions that services make alone. It changes none of them unless accelerators are really
short: the nodes do not hold what all want together, and a replica has waited for longer than nodes take to come (or
did so a short while ago). Where nodes may still come, asking for more is what makes them come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from holdfast.domain.service import ServiceKey
from holdfast.policy.fleet_claims import Claim
from holdfast.policy.fleet_greedy import share_out
from holdfast.policy.fleet_pools import Pool, pools_of
from holdfast.policy.inventory import Inventory
from holdfast.policy.settings import PolicySettings

MOST_NAMED = 3
"""Services that a sentence names."""

Selector = tuple[str, tuple[tuple[str, str], ...]]
"""Resource and node labels: what an accelerator is to the scheduler, whatever services call it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Replicas that a service may have of those it wants, and why not more."""

    replicas: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Shortage:
    """Accelerators that proved short: shared out until `until` (seconds), then asked for again to see if nodes come.

    `delay_seconds` doubles from one time to the next.
    """

    of: Selector
    until: float
    delay_seconds: float


def arbitrate(
    claims: Mapping[ServiceKey, Claim],
    shortages: tuple[Shortage, ...],
    inventory: Inventory,
    now: float,
    settings: PolicySettings,
) -> tuple[dict[ServiceKey, Grant], tuple[Shortage, ...]]:
    """Return what the services that must give way may have, and the shortages to remember."""
    if not shortages and not any(claim.short for claim in claims.values()):
        return {}, ()
    tight = _contested([pool for pool in pools_of(claims.values(), inventory) if pool.wanted > pool.gpus])
    known = _watched(shortages, tight, now, settings)
    active = {shortage.of for shortage in known if now < shortage.until}
    scarce = [pool for pool in tight if any(_selector(claim) in active for claim in pool.claims)]
    granted = share_out(scarce)
    holders = _holders(scarce, granted)
    losers = [claims[key] for key, replicas in granted.items() if replicas < claims[key].want]
    return {claim.key: _grant(claim, granted[claim.key], holders[claim.key]) for claim in losers}, known


def _contested(tight: list[Pool]) -> list[Pool]:
    """Leave out those of a service that is alone there: what it waits for is taken from nobody."""
    keys = {claim.key for pool in tight if len(pool.claims) > 1 for claim in pool.claims}
    return [pool for pool in tight if any(claim.key in keys for claim in pool.claims)]


def _selector(claim: Claim) -> Selector:
    return claim.option.resource, claim.option.node_selector


def _watched(
    shortages: tuple[Shortage, ...], tight: Iterable[Pool], now: float, settings: PolicySettings
) -> tuple[Shortage, ...]:
    """Note what is found to be short; what fits is forgotten."""
    before = {shortage.of: shortage for shortage in shortages}
    found: dict[Selector, Shortage] = {}
    for claim in (claim for pool in tight for claim in pool.claims):
        of = _selector(claim)
        known = before.get(of)
        if claim.short and (known is None or now >= known.until):
            found[of] = _next(known, of, now, settings)
        elif known is not None:
            found.setdefault(of, known)
    return tuple(found[of] for of in sorted(found))


def _next(known: Shortage | None, of: Selector, now: float, settings: PolicySettings) -> Shortage:
    delay = settings.retry_seconds if known is None else min(2.0 * known.delay_seconds, settings.longest_retry_seconds)
    return Shortage(of, now + delay, delay)


@dataclass(frozen=True, slots=True)
class _Holders:
    """Who has GPUs: how many services, and those that come first in each namespace."""

    count: int
    first: Mapping[str, Sequence[Claim]]

    @classmethod
    def of(cls, having: Sequence[Claim]) -> Self:
        first: dict[str, list[Claim]] = {}
        for claim in sorted(having, key=lambda claim: (-claim.priority, claim.key)):
            near = first.setdefault(claim.key.namespace, [])
            if len(near) <= MOST_NAMED:
                near.append(claim)
        return cls(len(having), first)

    def beside(self, claim: Claim, replicas: int) -> str:
        """The others that have GPUs: whoever reads a status need not know what runs in other namespaces."""
        near = [other for other in self.first.get(claim.key.namespace, ()) if other.key != claim.key][:MOST_NAMED]
        named = ", ".join(f"{other.key} (priority {other.priority})" for other in near)
        more = self.count - len(near) - bool(replicas)
        if not near:
            return f"{more} of other namespaces" if more else ""
        return f"{named} and {more} more" if more else named


def _holders(pools: Iterable[Pool], granted: Mapping[ServiceKey, int]) -> dict[ServiceKey, _Holders]:
    """For each claim those that have GPUs where most others compete for them."""
    found: dict[ServiceKey, _Holders] = {}
    for pool in sorted(pools, key=lambda pool: len(pool.claims)):
        holders = _Holders.of([claim for claim in pool.claims if granted[claim.key]])
        found.update(dict.fromkeys((claim.key for claim in pool.claims), holders))
    return found


def _grant(claim: Claim, replicas: int, holders: _Holders) -> Grant:
    """Say what one more GPU would give, and who has those that there are."""
    others = holders.beside(claim, replicas)
    went = f", GPUs went to {others}" if others else ""
    gain = claim.worth(replicas + 1) / claim.option.gpus_per_replica
    left = f"{claim.want} wanted, {replicas} left for priority {claim.priority}"
    return Grant(replicas, f"{left}{went}; one more GPU would give {gain:.2g} req/s")
