"""What a service moves from the accelerators that it leaves to those of its goal, and whose slots targets wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.allowance import Allowance, allowance
from holdfast.policy.placement.on_demand_pair import parted
from holdfast.policy.placement.options import Option
from holdfast.policy.transition.make_before_break import Migration, growing, staying
from holdfast.policy.view import View


def next_sizes(view: View, migration: Migration) -> tuple[dict[str, int], dict[str, int]]:
    """Return the next sizes of all accelerators, and how many sources stay among them."""
    kept = _staying(view, migration)
    return {group.accelerator: 0 for group in view.groups if group.exists} | growing(migration, kept), kept


def _staying(view: View, migration: Migration) -> dict[str, int]:
    """None that serves goes while metrics are in doubt, and none by choice during a rollout."""
    if not all(group.observed for group in view.groups):
        return {group.accelerator: group.size for group in migration.sources}
    by_choice = (group for group in migration.sources if group.accelerator not in migration.forbidden)
    in_doubt = view.ready and not view.seen.fresh and view.spec.pinned_replicas is None
    if in_doubt or any(group.rolling_out for group in by_choice):
        return replace(migration, forbidden=frozenset()).may_stay
    return _freed_slot(view, migration, staying(migration))


def migration_to(view: View, goal: Mapping[str, int], pinned: bool = False) -> Migration:
    """Return what moves to the accelerators of the goal, as far as the demand needs them, or all of a pinned size.

    Of a pinned size no more sources stay than targets lack, and none that does not serve.
    """
    others = [group for group in view.groups if group.exists and group.accelerator not in goal]
    if view.supply.sick.serve:  # they answer, and need not go before the others do
        others = [replace(group, ready=group.ready + group.ailing, ailing=()) for group in others]
    # One of which nothing serves, and nothing is about to, stands in for none.
    others = [group for group in others if group.ready or (group.coming and not view.in_backoff(group.accelerator))]
    groups = (*others, *(group_on(view.groups, name) for name in goal))
    halves = [parted(group, goal.get(group.accelerator, 0)) for group in groups]
    sources = [rest for _, rest in halves if rest.size or rest.ready]
    regular = frozenset([option.name for option in view.spec.accelerators if not option.spot])
    unavailable = frozenset([name for name in goal if view.in_backoff(name)])
    return Migration(
        goal=goal,
        needed=_pinned(view, goal, sources) if pinned else _needed(view, sources),
        targets=[here for here, _ in halves[len(others) :]],
        sources=sources,
        allowance=_allowance(view, max(1, view.spec.max_replicas, sum(goal.values())), unavailable >= set(goal)),
        regular=regular,
        on_demand=min(view.spec.min_on_demand, sum(goal.get(name, 0) for name in regular)),
        forbidden=frozenset([group.accelerator for group in sources if pinned or view.is_forbidden(group)]),
        unavailable=unavailable,
        stand_ins_only=pinned,
    )


def _needed(view: View, sources: Sequence[Group]) -> dict[str, int]:
    """Targets of the chosen accelerator and its pair that the demand needs, as far as they can be had."""
    asked = min(view.chosen.replicas, _available(view, view.chosen, sources))
    if view.allocation is not None and view.chosen.pair is None:
        asked = min(asked, view.allocation.replicas)
    return view.chosen.parts_of(0 if view.asleep else max(1, asked))


def _pinned(view: View, goal: Mapping[str, int], sources: Sequence[Group]) -> dict[str, int]:
    """All targets, as far as they can be had."""
    available = {option.name: _available(view, option, sources) for option in view.considered}
    return {name: min(count, available.get(name, count)) for name, count in goal.items()}


def _available(view: View, option: Option, sources: Sequence[Group]) -> int:
    """Most targets that may come: where more proved short, those that are there and on nodes of sources.

    Not while another accelerator is about to be chosen, of which more may come.
    """
    if not option.full or view.choice.better:
        return option.allowed
    return option.most + sum(not option.room.names.isdisjoint(each.nodes) for group in sources for each in group.ready)


def _allowance(view: View, replicas: int, none_may_come: bool) -> Allowance:
    """The budget, or what is there already costs where that is more: whoever lowers a budget wants nobody sent away.

    Only as long as a target may come.
    """
    lasting = {g.accelerator: view.bounded(g.accelerator, g.size) for g in view.groups if view.stopped(g.accelerator)}
    allowed = replace(allowance(view.spec), replicas=replicas, lasting=lasting)
    if allowed.dollars_per_hour is None or none_may_come:
        return allowed
    there = {group.accelerator: group.size - len(group.short) for group in view.groups}
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(there)))


def _freed_slot(view: View, migration: Migration, kept: Mapping[str, int]) -> dict[str, int]:
    """One forbidden source less on nodes that targets wait for in vain, where these used the last slot that was freed.

    Nobody knows whether they get it: the scheduler gives it to the pod that has waited longest. So the last replica
    that serves stays.
    """
    coming = any(group.coming for group in migration.targets)
    if not migration.lacking or coming or any(group.draining for group in view.groups):
        return dict(kept)
    short = {group.accelerator for group in migration.targets if group.short}
    waiting = [option for option in view.considered if option.name in short]
    for group in migration.sources:
        name, homes = group.accelerator, frozenset([node for replica in group.ready for node in replica.nodes])
        fewer = {**kept, name: min(kept[name], len(group.ready) - 1)}
        frees = any(homes <= option.room.names and _uses_slots(view, option, homes) for option in waiting)
        if name in migration.forbidden and homes and frees and migration.served_with(fewer):
            return fewer
    return dict(kept)


def _uses_slots(view: View, option: Option, homes: frozenset[str]) -> bool:
    """Whether targets that wait for nodes used the last slot that was freed for them.

    Not where there is room beside the sources: then they wait for something else. Nor while more of them fail than
    serve. After the backoff a slot is tried again.
    """
    backoff = view.supply.backoffs.active(option.name, view.now)
    own, others = view.part(option.name), [group for group in view.groups if group.accelerator != option.name]
    fails = len(own.useless) - len(own.short)
    if backoff is None or fails > len(own.ready) or option.room.free_on & homes:
        return False
    there = [other for group in others if group.placed and (other := view.option(group.accelerator))]
    new = option.belief.option.gpus_per_replica
    worth = new / min([other.belief.option.gpus_per_replica for other in there], default=new)
    lost = worth * (backoff.own - own.to_serve) + backoff.elsewhere - sum(group.to_serve for group in others)
    return lost < worth
