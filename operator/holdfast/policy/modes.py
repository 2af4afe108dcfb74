"""Sizes that people have taken into their own hands: pinned, or only recommended."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget, Verdict
from holdfast.domain.service import AcceleratorOption
from holdfast.policy.sharing import hand_over, share_out
from holdfast.policy.sizes import target
from holdfast.policy.view import View


def pinned_verdict(view: View, pinned: int) -> Verdict:
    """Exactly that many replicas, on the accelerators in use as they are, the preferred one taking the difference.

    Where its max or the budget has no room for that, others take it; where none has, fewer run. What serves elsewhere
    goes as these come.
    """
    if not all(group.observed for group in view.groups):
        return Verdict(Action.HOLD, Reason.PINNED, pinned_sentence(view, pinned), current_targets(view))
    goal = _pinned_sizes(view, pinned)
    following = hand_over(view.spec, view.groups, goal, _is_blocked(view, goal))
    sizes = {group.accelerator: 0 for group in view.groups if group.exists} | following
    targets = tuple(
        target(view.group_of(name), name, replicas)
        for name, replicas in sizes.items()
        if replicas or view.group_of(name).size
    )
    after = sum(sizes.values())
    change = "" if after == view.size else f"{view.size} -> {after} replicas; "
    waits = "; those that serve elsewhere go as others come" if after > sum(goal.values()) else ""
    return Verdict(_action(view, sizes), Reason.PINNED, f"{change}{pinned_sentence(view, pinned)}{waits}", targets)


def _is_blocked(view: View, goal: Mapping[str, int]) -> bool:
    """Whether what is to come finds no node, and all that could make room are those of replicas which stay for it."""
    new = [group for group in view.groups if goal.get(group.accelerator)]
    old = [group for group in view.groups if len(group.ready) > goal.get(group.accelerator, 0)]
    if any(group.coming for group in new) or any(group.draining for group in old):
        return False
    short = {group.accelerator for group in new if group.short}
    nodes = {node for option in view.considered if option.name in short for node in option.room.names}
    return bool(old) and all(replica.node in nodes for group in old for replica in group.ready)


def pinned_sentence(view: View, pinned: int) -> str:
    """Who holds the size, and how many of so many replicas can be had."""
    given = sum(_pinned_sizes(view, pinned).values())
    fewer = "" if given == pinned else f"; the accelerators' max and the budget leave room for {given} of them"
    return f"spec.replicas pins the size at {pinned}, remove it to resume SLO scaling{fewer}"


def _pinned_sizes(view: View, pinned: int) -> dict[str, int]:
    return share_out(view.spec, view.sizes, _order(view), pinned)


def _order(view: View) -> list[AcceleratorOption]:
    """Who takes more replicas first: the accelerators in use as listed, then the one chosen, then the best others."""
    used = [option for option in sorted(view.considered, key=lambda o: o.index) if view.group_of(option.name).size]
    others = sorted(view.considered, key=lambda o: (o is not view.chosen, o.rank))
    return [option.belief.option for option in (*used, *(other for other in others if other not in used))]


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
    message = "mode is Recommend, nothing is moved: see status.recommendation"
    if any(group.exists for group in view.groups):
        return Verdict(Action.HOLD, Reason.RECOMMEND, message, current_targets(view))
    first = share_out(view.spec, {}, view.spec.accelerators, view.least.replicas)
    targets = tuple(PlacementTarget(name, replicas) for name, replicas in first.items() if replicas)
    return Verdict(Action.CREATE, Reason.RECOMMEND, message, targets)


def current_targets(view: View) -> tuple[PlacementTarget, ...]:
    """The sizes as they are."""
    return tuple(target(group, group.accelerator, group.size) for group in view.groups if group.size)
