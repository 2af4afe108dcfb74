"""Which accelerator a service runs on: the cheapest per good request that can be had, one at a time.

Only spot and on-demand nodes of the same hardware serve together (placement.on_demand_pair).
"""

from __future__ import annotations

from holdfast.domain.service import ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.allowance import allowance
from holdfast.policy.placement.on_demand_pair import together
from holdfast.policy.placement.options import Option

HYSTERESIS = 0.9
"""Another accelerator must cost less than this share of the one in use."""


@value
class Choice:
    """The accelerator taken, and what staying there has cost since `better` has been the better one.

    In dollars where that is cheaper; in seconds of the whole demand where it would serve more.
    """

    accelerator: str = ""
    better: str = ""
    regret_dollars: float = 0.0
    judged_at: float = 0.0
    regret_seconds: float = 0.0


def in_use(groups: tuple[Group, ...], considered: tuple[Option, ...]) -> str:
    """The best of the listed accelerators that have replicas: what was taken, as far as the cluster shows it.

    Of two that serve beside each other it is the one with which none of their replicas would be left.
    """
    sizes = {group.accelerator: group.size for group in groups}
    used = [option for option in considered if sizes.get(option.name, 0) > 0]
    alone = {o.name: any(left.size > 0 for left in together(groups, o.name, o.pair)[1]) for o in used}
    return min(used, key=lambda option: (alone[option.name], option.rank)).name if used else ""


def choose(
    memory: Choice,
    spec: ServiceSpec,
    considered: tuple[Option, ...],
    groups: tuple[Group, ...],
    switch_seconds: float,
    now: float,
    peak_rps: float = 0.0,
) -> Choice:
    """Take the best accelerator, and stay with the one in use unless another is clearly better for long enough.

    At once: when the one in use is hindered by something that does not hinder the other; or carries less, while there
    is room for one of the other beside all that serve. Else when staying has cost as much as switching would (no later
    decision can cost more than twice the best one's): for money, running both side by side for `switch_seconds`, if the
    other could have carried `peak_rps` as well, which was reckoned with lately; for capacity, going without what makes
    room for as long. Where scaling.max is 1 and the one in use serves, it stays. A switch once begun goes on
    until it is done or hindered.
    """
    best = min(considered, key=lambda option: option.rank)
    current = _current(memory, spec, considered, groups)
    if current is None or best is current:
        return Choice(best.name, judged_at=now)
    fit, passed, known = _both_fit(spec, best, current, groups), now - memory.judged_at, memory.better == best.name
    passed = passed if known and passed >= 0.0 else 0.0
    if _worse(current, best) and not _alone(spec, current, groups):
        regret = memory.regret_seconds * known + (best.served - current.served) * passed
        at_once = best.hindrance[:4] < current.hindrance[:4] or fit or _has_room(spec, best, current, groups)
        if at_once or regret >= _price_seconds(current, groups, switch_seconds):
            return Choice(best.name, judged_at=now)
        return Choice(current.name, best.name, judged_at=now, regret_seconds=regret)
    few = replicas_for(peak_rps, best.belief.rate_rps) > best.most
    if best.full or few or not fit or not is_cheaper(best, current):
        return Choice(current.name, judged_at=now)
    saving, price = _saving_per_hour(current, best), (best.cost_per_hour or 1.0) * switch_seconds
    regret = memory.regret_dollars * known + saving * passed / 3600.0
    if regret * 3600.0 >= price:
        return Choice(best.name, judged_at=now)
    return Choice(current.name, best.name, regret, now)


def _current(
    memory: Choice, spec: ServiceSpec, considered: tuple[Option, ...], groups: tuple[Group, ...]
) -> Option | None:
    """What was taken, as far as it can have begun: where one replica is allowed, it is the one that there is."""
    by_name = {option.name: option for option in considered}
    taken, used = by_name.get(memory.accelerator), by_name.get(in_use(groups, considered))
    return (used or taken) if spec.max_replicas < 2 else (taken or used)


def _worse(current: Option, best: Option) -> bool:
    """Something stands against the one in use that does not stand against the other, or the other serves clearly more.

    Lack of room alone ends nothing while what is there suffices.
    """
    less = current.served < HYSTERESIS * best.served
    return best.hindrance < current.hindrance or (best.hindrance == current.hindrance and less)


def _alone(spec: ServiceSpec, current: Option, groups: tuple[Group, ...]) -> bool:
    """It serves, and scaling.max allows no other beside it: what might serve better would begin with an outage."""
    never = current.barred or current.allowed < 1 or not current.belief.feasible
    return spec.max_replicas < 2 and not never and bool(group_on(groups, current.name).ready)


def _serving(current: Option, groups: tuple[Group, ...]) -> int:
    """Replicas of the one in use that serve, and that the spec still allows: others go anyway."""
    return min(len(group_on(groups, current.name).ready), current.allowed)


def _has_room(spec: ServiceSpec, best: Option, current: Option, groups: tuple[Group, ...]) -> bool:
    """One of the other may come at once, beside all that serve."""
    ready = {group.accelerator: len(group.ready) for group in groups} | {current.name: _serving(current, groups)}
    return allowance(spec).more(best.name, ready) > 0


def _price_seconds(current: Option, groups: tuple[Group, ...], switch_seconds: float) -> float:
    """Seconds of the demand that a switch may cost: all that serves now goes without before another comes."""
    demand, carried = current.demand_rps, _serving(current, groups) * current.belief.rate_rps
    share = current.served if demand is None or not demand > 0.0 else min(current.served, carried / demand)
    return share * switch_seconds


def is_cheaper(best: Option, current: Option) -> bool:
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return best.rank < current.rank
    return best.cost_per_hour < HYSTERESIS * current.cost_per_hour


def _both_fit(spec: ServiceSpec, best: Option, current: Option, groups: tuple[Group, ...]) -> bool:
    """There is room to run those that serve beside the new ones; what goes on serving is not needed twice."""
    sizes = {group.accelerator: len(group.ready) for group in groups}
    old = {name: sizes.get(name, 0) for name in current.parts}
    both = best.parts_of(min(best.replicas, best.allowed))
    for name, size in old.items():
        stays = best.pair is not None or current.pair is not None
        both[name] = max(both.get(name, 0), size) if stays else both.get(name, 0) + size
    return allowance(spec).takes(both)


def _saving_per_hour(current: Option, best: Option) -> float:
    """Dollars; without prices the order of the list counts, as one an hour and as much for an hour of both."""
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return 1.0
    return current.cost_per_hour - best.cost_per_hour
