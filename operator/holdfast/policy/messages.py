"""The sentences that condition, Event, log line and metric share."""

from __future__ import annotations

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action
from holdfast.policy.sizes import Sizes
from holdfast.policy.view import View


def describe(view: View, sizes: Sizes) -> str:
    """Say what is expected, what a replica carries, what follows, and what bounded it."""
    parts = [_expectation(view), _capacity(view), _change(view, sizes), *_limits(sizes)]
    return "; ".join(filter(None, (", ".join(filter(None, parts[:2])), *parts[2:])))


def _expectation(view: View) -> str:
    forecast = view.forecast
    if forecast is None:
        return "no load seen yet"
    text = f"{forecast.wanted_rps:.1f} req/s expected (q={forecast.quantile:.2f})"
    text += f" in the next {forecast.lead_seconds:.0f} s"
    if view.demand_rps is not None and view.demand_rps > forecast.wanted_rps:
        text += f", {view.backlog_requests:.0f} requests waiting too long"
    return text


def _capacity(view: View) -> str:
    belief = view.belief
    if not belief.feasible:
        return f"{view.chosen.name} cannot meet the objectives even without load"
    return f"{belief.rate_rps:.1f} req/s per {view.chosen.name} replica bound by {belief.rate.bound_by}"


def _change(view: View, sizes: Sizes) -> str:
    before = view.group.size
    after = next((t.replicas for t in sizes.targets if t.accelerator == view.chosen.name), 0)
    moves = [f"{g.accelerator} {g.size} -> {_target(sizes, g.accelerator)}" for g in view.others if g.size]
    if moves:
        return ", ".join([f"{view.chosen.name} {before} -> {after}", *moves])
    if before == after:
        return f"{after} {'replica' if after == 1 else 'replicas'}"
    return f"{before} -> {after} replicas{_price(view, after - before)}"


def _target(sizes: Sizes, accelerator: str) -> int:
    return next((t.replicas for t in sizes.targets if t.accelerator == accelerator), 0)


def _price(view: View, more: int) -> str:
    cost = view.belief.option.cost_per_replica_hour
    if cost is None or more == 0:
        return ""
    return f", ${abs(more) * cost:.2f}/h {'more' if more > 0 else 'less'}"


def _limits(sizes: Sizes) -> list[str]:
    return [bound.sentence for bound in sizes.bounds]


def reason_for(view: View, sizes: Sizes) -> Reason:
    """The one reason of a decision: what moved the size, or what kept it."""
    if sizes.action is Action.CREATE:
        return Reason.FIRST_SIZE
    if sizes.action is Action.SWITCH:
        return _switch_reason(view)
    if sizes.action is Action.HOLD:
        return sizes.bounds[-1].reason if sizes.bounds else _steady_reason(view)
    if sizes.action is Action.SCALE_UP:
        return _up_reason(view, sizes)
    return _down_reason(sizes)


def _steady_reason(view: View) -> Reason:
    return Reason.STEADY if view.seen.fresh else Reason.METRICS_HOLD


def _up_reason(view: View, sizes: Sizes) -> Reason:
    if Reason.AT_MINIMUM in sizes.limits or sizes.after <= view.spec.min_replicas:
        return Reason.AT_MINIMUM
    if view.forecast is not None and view.demand_rps is not None and view.demand_rps > view.forecast.wanted_rps:
        return Reason.BACKLOG_TO_DRAIN
    return Reason.FORECAST_ABOVE_CAPACITY


def _down_reason(sizes: Sizes) -> Reason:
    forced = [bound.reason for bound in sizes.bounds if bound.reason in (Reason.AT_MAXIMUM, Reason.BUDGET_LIMITED)]
    return forced[-1] if forced else Reason.DEMAND_BELOW_CAPACITY


def _switch_reason(view: View) -> Reason:
    """Why the accelerator that had most of the replicas is being left."""
    old = max((group for group in view.others), key=lambda group: group.size, default=None)
    option = next((o for o in view.considered if old is not None and o.name == old.accelerator), None)
    if option is None:
        return Reason.SWITCHING_ACCELERATOR
    if view.learned.setbacks.last(option.name) is not None:
        return Reason.ACCELERATOR_UNAVAILABLE
    if not option.belief.feasible:
        return Reason.SLO_INFEASIBLE
    return Reason.SWITCHING_ACCELERATOR if option.fits else Reason.CAPACITY_LIMITED
