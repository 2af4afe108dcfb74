"""Spot replicas beside regular ones on the same hardware: which serve together, and how a size is shared between them.

Behind a plain Service each replica gets the same share of the requests, so that only equal hardware is mixed. Of two
such accelerators one was chosen and takes what the size asks for; the other serves beside it: below spot replicas the
regular ones that must not be missing, beside regular ones the spot replicas that are still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.domain.cluster import Replica
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import MOST_REPLICAS, affordable_replicas
from holdfast.policy.estimate.hardware import same_hardware
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.node_inventory import Inventory


@value
class Pair:
    """The accelerator that serves beside the chosen one: beyond its `first` replicas up to `most` are the other's."""

    accelerator: str
    most: int
    first: int = 0
    cost_per_hour: float | None = None

    def share(self, replicas: int) -> int:
        """Replicas of the other accelerator, of so many on both."""
        return min(self.most, max(0, replicas - self.first))

    def total(self, own: int) -> int:
        """Most replicas on both of which no more than so many are the chosen accelerator's."""
        return own if own < self.first else own + self.most


def twins(spec: ServiceSpec, option: AcceleratorOption) -> tuple[AcceleratorOption, ...]:
    """The regular accelerators of a spot one, the spot ones of a regular one, on the same hardware."""
    return tuple(o for o in spec.accelerators if o.spot != option.spot and same_hardware(o, option))


def keepers(spec: ServiceSpec, option: AcceleratorOption) -> tuple[AcceleratorOption, ...]:
    """The regular accelerators beside a spot one that may have scaling.minOnDemand replicas."""
    floor = spec.min_on_demand
    return tuple(o for o in twins(spec, option) if o.max_replicas is None or o.max_replicas >= floor)


def is_barred(spec: ServiceSpec, option: AcceleratorOption) -> bool:
    """A spot accelerator beside which no regular one can keep scaling.minOnDemand."""
    return option.spot and spec.min_on_demand > 0 and not keepers(spec, option)


def pair_of(
    spec: ServiceSpec,
    option: AcceleratorOption,
    groups: Sequence[Group],
    backoffs: Backoffs,
    inventory: Inventory,
    now: float,
) -> Pair | None:
    """Return what serves beside an accelerator that is chosen, None where it serves alone.

    Beside spot: scaling.minOnDemand regular replicas, where most of them find room, where most run, or where it is
    cheapest. Beside a regular one: spot replicas that have a node, where spot is the one to prefer.
    """
    others = keepers(spec, option) if option.spot else [o for o in twins(spec, option) if _preferred(spec, o, option)]
    if not others or (option.spot and not spec.min_on_demand):
        return None
    serving = {other.name: _serving(group_on(groups, other.name), other) for other in others}

    def order(other: AcceleratorOption) -> tuple[int, int, float]:
        there, most = serving[other.name], inventory.room(other).most_replicas(group_on(groups, other.name).placed)
        if backoffs.active(other.name, now) is not None:
            most = there
        missing = 0 if most is None else max(0, spec.min_on_demand - most)
        return missing, -min(there, spec.min_on_demand), other.cost_per_replica_hour or 0.0

    if option.spot:
        best = min(others, key=order)
        return Pair(best.name, spec.min_on_demand, 0, best.cost_per_replica_hour)
    best = max(others, key=lambda other: serving[other.name])
    left = serving[best.name]
    return Pair(best.name, left, spec.min_on_demand, best.cost_per_replica_hour) if left else None


def affordable(option: AcceleratorOption, pair: Pair | None, dollars_per_hour: float) -> int | None:
    """Most replicas that the money pays for, those of a pair included; None where it pays for any number."""
    cost, left, replicas = option.cost_per_replica_hour or 0.0, dollars_per_hour, 0
    parts: tuple[tuple[int, float], ...] = ((MOST_REPLICAS, cost),)
    if pair is not None:
        parts = (pair.first, cost), (pair.most, pair.cost_per_hour or 0.0), *parts
    for count, each in parts:
        paid = min(count, affordable_replicas(left, each)) if each > 0.0 else count
        replicas, left = replicas + paid, left - paid * each
        if paid < count:
            return replicas
    return None


def together(groups: Sequence[Group], chosen: str, pair: Pair | None) -> tuple[Group, tuple[Group, ...]]:
    """The replicas that serve by choice as one group, and those that are being left."""
    own = group_on(groups, chosen)
    others = tuple(group for group in groups if group.exists and group.accelerator != chosen)
    if pair is None:
        return own, others
    here, rest = parted(group_on(groups, pair.accelerator), pair.most)
    left = tuple(group for group in others if group.accelerator != pair.accelerator)
    return _joined(own, here), (*((rest,) if rest.size else ()), *left)


def parted(group: Group, count: int) -> tuple[Group, Group]:
    """The most useful replicas of a group, and the rest; what is draining belongs to the first."""
    here, rest, left = [], [], count
    for replicas in _ranked(group):
        here.append(replicas[:left])
        rest.append(replicas[left:])
        left -= len(here[-1])
    size = min(group.baseline, count)
    return _made_of(group, size, group.draining, here), _made_of(group, group.baseline - size, 0, rest)


def _joined(own: Group, other: Group) -> Group:
    """Two groups as one, by the name of the first."""
    both = replace(
        own,
        exists=own.exists or other.exists,
        observed=own.observed and other.observed,
        rolling_out=own.rolling_out or other.rolling_out,
    )
    replicas = [mine + theirs for mine, theirs in zip(_ranked(own), _ranked(other), strict=True)]
    return _made_of(both, own.baseline + other.size, own.draining + other.draining, replicas)


Replicas = tuple[Replica, ...]


def _ranked(group: Group) -> tuple[Replicas, ...]:
    """Its replicas by phase, the most useful first."""
    return group.ready, group.starting, group.pending, group.stuck, group.failing, group.ailing, group.short


def _made_of(group: Group, size: int, draining: int, ranked: Sequence[Replicas]) -> Group:
    ready, starting, pending, stuck, failing, ailing, short = ranked
    return replace(
        group,
        size=size,
        draining=draining,
        ready=ready,
        starting=starting,
        pending=pending,
        stuck=stuck,
        failing=failing,
        ailing=ailing,
        short=short,
    )


def _serving(group: Group, option: AcceleratorOption) -> int:
    """Replicas that are capacity, or are starting on a node that they have."""
    placed = min(group.size, len(group.ready) + len(group.starting))
    return placed if option.max_replicas is None else min(placed, option.max_replicas)


def _preferred(spec: ServiceSpec, spot: AcceleratorOption, regular: AcceleratorOption) -> bool:
    costs = spot.cost_per_replica_hour, regular.cost_per_replica_hour
    if costs[0] is None or costs[1] is None:
        return spec.accelerators.index(spot) < spec.accelerators.index(regular)
    return costs[0] < costs[1]
