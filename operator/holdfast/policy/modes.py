"""Sizes that people have taken into their own hands: pinned, or only recommended."""

from __future__ import annotations

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget, Verdict
from holdfast.domain.service import ServiceSpec
from holdfast.policy.sizes import target
from holdfast.policy.spot import keepers
from holdfast.policy.view import View


def pinned_verdict(view: View, pinned: int) -> Verdict:
    """Exactly that many replicas, on the accelerators in use as they are, the preferred one taking the difference."""
    if not all(group.observed for group in view.groups):
        return Verdict(Action.HOLD, Reason.PINNED, _pinned_message(view, pinned), current_targets(view))
    sizes = _pinned_sizes(view, pinned)
    targets = tuple(
        target(view.group_of(name), name, replicas)
        for name, replicas in sizes.items()
        if replicas or view.group_of(name).size
    )
    return Verdict(_action(view, pinned, sizes), Reason.PINNED, _pinned_message(view, pinned), targets)


def _pinned_message(view: View, pinned: int) -> str:
    before = "" if pinned == view.size else f"{view.size} -> {pinned} replicas; "
    return f"{before}spec.replicas pins the size at {pinned}, remove it to resume SLO scaling"


def _pinned_sizes(view: View, pinned: int) -> dict[str, int]:
    used = [option for option in sorted(view.considered, key=lambda o: o.index) if view.group_of(option.name).size]
    used = used or [view.chosen]
    sizes = {group.accelerator: 0 for group in view.groups if group.exists}
    left = pinned
    for option in sorted(used, key=lambda option: option.belief.option.spot) if view.spec.min_on_demand else used:
        sizes[option.name] = min(view.group_of(option.name).size, left)
        left -= sizes[option.name]
    for option in used[:-1]:
        most = option.belief.option.max_replicas
        more = left if most is None else max(0, min(left, most - sizes[option.name]))
        sizes[option.name] += more
        left -= more
    sizes[used[-1].name] += left
    return _with_floor(view.spec, sizes)


def _with_floor(spec: ServiceSpec, sizes: dict[str, int]) -> dict[str, int]:
    """As many replicas, scaling.minOnDemand of them off spot.

    On the regular accelerator in use, else on the same hardware as the spot one, else on the first listed.
    """
    regular = [option.name for option in spec.accelerators if not option.spot]
    missing = min(spec.min_on_demand, sum(sizes.values())) - sum(sizes.get(name, 0) for name in regular)
    if missing <= 0 or not regular:
        return sizes
    alike = {o.name for spot in spec.accelerators if spot.spot and sizes.get(spot.name) for o in keepers(spec, spot)}
    taken = max(regular, key=lambda name: (sizes.get(name, 0), name in alike))
    found = dict(sizes)
    for option in spec.accelerators:
        if option.spot:
            moved = max(0, min(missing, found.get(option.name, 0)))
            found[option.name] = found.get(option.name, 0) - moved
            found[taken] = found.get(taken, 0) + moved
            missing -= moved
    return found


def _action(view: View, pinned: int, sizes: dict[str, int]) -> Action:
    if not any(group.exists for group in view.groups):
        return Action.CREATE
    if all(view.group_of(name).size == replicas for name, replicas in sizes.items()):
        return Action.HOLD
    if pinned == view.size:
        return Action.SWITCH
    return Action.SCALE_UP if pinned > view.size else Action.SCALE_DOWN


def recommend_verdict(view: View) -> Verdict:
    """Nothing moves; a new service starts at scaling.min, or at a schedule's floor, on the first accelerator."""
    message = "mode is Recommend, nothing is moved: see status.recommendation"
    if any(group.exists for group in view.groups):
        return Verdict(Action.HOLD, Reason.RECOMMEND, message, current_targets(view))
    first = _with_floor(view.spec, {view.spec.accelerators[0].name: view.least.replicas})
    targets = tuple(PlacementTarget(name, replicas) for name, replicas in first.items() if replicas or len(first) == 1)
    return Verdict(Action.CREATE, Reason.RECOMMEND, message, targets)


def current_targets(view: View) -> tuple[PlacementTarget, ...]:
    """The sizes as they are."""
    return tuple(target(group, group.accelerator, group.size) for group in view.groups if group.size)
