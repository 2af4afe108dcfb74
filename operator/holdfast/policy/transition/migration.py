"""What a service moves from the accelerators that it leaves to those of its goal, and whose slots targets wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.policy.health.replicas import Group, group_on
from holdfast.policy.placement.allowance import Allowance, allowance
from holdfast.policy.placement.on_demand_pair import parted
from holdfast.policy.placement.options import Option
from holdfast.policy.transition.make_before_break import Migration, growing, staying
from holdfast.policy.view import Minimum, Selection, ServiceState


def next_sizes(
    state: ServiceState, selection: Selection, migration: Migration
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the next sizes of all accelerators, and how many sources stay among them."""
    kept = _staying(state, selection, migration)
    return {group.accelerator: 0 for group in state.groups if group.exists} | growing(migration, kept), kept


def _staying(state: ServiceState, selection: Selection, migration: Migration) -> dict[str, int]:
    """None that serves goes while metrics are in doubt, and none by choice during a rollout."""
    if not all(group.observed for group in state.groups):
        return {group.accelerator: group.size for group in migration.sources}
    by_choice = (group for group in migration.sources if group.accelerator not in migration.forbidden)
    in_doubt = state.ready and not state.seen.fresh and state.spec.pinned_replicas is None
    if in_doubt or any(group.rolling_out for group in by_choice):
        return replace(migration, forbidden=frozenset()).may_stay
    return _freed_slot(state, selection, migration, staying(migration))


def migration_to(
    state: ServiceState, selection: Selection, minimum: Minimum, goal: Mapping[str, int], pinned: bool = False
) -> Migration:
    """Return what moves to the accelerators of the goal, as far as the demand needs them, or all of a pinned size.

    Of a pinned size no more sources stay than targets lack, and none that does not serve.
    """
    others = [group for group in state.groups if group.exists and group.accelerator not in goal]
    if state.supply.sick.serve:  # they answer, and need not go before the others do
        others = [replace(group, ready=group.ready + group.ailing, ailing=()) for group in others]
    # A source group stands in for missing targets only if it serves or is about to.
    others = [group for group in others if group.ready or (group.coming and not state.in_backoff(group.accelerator))]
    groups = (*others, *(group_on(state.groups, name) for name in goal))
    halves = [parted(group, goal.get(group.accelerator, 0)) for group in groups]
    sources = [rest for _, rest in halves if rest.size or rest.ready]
    regular = frozenset([option.name for option in state.spec.accelerators if not option.spot])
    unavailable = frozenset([name for name in goal if state.in_backoff(name)])
    return Migration(
        goal=goal,
        needed=_pinned(selection, goal, sources) if pinned else _needed(selection, minimum, sources),
        targets=[here for here, _ in halves[len(others) :]],
        sources=sources,
        allowance=_allowance(state, max(1, state.spec.max_replicas, sum(goal.values())), unavailable >= set(goal)),
        regular=regular,
        on_demand=min(state.spec.min_on_demand, sum(goal.get(name, 0) for name in regular)),
        forbidden=frozenset([group.accelerator for group in sources if pinned or selection.is_forbidden(group)]),
        unavailable=unavailable,
        stand_ins_only=pinned,
    )


def _needed(selection: Selection, minimum: Minimum, sources: Sequence[Group]) -> dict[str, int]:
    """Targets of the chosen accelerator and its pair that the demand needs, as far as they are available."""
    asked = min(selection.chosen.replicas, _available(selection, selection.chosen, sources))
    if selection.allocation is not None and selection.chosen.pair is None:
        asked = min(asked, selection.allocation.replicas)
    return selection.chosen.parts_of(0 if minimum.asleep else max(1, asked))


def _pinned(selection: Selection, goal: Mapping[str, int], sources: Sequence[Group]) -> dict[str, int]:
    """All targets, as far as they are available."""
    available = {option.name: _available(selection, option, sources) for option in selection.considered}
    return {name: min(count, available.get(name, count)) for name, count in goal.items()}


def _available(selection: Selection, option: Option, sources: Sequence[Group]) -> int:
    """Most targets that may run: on a short accelerator the existing ones, and one for each source on its nodes.

    An accelerator does not count as short while a better one is about to be chosen.
    """
    if not option.full or selection.choice.better:
        return option.allowed
    return option.most + sum(not option.room.names.isdisjoint(each.nodes) for group in sources for each in group.ready)


def _allowance(state: ServiceState, replicas: int, none_may_come: bool) -> Allowance:
    """The budget, or the cost of the existing replicas if that is higher: a lower budget alone removes no replica.

    The higher cost counts only as long as a target may come.
    """
    lasting = {
        g.accelerator: state.bounded(g.accelerator, g.size) for g in state.groups if state.stopped(g.accelerator)
    }
    allowed = replace(allowance(state.spec), replicas=replicas, lasting=lasting)
    if allowed.dollars_per_hour is None or none_may_come:
        return allowed
    there = {group.accelerator: group.size - len(group.short) for group in state.groups}
    return replace(allowed, dollars_per_hour=max(allowed.dollars_per_hour, allowed.cost(there)))


def _freed_slot(
    state: ServiceState, selection: Selection, migration: Migration, kept: Mapping[str, int]
) -> dict[str, int]:
    """One forbidden source less on nodes that targets wait for in vain, where these used the last slot that was freed.

    Nobody knows whether they get it: the scheduler gives it to the pod that has waited longest. So the last replica
    that serves stays.
    """
    coming = any(group.coming for group in migration.targets)
    if not migration.lacking or coming or any(group.draining for group in state.groups):
        return dict(kept)
    short = {group.accelerator for group in migration.targets if group.short}
    waiting = [option for option in selection.considered if option.name in short]
    for group in migration.sources:
        name, homes = group.accelerator, frozenset([node for replica in group.ready for node in replica.nodes])
        fewer = {**kept, name: min(kept[name], len(group.ready) - 1)}
        frees = any(homes <= option.room.names and _uses_slots(state, selection, option, homes) for option in waiting)
        if name in migration.forbidden and homes and frees and migration.served_with(fewer):
            return fewer
    return dict(kept)


def _uses_slots(state: ServiceState, selection: Selection, option: Option, homes: frozenset[str]) -> bool:
    """Whether targets that wait for nodes used the last slot that was freed for them.

    False where nodes of the sources have free room: then the targets wait for something else. False while more targets
    fail than serve. After the backoff a slot is tried again.
    """
    backoff = state.supply.backoffs.active(option.name, state.now)
    own, others = state.part(option.name), [group for group in state.groups if group.accelerator != option.name]
    fails = len(own.useless) - len(own.short)
    if backoff is None or fails > len(own.ready) or option.room.free_on & homes:
        return False
    there = [other for group in others if group.placed and (other := selection.option(group.accelerator))]
    new = option.belief.option.gpus_per_replica
    worth = new / min([other.belief.option.gpus_per_replica for other in there], default=new)
    lost = worth * (backoff.own - own.to_serve) + backoff.elsewhere - sum(group.to_serve for group in others)
    return lost < worth
