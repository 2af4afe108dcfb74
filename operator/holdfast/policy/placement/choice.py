"""Choose the accelerator of a service: the one with the lowest cost per good request that is available.

A service uses one accelerator at a time. Only spot and on-demand nodes of the same hardware serve together
(placement.on_demand_pair).
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
"""Another accelerator must cost less than this share of the cost of the accelerator in use."""


@value
class Choice:
    """The chosen accelerator, and the regret: what staying there has cost since `better` became the better one.

    The regret is in dollars where the other accelerator is cheaper. It is in seconds of the whole demand where the
    other accelerator would serve more.
    """

    accelerator: str = ""
    better: str = ""
    regret_dollars: float = 0.0
    judged_at: float = 0.0
    regret_seconds: float = 0.0


def in_use(groups: tuple[Group, ...], considered: tuple[Option, ...]) -> str:
    """Return the best listed accelerator that has replicas: the choice as visible in the cluster.

    Of two accelerators that serve together, it is the one whose pair covers the replicas of both.
    """
    sizes = {group.accelerator: group.size for group in groups}
    used = [option for option in considered if sizes.get(option.name, 0) > 0]
    has_leftovers = {o.name: any(source.size > 0 for source in together(groups, o.name, o.pair)[1]) for o in used}
    return min(used, key=lambda option: (has_leftovers[option.name], option.rank)).name if used else ""


def choose(
    memory: Choice,
    spec: ServiceSpec,
    considered: tuple[Option, ...],
    groups: tuple[Group, ...],
    switch_seconds: float,
    now: float,
    peak_rps: float = 0.0,
) -> Choice:
    """Choose the best accelerator, but stay with the one in use unless another is clearly better for long enough.

    A switch is immediate if the accelerator in use has a hindrance that the better one does not have. It is also
    immediate if the accelerator in use carries less, and a replica of the better one fits next to all serving replicas.

    Otherwise the service switches once staying has cost as much as switching would. This bounds the cost of any later
    decision to twice the optimum. For money, the price of a switch is running both accelerators for `switch_seconds`;
    the better one must also carry `peak_rps`, the recent demand. For capacity, the price is the capacity given up for
    as long.

    Where scaling.max is 1 and the accelerator in use serves, the service stays. A started switch continues until it is
    complete or hindered.
    """
    best = min(considered, key=lambda option: option.rank)
    current = _current(memory, spec, considered, groups)
    if current is None or best is current:
        return Choice(best.name, judged_at=now)
    fit, passed, known = _both_fit(spec, best, current, groups), now - memory.judged_at, memory.better == best.name
    passed = passed if known and passed >= 0.0 else 0.0
    if _worse(current, best) and not _is_only_replica(spec, current, groups):
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
    """Return the accelerator in use: the chosen one, as far as it can have started.

    Where only one replica is allowed, it is the accelerator of the existing replica.
    """
    by_name = {option.name: option for option in considered}
    chosen, used = by_name.get(memory.accelerator), by_name.get(in_use(groups, considered))
    return (used or chosen) if spec.max_replicas < 2 else (chosen or used)


def _worse(current: Option, best: Option) -> bool:
    """Return whether the accelerator in use has a hindrance that `best` has not, or `best` serves clearly more.

    Missing room for more replicas alone is no reason while the existing replicas suffice.
    """
    less = current.served < HYSTERESIS * best.served
    return best.hindrance < current.hindrance or (best.hindrance == current.hindrance and less)


def _is_only_replica(spec: ServiceSpec, current: Option, groups: tuple[Group, ...]) -> bool:
    """Return whether the accelerator in use serves and scaling.max allows no second replica.

    Then a switch would begin with an outage.
    """
    never = current.barred or current.allowed < 1 or not current.belief.feasible
    return spec.max_replicas < 2 and not never and bool(group_on(groups, current.name).ready)


def _serving(current: Option, groups: tuple[Group, ...]) -> int:
    """Return the serving replicas of the accelerator in use that the spec still allows."""
    return min(len(group_on(groups, current.name).ready), current.allowed)


def _has_room(spec: ServiceSpec, best: Option, current: Option, groups: tuple[Group, ...]) -> bool:
    """Return whether a replica of `best` is allowed in addition to all serving replicas."""
    serving = {group.accelerator: len(group.ready) for group in groups} | {current.name: _serving(current, groups)}
    return allowance(spec).more(best.name, serving) > 0


def _price_seconds(current: Option, groups: tuple[Group, ...], switch_seconds: float) -> float:
    """Return the price of a switch, in seconds of the whole demand: serving capacity is lost for its duration."""
    demand, carried = current.demand_rps, _serving(current, groups) * current.belief.rate_rps
    share = current.served if demand is None or not demand > 0.0 else min(current.served, carried / demand)
    return share * switch_seconds


def is_cheaper(best: Option, current: Option) -> bool:
    """Return whether `best` is clearly cheaper; without prices the rank decides."""
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return best.rank < current.rank
    return best.cost_per_hour < HYSTERESIS * current.cost_per_hour


def _both_fit(spec: ServiceSpec, best: Option, current: Option, groups: tuple[Group, ...]) -> bool:
    """Return whether the serving replicas and the replicas of `best` are allowed at the same time.

    Replicas that continue to serve as part of a pair are counted once.
    """
    sizes = {group.accelerator: len(group.ready) for group in groups}
    old = {name: sizes.get(name, 0) for name in current.parts}
    both = best.parts_of(min(best.replicas, best.allowed))
    for name, size in old.items():
        stays = best.pair is not None or current.pair is not None
        both[name] = max(both.get(name, 0), size) if stays else both.get(name, 0) + size
    return allowance(spec).takes(both)


def _saving_per_hour(current: Option, best: Option) -> float:
    """Return dollars saved per hour; 1 without prices.

    The price of a switch is then one dollar per hour as well, so that the order of the list decides.
    """
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return 1.0
    return current.cost_per_hour - best.cost_per_hour
