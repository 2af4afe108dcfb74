"""What a service moves from the accelerators that it leaves to those of its goal, and whose slots targets wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.allowance import Allowance, allowance
from holdfast.policy.placement.on_demand_pair import parted
from holdfast.policy.placement.options import Option
from holdfast.policy.transition.make_before_break import Migration, growing, staying
from holdfast.policy.view import View


def next_sizes(view: View, migration: Migration) -> tuple[dict[str, int], dict[str, int]]:
    """Return the next sizes of all accelerators, and how many sources stay among them.

    None that serves goes while metrics are in doubt, and none by choice during a rollout.
    """
    kept = {name: view.bounded(name, count) for name, count in _staying(view, migration).items()}
    sizes = growing(migration, kept)
    return {group.accelerator: 0 for group in view.groups if group.exists} | sizes, kept


def _staying(view: View, migration: Migration) -> dict[str, int]:
    if not all(group.observed for group in view.groups):
        return {group.accelerator: group.size for group in migration.sources}
    by_choice = (group for group in migration.sources if group.accelerator not in migration.forbidden)
    in_doubt = view.ready and not view.seen.fresh and view.spec.pinned_replicas is None
    if in_doubt or any(group.rolling_out for group in by_choice):
        return {group.accelerator: group.useful for group in migration.sources}
    return _freed_slot(view, migration, staying(migration))


def chosen_migration(view: View, goal: Mapping[str, int]) -> Migration:
    """Return what moves to the chosen accelerator and its pair, as far as the demand needs them."""
    rest = [group for group in _with_laggard(view, view.groups, apart_from=goal) if not _is_vain(view, group)]
    targets, sources = _halves([*rest, *(group_on(view.groups, name) for name in goal)], goal)
    asked = min(view.chosen.replicas, _available(view, view.chosen, sources))
    if view.allocation is not None and view.chosen.pair is None:
        asked = min(asked, view.allocation.replicas)
    parts = view.chosen.parts_of(0 if view.asleep else max(1, asked))
    return Migration(
        goal=goal,
        needed=dict(reversed(parts.items())),
        targets=targets,
        sources=sources,
        allowance=_allowance(view, max(1, view.spec.max_replicas), goal),
        regular=_regular(view),
        on_demand=0 if view.asleep else view.spec.min_on_demand,
        forbidden=frozenset([group.accelerator for group in sources if view.is_forbidden(group)]),
        unavailable=_unavailable(view, goal),
    )


def pinned_migration(view: View, goal: Mapping[str, int]) -> Migration:
    """Return what moves to the accelerators among which a pinned size is shared."""
    groups = [group for group in _with_laggard(view, view.groups) if group.exists]
    targets, sources = _halves(groups, goal)
    available = {option.name: _available(view, option, sources) for option in view.considered}
    return Migration(
        goal=goal,
        needed={name: min(count, available.get(name, count)) for name, count in goal.items()},
        targets=targets,
        sources=sources,
        allowance=_allowance(view, max(view.spec.max_replicas, sum(goal.values())), goal),
        regular=_regular(view),
        on_demand=min(view.spec.min_on_demand, sum(goal.get(name, 0) for name in _regular(view))),
        forbidden=frozenset([group.accelerator for group in sources]),
        unavailable=_unavailable(view, goal),
        stand_ins_only=True,
    )


def _halves(groups: Sequence[Group], goal: Mapping[str, int]) -> tuple[list[Group], list[Group]]:
    """Each accelerator's replicas of the goal, and those beyond it."""
    halves = [parted(group, goal.get(group.accelerator, 0)) for group in groups]
    targets = [here for here, _ in halves if here.accelerator in goal]
    return targets, [rest for _, rest in halves if rest.size or rest.ready]


def _with_laggard(view: View, groups: Sequence[Group], apart_from: Collection[str] = ()) -> list[Group]:
    """The same, with a straggler as one that serves: it answers, and need not go before the others do."""
    groups = [group for group in groups if group.accelerator not in apart_from]
    if not view.learned.straggler.sure:
        return groups
    return [replace(group, ready=group.ready + group.ailing, ailing=()) for group in groups]


def _is_vain(view: View, group: Group) -> bool:
    """None of it serves, and none is about to."""
    return not group.ready and (not group.coming or view.in_backoff(group.accelerator))


def _available(view: View, option: Option, sources: Sequence[Group]) -> int:
    """Most targets that may come: where more proved short, those that are there and on nodes of sources.

    Not while another accelerator is about to be chosen, of which more may come.
    """
    if not option.full or view.choice.better:
        return option.allowed
    return option.most + sum(replica.node in option.room.names for group in sources for replica in group.ready)


def _allowance(view: View, replicas: int, goal: Collection[str]) -> Allowance:
    """The budget, or what is there already costs where that is more: whoever lowers a budget wants nobody sent away.

    Only as long as a target may come.
    """
    allowed = replace(allowance(view.spec), replicas=replicas)
    if allowed.dollars_per_hour is None or _unavailable(view, goal) >= frozenset(goal):
        return allowed
    there = {group.accelerator: group.size - len(group.short) for group in view.groups}
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(there)))


def _unavailable(view: View, names: Collection[str]) -> frozenset[str]:
    return frozenset([name for name in names if view.in_backoff(name)])


def _regular(view: View) -> frozenset[str]:
    return frozenset([option.name for option in view.spec.accelerators if not option.spot])


def _freed_slot(view: View, migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """One forbidden source less on nodes that targets wait for in vain, where these used the last slot that was freed.

    Nobody knows whether they get it: the scheduler gives it to the pod that has waited longest. So the last replica
    that serves stays.
    """
    coming = any(group.coming for group in migration.targets)
    if not migration.lacking or coming or any(group.draining for group in view.groups):
        return dict(kept)
    for group in migration.sources:
        name, ready = group.accelerator, len(group.ready)
        fewer = {**kept, name: min(kept[name], ready - 1)}
        if name in migration.forbidden and ready and migration.served_with(fewer) and _frees(view, migration, group):
            return fewer
    return dict(kept)


def _frees(view: View, migration: Migration, source: Group) -> bool:
    """Whether all replicas of a source are on nodes where targets wait in vain and would use a slot."""
    short = {group.accelerator for group in migration.targets if group.short}
    homes = frozenset([replica.node for replica in source.ready])
    waiting = [each for each in view.considered if each.name in short and _uses_slots(view, each, homes)]
    return any(homes <= option.room.names for option in waiting)


def _uses_slots(view: View, option: Option, homes: frozenset[str]) -> bool:
    """Whether targets that wait for nodes used the last slot that was freed for them.

    Not where there is room beside the sources: then they wait for something else. Nor while more of them fail than
    serve. After the backoff a slot is tried again.
    """
    backoff = view.learned.backoffs.active(option.name, view.now)
    own, others = view.group_of(option.name), [group for group in view.groups if group.accelerator != option.name]
    fails = len(own.useless) - len(own.short)
    if backoff is None or fails > len(own.ready) or option.room.free_on & homes:
        return False
    there = [other for group in others if group.placed and (other := view.option(group.accelerator))]
    new = option.belief.option.gpus_per_replica
    worth = new / min([other.belief.option.gpus_per_replica for other in there], default=new)
    lost = worth * (backoff.own - own.to_serve) + backoff.elsewhere - sum(group.to_serve for group in others)
    return lost < worth
