"""Describe each accelerator as an option for a service: the replicas needed, those available, cost and hindrances.

`placement.choice` chooses among the options.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.node_inventory import Inventory, Room
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import MOST_REPLICAS, replicas_for
from holdfast.policy.estimate.replica_capacity import Belief
from holdfast.policy.health.backoff import Backoff, Backoffs
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.on_demand_pair import Pair, affordable, is_barred, pair_of


@value
class Option:
    """One accelerator under consideration: `replicas` carry the demand, and at most `most` are available.

    With a `pair` some of both numbers are on the pair's accelerator. `barred`: no room for scaling.minOnDemand would
    remain. `full`: the existing replicas serve, but recently no more were available. `least` is the spec's minimum, and
    `allowed` the most replicas that the spec permits here. `demand_rps` is None where it is unknown.
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
        """Name of the accelerator."""
        return self.belief.option.name

    @property
    def fits(self) -> bool:
        """Whether the needed replicas are available."""
        return self.replicas <= self.most

    @property
    def served(self) -> float:
        """Share of the demand that the available replicas serve."""
        if self.fits:
            return 1.0
        if self.demand_rps is None or not self.belief.feasible or not math.isfinite(self.demand_rps):
            return self.most / self.replicas
        return min(1.0, self.most * self.belief.rate_rps / self.demand_rps) if self.demand_rps > 0.0 else 1.0

    @property
    def cost_per_hour(self) -> float | None:
        """Dollars per hour of the replicas that the demand needs; None without a price."""
        cost, pair = self.belief.option.cost_per_replica_hour, self.pair
        if cost is None or pair is None or pair.cost_per_hour is None:
            return None if cost is None else cost * self.replicas
        share = self.on_pair(self.replicas)
        return cost * (self.replicas - share) + pair.cost_per_hour * share

    def on_pair(self, replicas: int) -> int:
        """Return how many of so many replicas are on the pair's accelerator."""
        return 0 if self.pair is None else self.pair.share(replicas)

    def parts_of(self, replicas: int) -> dict[str, int]:
        """Return so many replicas by accelerator."""
        share = self.on_pair(replicas)
        return {self.name: replicas - share} | ({} if self.pair is None else {self.pair.accelerator: share})

    @property
    def forbidden(self) -> bool:
        """Whether the spec permits no replica on it."""
        return self.barred or self.allowed < 1

    @property
    def hindrance(self) -> tuple[bool, bool, bool, float, bool]:
        """Reasons against it, worst first, with the missing share of the minimum; smaller is better."""
        missing = max(0.0, 1.0 - self.most / max(1, self.least))
        return self.forbidden, self.backoff is not None, not self.belief.feasible, missing, not self.fits

    @property
    def rank(self) -> tuple[tuple[bool, bool, bool, float, bool], float, float, bool, int]:
        """Sort key: unhindered options first, then by served share, cost per good request and list order."""
        is_fallback = self.pair is not None and not self.belief.option.spot
        carried_rps = self.replicas * self.belief.rate_rps
        per_request = round((self.cost_per_hour or 0.0) / carried_rps, 12) if carried_rps > 0.0 else 0.0
        return self.hindrance, -self.served, per_request, is_fallback, self.index


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
        # All replicas get the same share of the requests.
        paired = [each.rate_rps for each in beliefs if pair and each.option.name == pair.accelerator and each.feasible]
        belief = replace(alone, pair_rps=paired[0]) if paired else alone
        replicas = min(max(fallback, spec.min_replicas), spec.max_replicas)
        if demand_rps is not None and belief.sized:
            replicas = max(replicas_for(demand_rps, belief.rate_rps), spec.min_replicas)
        group = group_on(groups, belief.option.name)
        backoff = backoffs.active(belief.option.name, now)
        room = inventory.room(belief.option)
        available, full = room.most_replicas(group.placed), _is_full(group, backoff, room)
        if full and backoff is not None:
            available = max(group.placed, backoff.placed)
        others = 0 if pair is None else pair.share(replicas)
        allowed = _allowed(spec, belief.option, pair, others)
        option = Option(
            belief=belief,
            index=index,
            replicas=replicas,
            most=allowed if available is None else min(allowed, available + others),
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
    """Return whether only additional replicas are unavailable: the existing ones serve and keep their value."""
    if not group.ready or backoff is None or not (backoff.starts_none or backoff.reason is Reason.INSUFFICIENT_GPUS):
        return False
    return backoff.starts_none or bool(group.short or group.pending) or not room.free_replicas


def _allowed(spec: ServiceSpec, option: AcceleratorOption, pair: Pair | None, others: int) -> int:
    """Return the most replicas by scaling.max, the accelerator's own maximum plus its pair, and the budget."""
    own, money = option.max_replicas, spec.max_cost_per_hour
    if own == 0:
        return 0
    paid = None if money is None else affordable(option, pair, money)
    bounds = spec.max_replicas, None if own is None else own + others, paid
    return min(bound for bound in bounds if bound is not None)
