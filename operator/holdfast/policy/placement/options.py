"""Which accelerator a service runs on: the cheapest per good request that can be had, one at a time.

Only spot and regular nodes of the same hardware serve beside each other (policy.placement.on_demand_pair).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import MOST_REPLICAS, replicas_for
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.health.backoff import Backoff, Backoffs
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.node_inventory import Inventory, Room
from holdfast.policy.placement.on_demand_pair import Pair, affordable, is_barred, pair_of


@value
class Option:
    """One accelerator under consideration: `replicas` carry the demand, at most `most` can be had.

    With a `pair` some of both are another accelerator's. `barred`: it would leave no room for scaling.minOnDemand.
    `full`: what is there serves, and a short while ago no more of it could be had. The spec asks for `least` replicas,
    and here it allows no more than `allowed`. `demand_rps` is None where it is not known.
    """

    belief: Belief
    index: int
    replicas: int
    most: int
    room: Room
    backoff: Backoff | None
    pair: Pair | None = None
    barred: bool = False
    full: bool = False
    least: int = 1
    allowed: int = MOST_REPLICAS
    demand_rps: float | None = None

    @property
    def name(self) -> str:
        return self.belief.option.name

    @property
    def fits(self) -> bool:
        return self.replicas <= self.most

    @property
    def unserved(self) -> float:
        """Share of the demand that the replicas to be had leave unserved."""
        if self.fits:
            return 0.0
        if self.demand_rps is None or not self.belief.feasible or not math.isfinite(self.demand_rps):
            return 1.0 - self.most / self.replicas
        return max(0.0, 1.0 - self.most * self.belief.rate_rps / self.demand_rps) if self.demand_rps > 0.0 else 0.0

    @property
    def served(self) -> float:
        return 1.0 - self.unserved

    @property
    def cost_per_hour(self) -> float | None:
        """Dollars for the replicas that the demand needs."""
        cost = self.belief.option.cost_per_replica_hour
        if cost is None or self.pair is None or self.pair.cost_per_hour is None:
            return None if cost is None else cost * self.replicas
        return cost * (self.replicas - self.paired_replicas) + self.pair.cost_per_hour * self.paired_replicas

    @property
    def paired_replicas(self) -> int:
        """Those of the replicas that are another accelerator's."""
        return 0 if self.pair is None else self.pair.share(self.replicas)

    @property
    def parts(self) -> Mapping[str, int]:
        """The replicas by accelerator."""
        return self.parts_of(self.replicas)

    def parts_of(self, replicas: int) -> dict[str, int]:
        """So many replicas by accelerator."""
        if self.pair is None:
            return {self.name: replicas}
        share = self.pair.share(replicas)
        return {self.name: replicas - share, self.pair.accelerator: share}

    @property
    def forbidden(self) -> bool:
        """By the spec it may have no replica."""
        return self.barred or self.allowed < 1

    @property
    def hindrance(self) -> tuple[bool, bool, bool, float, bool]:
        """What speaks against it, worst first, as the share of the least that is missing; the smaller the better."""
        missing = max(0.0, 1.0 - self.most / max(1, self.least))
        return self.forbidden, self.backoff is not None, not self.belief.feasible, missing, not self.fits

    @property
    def bounded(self) -> bool:
        """By the spec it may not have the replicas that the demand needs, whatever there is of it."""
        return self.allowed < self.replicas and self.most == self.allowed

    @property
    def rank(self) -> tuple[tuple[bool, bool, bool, float, bool], float, float, bool, int]:
        """Unhindered ones first, those that serve more, then by cost of a good request, then as listed."""
        stands_in = self.pair is not None and not self.belief.option.spot
        return self.hindrance, self.unserved, self._per_request, stands_in, self.index

    @property
    def _per_request(self) -> float:
        """Dollars an hour for each good request/s."""
        cost, rate, both = self.belief.option.cost_per_replica_hour, self.belief.rate_rps, self.cost_per_hour
        if cost is None or not rate > 0.0:
            return 0.0
        if self.pair is None or both is None or not self.replicas:
            return cost / rate
        return round(both / self.replicas / rate, 12)


def describe_options(
    spec: ServiceSpec,
    beliefs: tuple[Belief, ...],
    groups: tuple[Group, ...],
    backoffs: Backoffs,
    inventory: Inventory,
    demand_rps: float | None,
    fallback: int,
    now: float,
) -> tuple[Option, ...]:
    """Describe every accelerator of the spec; `fallback` replicas are wanted where the demand is unknown."""
    found = []
    for index, alone in enumerate(beliefs):
        pair = pair_of(spec, alone.option, groups, backoffs, inventory, now)
        belief = _slower(alone, beliefs, pair)
        replicas = _replicas(spec, belief, demand_rps, fallback)
        group = group_on(groups, belief.option.name)
        backoff = backoffs.active(belief.option.name, now)
        room = inventory.room(belief.option)
        had, full = room.most_replicas(group.placed), _is_full(group, backoff, room)
        if full and backoff is not None:
            had = max(group.placed, backoff.placed)
        others = 0 if pair is None else pair.share(replicas)
        allowed = _allowed(spec, belief.option, pair, others)
        option = Option(
            belief=belief,
            index=index,
            replicas=replicas,
            most=allowed if had is None else min(allowed, had + others),
            room=room,
            backoff=None if full else backoff,
            pair=pair,
            barred=is_barred(spec, belief.option),
            full=full,
            least=spec.min_replicas,
            allowed=allowed,
            demand_rps=demand_rps,
        )
        found.append(option)
    return tuple(found)


def _is_full(group: Group, backoff: Backoff | None, room: Room) -> bool:
    """Only more of it cannot be had: what is there serves, and is worth as much as elsewhere."""
    if not group.ready or backoff is None or backoff.reason is not Reason.INSUFFICIENT_GPUS:
        return False
    return bool(group.short or group.pending) or not room.free_replicas


def _slower(belief: Belief, beliefs: tuple[Belief, ...], pair: Pair | None) -> Belief:
    """All get the same share of the requests, so that no replica may be given more than the slowest carries."""
    if pair is None:
        return belief
    other = next((other for other in beliefs if other.option.name == pair.accelerator), None)
    return belief if other is None or not other.feasible else replace(belief, pair_rps=other.rate_rps)


def _replicas(spec: ServiceSpec, belief: Belief, demand_rps: float | None, fallback: int) -> int:
    if demand_rps is None or not belief.feasible:
        return min(max(fallback, spec.min_replicas), spec.max_replicas)
    return max(replicas_for(demand_rps, belief.rate_rps), spec.min_replicas)


def _allowed(spec: ServiceSpec, option: AcceleratorOption, pair: Pair | None, others: int) -> int:
    """Most by scaling.max, the accelerator's own maximum beside so many of a pair, and the budget."""
    own, money = option.max_replicas, spec.max_cost_per_hour
    if own == 0:
        return 0
    bounds = (
        spec.max_replicas,
        None if own is None else own + others,
        None if money is None else affordable(option, pair, money),
    )
    return min(bound for bound in bounds if bound is not None)
