"""Which replicas of an accelerator that is being left stay, until the new ones serve."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.policy.money import dollars, spendable
from holdfast.policy.replicas import Group
from holdfast.policy.spot import affordable
from holdfast.policy.view import View


def staying(view: View, left: Group) -> int:
    """Return how many replicas of an accelerator that is being left stay for now.

    Those that will never serve go at once, all go when the new ones carry the demand; where scaling.max or the budget
    leaves no room to run both in full, the old ones go as the new ones come.
    """
    old = _with_laggard(view, left)
    if not all(group.observed for group in view.groups):
        return old.size
    if _is_vain(view, old):
        return 0
    useful = max(0, old.size - len(old.useless))
    if not view.seen.fresh or old.rolling_out:
        return useful
    if _in_the_way(view, old):
        return useful - 1
    ready, needed = len(view.group.ready), max(1, min(view.chosen.replicas, view.chosen.most))
    if ready < needed and _is_crowded(view, old, useful, needed):
        return _not_replaced(view, old, useful, ready, needed)
    return max(0 if ready >= needed else useful, _off_spot(view, old))


def _is_vain(view: View, old: Group) -> bool:
    """None of it serves, and none is about to."""
    setback = view.learned.setbacks.active(old.accelerator, view.now)
    return not old.ready and (not old.coming or setback is not None)


def _with_laggard(view: View, old: Group) -> Group:
    """The same, with one that lags as one that serves: it answers, and need not go before the others do."""
    return replace(old, ready=old.ready + old.ailing, ailing=()) if view.learned.lag.sure else old


def _not_replaced(view: View, old: Group, useful: int, ready: int, needed: int) -> int:
    """Those of the old ones that stand for new ones which do not serve yet, where both have no room in full."""
    pair, least = view.chosen.pair, _off_spot(view, old)
    if pair is not None and pair.accelerator == old.accelerator:  # some of these go on, and replace nothing
        return max(least, min(useful, needed - ready))
    stay = max(least, min(useful, math.ceil((needed - ready) * _worth(view, old) - 1e-9)))
    if _room(view, old, useful) > 0:
        return stay
    if 0 < ready == view.group.size:  # else nothing more would come
        return min(stay, _leaving_room(view, old, useful))
    if not view.group.size and view.chosen.most > 0:
        return min(stay, max(_leaving_room(view, old, useful), _allowed(view, old), _last_one(view, old)))
    return stay


def _last_one(view: View, old: Group) -> int:
    """1 where nothing else serves and scaling.max allows a successor beside it: who lowers a bound wants no outage."""
    alone = bool(old.ready) and view.ready == len(old.ready)
    return int(alone and view.spec.max_replicas > 1)


def _allowed(view: View, old: Group) -> int:
    """Most that the spec allows of what is being left, none where it is no longer listed or leaves no room off spot."""
    option = next((option for option in view.considered if option.name == old.accelerator), None)
    return 0 if option is None or option.barred else option.allowed


def _leaving_room(view: View, old: Group, useful: int) -> int:
    """Most of the old ones beside which the money pays for one new one."""
    return next((stay for stay in range(useful - 1, 0, -1) if _room(view, old, stay) > 0), 0)


def _is_crowded(view: View, old: Group, stay: int, needed: int) -> bool:
    """Whether scaling.max or the budget leaves no room for so many old replicas and all new ones."""
    if stay + needed > view.spec.max_replicas:
        return True
    pair = view.chosen.pair
    if pair is not None and pair.accelerator == old.accelerator:  # the budget is asked of both as one
        return False
    both = _price(view, old.accelerator) * stay + _price(view, view.chosen.name) * needed
    return view.spec.max_cost_per_hour is not None and both > view.spec.max_cost_per_hour


def _room(view: View, old: Group, stay: int) -> int:
    """How many more of the chosen accelerator scaling.max and the budget allow beside all others, if so many stay."""
    gone, money = old.size - stay, spendable(view.spec, view.groups, view.chosen.name)
    vain = {group.accelerator for group in view.others if _is_vain(view, group)} - set(view.chosen.parts)
    sizes = {name: size for name, size in view.sizes.items() if name not in vain}
    room = view.spec.max_replicas - (sum(sizes.values()) - gone)
    if money is None:
        return room
    left = money - dollars(view.spec, sizes) + gone * _price(view, old.accelerator)
    paid = affordable(view.belief.option, None, left)
    return room if paid is None else min(room, paid)


def _price(view: View, accelerator: str) -> float:
    return dollars(view.spec, {accelerator: 1})


def _off_spot(view: View, old: Group) -> int:
    """Those that serve off spot until enough others do for scaling.minOnDemand."""
    regular = {option.name for option in view.spec.accelerators if not option.spot}
    if old.accelerator not in regular:
        return 0
    there = sum(len(view.group_of(name).ready) for name in view.chosen.parts if name in regular)
    return max(0, min(len(old.ready), view.spec.min_on_demand - there))


def _in_the_way(view: View, old: Group) -> bool:
    """Whether it may not stay, holds what the new replicas wait for in vain, and can spare one for the first.

    The last one stays: whether the new one would come in its place, nobody knows.
    """
    new = view.group
    waiting = new.short and not new.ready and not new.coming and not old.draining
    if not waiting or len(old.ready) < 2 or _allowed(view, old):
        return False
    return all(replica.node in view.chosen.room.names for replica in old.ready)


def _worth(view: View, old: Group) -> float:
    """How many old replicas one new one stands for."""
    old_belief = view.learned.capacity.belief(old.accelerator)
    if old_belief is None or old_belief.rate_rps <= 0.0:
        return 1.0
    return view.belief.rate_rps / old_belief.rate_rps
