"""Which accelerator a service runs on: the cheapest per good request that can be had, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.decision import Candidate
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.capacity import Belief
from holdfast.policy.inventory import Inventory, Room
from holdfast.policy.replicas import Group
from holdfast.policy.setbacks import Setback, Setbacks
from holdfast.policy.sizing import affordable_replicas, replicas_for

HYSTERESIS = 0.9
"""Another accelerator must cost less than this share of the one in use."""


@dataclass(frozen=True, slots=True)
class Option:
    """One accelerator under consideration: `replicas` carry the demand, at most `most` can be had."""

    belief: Belief
    index: int
    replicas: int
    most: int
    room: Room
    setback: Setback | None

    @property
    def name(self) -> str:
        return self.belief.option.name

    @property
    def fits(self) -> bool:
        return self.replicas <= self.most

    @property
    def unserved(self) -> float:
        """Share of the demand that the replicas to be had leave unserved."""
        return 0.0 if self.fits else 1.0 - self.most / self.replicas

    @property
    def cost_per_hour(self) -> float | None:
        """Dollars for the replicas that the demand needs."""
        cost = self.belief.option.cost_per_replica_hour
        return None if cost is None else cost * self.replicas

    @property
    def hindrance(self) -> tuple[bool, bool, bool]:
        """What speaks against it, worst first; the smaller the better."""
        return self.setback is not None, not self.belief.feasible, not self.fits

    @property
    def rank(self) -> tuple[tuple[bool, bool, bool], float, float, int]:
        """Unhindered ones first, those that serve more, then by cost of a good request, then as listed."""
        cost = self.belief.option.cost_per_replica_hour
        rate = self.belief.rate_rps
        per_request = cost / rate if cost is not None and rate > 0.0 else 0.0
        return self.hindrance, self.unserved, per_request, self.index


@dataclass(frozen=True, slots=True)
class Choice:
    """The accelerator taken, and what staying there has cost since `better` has been the better one."""

    accelerator: str = ""
    better: str = ""
    regret_dollars: float = 0.0
    judged_at: float = 0.0


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
    placed = {group.accelerator: group.placed for group in groups}
    return tuple(
        Option(
            belief=belief,
            index=index,
            replicas=_replicas(spec, belief, demand_rps, fallback),
            most=_most(spec, belief.option, inventory, placed.get(belief.option.name, 0)),
            room=inventory.room(belief.option),
            setback=setbacks.active(belief.option.name, now),
        )
        for index, belief in enumerate(beliefs)
    )


def _replicas(spec: ServiceSpec, belief: Belief, demand_rps: float | None, fallback: int) -> int:
    if demand_rps is None or not belief.feasible:
        return min(max(fallback, spec.min_replicas), spec.max_replicas)
    return max(replicas_for(demand_rps, belief.rate_rps), spec.min_replicas)


def _most(spec: ServiceSpec, option: AcceleratorOption, inventory: Inventory, placed: int) -> int:
    """By scaling.max, the accelerator's own maximum, the budget and what nodes could take."""
    cost, limit = option.cost_per_replica_hour, spec.max_cost_per_hour
    bounds = (
        spec.max_replicas,
        option.max_replicas,
        inventory.most_replicas(option, placed),
        affordable_replicas(limit, cost) if cost and limit is not None else None,
    )
    return min(bound for bound in bounds if bound is not None)


def in_use(groups: tuple[Group, ...], considered: tuple[Option, ...]) -> str:
    """The best of the listed accelerators that have replicas: what was taken, as far as the cluster shows it."""
    sizes = {group.accelerator: group.size for group in groups}
    used = [option for option in considered if sizes.get(option.name, 0) > 0]
    return min(used, key=lambda option: option.rank).name if used else ""


def choose(
    memory: Choice,
    spec: ServiceSpec,
    considered: tuple[Option, ...],
    groups: tuple[Group, ...],
    switch_seconds: float,
    now: float,
) -> Choice:
    """Take the best accelerator, and stay with the one in use unless another is clearly better for long enough.

    At once: when the one in use is hindered by something that does not hinder the other. For money: when staying has
    cost as much as running both side by side for `switch_seconds` would (no later decision can cost more than twice
    the best one's). A switch once begun goes on until it is done or hindered.
    """
    best = min(considered, key=lambda option: option.rank)
    by_name = {option.name: option for option in considered}
    current = by_name.get(memory.accelerator) or by_name.get(in_use(groups, considered))
    if current is None or _worse(current, best):
        return Choice(best.name, judged_at=now)
    if best is current or not _cheaper(best, current) or not _both_fit(spec, best, current, groups):
        return Choice(current.name, judged_at=now)
    passed = now - memory.judged_at if memory.better == best.name and memory.judged_at <= now else 0.0
    saving, price = _saving_per_hour(current, best), (best.cost_per_hour or 1.0) * switch_seconds
    regret = memory.regret_dollars * (memory.better == best.name) + saving * passed / 3600.0
    if regret * 3600.0 >= price:
        return Choice(best.name, judged_at=now)
    return Choice(current.name, best.name, regret, now)


def _worse(current: Option, best: Option) -> bool:
    """Something stands against the one in use that does not stand against the other.

    Lack of room alone ends nothing while what is there suffices.
    """
    return best.hindrance < current.hindrance


def _cheaper(best: Option, current: Option) -> bool:
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return best.rank < current.rank
    return best.cost_per_hour < HYSTERESIS * current.cost_per_hour


def _both_fit(spec: ServiceSpec, best: Option, current: Option, groups: tuple[Group, ...]) -> bool:
    """There is room to run the old replicas beside the new ones."""
    old = next((group.size for group in groups if group.accelerator == current.name), 0)
    if old + best.replicas > spec.max_replicas:
        return False
    costs = best.belief.option.cost_per_replica_hour, current.belief.option.cost_per_replica_hour
    if spec.max_cost_per_hour is None or costs[0] is None or costs[1] is None:
        return True
    return best.replicas * costs[0] + old * costs[1] <= spec.max_cost_per_hour


def _saving_per_hour(current: Option, best: Option) -> float:
    """Dollars; without prices the order of the list counts, as one an hour and as much for an hour of both."""
    if best.cost_per_hour is None or current.cost_per_hour is None:
        return 1.0
    return current.cost_per_hour - best.cost_per_hour


def candidates(considered: tuple[Option, ...], chosen: str, objective: float) -> tuple[Candidate, ...]:
    """Say of every accelerator why it was not taken, for `holdfast explain`."""
    return tuple(
        Candidate(
            accelerator=option.name,
            replicas=option.replicas,
            per_replica_rps=option.belief.rate_rps,
            cost_per_hour=option.cost_per_hour,
            lost_because="" if option.name == chosen else _lost_because(option, objective),
        )
        for option in considered
    )


def _lost_because(option: Option, objective: float) -> str:
    if option.setback is not None:
        return f"unavailable ({option.setback.reason}: {option.setback.detail}), tried again later"
    if not option.belief.feasible:
        bound = option.belief.rate.bound_by
        return f"cannot meet the objectives for {objective:.2%} of requests even without load ({bound})"
    if not option.fits:
        return f"only {option.most} of {option.replicas} replicas can be had"
    if option.cost_per_hour is not None:
        return f"${option.cost_per_hour:.2f}/h for the same load: not cheaper, not for long enough, or no room for both"
    return "listed later, not preferred for long enough, or no room for both"
