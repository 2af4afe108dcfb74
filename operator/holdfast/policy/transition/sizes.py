"""From a view to sizes: propose, and guard."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget
from holdfast.policy.health.replicas import Group
from holdfast.policy.sizing.guards import Bound, Proposal, apply_guards
from holdfast.policy.sizing.proposal import Sizes, propose
from holdfast.policy.transition.migration import chosen_migration, next_sizes
from holdfast.policy.transition.removal_order import removal_order
from holdfast.policy.view import View


def decide_sizes(view: View) -> Sizes:
    """Return the sizes that follow for all accelerators of a service."""
    wanted, elsewhere = propose(view), sum(group.useful for group in view.others)
    proposal, bounds = apply_guards(Proposal(view, view.group.baseline, wanted, elsewhere))
    goal = _shared(view, proposal)
    sizes, held_back = _next(view, goal)
    targets = tuple(target(view, view.part(name), replicas) for name, replicas in sizes.items())
    changed = tuple(item for item in targets if item.replicas or item.observed_replicas)
    return Sizes(
        action=_action(view, sizes),
        before=view.size,
        after=sum(sizes.values()),
        wanted=wanted,
        goal=goal[view.chosen.name],
        bounds=bounds + held_back,
        targets=changed,
    )


def _shared(view: View, proposal: Proposal) -> dict[str, int]:
    """The proposed replicas by accelerator: of the chosen one, and of the one that serves beside it."""
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
    return {name: after - share, pair.accelerator: share}


def _next(view: View, goal: dict[str, int]) -> tuple[dict[str, int], tuple[Bound, ...]]:
    """The sizes on the way to the goal, and what bounds them where others stay beside it."""
    if len(goal) == 1 and not view.others:
        return goal, ()
    sizes, kept = next_sizes(view, chosen_migration(view, goal))
    return sizes, _held_back(view, goal, kept, sizes)


def _held_back(
    view: View, goal: Mapping[str, int], kept: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[Bound, ...]:
    """What bounds the goal as long as others stay beside it."""
    wanted, spec, stay = sum(goal.values()), view.spec, sum(kept.values())
    given = sum(sizes.values()) - stay
    if given >= wanted:
        return ()
    beside = f" together with {stay} source replicas that still serve" if stay else ""
    if sum(sizes.values()) >= spec.max_replicas:
        return (
            Bound(given, Reason.AT_MAXIMUM, f"{wanted} replicas wanted, scaling.max is {spec.max_replicas}{beside}"),
        )
    limit = f"budget.maxCostPerHour ${spec.max_cost_per_hour:g} pays for {given}"
    return (Bound(given, Reason.BUDGET_LIMITED, f"{wanted} replicas wanted, {limit}{beside}"),)


def target(view: View, group: Group, replicas: int) -> PlacementTarget:
    """The target of one accelerator, with the replicas that are best removed where it gets smaller."""
    fewer = replicas < group.size
    wanted = frozenset() if group.accelerator == view.chosen.name else view.chosen.room.names
    return PlacementTarget(
        accelerator=group.accelerator,
        replicas=replicas,
        observed_replicas=group.size if group.exists else None,
        remove_first=removal_order(group, wanted) if fewer else (),
        lost=tuple(replica.name for replica in group.ailing) if fewer else (),
    )


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
