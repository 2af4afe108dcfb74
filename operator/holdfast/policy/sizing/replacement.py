"""Which replicas are replaced: sick, failing, on closing nodes; and how many an eviction may leave unavailable."""

from __future__ import annotations

from collections import Counter

from holdfast.domain.cluster import Replica
from holdfast.policy.estimate.demand import replicas_for
from holdfast.policy.view import Load, Minimum, Replacement, Selection, ServiceState


def replacement_of(state: ServiceState, load: Load, selection: Selection, minimum: Minimum) -> Replacement:
    """Return which replicas of the chosen accelerator and its pair are replaced."""
    group = selection.group
    ailing_on, ready = {replica.accelerator for replica in group.ailing}, len(group.ready)
    # Kubernetes removes unscheduled pods first, whatever the replicas are worth.
    before_ailing = [replica for replica in group.short if replica.accelerator in ailing_on]
    ailing_go = _ailing_to_let_go(state, selection, minimum, len(before_ailing))
    restarting = _group_to_restart(state, selection, minimum)
    going = [replica for replica in group.ready if replica.closing and replica.can_be_chosen]
    enough = _enough(state, load, selection, minimum)
    going_go = int(bool(going) and not (ailing_go or state.moving or group.short) and ready > enough)
    removed = (*group.ailing[:ailing_go], *(before_ailing if ailing_go else ()), *going[:going_go])
    successors = int(bool(going) and ready - len(going) < enough and not state.in_backoff(selection.name))
    lacking = _lacking(load, selection)
    spare = max(group.in_place_of_failing, successors) + len(group.ailing) - ailing_go - bool(restarting) + lacking
    return Replacement(
        going=tuple(going),
        ailing_to_let_go=ailing_go,
        restarting=restarting,
        going_to_let_go=going_go,
        leaving=Counter([replica.accelerator for replica in removed]),
        successors=successors,
        with_successor=group.baseline + (ready >= group.baseline) if successors else 0,
        lacking=lacking,
        spare=spare,
        needed=minimum.carrying + spare,
    )


def _ailing_to_let_go(state: ServiceState, selection: Selection, minimum: Minimum, waiting: int) -> int:
    """Ailing replicas to remove now, without a loss of capacity or of further requests: one at a time.

    None is removed while people set the size, metrics are doubtful, or something starts: Kubernetes would remove
    that instead. Where no more replicas are available, one is removed below the minimum, and its successor follows.

    One that still serves stays while other replicas have no room for its load: they would become slow as well. Nor does
    a group of pods go, because another one would be removed in its place: it is restarted.
    """
    group, least = selection.group, minimum.least.replicas
    if not group.ailing or state.moving or not group.ailing[0].can_be_chosen:
        return 0
    has_room = _has_room(selection, waiting)
    if state.supply.sick.serve and has_room and _is_needed(selection, least):
        return 0
    return max(0, min(1, group.baseline - waiting - max(1, least - (not has_room))))


def _group_to_restart(state: ServiceState, selection: Selection, minimum: Minimum) -> Replica | None:
    """The sick group of pods to restart now, where a single pod would be replaced: one at a time.

    Nothing is lost with one that serves nothing. One that still serves some requests goes only while another group
    serves, and as a single pod would: once the others carry its load, or where no substitute can be started.
    """
    group, stalled = selection.group, {each.name for each in state.supply.sick.believed if each.stalled}
    if state.moving or not group.ailing or group.ailing[0].can_be_chosen:
        return None
    worst = min(group.ailing, key=lambda replica: replica.name not in stalled)
    if worst.name in stalled:
        return worst
    is_needed = _has_room(selection, len(group.short)) and _is_needed(selection, minimum.least.replicas)
    return worst if group.ready and not is_needed else None


def _has_room(selection: Selection, waiting: int) -> bool:
    """Whether another replica may be started in place of a sick one."""
    return selection.group.baseline < selection.chosen.most and not waiting and selection.allocation is None


def _is_needed(selection: Selection, least: int) -> bool:
    """Whether the replicas that are not sick are too few for the load."""
    return len(selection.group.ready) < max(selection.chosen.replicas, least)


def _enough(state: ServiceState, load: Load, selection: Selection, minimum: Minimum) -> int:
    """Replicas that carry the load, its recent peaks, the error of its forecast, and the KV cache.

    Where the load is unknown: as many as ran before the node closed.
    """
    belief, closing = selection.belief, state.supply.closing
    if load.forecast is None or load.demand_rps is None or not belief.sized:
        return max(minimum.least.replicas, minimum.waking, closing.size if closing else 0)
    carrying = replicas_for(max(load.peaks.rate_rps, load.forecast.releasable_rps), belief.rate_rps)
    return max(minimum.carrying, carrying)


def _lacking(load: Load, selection: Selection) -> int:
    """Replicas of the pair's accelerator that have no node and that the load needs."""
    chosen, needed = selection.chosen, selection.chosen.replicas
    if chosen.pair is None:
        return 0
    if load.demand_rps is not None:
        needed = min(needed, max(1, replicas_for(load.demand_rps, chosen.belief.rate_rps)))
    return max(0, len(selection.group.short) - len(selection.own.short) - (chosen.replicas - needed))


def max_unavailable(state: ServiceState, replacement: Replacement, decided: int) -> int:
    """Return maxUnavailable of the disruption budget; `decided` replicas are wanted.

    | serving replicas                                  | evictions                                      |
    | the last one                                      | none: its node must be cordoned first          |
    | the last one goes with its node, a successor comes| none, until the successor serves               |
    | any goes with its node, no successor comes        | one at a time, whatever else is unavailable    |
    | the last one, on a spot node                      | one: the node does not wait                    |
    | several                                           | one at a time, while all others serve          |
    """
    serving = [replica for group in state.groups for replica in group.ready]
    closing = state.supply.closing
    comes = closing is not None and state.now < closing.until and (state.starting or decided > state.size)
    if closing is not None and not comes and not replacement.going_to_let_go:
        return 1 + max(0, state.size - len(serving))
    spot = {option.name for option in state.spec.accelerators if option.spot}
    last = min(len(serving), decided) == 1 and not any(replica.accelerator in spot for replica in serving)
    return 0 if last else 1
