"""What moves from the accelerators that are being left to those that were chosen, or that a fixed size is shared among.

How it moves is the same for both (policy.handover).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.policy.allowance import Allowance, allowance
from holdfast.policy.handover import Move, staying
from holdfast.policy.placement import Option
from holdfast.policy.replicas import Group, group_on
from holdfast.policy.spot import parted
from holdfast.policy.view import View


def chosen_move(view: View) -> Move:
    """What moves to the accelerator that was chosen and its pair, as far as the demand needs them."""
    groups, pair = view.groups, view.chosen.pair
    own = group_on(groups, view.chosen.name)
    here = (own,) if pair is None else (own, parted(group_on(groups, pair.accelerator), pair.most)[0])
    left = tuple([group for group in _with_laggard(view, view.others) if not _is_vain(view, group)])
    total = 0 if view.asleep else max(1, min(view.chosen.replicas, _to_be_had(view.chosen, left)))
    beside = 0 if pair is None else pair.share(total)
    parts = {view.chosen.name: total - beside} | ({} if pair is None else {pair.accelerator: beside})
    forbidden = frozenset([group.accelerator for group in left if _is_forbidden(view, group)])
    vain = _all_out(view, parts)
    return Move(
        here=here,
        needed=parts,
        left=left,
        allowance=_on_the_way(view, view.spec.max_replicas, vain),
        vain=vain,
        worth={group.accelerator: _worth(view, group) for group in left},
        regular=_regular(view),
        on_demand=0 if view.asleep else view.spec.min_on_demand,
        forbidden=forbidden,
        in_the_way=_in_the_way(view, here, left) & forbidden,
    )


def staying_meanwhile(view: View, move: Move) -> dict[str, int]:
    """Return how many replicas of each accelerator that is being left stay for now; where it is not seen, all do."""
    if not all(group.observed for group in view.groups):
        return {group.accelerator: group.size for group in view.others}
    none = {group.accelerator: 0 for group in view.others}
    if not view.seen.fresh or any(group.rolling_out for group in move.left):
        return none | {group.accelerator: group.useful for group in move.left}
    return none | staying(move)


def pinned_move(view: View, goal: Mapping[str, int]) -> Move:
    """What moves to the accelerators among which a fixed size is shared; of what is left only what serves stays."""
    groups = [parted(group, goal.get(group.accelerator, 0)) for group in _with_laggard(view, view.groups)]
    here = tuple([group for group, _ in groups if group.accelerator in goal])
    left = tuple([_serving_ones(rest, draining=group.draining) for group, rest in groups if rest.ready])
    to_be_had = {option.name: _to_be_had(option, left) for option in view.considered}
    vain = _all_out(view, goal)
    return Move(
        here=here,
        needed={name: min(count, to_be_had.get(name, count)) for name, count in goal.items()},
        left=left,
        allowance=_on_the_way(view, max(view.spec.max_replicas, sum(goal.values())), vain),
        vain=vain,
        regular=_regular(view),
        on_demand=view.spec.min_on_demand,
        forbidden=frozenset([group.accelerator for group in left]),
        in_the_way=_in_the_way(view, here, left),
        exact=True,
    )


def _serving_ones(group: Group, draining: int) -> Group:
    return Group(group.accelerator, len(group.ready), exists=True, ready=group.ready, draining=draining)


def _with_laggard(view: View, groups: Sequence[Group]) -> list[Group]:
    """The same, with one that lags as one that serves: it answers, and need not go before the others do."""
    if not view.learned.lag.sure:
        return list(groups)
    return [replace(group, ready=group.ready + group.ailing, ailing=()) for group in groups]


def _is_vain(view: View, group: Group) -> bool:
    """None of it serves, and none is about to."""
    setback = view.learned.setbacks.active(group.accelerator, view.now)
    return not group.ready and (not group.coming or setback is not None)


def _to_be_had(option: Option, left: Sequence[Group]) -> int:
    """Most replicas that may come: where more proved short, those that are there and on nodes of those left."""
    if not option.full:
        return option.allowed
    return option.most + sum(replica.node in option.room.names for group in left for replica in group.ready)


def _on_the_way(view: View, replicas: int, vain: bool) -> Allowance:
    """The budget, or what is there already costs where that is more: whoever lowers a budget wants nobody sent away.

    Only as long as something else may come.
    """
    allowed = replace(allowance(view.spec), replicas=replicas)
    if allowed.dollars_per_hour is None or vain:
        return allowed
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(view.sizes)))


def _all_out(view: View, goal: Collection[str]) -> bool:
    return all(view.learned.setbacks.active(name, view.now) for name in goal)


def _regular(view: View) -> frozenset[str]:
    return frozenset([option.name for option in view.spec.accelerators if not option.spot])


def _is_forbidden(view: View, group: Group) -> bool:
    """Whether it will not be asked for again: by the spec, the objectives, or for what others need more."""
    option = next((option for option in view.considered if option.name == group.accelerator), None)
    if option is None or option.barred or option.allowed < 1 or not option.belief.feasible:
        return True
    setback = view.learned.setbacks.active(group.accelerator, view.now)
    return setback is not None and setback.reason is Reason.CAPACITY_LIMITED


def _in_the_way(view: View, here: Sequence[Group], left: Sequence[Group]) -> frozenset[str]:
    """Accelerators all replicas of which are on nodes that others wait for in vain, while nothing comes or goes."""
    if any(group.coming for group in here) or any(group.draining for group in left):
        return frozenset()
    short = {group.accelerator for group in here if group.short}
    nodes = {node for option in view.considered if option.name in short for node in option.room.names}
    return frozenset([g.accelerator for g in left if g.ready and all(replica.node in nodes for replica in g.ready)])


def _worth(view: View, group: Group) -> float:
    """How many replicas of the chosen accelerator one of another stands for."""
    belief, rate_rps = view.learned.capacity.belief(group.accelerator), view.belief.rate_rps
    worth = 0.0 if belief is None or not rate_rps > 0.0 else belief.rate_rps / rate_rps
    return worth if math.isfinite(worth) and worth > 0.0 else 1.0
