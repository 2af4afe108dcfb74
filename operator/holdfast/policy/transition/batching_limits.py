"""A service as the batching controller sees it (`policy.batching`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.domain.cluster import Placement
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import BatchingLimits
from holdfast.domain.signals import RevisionTraffic
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.batching import controller
from holdfast.policy.batching.controller import Batching, Situation, Wanted
from holdfast.policy.estimate.slo_budget import NONE, Verdicts, plus
from holdfast.policy.view import Load, Selection, ServiceState

LEAST_REQUESTS = 200.0
"""Requests, as they are remembered, behind a length mix that limits are fitted to."""


def tune(
    memory: Batching, state: ServiceState, load: Load, selection: Selection, passed_seconds: float, model: EngineModel
) -> tuple[Batching, BatchingTarget | None]:
    """Return the limits of the accelerator in use; None where they stay as they are.

    `passed_seconds` since the last look tell how much of the traffic is new.
    """
    placement = next((p for p in state.service.placements if p.accelerator == selection.name), None)
    if placement is None or selection.switching or selection.chosen.pair is not None or not selection.group.size:
        return memory, None
    # More than one replica is at work, or all they carry is used: only then can other limits save one.
    may_save = load.demand_rps is not None and load.demand_rps > selection.belief.rate_rps > 0.0
    if may_save and not selection.belief.fast_loop:
        memory = replace(memory, considered=_considered(memory.considered, state, selection, model))
    found, may_begin = memory.considered, not selection.belief.fast_loop
    if placement.batching_before is None and not (may_begin and found and found.limits != placement.batching):
        return memory, None  # no trial is under way, and none can begin
    return controller.step(memory, _situation(memory, state, load, selection, placement, passed_seconds))


def advice(memory: Batching, selection: Selection) -> str:
    """What other limits would carry, for services whose limits are held by people."""
    found, rate_rps = memory.considered, selection.belief.rate_rps
    if found is None or not rate_rps > 0.0 or not found.rate_rps >= controller.HYSTERESIS * rate_rps:
        return ""
    carried = f"one {selection.name} replica would carry {found.rate_rps:.1f} req/s instead of {rate_rps:.1f}"
    return f"with {controller.words(found.limits)}, {carried}"


def _situation(
    memory: Batching, state: ServiceState, load: Load, selection: Selection, placement: Placement, passed_seconds: float
) -> Situation:
    held = state.spec.batching_fixed or state.spec.recommend_only or selection.belief.fast_loop
    option = state.spec.accelerator(placement.accelerator)
    free = not held and (option is None or option.nodes == 1)  # no group of pods can be the first one of a rollout
    settled, left, interval = _settled(state, selection), state.slo.budget_remaining, state.seen.interval_seconds
    share = min(1.0, passed_seconds / interval) if state.seen.fresh and interval > 0.0 else 0.0
    canary, rest = sides(state.service.traffic.revisions, placement, share)
    on_trial = _on_trial(selection)
    return Situation(
        now=state.now,
        accelerator=placement.accelerator,
        limits=placement.batching,
        before=placement.batching_before,
        size=selection.group.size,
        settled=settled,
        surge=selection.chosen.room.free_replicas > 0,
        free=free,
        calm=not state.slo.burning and left is not None and left >= controller.LEAST_BUDGET,
        demand_rps=load.demand_rps,
        rate_rps=selection.belief.rate_rps,
        cold_start_seconds=state.supply.cold_starts.p90_seconds or state.supply.lead_seconds,
        wanted=memory.considered if free and settled else None,
        canary=canary,
        rest=rest,
        canary_serves=any(replica.name in on_trial for replica in selection.group.ready),
        canary_fails=any(replica.name in on_trial for replica in selection.group.useless),
    )


def sides(revisions: Iterable[RevisionTraffic], placement: Placement, share: float) -> tuple[Verdicts, Verdicts]:
    """What the revision on trial and the others did with their requests; a request that missed twice counts once."""
    canary, rest = NONE, NONE
    for each in revisions:
        if each.accelerator != placement.accelerator:
            continue
        late = max(0.0, each.ttft_count - each.ttft_within) + max(0.0, each.tpot_count - each.tpot_within)
        judged = each.ttft_count + each.rejected
        bad = min(judged, late + each.rejected)
        verdicts = Verdicts(share * (judged - bad), share * bad)
        if each.revision == placement.revision:
            canary = plus(canary, verdicts)
        else:
            rest = plus(rest, verdicts)
    return canary, rest


def _on_trial(selection: Selection) -> frozenset[str]:
    """Names of the replicas with the newest pod template, while replicas with an older one run as well."""
    group = selection.group
    pods = (*group.ready, *group.coming, *group.useless)
    if len({replica.revision for replica in pods}) < 2:
        return frozenset()
    newest = max(pods, key=lambda replica: (replica.created_at, replica.name)).revision
    return frozenset(replica.name for replica in pods if replica.revision == newest)


def _settled(state: ServiceState, selection: Selection) -> bool:
    """Nothing moves, and what requests are like is known."""
    group = selection.group
    still = group.observed and not group.rolling_out and not state.starting and not group.draining
    whole = len(group.ready) == group.size and not group.useless
    return state.seen.fresh and still and whole and state.demand.lengths.sums.requests >= LEAST_REQUESTS


def _considered(known: Wanted | None, state: ServiceState, selection: Selection, model: EngineModel) -> Wanted | None:
    """The best limits for what the belief holds for, looked for anew only when that has changed."""
    mix, belief, spec = state.supply.capacity.mix, selection.belief, state.spec
    if mix is None:
        return None
    question = controller.Question(spec, belief.option, mix, belief.slowness, belief.limits)
    if known is not None and known.question == question:
        return known
    limits = model.best_limits(spec, belief.option, mix, belief.slowness)
    if limits is None:
        return None
    found = model.rate(replace(spec, batching=limits), belief.option, mix, belief.slowness)
    if found is None or not belief.rate.rate_rps > 0.0:
        return None
    # Whatever corrects the one is taken to correct the other.
    corrected = found.of_mix(state.supply.capacity.shares).rate_rps * belief.rate_rps / belief.rate.rate_rps
    return Wanted(BatchingLimits() if limits == spec.batching else limits, corrected, question)
