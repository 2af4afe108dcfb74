"""Choose the accelerator of a service: the one with the lowest cost per good request that is available.

A service uses one accelerator at a time. Only spot and on-demand nodes of the same hardware serve together
(placement.on_demand_pair).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

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

    It is a share of the price of a switch, in dollars where the other accelerator is cheaper, in seconds of the whole
    demand where it would serve more.
    """

    accelerator: str = ""
    better: str = ""
    regret: float = 0.0
    judged_at: float = 0.0


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

    Otherwise the service switches once staying has cost as much as switching would: at most twice the optimum,
    whatever comes later. For money, the price is running both accelerators for `switch_seconds`, and the better one
    must also carry `peak_rps`, the recent demand. For capacity, it is the capacity given up for as long.
    """
    best = min(considered, key=lambda option: option.rank)
    current = _current(memory, spec, considered, groups)
    if current is None or best is current:
        return Choice(best.name, judged_at=now)
    ready = Counter({group.accelerator: len(group.ready) for group in groups})
    serving, fit, at_once = min(ready[current.name], current.allowed), _both_fit(spec, best, current, ready), False
    # Where scaling.max is 1 and the accelerator in use serves, a switch would begin with an outage.
    stays = spec.max_replicas < 2 and ready[current.name] and current.belief.feasible and not current.forbidden
    if _worse(current, best) and not stays:
        has_room = allowance(spec).more(best.name, {**ready, current.name: serving}) > 0
        at_once = best.hindrance[:4] < current.hindrance[:4] or fit or has_room
        gain, price = best.served - current.served, current.served * switch_seconds
    else:
        few = replicas_for(peak_rps, best.belief.rate_rps) > best.most
        if best.full or few or not fit or not is_cheaper(best, current):
            return Choice(current.name, judged_at=now)
        gain, price = 1.0, (best.cost_per_hour or 1.0) * switch_seconds  # without prices the order of the list decides
        if best.cost_per_hour is not None and current.cost_per_hour is not None:
            gain = current.cost_per_hour - best.cost_per_hour
    before, passed = (memory.regret, now - memory.judged_at) if memory.better == best.name else (0.0, 0.0)
    regret = before + gain * max(0.0, passed) / price if price > 0.0 else 1.0
    if at_once or regret >= 1.0 - 1e-9:
        return Choice(best.name, judged_at=now)
    return Choice(current.name, best.name, regret, now)


def _current(
    memory: Choice, spec: ServiceSpec, considered: tuple[Option, ...], groups: tuple[Group, ...]
) -> Option | None:
    """Return the accelerator in use: the chosen one, else the best one that has replicas.

    Of two that serve together it is the one whose pair covers the replicas of both. Where only one replica is allowed,
    it is the accelerator of the existing replica.
    """
    used = [option for option in considered if group_on(groups, option.name).size > 0]
    has_leftovers = {o.name: any(source.size > 0 for source in together(groups, o.name, o.pair)[1]) for o in used}
    visible = min(used, key=lambda option: (has_leftovers[option.name], option.rank), default=None)
    chosen = next((option for option in considered if option.name == memory.accelerator), None)
    return (visible or chosen) if spec.max_replicas < 2 else (chosen or visible)


def _worse(current: Option, best: Option) -> bool:
    """Return whether the accelerator in use has a hindrance that `best` has not, or `best` serves clearly more.

    Missing room for more replicas alone is no reason while the existing replicas suffice.
    """
    less = current.served < HYSTERESIS * best.served
    return best.hindrance < current.hindrance or (best.hindrance == current.hindrance and less)


def is_cheaper(best: Option, current: Option) -> bool:
    """Return whether `best` is clearly cheaper; without prices the rank decides."""
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return best.rank < current.rank
    return best.cost_per_hour < HYSTERESIS * current.cost_per_hour


def _both_fit(spec: ServiceSpec, best: Option, current: Option, ready: Mapping[str, int]) -> bool:
    """Return whether the serving replicas and the replicas of `best` are allowed at the same time.

    Replicas that continue to serve as part of a pair are counted once.
    """
    both, stays = best.parts_of(min(best.replicas, best.allowed)), best.pair is not None or current.pair is not None
    for name in current.parts_of(current.replicas):
        new, old = both.get(name, 0), ready.get(name, 0)
        both[name] = max(new, old) if stays else new + old
    return sum(both.values()) <= spec.max_replicas and allowance(spec).left(both) >= -1e-9
