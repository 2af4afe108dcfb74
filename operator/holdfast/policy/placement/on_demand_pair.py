"""Spot replicas next to on-demand replicas on the same hardware: which serve together, and how a size is split.

Behind a plain Service each replica gets the same share of the requests, so only equal hardware is mixed. One of the two
accelerators is chosen, and its replicas scale with the load. The other one serves next to it. Next to spot replicas
these are the required on-demand replicas. Next to on-demand replicas these are the spot replicas that remain.

Source: docs/designs/0007-spot.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.domain.cluster import Replica
from holdfast.domain.node_inventory import Inventory
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.hardware import same_hardware
from holdfast.policy.estimate.demand import MOST_REPLICAS, affordable_replicas
from holdfast.policy.health.backoff import Backoffs
from holdfast.policy.health.replicas import Group, group_on


@value
class Pair:
    """The accelerator that serves next to the chosen one.

    Of all replicas the chosen accelerator has the `first` ones; the next ones, up to `most`, are on the pair's
    accelerator.
    """

    accelerator: str
    most: int
    first: int = 0
    cost_per_hour: float | None = None

    def share(self, replicas: int) -> int:
        """Return how many of so many replicas are on the pair's accelerator."""
        return min(self.most, max(0, replicas - self.first))

    def total(self, own: int) -> int:
        """Return the most replicas on both accelerators with at most `own` replicas on the chosen one."""
        return own if own < self.first else own + self.most


def twins(spec: ServiceSpec, option: AcceleratorOption) -> tuple[AcceleratorOption, ...]:
    """Return the on-demand accelerators for a spot one, or the spot ones for an on-demand one, on the same hardware."""
    return tuple(o for o in spec.accelerators if o.spot != option.spot and same_hardware(o, option))


def keepers(spec: ServiceSpec, option: AcceleratorOption) -> tuple[AcceleratorOption, ...]:
    """Return the on-demand accelerators on a spot accelerator's hardware that may hold scaling.minOnDemand replicas."""
    floor = spec.min_on_demand
    return tuple(o for o in twins(spec, option) if o.max_replicas is None or o.max_replicas >= floor)


def is_barred(spec: ServiceSpec, option: AcceleratorOption) -> bool:
    """Return whether a spot accelerator has no on-demand accelerator that can hold scaling.minOnDemand replicas."""
    return option.spot and spec.min_on_demand > 0 and not keepers(spec, option)


def pair_of(
    spec: ServiceSpec,
    option: AcceleratorOption,
    groups: Sequence[Group],
    backoffs: Backoffs,
    inventory: Inventory,
    now: float,
) -> Pair | None:
    """Return the pair of a chosen accelerator; None where it serves alone.

    The pair of a spot accelerator provides scaling.minOnDemand replicas. It is the on-demand accelerator with the most
    room, then with the most running replicas, then the cheapest. The pair of an on-demand accelerator is a preferred
    spot accelerator whose replicas still have a node.
    """
    others = keepers(spec, option) if option.spot else [o for o in twins(spec, option) if _preferred(spec, o, option)]
    if not others or (option.spot and not spec.min_on_demand):
        return None
    serving = {other.name: _serving(group_on(groups, other.name), other) for other in others}

    def order(other: AcceleratorOption) -> tuple[int, int, float]:
        running, most = serving[other.name], inventory.room(other).most_replicas(group_on(groups, other.name).placed)
        if backoffs.active(other.name, now) is not None:
            most = running
        missing = 0 if most is None else max(0, spec.min_on_demand - most)
        return missing, -min(running, spec.min_on_demand), other.cost_per_replica_hour or 0.0

    if option.spot:
        best = min(others, key=order)
        return Pair(best.name, spec.min_on_demand, 0, best.cost_per_replica_hour)
    best = max(others, key=lambda other: serving[other.name])
    remaining = serving[best.name]
    return Pair(best.name, remaining, spec.min_on_demand, best.cost_per_replica_hour) if remaining else None


def affordable(option: AcceleratorOption, pair: Pair | None, dollars_per_hour: float) -> int | None:
    """Return the most replicas that the money pays for, including a pair's; None where it pays for any number."""
    cost, remaining, replicas = option.cost_per_replica_hour or 0.0, dollars_per_hour, 0
    parts: tuple[tuple[int, float], ...] = ((MOST_REPLICAS, cost),)
    if pair is not None:
        parts = (pair.first, cost), (pair.most, pair.cost_per_hour or 0.0), *parts
    for count, each in parts:
        paid = min(count, affordable_replicas(remaining, each))
        replicas, remaining = replicas + paid, remaining - paid * each
        if paid < count:
            return replicas
    return None


def together(groups: Sequence[Group], chosen: str, pair: Pair | None) -> tuple[Group, tuple[Group, ...]]:
    """Return the replicas of the chosen accelerator and its pair as one group, and the source groups to drain."""
    own = group_on(groups, chosen)
    others = tuple(group for group in groups if group.exists and group.accelerator != chosen)
    if pair is None:
        return own, others
    paired, rest = parted(group_on(groups, pair.accelerator), pair.most)
    source = tuple(group for group in others if group.accelerator != pair.accelerator)
    replicas = [mine + theirs for mine, theirs in zip(_ranked(own), _ranked(paired), strict=True)]
    both = replace(
        _made_of(own, own.baseline + paired.size, own.draining + paired.draining, replicas),
        exists=own.exists or paired.exists,
        observed=own.observed and paired.observed,
        rolling_out=own.rolling_out or paired.rolling_out,
    )
    return both, (*((rest,) if rest.size else ()), *source)


def parted(group: Group, count: int) -> tuple[Group, Group]:
    """Split a group into its `count` most useful replicas and the rest; draining ones belong to the first part."""
    first, rest, remaining = [], [], count
    for replicas in _ranked(group):
        first.append(replicas[:remaining])
        rest.append(replicas[remaining:])
        remaining -= len(first[-1])
    size = min(group.baseline, count)
    return _made_of(group, size, group.draining, first), _made_of(group, group.baseline - size, 0, rest)


_PHASES = "ready", "starting", "pending", "stuck", "failing", "ailing", "short"
"""Fields of a group with replicas, the most useful first."""


def _ranked(group: Group) -> list[tuple[Replica, ...]]:
    return [getattr(group, phase) for phase in _PHASES]


def _made_of(group: Group, size: int, draining: int, ranked: Sequence[tuple[Replica, ...]]) -> Group:
    """Return the group with these replicas by phase."""
    by_phase: dict[str, Any] = dict(zip(_PHASES, ranked, strict=True))
    return replace(group, size=size, draining=draining, **by_phase)


def _serving(group: Group, option: AcceleratorOption) -> int:
    """Return the replicas that are capacity, or start on a node they have; bounded by the accelerator's maximum."""
    placed = min(group.size, len(group.ready) + len(group.starting))
    return placed if option.max_replicas is None else min(placed, option.max_replicas)


def _preferred(spec: ServiceSpec, spot: AcceleratorOption, on_demand: AcceleratorOption) -> bool:
    """Return whether spot is cheaper; without prices, whether it is listed first."""
    costs = spot.cost_per_replica_hour, on_demand.cost_per_replica_hour
    if costs[0] is None or costs[1] is None:
        return spec.accelerators.index(spot) < spec.accelerators.index(on_demand)
    return costs[0] < costs[1]
