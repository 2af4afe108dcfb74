"""A size that people have fixed, shared out between accelerators: within each one's max and the budget."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.placement.allowance import allowance
from holdfast.policy.placement.on_demand_pair import keepers


def share_out(
    spec: ServiceSpec,
    now: Mapping[str, int],
    order: Sequence[AcceleratorOption],
    replicas: int,
    out: Collection[str] = (),
) -> dict[str, int]:
    """Return how many of so many replicas each accelerator gets: as many as it has `now`, then more in that order.

    Before spot ones those off spot, scaling.minOnDemand of them where there is room. Where the budget does not pay for
    all so, the cheapest come first instead, but for those that are `out` for now; fewer than asked for where even they,
    or each max, leave no room for all.
    """
    found = _shared(spec, now, order, replicas)
    if sum(found.values()) == replicas or spec.max_cost_per_hour is None:
        return found
    there = [option for option in order if option.name not in out]
    cheapest = sorted(there, key=lambda option: option.cost_per_replica_hour or 0.0)
    frugal = _shared(spec, {}, cheapest, replicas)
    return frugal if sum(frugal.values()) > sum(found.values()) else found


def _shared(
    spec: ServiceSpec, now: Mapping[str, int], order: Sequence[AcceleratorOption], replicas: int
) -> dict[str, int]:
    found: dict[str, int] = {}
    allowed = replace(allowance(spec), replicas=replicas)

    def fill(option: AcceleratorOption, most: int) -> None:
        here, own = found.get(option.name, 0), most if option.max_replicas is None else min(most, option.max_replicas)
        more = min(own - here, allowed.more(option.name, found))
        if more > 0:
            found[option.name] = here + more

    if spec.min_on_demand:
        for option in _regular(order):
            fill(option, now.get(option.name, 0))
        for option in _floor(spec, found, now, order):
            fill(option, found.get(option.name, 0) + spec.min_on_demand - sum(found.values()))
    for option in order:
        fill(option, now.get(option.name, 0))
    for option in order:
        fill(option, replicas)
    return found


def _regular(order: Sequence[AcceleratorOption]) -> list[AcceleratorOption]:
    return [option for option in order if not option.spot]


def _floor(
    spec: ServiceSpec, found: Mapping[str, int], now: Mapping[str, int], order: Sequence[AcceleratorOption]
) -> list[AcceleratorOption]:
    """Who takes what scaling.minOnDemand lacks: the regular accelerator in use, else one on the spot one's hardware."""
    spots = [option for option in order if option.spot and now.get(option.name)] or order[:1]
    alike = {keeper.name for spot in spots if spot.spot for keeper in keepers(spec, spot)}
    return sorted(_regular(order), key=lambda option: (-found.get(option.name, 0), option.name not in alike))
