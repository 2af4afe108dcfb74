"""From a view to sizes: propose, and guard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Replica
from holdfast.domain.decision import Action, PlacementTarget
from holdfast.policy.health.replicas import Group
from holdfast.policy.sizing.guards import Proposal, apply_guards
from holdfast.policy.sizing.proposal import Sizes, propose
from holdfast.policy.transition.migration import migration_to, next_sizes
from holdfast.policy.view import Bound, Replacement, Selection, ServiceState, View


def decide_sizes(view: View) -> Sizes:
    """Return the sizes that follow for all accelerators of a service."""
    state, selection = view.state, view.selection
    wanted, elsewhere = propose(view), sum(group.useful for group in selection.others)
    proposal, bounds = apply_guards(Proposal(view, selection.group.baseline, wanted, elsewhere))
    goal, held_back = _shared(state, selection, view.replacement, proposal), tuple[Bound, ...]()
    sizes = goal
    if len(goal) > 1 or selection.others:
        sizes, kept = next_sizes(state, selection, migration_to(state, selection, view.minimum, goal))
        held_back = _held_back(state, selection, sum(goal.values()), sum(kept.values()), sum(sizes.values()))
    return Sizes(
        action=action_of(state, selection, sizes, {group.accelerator for group in selection.others}),
        before=state.size,
        after=sum(sizes.values()),
        wanted=wanted,
        goal=goal[selection.name],
        bounds=bounds + held_back,
        targets=targets_of(state, selection, sizes),
    )


def _shared(state: ServiceState, selection: Selection, replacement: Replacement, proposal: Proposal) -> dict[str, int]:
    """The proposed replicas by accelerator: of the chosen one, and of its pair."""
    pair, name, after = selection.chosen.pair, selection.name, proposal.after
    if pair is None:
        return {name: after}
    own, other = state.part(name), state.part(pair.accelerator)
    gone, there = replacement.leaving, pair.share(after)
    if gone and after == proposal.before - gone.total():
        there = min(other.baseline, pair.most) - gone[pair.accelerator]
    elif after == proposal.before and not all(group.observed for group in state.groups):
        there = after - own.baseline
    return {name: after - there, pair.accelerator: there}


def _held_back(state: ServiceState, selection: Selection, wanted: int, stay: int, after: int) -> tuple[Bound, ...]:
    """What bounds the wanted replicas of the goal as long as source replicas stay."""
    given, spec = after - stay, state.spec
    paired = [backoff for name in selection.paired if (backoff := state.stopped(name))]
    if given >= wanted:
        return ()
    reason, limit = Reason.BUDGET_LIMITED, f"budget.maxCostPerHour ${spec.max_cost_per_hour or 0.0:g} pays for {given}"
    if after >= spec.max_replicas:
        reason, limit = Reason.AT_MAXIMUM, f"scaling.max is {spec.max_replicas}"
    elif paired:
        reason, limit = Reason.POD_ENDED, f"{paired[0].accelerator} pods end before they serve: {paired[0].detail}"
    serving = counted(stay, "source replica", "that still serves", "that still serve")
    sources = f" together with {serving}" if stay else ""
    return (Bound(given, reason, f"{counted(wanted, 'replica')} wanted, {limit}{sources}"),)


def targets_of(state: ServiceState, selection: Selection, sizes: Mapping[str, int]) -> tuple[PlacementTarget, ...]:
    """Return the targets of these sizes, each with the replicas that are best removed where it gets smaller."""
    groups = [(state.part(name), replicas) for name, replicas in sizes.items()]
    return tuple([_target(selection, group, replicas) for group, replicas in groups if replicas or group.size])


def _target(selection: Selection, group: Group, replicas: int) -> PlacementTarget:
    fewer, going = replicas < group.size, tuple(replica for replica in group.ready if replica.closing)
    wanted = frozenset() if group.accelerator == selection.name else selection.chosen.room.names
    return PlacementTarget(
        accelerator=group.accelerator,
        replicas=replicas,
        observed_replicas=group.size if group.exists else None,
        remove_first=removal_order(group, wanted) if fewer else (),
        lost=tuple(each.name for each in (*group.ailing, *going) if fewer),
    )


def removal_order(group: Group, wanted: Collection[str] = ()) -> tuple[str, ...]:
    """Return names in the order in which replicas are best removed: without capacity first, then the newest.

    Of the serving replicas, those on closing nodes come first, then those on the `wanted` nodes, whose GPUs others can
    use.
    """
    useless = (*group.failing, *group.stuck, *group.ailing, *group.short)
    wanted = frozenset(wanted)
    ready = sorted(_newest(group.ready), key=lambda each: (not each.closing, wanted.isdisjoint(each.nodes)))
    return tuple(replica.name for replica in (*useless, *group.pending, *_newest(group.starting), *ready))


def _newest(replicas: Iterable[Replica]) -> list[Replica]:
    return sorted(replicas, key=lambda replica: (-replica.created_at, replica.name))


def action_of(
    state: ServiceState, selection: Selection, sizes: Mapping[str, int], left: Collection[str] = ()
) -> Action:
    """Return what these sizes change, where the accelerators that are `left` change as parts of a switch."""
    if not any(group.exists for group in state.groups):
        return Action.CREATE if sizes else Action.HOLD
    more = {name: replicas - state.part(name).baseline for name, replicas in sizes.items()}
    if not any(more.values()):
        return Action.HOLD
    if not sum(more.values()) or any(more[name] for name in left) or (left and selection.switching):
        return Action.SWITCH
    return Action.SCALE_UP if sum(more.values()) > 0 else Action.SCALE_DOWN
