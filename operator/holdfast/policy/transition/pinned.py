"""Sizes that people have taken into their own hands: pinned, or only recommended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget, Verdict
from holdfast.domain.service import AcceleratorOption
from holdfast.policy.allocation.pinned_size import share_out
from holdfast.policy.health.replicas import Group
from holdfast.policy.sizing.guards import FOR_ALL_SIZES, Proposal
from holdfast.policy.transition.migration import next_sizes, pinned_migration
from holdfast.policy.transition.sizes import target
from holdfast.policy.view import View


def pinned_verdict(view: View, pinned: int) -> Verdict:
    """Exactly that many replicas, on the accelerators in use as they are, the preferred one taking the difference.

    Where its max or the budget has no room for that, others take it; where none has, fewer run. What serves elsewhere
    goes as these come, but where others would get its places.
    """
    bounds = [found for guard in FOR_ALL_SIZES if (found := guard(Proposal(view, view.size, pinned)))]
    goal = pinned_goal(view, min([pinned, *(bound.replicas for bound in bounds)]))
    told = "; ".join((pinned_sentence(pinned, sum(goal.values())), *(bound.sentence for bound in bounds)))
    if any(bound.replicas == view.size for bound in bounds):
        return Verdict(Action.HOLD, Reason.PINNED, told, current_targets(view))
    sizes, _ = next_sizes(view, pinned_migration(view, goal))
    targets = tuple(
        target(view, view.group_of(name), replicas)
        for name, replicas in sizes.items()
        if replicas or view.group_of(name).size
    )
    beyond = any(replicas > goal.get(name, 0) for name, replicas in sizes.items())
    waits = "source replicas are removed as target replicas become ready" if beyond else ""
    message = "; ".join(filter(None, (_change(targets), told, waits)))
    return Verdict(_action(view, sizes), Reason.PINNED, message, targets)


def _change(targets: Sequence[PlacementTarget]) -> str:
    sizes = [(each.accelerator, each.observed_replicas or 0, each.replicas) for each in targets]
    moved = [f"{name} {before} -> {after}" for name, before, after in sizes if before != after]
    if len(targets) > 1:
        return ", ".join(moved)
    return "".join(f"{before} -> {after} replicas" for _, before, after in sizes if before != after)


def pinned_goal(view: View, pinned: int) -> dict[str, int]:
    """How so many replicas are shared out, where the max of an accelerator or the budget has no room maybe fewer."""
    used = {group.accelerator: _in_use(view, group) for group in view.groups}
    out = {option.name for option in view.considered if view.in_backoff(option.name)}
    goal = share_out(view.spec, used, _order(view, used), pinned, out)
    return {name: view.bounded(name, count) for name, count in goal.items()}


def _in_use(view: View, group: Group) -> int:
    """Replicas of it; of what could not be had a short while ago those that serve: others take over from the rest."""
    return min(group.size, len(group.ready)) if view.in_backoff(group.accelerator) else group.size


def _order(view: View, used: Mapping[str, int]) -> list[AcceleratorOption]:
    """Who takes more replicas first: the accelerators in use as listed, then the one chosen, then the best others."""
    listed = sorted(view.considered, key=lambda o: o.index)
    first = [option for option in listed if used.get(option.name) and not view.in_backoff(option.name)]
    others = sorted(view.considered, key=lambda o: (view.in_backoff(o.name), o is not view.chosen, o.rank))
    return [option.belief.option for option in (*first, *(other for other in others if other not in first))]


def _action(view: View, sizes: dict[str, int]) -> Action:
    if sizes and not any(group.exists for group in view.groups):
        return Action.CREATE
    if all(view.group_of(name).size == replicas for name, replicas in sizes.items()):
        return Action.HOLD
    after = sum(sizes.values())
    if after == view.size:
        return Action.SWITCH
    return Action.SCALE_UP if after > view.size else Action.SCALE_DOWN


def recommend_verdict(view: View) -> Verdict:
    """Nothing moves; a new service starts at scaling.min, or at a schedule's floor, on the first accelerator.

    What that one has no room for, by its max or the budget, the next one takes.
    """
    message = "mode is Recommend, so sizes do not change; see status.recommendation"
    if any(group.exists for group in view.groups):
        return Verdict(Action.HOLD, Reason.RECOMMEND, message, current_targets(view))
    first = share_out(view.spec, {}, view.spec.accelerators, view.least.replicas)
    targets = tuple(PlacementTarget(name, replicas) for name, replicas in first.items() if replicas)
    return Verdict(Action.CREATE, Reason.RECOMMEND, message, targets)


def current_targets(view: View) -> tuple[PlacementTarget, ...]:
    """The sizes as they are."""
    return tuple(target(view, group, group.size) for group in view.groups if group.size)


def pinned_sentence(pinned: int, given: int) -> str:
    """Who holds the size, and how many of so many replicas can be had."""
    fewer = "" if given == pinned else f"; the accelerators, their max and the budget allow only {given}"
    return f"spec.replicas pins the size at {pinned}{fewer}; remove it to resume SLO scaling"
