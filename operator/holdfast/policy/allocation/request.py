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
from holdfast.policy.view import Load, Minimum, Replacement, Selection, ServiceState, View

REFUSALS = frozenset({Reason.QUOTA_EXCEEDED, Reason.PODS_FORBIDDEN})
"""Why pods of a Deployment are not made."""

UNMADE = frozenset({Reason.APPLY_FAILED, Reason.NAME_CONFLICT, Reason.INVALID})
"""Why there may be no Deployment."""


def request_of(view: View, sizes: Sizes) -> CapacityRequest:
    """Return the claim that follows from the sizes a service would have if it were alone.

    scaling.min and the floors of schedules are promises to people: no service must give them up. Where they do not fit
    together, pods without a node show it. Replicas without a node give way at any time. Replicas with accelerators
    give way only where everything is known that the service's own decision needs before it lowers a size.

    Of a pair only the chosen accelerator is claimed; the service keeps its replicas on the other one. Sources whose
    slots the targets take count as targets already.
    """
    state, load, selection, replacement = view.state, view.load, view.selection, view.replacement
    chosen, own, offered = selection.chosen.belief, selection.own, selection.chosen.room.names
    placed = (*own.ready, *own.coming, *own.useless)
    outside = sum(not offered.issuperset(each.nodes) for each in placed)  # nodes that take no pods, such as cordoned
    held, handed = state.held_by_people, _handed_over(state, selection)
    planned = state.sizes if held else {target.accelerator: target.replicas for target in sizes.targets}
    want = _allowed(state, own, planned.get(selection.name, 0))
    beside = {name: _allowed(state, state.part(name), planned.get(name, 0)) for name in selection.paired}
    others, running, slots = sum(beside.values()), _placed(own), sum(handed.values())
    goal = state.spec.pinned_replicas if held else sizes.goal
    if slots and goal is not None:
        want = max(want, min(want + slots, goal))
    taken = min(slots, max(0, want - running))
    least = want if held else _least(state, selection, view.minimum, running + taken, others, handed)
    rate = chosen.rate_rps if math.isfinite(chosen.rate_rps) else 0.0
    return CapacityRequest(
        key=state.spec.key,
        option=chosen.option,
        want=want,
        least=min(want, max(outside, least)),
        rate_rps=rate,
        demand_rps=max(0.0, _useful_rps(load, replacement, rate, want + others) - rate * others),
        priority=state.spec.priority,
        running=running + taken,
        outside=min(want, outside),
        short=not _fails(own) and any(_waits_for_gpus(state, replica) for replica in own.short),
        waits=any(state.part(name).short for name in selection.paired),
        kept=tuple(_kept(state, selection, planned, handed, taken)),
        paired=tuple((option, beside[option.name]) for option in state.spec.accelerators if beside.get(option.name)),
        elsewhere=tuple(
            _elsewhere(state, load, replacement, option) for option in selection.considered if _may_move(view, option)
        ),
    )


def _kept(
    state: ServiceState, selection: Selection, planned: Mapping[str, int], handed: Collection[str], taken: int
) -> Iterator[tuple[AcceleratorOption, int]]:
    """Sources that stay, without so many whose slots the targets take."""
    sources = {group.accelerator for group in selection.others} - {*selection.paired}
    for option in state.spec.accelerators:
        replicas = planned.get(option.name, 0) if option.name in sources else 0
        less = min(replicas, taken) if option.name in handed else 0
        taken -= less
        if replicas > less:
            yield option, replicas - less


def _handed_over(state: ServiceState, selection: Selection) -> Mapping[str, int]:
    """Return the sources that hold slots which targets take over one by one, draining ones included.

    They are forbidden, need what the targets need, and are on nodes that these may have. The single replica of a
    service stays until a target serves, which has to find a slot of its own.
    """
    names, found = selection.chosen.room.names, dict[str, int]()
    forbidden = (group.accelerator for group in selection.others if group.placed and selection.is_forbidden(group))
    for name in forbidden:
        old = selection.option(name)
        if old and name not in selection.paired and _slot(old) == _slot(selection.chosen) and old.room.names <= names:
            pods = (pod for pod in state.service.replicas if pod.accelerator == name)
            found[name] = sum(not names.isdisjoint(pod.nodes) for pod in pods)
    there = selection.own.placed - selection.own.draining + sum(found.values())
    return {} if there < 2 <= state.spec.max_replicas else found


def _slot(option: Option) -> tuple[str, int]:
    return option.belief.option.resource, option.belief.option.gpus_per_replica


def _allowed(state: ServiceState, group: Group, want: int) -> int:
    """Without replicas that cannot be made, or that wait for something else: GPUs given up for those would lie idle.

    Nor would GPUs help where all that have some fail.
    """
    if not group.exists and _has_problem(state, UNMADE):
        return 0
    placed, unplaced = _placed(group), [*group.pending, *group.short, *_nowhere(group)]  # not all of them say so
    if _fails(group):
        return min(want, placed)
    if placed + len(unplaced) < group.size and _has_problem(state, REFUSALS):
        want = min(want, placed + len(unplaced))
    idle = sum(not _waits_for_gpus(state, replica) for replica in unplaced)
    return max(min(want, placed), want - idle)


def _fails(group: Group) -> bool:
    """Its engines do; one on a node that does not answer says nothing of them."""
    return any(replica.reason != Reason.NODE_LOST for replica in group.failing) and not group.to_serve


def _placed(group: Group) -> int:
    return group.placed - group.draining - len(_nowhere(group))


def _nowhere(group: Group) -> list[Replica]:
    """No scheduler looks at them, or they will never be scheduled: the name of a scheduler or of a volume is wrong."""
    others = (*group.starting, *group.stuck, *group.failing)
    return [replica for replica in others if not replica.node and replica.scheduled_at is None]


def _waits_for_gpus(state: ServiceState, replica: Replica) -> bool:
    """Whether a free GPU could be all that a replica without a node lacks, by what the scheduler says."""
    option = state.spec.accelerator(replica.accelerator)
    if replica.reason == SCHEDULING_GATED or replica.phase is not ReplicaPhase.UNSCHEDULABLE:
        return False
    return option is None or may_wait_for(option.resource, replica.detail)


def _has_problem(state: ServiceState, reasons: Set[Reason]) -> bool:
    return any(problem.reason in reasons for problem in state.service.problems)


def _may_move(view: View, to: Option) -> bool:
    """To where all of it finds room now, from where all is known of it and nothing else is under way.

    A pair stays where it is, and nothing moves to where scaling.minOnDemand would not be kept.
    """
    state, load, selection = view.state, view.load, view.selection
    if to is selection.chosen or selection.paired or (to.belief.option.spot and state.spec.min_on_demand):
        return False
    if any(to.hindrance) or not to.room.nodes or not math.isfinite(to.belief.rate_rps):
        return False
    known = state.seen.fresh and load.demand_rps is not None and math.isfinite(load.demand_rps)
    moving = selection.switching or state.held_by_people or view.minimum.asleep or state.supply.sick.doubted
    refused = _has_problem(state, REFUSALS)
    settled = all(group.observed and not group.rolling_out for group in state.groups)
    alone = state.ready > 0 and state.spec.max_replicas < 2  # it would have to go before another comes
    # Both run until the new ones serve.
    both = {selection.name: selection.group.size, **to.parts_of(to.replicas)}
    return known and settled and not moving and not refused and not alone and allowance(state.spec).left(both) >= 0.0


def _elsewhere(state: ServiceState, load: Load, replacement: Replacement, to: Option) -> CapacityRequest:
    """The service on another accelerator."""
    return CapacityRequest(
        key=state.spec.key,
        option=to.belief.option,
        want=to.replicas,
        least=to.replicas,
        rate_rps=to.belief.rate_rps,
        demand_rps=_useful_rps(load, replacement, to.belief.rate_rps, to.replicas),
        priority=state.spec.priority,
    )


def _least(
    state: ServiceState, selection: Selection, minimum: Minimum, running: int, paired: int, handed: Collection[str]
) -> int:
    elsewhere = [group for group in selection.others if group.accelerator not in {*selection.paired, *handed}]
    least = max(0, minimum.least.replicas - paired - sum(group.size for group in elsewhere))
    if not selection.chosen.belief.option.spot and not minimum.asleep:
        least = max(least, state.spec.min_on_demand)
    if not all(group.observed and not group.rolling_out for group in state.groups):
        return max(least, selection.own.baseline)
    return least if state.seen.fresh and not state.supply.sick.doubted else max(least, running)


def _useful_rps(load: Load, replacement: Replacement, rate: float, want: int) -> float:
    """What is sized for within the hold time, and what replicas that cannot serve leave to others.

    Replicas for batch have no worth: they take what no request of any service needs.
    """
    if load.demand_rps is None or not math.isfinite(load.demand_rps):
        return rate * want
    return load.useful.rate_rps + rate * replacement.spare
