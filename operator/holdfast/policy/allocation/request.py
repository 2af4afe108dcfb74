"""What a service asks of the fleet, once it has decided for itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Set

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import SCHEDULING_GATED, Replica, ReplicaPhase
from holdfast.domain.scheduling import may_wait_for
from holdfast.domain.service import AcceleratorOption
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.health.replicas import Group
from holdfast.policy.placement.allowance import allowance
from holdfast.policy.placement.options import Option
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.view import View

REFUSALS = frozenset({Reason.QUOTA_EXCEEDED, Reason.PODS_FORBIDDEN})
"""Why pods of a Deployment are not made."""

UNMADE = frozenset({Reason.APPLY_FAILED, Reason.NAME_CONFLICT, Reason.INVALID})
"""Why there may be no Deployment."""


def request_of(view: View, sizes: Sizes) -> CapacityRequest:
    """Return the claim that follows from the sizes a service would have if it were alone.

    scaling.min and the floors of schedules are promises to people: nobody is made to give those up, and where they do
    not fit together, pods without a node say so. What gives way otherwise: replicas without a node at any time, those
    that hold accelerators only where all is known that a service's own decision asks for before it lowers a size.

    Of a pair the chosen accelerator is claimed; what serves beside it is its own whatever others want. Sources whose
    slots the targets take count as targets already.
    """
    chosen, own, offered = view.chosen.belief, view.own, view.chosen.room.names
    placed = (*own.ready, *own.coming, *own.useless)
    outside = sum(not offered.issuperset(each.nodes) for each in placed)  # nodes that take no pods, such as cordoned
    held, handed = view.held_by_people, _handed_over(view)
    planned = view.sizes if held else {target.accelerator: target.replicas for target in sizes.targets}
    want = _allowed(view, own, planned.get(view.chosen.name, 0))
    beside = {name: _allowed(view, view.part(name), planned.get(name, 0)) for name in view.paired}
    others, running, slots = sum(beside.values()), _placed(own), sum(handed.values())
    goal = view.spec.pinned_replicas if held else sizes.goal
    if slots and goal is not None:
        want = max(want, min(want + slots, goal))
    taken = min(slots, max(0, want - running))
    rate = chosen.rate_rps if math.isfinite(chosen.rate_rps) else 0.0
    return CapacityRequest(
        key=view.spec.key,
        option=chosen.option,
        want=want,
        least=min(want, max(outside, want if held else _least(view, running + taken, others, handed))),
        rate_rps=rate,
        demand_rps=max(0.0, _useful_rps(view, rate, want + others) - rate * others),
        priority=view.spec.priority,
        running=running + taken,
        outside=min(want, outside),
        short=not _fails(own) and any(_waits_for_gpus(view, replica) for replica in own.short),
        waits=any(view.part(name).short for name in view.paired),
        kept=tuple(_kept(view, planned, handed, taken)),
        paired=tuple((option, beside[option.name]) for option in view.spec.accelerators if beside.get(option.name)),
        elsewhere=tuple(_elsewhere(view, option) for option in view.considered if _may_move(view, option)),
    )


def _kept(
    view: View, planned: Mapping[str, int], handed: Collection[str], taken: int
) -> Iterator[tuple[AcceleratorOption, int]]:
    """Sources that stay, without so many whose slots the targets take."""
    sources = {group.accelerator for group in view.others} - {*view.paired}
    for option in view.spec.accelerators:
        replicas = planned.get(option.name, 0) if option.name in sources else 0
        less = min(replicas, taken) if option.name in handed else 0
        taken -= less
        if replicas > less:
            yield option, replicas - less


def _handed_over(view: View) -> Mapping[str, int]:
    """Return the sources that hold slots which targets take over one by one, draining ones included.

    They are forbidden, need what the targets need, and are on nodes that these may have. The single replica of a
    service stays until a target serves, which has to find a slot of its own.
    """
    names, found = view.chosen.room.names, dict[str, int]()
    forbidden = (group.accelerator for group in view.others if group.placed and view.is_forbidden(group))
    for name in forbidden:
        old = view.option(name)
        if old and name not in view.paired and _slot(old) == _slot(view.chosen) and old.room.names <= names:
            pods = (pod for pod in view.service.replicas if pod.accelerator == name)
            found[name] = sum(not names.isdisjoint(pod.nodes) for pod in pods)
    there = view.own.placed - view.own.draining + sum(found.values())
    return {} if there < 2 <= view.spec.max_replicas else found


def _slot(option: Option) -> tuple[str, int]:
    return option.belief.option.resource, option.belief.option.gpus_per_replica


def _allowed(view: View, group: Group, want: int) -> int:
    """Without replicas that cannot be made, or that wait for something else: GPUs given up for those would lie idle.

    Nor would GPUs help where all that have some fail.
    """
    if not group.exists and _has_problem(view, UNMADE):
        return 0
    placed, unplaced = _placed(group), _unplaced(group)
    if _fails(group):
        return min(want, placed)
    if placed + len(unplaced) < group.size and _has_problem(view, REFUSALS):
        want = min(want, placed + len(unplaced))
    idle = sum(not _waits_for_gpus(view, replica) for replica in unplaced)
    return max(min(want, placed), want - idle)


def _fails(group: Group) -> bool:
    """Its engines do; one on a node that does not answer says nothing of them."""
    return any(replica.reason != Reason.NODE_LOST for replica in group.failing) and not group.to_serve


def _unplaced(group: Group) -> list[Replica]:
    """Those without a node; not all of them say so."""
    return [*group.pending, *group.short, *_nowhere(group)]


def _placed(group: Group) -> int:
    return group.placed - group.draining - len(_nowhere(group))


def _nowhere(group: Group) -> list[Replica]:
    """No scheduler looks at them, or they will never be scheduled: the name of a scheduler or of a volume is wrong."""
    others = (*group.starting, *group.stuck, *group.failing)
    return [replica for replica in others if not replica.node and replica.scheduled_at is None]


def _waits_for_gpus(view: View, replica: Replica) -> bool:
    """Whether a free GPU could be all that a replica without a node lacks, by what the scheduler says."""
    option = view.spec.accelerator(replica.accelerator)
    if replica.reason == SCHEDULING_GATED or replica.phase is not ReplicaPhase.UNSCHEDULABLE:
        return False
    return option is None or may_wait_for(option.resource, replica.detail)


def _has_problem(view: View, reasons: Set[Reason]) -> bool:
    return any(problem.reason in reasons for problem in view.service.problems)


def _may_move(view: View, to: Option) -> bool:
    """To where all of it finds room now, from where all is known of it and nothing else is under way.

    A pair stays where it is, and nothing moves to where scaling.minOnDemand would not be kept.
    """
    if to is view.chosen or view.chosen.pair is not None or (to.belief.option.spot and view.spec.min_on_demand):
        return False
    if any(to.hindrance) or not to.room.nodes or not math.isfinite(to.belief.rate_rps):
        return False
    known = view.seen.fresh and view.demand_rps is not None and math.isfinite(view.demand_rps)
    moving = view.switching or view.held_by_people or view.asleep or view.supply.sick.doubted
    refused = _has_problem(view, REFUSALS)
    settled = all(group.observed and not group.rolling_out for group in view.groups)
    alone = view.ready > 0 and view.spec.max_replicas < 2  # it would have to go before another comes
    # Both run until the new ones serve.
    affordable = allowance(view.spec).left({view.chosen.name: view.group.size, **to.parts_of(to.replicas)}) >= 0.0
    return known and settled and not moving and not refused and not alone and affordable


def _elsewhere(view: View, to: Option) -> CapacityRequest:
    """The service on another accelerator."""
    return CapacityRequest(
        key=view.spec.key,
        option=to.belief.option,
        want=to.replicas,
        least=to.replicas,
        rate_rps=to.belief.rate_rps,
        demand_rps=_useful_rps(view, to.belief.rate_rps, to.replicas),
        priority=view.spec.priority,
    )


def _least(view: View, running: int, paired: int, handed: Collection[str]) -> int:
    elsewhere = [group for group in view.others if group.accelerator not in {*view.paired, *handed}]
    least = max(0, view.least.replicas - paired - sum(group.size for group in elsewhere))
    if not view.chosen.belief.option.spot and not view.asleep:
        least = max(least, view.spec.min_on_demand)
    if not all(group.observed and not group.rolling_out for group in view.groups):
        return max(least, view.own.baseline)
    return least if view.seen.fresh and not view.supply.sick.doubted else max(least, running)


def _useful_rps(view: View, rate: float, want: int) -> float:
    """What is sized for, now or within the hold time, and what replicas that cannot serve leave to others."""
    demand = view.demand_rps
    if demand is None or not math.isfinite(demand):
        return rate * want
    return max(demand, view.peaks.rate_rps) + rate * view.spare
