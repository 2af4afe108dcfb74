"""A size that people have fixed, shared out between accelerators: within each one's max and the budget.

What serves already goes as what replaces it comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.money import dollars, spendable
from holdfast.policy.replicas import Group
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
    paid = affordable(option, None, spec.max_cost_per_hour - dollars(spec, found))
    return own if paid is None else min(own, paid)


def hand_over(
    spec: ServiceSpec, groups: Sequence[Group], goal: Mapping[str, int], blocked: bool = False
) -> dict[str, int]:
    """Return the next sizes on the way to those of `goal`: as many that serve stay as it lacks.

    Meanwhile scaling.max and the budget hold, or what is there where that is more; fewer stay where these would leave
    no room for anything to come. One less where it is `blocked`, for want of the nodes of those; the last one stays.
    """
    ready = {group.accelerator: min(len(group.ready), group.size) for group in groups}
    serving = sum(min(ready.get(name, 0), count) for name, count in goal.items())
    spare = {name: count - goal.get(name, 0) for name, count in ready.items() if count > goal.get(name, 0)}
    most = min(sum(spare.values()), sum(goal.values()) - serving)
    for kept in _ever_fewer(spare, most - (blocked and most + serving > 1)):
        sizes = _grown(spec, groups, goal, kept)
        if sum(min(sizes.get(name, 0), count) for name, count in goal.items()) > serving:
            break
    return sizes


def _ever_fewer(spare: Mapping[str, int], most: int) -> Iterator[dict[str, int]]:
    """Some of the replicas that can be spared: at most so many, then one less each time, then none."""
    for count_of_all in range(most, 0, -1):
        kept, left = {}, count_of_all
        for name, count in spare.items():
            kept[name] = min(count, left)
            left -= kept[name]
        yield kept
    yield {}


def _grown(
    spec: ServiceSpec, groups: Sequence[Group], goal: Mapping[str, int], kept: Mapping[str, int]
) -> dict[str, int]:
    """What is kept and what is there of the goal, and as much more of it as there is room for."""
    now = {group.accelerator: group.size for group in groups}
    most = max(spec.max_replicas, sum(now.values()))
    sizes = {name: min(now.get(name, 0), goal.get(name, 0)) + kept.get(name, 0) for name in {**goal, **kept}}
    for name, count in goal.items():
        option, own, money = spec.accelerator(name), sizes[name] - kept.get(name, 0), spendable(spec, groups, name)
        paid = None if option is None or money is None else affordable(option, None, money - dollars(spec, sizes))
        room = most - sum(sizes.values())
        sizes[name] += max(0, min(count - own, room if paid is None else min(room, paid)))
    return sizes
