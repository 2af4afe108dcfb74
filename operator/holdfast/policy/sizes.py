"""From a view to sizes: propose, guard, and let go of accelerators that are no longer used."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget
from holdfast.domain.value import value
from holdfast.policy.guards import Bound, Proposal, apply_guards
from holdfast.policy.money import dollars, spendable
from holdfast.policy.replicas import Group
from holdfast.policy.sizing import replicas_for
from holdfast.policy.spot import affordable
from holdfast.policy.view import View


@value
class Sizes:
    """What every accelerator's size becomes, and what bounded it.

    `wanted` replicas of the chosen accelerator were proposed before the guards.
    """

    action: Action
    before: int
    after: int
    wanted: int
    bounds: tuple[Bound, ...]
    targets: tuple[PlacementTarget, ...]

    @property
    def limits(self) -> frozenset[Reason]:
        return frozenset([bound.reason for bound in self.bounds])


def decide_sizes(view: View) -> Sizes:
    """Return the sizes that follow for all accelerators of a service."""
    kept = {group.accelerator: _kept(view, _with_laggard(view, group)) for group in view.others}
    left = sum(kept.values())
    wanted = propose(view)
    proposal, bounds = apply_guards(Proposal(view, view.group.baseline, wanted, left, dollars(view.spec, kept)))
    sizes = _shared(view, proposal)
    both = {name: sizes.get(name, 0) + kept.get(name, 0) for name in dict.fromkeys((*sizes, *kept))}
    targets = tuple(target(view.part(name), name, replicas) for name, replicas in both.items())
    changed = tuple(item for item in targets if item.replicas or item.observed_replicas)
    action = _action(view, both)
    return Sizes(action, view.size, sum(both.values()), wanted, bounds, changed)


def _shared(view: View, proposal: Proposal) -> dict[str, int]:
    """The proposed replicas by accelerator: of the chosen one, and of the one that serves beside it.

    Spot replicas that regular ones are to replace stay until these serve.
    """
    pair, name, after = view.chosen.pair, view.chosen.name, proposal.after
    if pair is None:
        return {name: after}
    own, other = view.group_of(name), view.group_of(pair.accelerator)
    gone = view.leaving
    if gone and after == proposal.before - gone.total():
        there = min(other.baseline, pair.most) - gone[pair.accelerator]
        return {name: after - there, pair.accelerator: there}
    if after == proposal.before and not all(group.observed for group in view.groups):
        return {name: own.baseline, pair.accelerator: after - own.baseline}
    share = pair.share(after)
    until = min(own.baseline, after - min(share, len(other.ready) + view.lacking), _room_beside(proposal, share))
    return {name: max(after - share, until), pair.accelerator: share}


def _room_beside(proposal: Proposal, share: int) -> int:
    """Most of the chosen accelerator beside so many of its pair, by scaling.max and the budget."""
    chosen, spec = proposal.view.chosen, proposal.view.spec
    room, limit = spec.max_replicas - share - proposal.elsewhere, spec.max_cost_per_hour
    if chosen.pair is None or limit is None:
        return room
    paid = proposal.elsewhere_cost + share * (chosen.pair.cost_per_hour or 0.0)
    most = affordable(chosen.belief.option, None, limit - paid)
    return room if most is None else min(room, most)


def propose(view: View) -> int:
    """Replicas of the chosen accelerator, before any guard.

    More at once when the demand asks for it; fewer only when they also carry what the estimate may be wrong by. Hung
    ones first make room: they take their share of the requests, and accelerators.
    """
    before, spare = view.group.baseline, view.spare
    if view.asleep:
        return 0
    if view.ailing_to_let_go:
        return before - view.leaving.total()
    if view.forecast is None or view.demand_rps is None or not view.belief.feasible:
        return max(before, view.chosen.replicas, view.waking, view.least.replicas + spare)
    needed = max(view.chosen.replicas, view.waking, view.least.replicas) + spare
    if needed >= before:
        return needed
    safe = replicas_for(view.forecast.releasable_rps, view.belief.rate_rps) + spare
    return min(before, max(needed, safe))


def target(group: Group, accelerator: str, replicas: int) -> PlacementTarget:
    """The target of one accelerator, with the replicas that are best removed where it gets smaller."""
    fewer = replicas < group.size
    return PlacementTarget(
        accelerator=accelerator,
        replicas=replicas,
        observed_replicas=group.size if group.exists else None,
        remove_first=group.cheapest_to_remove() if fewer else (),
        lost=tuple(replica.name for replica in group.ailing) if fewer else (),
    )


def _kept(view: View, old: Group) -> int:
    """Replicas of an accelerator that is being left which stay for now.

    Those that will never serve go at once, all go when the new ones carry the demand; where scaling.max or the budget
    leaves no room to run both in full, the old ones go as the new ones come.
    """
    if not all(group.observed for group in view.groups):
        return old.size
    if not old.ready and not old.coming:
        return 0
    if not old.ready and view.learned.setbacks.active(old.accelerator, view.now) is not None:
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
        return min(stay, max(_leaving_room(view, old, useful), _allowed(view, old)))
    return stay


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
    both = _price(view, old.accelerator) * stay + _price(view, view.chosen.name) * needed
    return view.spec.max_cost_per_hour is not None and both > view.spec.max_cost_per_hour


def _room(view: View, old: Group, stay: int) -> int:
    """How many more of the chosen accelerator scaling.max and the budget allow beside all others, if so many stay."""
    gone, money = old.size - stay, spendable(view.spec, view.groups, view.chosen.name)
    room = view.spec.max_replicas - (view.size - gone)
    if money is None:
        return room
    left = money - dollars(view.spec, view.sizes) + gone * _price(view, old.accelerator)
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
    """Whether it is no longer listed, holds what the new replicas wait for in vain, and can spare one for the first.

    The last one stays: whether the new one would come in its place, nobody knows.
    """
    new = view.group
    waiting = new.short and not new.ready and not new.coming and not old.draining
    if not waiting or len(old.ready) < 2 or any(o.name == old.accelerator for o in view.spec.accelerators):
        return False
    return all(replica.node in view.chosen.room.names for replica in old.ready)


def _worth(view: View, old: Group) -> float:
    """How many old replicas one new one stands for."""
    old_belief = view.learned.capacity.belief(old.accelerator)
    if old_belief is None or old_belief.rate_rps <= 0.0:
        return 1.0
    return view.belief.rate_rps / old_belief.rate_rps


def _action(view: View, sizes: dict[str, int]) -> Action:
    if not any(group.exists for group in view.groups):
        return Action.CREATE
    more = {name: replicas - view.part(name).baseline for name, replicas in sizes.items()}
    left = {group.accelerator for group in view.others}
    if any(more[name] for name in left) or (view.switching and any(more.values())):
        return Action.SWITCH
    if not any(more.values()):
        return Action.HOLD
    if not sum(more.values()):
        return Action.SWITCH
    return Action.SCALE_UP if sum(more.values()) > 0 else Action.SCALE_DOWN
