"""A service as the batching controller sees it (`policy.batching`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.domain.cluster import Placement
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import BatchingLimits
from holdfast.domain.signals import RevisionTraffic
from holdfast.enginemodel.replica_model import EngineModel
from holdfast.policy.batching.canary_test import Side
from holdfast.policy.batching.controller import (
    HYSTERESIS,
    LEAST_BUDGET,
    Batching,
    Question,
    Situation,
    Wanted,
    step,
    words,
)
from holdfast.policy.view import View

LEAST_REQUESTS = 200.0
"""Requests, as they are remembered, behind a length mix that limits are fitted to."""


def tune(
    memory: Batching, view: View, passed_seconds: float, model: EngineModel
) -> tuple[Batching, BatchingTarget | None]:
    """Return the limits of the accelerator in use; None where they stay as they are.

    `passed_seconds` since the last look tell how much of the traffic is new.
    """
    placement = next((p for p in view.service.placements if p.accelerator == view.chosen.name), None)
    if placement is None or view.switching or view.chosen.pair is not None or not view.group.size:
        return memory, None
    if _may_need(view) and not view.belief.fast_loop:
        considered = _considered(memory.considered, view, model)
        if considered is not memory.considered:
            memory = replace(memory, considered=considered)
    if _at_rest(memory, view, placement):
        return memory, None
    memory, taken = step(memory, _situation(memory, view, placement, passed_seconds))
    return memory, BatchingTarget(placement.accelerator, taken.limits, taken.before, taken.reason, taken.message)


def _at_rest(memory: Batching, view: View, placement: Placement) -> bool:
    """No trial is under way, and none can begin."""
    if memory.trial is not None or memory.ending is not None or placement.batching_before is not None:
        return False
    found = memory.considered
    return view.belief.fast_loop or found is None or found.limits == placement.batching


def advice(memory: Batching, view: View) -> str:
    """What other limits would carry, for services whose limits are held by people."""
    found, rate_rps = memory.considered, view.belief.rate_rps
    if found is None or not rate_rps > 0.0 or not found.rate_rps >= HYSTERESIS * rate_rps:
        return ""
    carried = f"one {view.chosen.name} replica would carry {found.rate_rps:.1f} req/s instead of {rate_rps:.1f}"
    return f"with {words(found.limits)}, {carried}"


def _situation(memory: Batching, view: View, placement: Placement, passed_seconds: float) -> Situation:
    free = not view.spec.batching_fixed and not view.spec.recommend_only and not view.belief.fast_loop
    settled = _settled(view)
    situation = Situation(
        now=view.now,
        accelerator=placement.accelerator,
        limits=placement.batching,
        before=placement.batching_before,
        size=view.group.size,
        settled=settled,
        surge=view.chosen.room.free_replicas > 0,
        free=free,
        calm=_calm(view),
        demand_rps=view.demand_rps,
        rate_rps=view.belief.rate_rps,
        cold_start_seconds=view.supply.cold_starts.p90_seconds or view.supply.lead_seconds,
        wanted=memory.considered if free and settled else None,
    )
    if memory.trial is None and placement.batching_before is None:
        return situation
    share = min(1.0, passed_seconds / view.seen.interval_seconds) if view.seen.interval_seconds > 0.0 else 0.0
    canary, rest = sides(view.service.traffic.revisions, placement, share if view.seen.fresh else 0.0)
    on_trial = _on_trial(view)
    return replace(
        situation,
        canary=canary,
        rest=rest,
        canary_serves=any(replica.name in on_trial for replica in view.group.ready),
        canary_fails=any(replica.name in on_trial for replica in view.group.useless),
    )


def sides(revisions: Iterable[RevisionTraffic], placement: Placement, share: float) -> tuple[Side, Side]:
    """What the revision on trial and the others did with their requests; a request that missed twice counts once."""
    canary, rest = Side(), Side()
    for each in revisions:
        if each.accelerator != placement.accelerator:
            continue
        late = max(0.0, each.ttft_count - each.ttft_within) + max(0.0, each.tpot_count - each.tpot_within)
        judged = each.ttft_count + each.rejected
        side = Side(share * judged, share * min(judged, late + each.rejected))
        if each.revision == placement.revision:
            canary = canary.plus(side)
        else:
            rest = rest.plus(side)
    return canary, rest


def _on_trial(view: View) -> frozenset[str]:
    """Names of the replicas with the newest pod template, as long as there are others beside them."""
    group = view.group
    pods = (*group.ready, *group.coming, *group.useless)
    if len({replica.revision for replica in pods}) < 2:
        return frozenset()
    newest = max(pods, key=lambda replica: (replica.created_at, replica.name)).revision
    return frozenset(replica.name for replica in pods if replica.revision == newest)


def _settled(view: View) -> bool:
    """Nothing moves, and what requests are like is known."""
    still = view.group.observed and not view.group.rolling_out and not view.starting and not view.group.draining
    whole = len(view.group.ready) == view.group.size and not view.group.useless
    return view.seen.fresh and still and whole and view.demand.lengths.sums.requests >= LEAST_REQUESTS


def _calm(view: View) -> bool:
    state = view.slo
    return not state.burning and state.budget_remaining is not None and state.budget_remaining >= LEAST_BUDGET


def _may_need(view: View) -> bool:
    """More than one replica is at work, or all they carry is used: only then can other limits save one."""
    return view.demand_rps is not None and view.demand_rps > view.belief.rate_rps > 0.0


def _considered(known: Wanted | None, view: View, model: EngineModel) -> Wanted | None:
    """The best limits for what the belief holds for, looked for anew only when that has changed."""
    mix, belief, spec = view.supply.capacity.mix, view.belief, view.spec
    if mix is None:
        return None
    question = Question(spec, belief.option, mix, belief.slowness, belief.limits)
    if known is not None and known.question == question:
        return known
    limits = model.best_limits(spec, belief.option, mix, belief.slowness)
    if limits is None:
        return None
    found = model.rate(replace(spec, batching=limits), belief.option, mix, belief.slowness)
    if found is None or not belief.rate.rate_rps > 0.0:
        return None
    # Whatever corrects the one is taken to correct the other.
    corrected = found.rate_rps * belief.rate_rps / belief.rate.rate_rps
    return Wanted(BatchingLimits() if limits == spec.batching else limits, corrected, question)
