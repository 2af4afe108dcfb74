"""Sizes that people have taken into their own hands: pinned, or only recommended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, PlacementTarget, Verdict
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.policy.placement.allowance import allowance
from holdfast.policy.placement.on_demand_pair import keepers
from holdfast.policy.sizing.guards import GUARDS, PINS_OVERRULE, Proposal
from holdfast.policy.transition.migration import migration_to, next_sizes
from holdfast.policy.transition.sizes import action_of, targets_of
from holdfast.policy.view import Minimum, Selection, ServiceState, View


def held_verdict(view: View) -> Verdict | None:
    """What is done with a size that people hold; None where it follows the load."""
    state = view.state
    if state.spec.pinned_replicas is not None:
        return pinned_verdict(view, state.spec.pinned_replicas)
    return recommend_verdict(state, view.selection, view.minimum) if state.spec.recommend_only else None


def pinned_verdict(view: View, pinned: int) -> Verdict:
    """Exactly that many replicas, on the accelerators in use as they are, the preferred one taking the difference.

    Where its max or the budget has no room for that, others take it; where none has, fewer run. What serves elsewhere
    goes as these come, but where others would get its places.
    """
    state, selection = view.state, view.selection
    asked = [guard for guard in GUARDS if guard not in PINS_OVERRULE]
    bounds = [found for guard in asked if (found := guard(Proposal(view, state.size, pinned)))]
    goal = pinned_goal(state, selection, min([pinned, *(bound.replicas for bound in bounds)]))
    told = "; ".join((pinned_sentence(pinned, sum(goal.values())), *(bound.sentence for bound in bounds)))
    if any(bound.replicas == state.size for bound in bounds):
        return Verdict(Action.HOLD, Reason.PINNED, told, targets_of(state, selection, state.sizes))
    sizes, _ = next_sizes(state, selection, migration_to(state, selection, view.minimum, goal, pinned=True))
    targets = targets_of(state, selection, sizes)
    beyond = any(replicas > goal.get(name, 0) for name, replicas in sizes.items())
    waits = "source replicas are removed as target replicas become ready" if beyond else ""
    message = "; ".join(filter(None, (_change(targets), told, waits)))
    return Verdict(action_of(state, selection, sizes), Reason.PINNED, message, targets)


def _change(targets: Sequence[PlacementTarget]) -> str:
    sizes = [(each.accelerator, each.observed_replicas or 0, each.replicas) for each in targets]
    moved = [f"{name} {before} -> {after}" for name, before, after in sizes if before != after]
    if len(targets) > 1:
        return ", ".join(moved)
    return "".join(f"{before} -> {counted(after, 'replica')}" for _, before, after in sizes if before != after)


def pinned_goal(state: ServiceState, selection: Selection, pinned: int) -> dict[str, int]:
    """How so many replicas are shared out, where the max of an accelerator or the budget has no room maybe fewer.

    More go first to the accelerators in use as listed, then to the chosen one, then to the best others. Of an
    accelerator in backoff only the serving replicas count: other accelerators take over the rest.
    """
    out = {option.name for option in selection.considered if state.in_backoff(option.name)}
    used = {g.accelerator: min(g.size, len(g.ready)) if g.accelerator in out else g.size for g in state.groups}
    order = sorted(
        selection.considered, key=lambda option: (option.name in out, option is not selection.chosen, option.rank)
    )
    first = [option for option in state.spec.accelerators if used.get(option.name) and option.name not in out]
    others = [option.belief.option for option in order if option.belief.option not in first]
    return share_out(state.spec, used, [*first, *others], pinned, out)


def recommend_verdict(state: ServiceState, selection: Selection, minimum: Minimum) -> Verdict:
    """Nothing moves; a new service starts at scaling.min, or at a schedule's floor, on the first accelerator.

    What that one has no room for, by its max or the budget, the next one takes.
    """
    reason, message = recommended_because(state)
    if any(group.exists for group in state.groups):
        return Verdict(Action.HOLD, reason, message, targets_of(state, selection, state.sizes))
    first = share_out(state.spec, {}, state.spec.accelerators, minimum.least.replicas)
    return Verdict(Action.CREATE, reason, message, targets_of(state, selection, first))


def recommended_because(state: ServiceState) -> tuple[Reason, str]:
    """Why sizes are only recommended: somebody else sets them back, or the mode says so."""
    if state.let_go:
        return Reason.OTHER_AUTOSCALER, f"{state.supply.set_backs.told}; see status.recommendation"
    return Reason.RECOMMEND, "mode is Recommend, so sizes do not change; see status.recommendation"


def pinned_sentence(pinned: int, given: int) -> str:
    """Who holds the size, and how many of the pinned replicas the limits allow."""
    fewer = "" if given == pinned else f"; the accelerators, their max and the budget allow only {given}"
    return f"spec.replicas pins the size at {pinned}{fewer}; remove it to resume SLO scaling"


def share_out(
    spec: ServiceSpec,
    now: Mapping[str, int],
    order: Sequence[AcceleratorOption],
    replicas: int,
    out: Collection[str] = (),
) -> dict[str, int]:
    """Return how many of so many replicas each accelerator gets: as many as it has `now`, then more in that order.

    On-demand replicas come first, up to scaling.minOnDemand. If the budget does not pay for all replicas in that order,
    the cheapest accelerators come first instead, without those in backoff (`out`). The result is fewer replicas than
    asked for where even the cheapest, or each max, leave no room for all.
    """
    found = _shared(spec, now, order, replicas)
    if sum(found.values()) == replicas or spec.max_cost_per_hour is None:
        return found
    there = [option for option in order if option.name not in out]
    frugal = _shared(spec, {}, sorted(there, key=lambda option: option.cost_per_replica_hour or 0.0), replicas)
    return max(found, frugal, key=lambda sizes: sum(sizes.values()))


def _shared(
    spec: ServiceSpec, now: Mapping[str, int], order: Sequence[AcceleratorOption], replicas: int
) -> dict[str, int]:
    found: dict[str, int] = {}
    allowed = replace(allowance(spec), replicas=replicas)

    def fill(option: AcceleratorOption, most: int) -> None:
        here, own = found.get(option.name, 0), most if option.max_replicas is None else min(most, option.max_replicas)
        more = min(own - here, allowed.more(option.name, found))
        if more > 0:
            found[option.name] = here + more

    if spec.min_on_demand:
        regular = [option for option in order if not option.spot]
        for option in regular:
            fill(option, now.get(option.name, 0))
        # Missing replicas go to the on-demand accelerator in use, else to one with the spot one's hardware.
        spots = [option for option in order if option.spot and now.get(option.name)] or order[:1]
        alike = {keeper.name for spot in spots if spot.spot for keeper in keepers(spec, spot)}
        for option in sorted(regular, key=lambda option: (-found.get(option.name, 0), option.name not in alike)):
            fill(option, found.get(option.name, 0) + spec.min_on_demand - sum(found.values()))
    for option in order:
        fill(option, now.get(option.name, 0))
    for option in order:
        fill(option, replicas)
    return found
