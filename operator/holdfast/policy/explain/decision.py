"""A decision with everything that explains it."""

from __future__ import annotations

from holdfast.api.quantities import counted
from holdfast.api.reasons import Reason
from holdfast.domain.decision import (
    BatchView,
    Candidate,
    CapacityView,
    ClassView,
    Decision,
    Explanation,
    SloView,
    Verdict,
)
from holdfast.domain.valid_traffic import bad_by_cause
from holdfast.policy.batching.controller import Batching
from holdfast.policy.estimate import scale_to_zero, slo_budget
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.explain.messages import describe, of_class, reason_for, restart
from holdfast.policy.placement.choice import is_cheaper
from holdfast.policy.placement.options import Option
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.sizing.replacement import max_unavailable
from holdfast.policy.transition.batching_limits import advice
from holdfast.policy.view import Load, Minimum, ServiceState, View


def decision_of(view: View, sizes: Sizes, held: Verdict | None, batching: Batching) -> Decision:
    """Return the decision: what is done, what is only recommended, the conditions, and the inputs behind it.

    `held` is done instead where people hold the size themselves.
    """
    state = view.state
    advised = advice(batching, view.selection) if state.spec.recommend_only else ""
    told = "; ".join(filter(None, (describe(view, sizes), advised)))
    free, belief = Verdict(sizes.action, reason_for(view, sizes), told, sizes.targets), view.selection.belief
    verdict = held or free
    return Decision(
        key=state.spec.key,
        generation=state.spec.generation,
        verdict=verdict,
        conditions=conditions(view, sizes),
        slo=_slo_view(state, view.load),
        capacity=CapacityView(
            belief.option.name,
            belief.rate_rps,
            belief.rate.bound_by,
            belief.confidence,
            measured=belief.scaled.measured if belief.scaled.compared else None,
            learned_gain=belief.correction.gain,
            learned_slowness=belief.correction.slowness,
        ),
        benchmarked=tuple(
            (each.scaled.measured, each.scaled.factor if each.scaled.compared else None)
            for each in state.supply.capacity.beliefs
            if each.scaled.measured
        ),
        cold_start_seconds=state.supply.cold_starts.p90_seconds,
        recommendation=free if held else None,
        explanation=_explanation(view, sizes),
        holding=_holding(state, view.minimum),
        engines=tuple((each.option.name, each.facts) for each in state.supply.capacity.beliefs),
        max_unavailable=max_unavailable(state, view.replacement, verdict.replicas),
        restart=restart(state, view.replacement),
    )


def _holding(state: ServiceState, minimum: Minimum) -> bool:
    """Requests go to the activator before the last replica has gone, and until one serves again.

    Where people hold the size at none, nobody would come for those who wait; who raises scaling.min above none wants
    nobody sent away.
    """
    if state.service.activator is None or state.spec.pinned_replicas == 0 or state.left_at_zero:
        return False
    return minimum.slumber is not scale_to_zero.Slumber.AWAKE or not state.ready


def _slo_view(state: ServiceState, load: Load) -> SloView:
    traffic, budget = state.service.traffic, state.demand.budget
    rate = None if load.forecast is None else load.forecast.level_rps
    pending = state.service.awaits_history
    return SloView(
        attainment=None if pending else state.slo.attainment,
        budget_remaining=None if pending else state.slo.budget_remaining,
        good_rps=None if rate is None else _good_rps(rate, slo_budget.recent(budget, state.now, 60.0)),
        arrival_rps=rate,
        ttft=traffic.ttft,
        tpot=traffic.tpot,
        e2e=traffic.e2e,
        concurrency=traffic.concurrency,
        bad=bad_by_cause(state.seen, state.spec.slo),
        source=("engine" if budget.engine_timed else "exact") if budget.exact else "bounds",
        pending=pending,
        classes=tuple(
            ClassView(each.slo.name, each.slo.objective, said.attainment, said.budget_remaining, said.judged)
            for each in (state.classes if state.spec.slo.classes and not pending else ())
            for said in (each.state,)
        ),
        hardest=state.objectives.name,
        batch=tuple(
            BatchView(each.of.name, each.unfinished, each.done_rps, each.of.finish_seconds)
            for each in state.demand.batch.classes
        ),
    )


def _good_rps(rate_rps: float, last_minute: slo_budget.Verdicts) -> float | None:
    """None while requests come and none of them ends: nobody knows whether they are good."""
    return rate_rps * (1.0 - last_minute.bad_share) if last_minute.judged or rate_rps * 60.0 < 1.0 else None


def _explanation(view: View, sizes: Sizes) -> Explanation:
    state, load, selection = view.state, view.load, view.selection
    expected = load.forecast
    return Explanation(
        forecast_rps=None if expected is None else expected.wanted_rps,
        quantile=None if expected is None else expected.quantile,
        lead_time_seconds=state.supply.lead_seconds,
        backlog_requests=load.backlog_requests,
        wanted_replicas=sizes.wanted,
        candidates=candidates(selection.considered, selection.name, state.spec.slo.objective),
        guards=_guards(view.minimum, sizes),
    )


def _guards(minimum: Minimum, sizes: Sizes) -> tuple[str, ...]:
    """What bounded the size, including a schedule's floor, which counted from the start."""
    told = tuple(f"{bound.reason}: {bound.sentence}" for bound in sizes.bounds)
    if not minimum.schedule_rules or Reason.SCHEDULED_FLOOR in sizes.limits:
        return told
    return (f"{minimum.least.reason}: {minimum.least.sentence}", *told)


def candidates(considered: tuple[Option, ...], chosen: str, objective: float) -> tuple[Candidate, ...]:
    """Why each accelerator was not taken, for `holdfast explain`."""
    taken = next(option for option in considered if option.name == chosen)
    return tuple(
        Candidate(
            accelerator=option.name,
            replicas=option.replicas,
            per_replica_rps=option.belief.rate_rps,
            cost_per_hour=option.cost_per_hour,
            lost_because=_lost_because(option, taken, objective),
        )
        for option in considered
    )


def _lost_because(option: Option, taken: Option, objective: float) -> str:
    if option is taken:
        return ""
    if taken.pair is not None and option.name == taken.pair.accelerator:
        return f"runs the on-demand replicas next to {taken.name}"
    return _hindered(option, objective) or _not_preferred(option, taken)


def _hindered(option: Option, objective: float) -> str:
    """What stands against it, in the order of `Option.hindrance`."""
    if option.barred:
        return "scaling.minOnDemand needs an on-demand accelerator with the same resource and count; list one"
    if option.allowed < 1:
        return "its max or budget.maxCostPerHour allows no replica; raise the limit"
    if option.backoff is not None:
        return f"unavailable ({option.backoff.reason}: {option.backoff.detail}), retried later"
    if not option.belief.feasible:
        rate = option.belief.rate
        share, whose = rate.slo.of(rate.name).objective if rate.slo else objective, of_class(rate) or " of requests"
        return f"cannot meet the objectives for {share:.2%}{whose} even without load (bound by {rate.bound_by})"
    if option.allowed < option.least:
        least = f"{option.allowed} of the {counted(option.least, 'replica')} that must run"
        return f"its max or budget.maxCostPerHour allows only {least}; raise the limit"
    return "" if option.fits else f"only {counted(option.most, 'replica', of=option.replicas)} can be placed"


def _not_preferred(option: Option, taken: Option) -> str:
    if option.cost_per_hour is None or taken.cost_per_hour is None:
        return "listed later in spec.accelerators; or preferred too recently; or no room to run both during a migration"
    costs = f"${option.cost_per_hour:.2f}/h for the same load, {taken.name} ${taken.cost_per_hour:.2f}/h"
    if not is_cheaper(option, taken):
        return f"{costs}: less than 10 % cheaper, so no migration"
    return f"{costs}: cheaper too recently, or no room to run both during a migration"
