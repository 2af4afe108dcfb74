"""A size that people have fixed, shared out between accelerators: within each one's max and the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.sizing import MOST_REPLICAS
from holdfast.policy.spot import affordable, keepers


def share_out(
    spec: ServiceSpec, now: Mapping[str, int], order: Sequence[AcceleratorOption], replicas: int
) -> dict[str, int]:
    """Return how many of so many replicas each accelerator gets: as many as it has `now`, then more in that order.

    Before spot ones those off spot, scaling.minOnDemand of them where there is room. Fewer than asked for where no max
    or not the budget leaves room for all.
    """
    found: dict[str, int] = {}

    def fill(option: AcceleratorOption, most: int) -> None:
        here = found.get(option.name, 0)
        more = min(most - here, replicas - sum(found.values()), _room(spec, option, found))
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


def _room(spec: ServiceSpec, option: AcceleratorOption, found: Mapping[str, int]) -> int:
    """Most more replicas of an accelerator, by its max and by the budget."""
    own = MOST_REPLICAS if option.max_replicas is None else option.max_replicas - found.get(option.name, 0)
    if spec.max_cost_per_hour is None:
        return own
    spent = sum((other.cost_per_replica_hour or 0.0) * found.get(other.name, 0) for other in spec.accelerators)
    paid = affordable(option, None, spec.max_cost_per_hour - spent)
    return own if paid is None else min(own, paid)
