"""Which accelerator a service runs on: the cheapest per good request that can be had, one at a time.

Only spot and regular nodes of the same hardware serve beside each other (policy.spot).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Candidate
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.policy.allowance import allowance
from holdfast.policy.capacity import Belief
from holdfast.policy.inventory import Inventory, Room
from holdfast.policy.replicas import Group, group_on
from holdfast.policy.setbacks import Setback, Setbacks
from holdfast.policy.sizing import MOST_REPLICAS, replicas_for
from holdfast.policy.spot import Beside, affordable, beside, is_barred, together

HYSTERESIS = 0.9
"""Another accelerator must cost less than this share of the one in use."""


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
    setback: Setback | None
    pair: Beside | None = None
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
        return cost * (self.replicas - self.beside) + self.pair.cost_per_hour * self.beside

    @property
    def beside(self) -> int:
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
        return self.forbidden, self.setback is not None, not self.belief.feasible, missing, not self.fits

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


def options(
    spec: ServiceSpec,
    beliefs: tuple[Belief, ...],
    groups: tuple[Group, ...],
    setbacks: Setbacks,
    inventory: Inventory,
    demand_rps: float | None,
    fallback: int,
    now: float,
) -> tuple[Option, ...]:
    """Describe every accelerator of the spec; `fallback` replicas are wanted where the demand is unknown."""
    found = []
    for index, alone in enumerate(beliefs):
        pair = beside(spec, alone.option, groups, setbacks, inventory, now)
        belief = _slower(alone, beliefs, pair)
        replicas = _replicas(spec, belief, demand_rps, fallback)
        group = group_on(groups, belief.option.name)
        setback = setbacks.active(belief.option.name, now)
        room = inventory.room(belief.option)
        had, full = room.most_replicas(group.placed), _is_full(group, setback, room)
        if full and setback is not None:
            had = max(group.placed, setback.placed)
        others = 0 if pair is None else pair.share(replicas)
        allowed = _allowed(spec, belief.option, pair, others)
        option = Option(
            belief=belief,
            index=index,
            replicas=replicas,
            most=allowed if had is None else min(allowed, had + others),
            room=room,
            setback=None if full else setback,
            pair=pair,
            barred=is_barred(spec, belief.option),
            full=full,
            least=spec.min_replicas,
            allowed=allowed,
            demand_rps=demand_rps,
        )
        found.append(option)
    return tuple(found)


def _is_full(group: Group, setback: Setback | None, room: Room) -> bool:
    """Only more of it cannot be had: what is there serves, and is worth as much as elsewhere."""
    if not group.ready or setback is None or setback.reason is not Reason.INSUFFICIENT_GPUS:
        return False
    return bool(group.short or group.pending) or not room.free_replicas


def _slower(belief: Belief, beliefs: tuple[Belief, ...], pair: Beside | None) -> Belief:
    """All get the same share of the requests, so that no replica may be given more than the slowest carries."""
    if pair is None:
        return belief
    other = next((other for other in beliefs if other.option.name == pair.accelerator), None)
    return belief if other is None or not other.feasible else replace(belief, beside_rps=other.rate_rps)


def _replicas(spec: ServiceSpec, belief: Belief, demand_rps: float | None, fallback: int) -> int:
    if demand_rps is None or not belief.feasible:
        return min(max(fallback, spec.min_replicas), spec.max_replicas)
    return max(replicas_for(demand_rps, belief.rate_rps), spec.min_replicas)


def _allowed(spec: ServiceSpec, option: AcceleratorOption, pair: Beside | None, others: int) -> int:
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
    if best.full or few or not fit or not _cheaper(best, current):
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


def _cheaper(best: Option, current: Option) -> bool:
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


def candidates(considered: tuple[Option, ...], chosen: str, objective: float) -> tuple[Candidate, ...]:
    """Say of every accelerator why it was not taken, for `holdfast explain`."""
    taken = next(option for option in considered if option.name == chosen)
    return tuple(
        Candidate(
            accelerator=option.name,
            replicas=option.replicas,
            per_replica_rps=option.belief.rate_rps,
            cost_per_hour=option.cost_per_hour,
            lost_because=_lost_because(option, taken, objective),
        )
        for option in considered
    )


def _lost_because(option: Option, taken: Option, objective: float) -> str:
    if option is taken:
        return ""
    if taken.pair is not None and option.name == taken.pair.accelerator:
        return f"serves beside {taken.name}"
    return _hindered(option, objective) or _not_preferred(option, taken)


def _hindered(option: Option, objective: float) -> str:
    """What stands against it, in the order of `Option.hindrance`."""
    if option.barred:
        return "scaling.minOnDemand needs an accelerator of the same hardware beside it that is not spot"
    if option.allowed < 1:
        return "its max or budget.maxCostPerHour allows no replica"
    if option.setback is not None:
        return f"unavailable ({option.setback.reason}: {option.setback.detail}), tried again later"
    if not option.belief.feasible:
        bound = option.belief.rate.bound_by
        return f"cannot meet the objectives for {objective:.2%} of requests even without load ({bound})"
    if option.allowed < option.least:
        return f"its max or budget.maxCostPerHour allows {option.allowed} of at least {option.least} replicas"
    return "" if option.fits else f"only {option.most} of {option.replicas} replicas can be had"


def _not_preferred(option: Option, taken: Option) -> str:
    if option.cost_per_hour is None or taken.cost_per_hour is None:
        return "listed later, not preferred for long enough, or no room for both"
    costs = f"${option.cost_per_hour:.2f}/h for the same load, {taken.name} ${taken.cost_per_hour:.2f}/h"
    if not _cheaper(option, taken):
        return f"{costs}: not a tenth less"
    return f"{costs}: not for long enough yet, or no room to run both meanwhile"
