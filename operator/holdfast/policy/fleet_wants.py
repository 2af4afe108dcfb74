"""What a service asks of the fleet, once it has decided for itself."""

from __future__ import annotations

import math

from holdfast.api.reasons import Reason
from holdfast.policy.fleet_claims import Claim
from holdfast.policy.guards import spare_replicas
from holdfast.policy.placement import Option
from holdfast.policy.sizes import Sizes
from holdfast.policy.view import View

REFUSALS = frozenset({Reason.QUOTA_EXCEEDED, Reason.PODS_FORBIDDEN})


def claim_of(view: View, sizes: Sizes) -> Claim:
    """Return the claim that follows from the sizes a service would have if it were alone.

    scaling.min and the floors of schedules are promises to people: nobody is made to give those up, and where they do
    not fit together, pods without a node say so. What gives way otherwise: replicas without a node at any time, those
    that hold accelerators only where all is known that a service's own decision asks for before it lowers a size.
    """
    chosen = view.chosen.belief
    wanted = {target.accelerator: target.replicas for target in sizes.targets}
    held = view.held_by_people
    want = _allowed(view, view.group.size if held else wanted.get(view.chosen.name, 0))
    options = {option.name: option for option in view.spec.accelerators}
    kept = {group.accelerator: group.size if held else wanted.get(group.accelerator, 0) for group in view.others}
    rate = chosen.rate_rps if math.isfinite(chosen.rate_rps) else 0.0
    running = view.group.placed - view.group.draining
    return Claim(
        key=view.spec.key,
        option=chosen.option,
        want=want,
        least=min(want, max(_outside(view), want if held else _least(view, running))),
        rate_rps=rate,
        demand_rps=_useful_rps(view, rate, want),
        priority=view.spec.priority,
        running=running,
        outside=min(want, _outside(view)),
        short=bool(view.group.short),
        kept=tuple((options[name], replicas) for name, replicas in kept.items() if replicas and name in options),
        elsewhere=tuple(_elsewhere(view, option) for option in view.considered if _may_move(view, option)),
    )


def _allowed(view: View, want: int) -> int:
    """Without replicas that a quota or admission does not let be made: GPUs given up for those would lie idle."""
    group = view.group
    there = group.placed - group.draining + len(group.pending) + len(group.short)
    return min(want, there) if there < group.size and _refused(view) else want


def _refused(view: View) -> bool:
    return any(problem.reason in REFUSALS for problem in view.service.problems)


def _may_move(view: View, to: Option) -> bool:
    """To where all of it finds room now, from where all is known of it and nothing else is under way."""
    free = to is not view.chosen and not any(to.hindrance) and to.room.nodes > 0 and math.isfinite(to.belief.rate_rps)
    known = view.seen.fresh and view.demand_rps is not None and math.isfinite(view.demand_rps)
    moving = view.switching or view.held_by_people or view.asleep or view.learned.hangs.doubted or _refused(view)
    settled = all(group.observed and not group.rolling_out for group in view.groups)
    return free and known and settled and not moving and _affordable(view, to)


def _affordable(view: View, to: Option) -> bool:
    """Both run until the new ones serve."""
    limit, more = view.spec.max_cost_per_hour, to.cost_per_hour
    now = view.chosen.belief.option.cost_per_replica_hour
    return limit is None or more is None or now is None or view.group.size * now + more <= limit


def _elsewhere(view: View, to: Option) -> Claim:
    """The service on another accelerator."""
    return Claim(
        key=view.spec.key,
        option=to.belief.option,
        want=to.replicas,
        least=to.replicas,
        rate_rps=to.belief.rate_rps,
        demand_rps=_useful_rps(view, to.belief.rate_rps, to.replicas),
        priority=view.spec.priority,
    )


def _least(view: View, running: int) -> int:
    least = max(0, view.least.replicas - sum(group.size for group in view.others))
    if not all(group.observed and not group.rolling_out for group in view.groups):
        return max(least, view.group.baseline)
    return least if view.seen.fresh and not view.learned.hangs.doubted else max(least, running)


def _useful_rps(view: View, rate: float, want: int) -> float:
    """What is sized for, now or within the hold time, and what replicas that cannot serve leave to others."""
    demand = view.demand_rps
    if demand is None or not math.isfinite(demand):
        return rate * want
    return max(demand, view.peaks.rate_rps) + rate * spare_replicas(view)


def _outside(view: View) -> int:
    """Replicas on nodes that take no pods now, such as cordoned ones."""
    group, offered = view.group, view.chosen.room.names
    placed = (*group.ready, *group.starting, *group.failing, *group.stuck, *group.hung)
    return sum(bool(replica.node) and replica.node not in offered for replica in placed)
