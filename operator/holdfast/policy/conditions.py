"""The conditions of a service: one function per condition, each naming what is missing."""

from __future__ import annotations

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ClusterProblem
from holdfast.domain.decision import ConditionValue
from holdfast.domain.signals import SignalState
from holdfast.policy.setbacks import Setback, failing_reason
from holdfast.policy.sizes import Sizes
from holdfast.policy.view import View

METRICS_REASONS = {
    SignalState.UNREACHABLE: Reason.PROMETHEUS_UNREACHABLE,
    SignalState.ABSENT: Reason.METRICS_MISSING,
    SignalState.STALE: Reason.METRICS_STALE,
    SignalState.PARTIAL: Reason.METRICS_PARTIAL,
    SignalState.DUPLICATE: Reason.METRICS_PARTIAL,
    SignalState.INVALID: Reason.METRICS_PARTIAL,
}

CAPACITY_PROBLEMS = frozenset({Reason.QUOTA_EXCEEDED, Reason.INSUFFICIENT_GPUS, Reason.NO_MATCHING_NODES})


def conditions(view: View, sizes: Sizes) -> tuple[ConditionValue, ...]:
    """Return every condition as it stands now."""
    return (
        ready(view),
        slo_met(view, sizes),
        scaling_active(view),
        metrics_available(view),
        capacity_available(view),
        reconciling(view),
        stalled(view),
    )


def ready(view: View) -> ConditionValue:
    """At least one replica has served a token and the object was understood."""
    kind = ConditionType.READY
    serving = view.ready
    problem = _problem(view, capacity=False)
    if problem is not None and (not serving or problem.reason in (Reason.INVALID, Reason.NAME_CONFLICT)):
        return ConditionValue(kind, False, problem.reason, problem.message)
    if serving:
        return ConditionValue(kind, True, Reason.SERVING, f"{serving} of {view.size} replicas serve")
    broken = next((group for group in view.groups if group.failing), None)
    if broken is not None:
        replica = broken.failing[0]
        words = ": ".join(filter(None, (replica.reason, replica.detail)))
        return ConditionValue(kind, False, failing_reason(replica), f"{replica.name} on {broken.accelerator}: {words}")
    setback = _setback(view)
    if setback is not None and setback.reason is not Reason.INSUFFICIENT_GPUS:
        return ConditionValue(kind, False, setback.reason, f"{setback.accelerator}: {setback.detail}")
    coming = sum(len(group.coming) for group in view.groups)
    return ConditionValue(kind, False, Reason.NO_REPLICAS, f"{coming} of {view.size} replicas are starting")


def slo_met(view: View, sizes: Sizes) -> ConditionValue:
    """Attainment over the window is at least the objective."""
    kind, slo, state = ConditionType.SLO_MET, view.spec.slo, view.slo
    if not any(option.belief.feasible for option in view.considered):
        names = ", ".join(option.name for option in view.considered)
        text = f"not even a lone request meets the objectives on {names}"
        return ConditionValue(kind, False, Reason.SLO_INFEASIBLE, text)
    if state.attainment is None:
        least = 1.0 / slo.budget_share
        return ConditionValue(
            kind, None, Reason.WARMING_UP, f"{state.judged:.0f} requests judged in the window, {least:.0f} are needed"
        )
    text = f"{state.attainment:.2%} of {state.judged:.0f} requests good, objective {slo.objective:.2%}"
    if state.attainment >= slo.objective:
        return ConditionValue(kind, True, Reason.OBJECTIVE_MET, text)
    return ConditionValue(kind, False, _missed_because(view, sizes), text)


def _missed_because(view: View, sizes: Sizes) -> Reason:
    """The most likely cause, the one that somebody must act on first."""
    if Reason.BUDGET_LIMITED in sizes.limits:
        return Reason.BUDGET_LIMITED
    if view.group.short or Reason.CAPACITY_LIMITED in sizes.limits:
        return Reason.CAPACITY_LIMITED
    if any(group.failing for group in view.groups):
        return Reason.ENGINE_FAILING
    if view.starting:
        return Reason.COLD_START
    forecast = view.forecast
    carried = len(view.group.ready) * view.belief.rate_rps
    if forecast is not None and forecast.level_rps <= carried and view.slo.burning:
        return Reason.ENGINE_SLOW
    return Reason.BELOW_CAPACITY if view.slo.burning else Reason.COLD_START


def scaling_active(view: View) -> ConditionValue:
    """Sizes follow the SLO."""
    kind, spec = ConditionType.SCALING_ACTIVE, view.spec
    if spec.pinned_replicas is not None:
        text = f"spec.replicas pins {spec.pinned_replicas} replicas; remove it to resume SLO scaling"
        return ConditionValue(kind, False, Reason.PINNED, text)
    if spec.recommend_only:
        return ConditionValue(kind, False, Reason.RECOMMEND, "mode is Recommend: see status.recommendation")
    if not view.seen.fresh:
        text = f"nothing is lowered while metrics are {view.seen.state.value}: {view.seen.detail or 'no detail'}"
        return ConditionValue(kind, False, Reason.METRICS_HOLD, text)
    return ConditionValue(kind, True, Reason.FOLLOWING_SLO, "sizes follow the SLO")


def metrics_available(view: View) -> ConditionValue:
    """Every signal is fresh."""
    kind, seen = ConditionType.METRICS_AVAILABLE, view.seen
    if seen.fresh:
        return ConditionValue(kind, True, Reason.METRICS_FRESH, "every signal is fresh")
    return ConditionValue(kind, False, METRICS_REASONS[seen.state], seen.detail or f"metrics are {seen.state.value}")


def capacity_available(view: View) -> ConditionValue:
    """Every wanted replica could be placed."""
    kind = ConditionType.CAPACITY_AVAILABLE
    problem = _problem(view, capacity=True)
    if problem is not None:
        return ConditionValue(kind, False, problem.reason, problem.message)
    for group in view.groups:
        waiting = group.short or group.pending
        if waiting and group.size:
            said = waiting[0].detail or waiting[0].reason or "the scheduler found no node"
            text = f"{len(group.short) + len(group.pending)} replicas wait for {group.accelerator}: {said}"
            return ConditionValue(kind, False, _shortage(view, group.accelerator), text)
    setback = _setback(view)
    if setback is not None:
        minutes = max(0.0, setback.until - view.now) / 60.0
        text = f"{setback.accelerator} is out ({setback.detail}), tried again in {minutes:.0f} min"
        return ConditionValue(kind, False, Reason.ACCELERATOR_UNAVAILABLE, text)
    return ConditionValue(kind, True, Reason.ALL_PLACED, "every wanted replica could be placed")


def _shortage(view: View, accelerator: str) -> Reason:
    """Whether nodes are full, or none matches at all."""
    option = next((option for option in view.considered if option.name == accelerator), None)
    if option is not None and option.room.nodes == 0 and option.room.offering > 0:
        return Reason.NO_MATCHING_NODES
    return Reason.INSUFFICIENT_GPUS


def reconciling(view: View) -> ConditionValue:
    """What was decided is not yet what runs (kstatus)."""
    kind = ConditionType.RECONCILING
    if not all(group.observed for group in view.groups):
        return ConditionValue(kind, True, Reason.SPEC_NOT_OBSERVED, "Kubernetes has not taken up the last change yet")
    if any(group.rolling_out for group in view.groups):
        return ConditionValue(kind, True, Reason.ROLLOUT_UNDER_WAY, "replicas are being replaced")
    if view.starting or not view.size:
        return ConditionValue(kind, True, Reason.REPLICAS_STARTING, f"{view.ready} of {view.size} replicas are ready")
    return ConditionValue(kind, False, Reason.STEADY, "what runs is what was decided")


def stalled(view: View) -> ConditionValue:
    """No waiting will help: somebody must act (kstatus)."""
    kind = ConditionType.STALLED
    problem = _problem(view, capacity=False)
    if problem is not None and not view.ready:
        return ConditionValue(kind, True, problem.reason, problem.message)
    setback = view.learned.setbacks.active(view.chosen.name, view.now)
    if setback is not None and not view.ready:
        return ConditionValue(kind, True, setback.reason, f"{setback.accelerator}: {setback.detail}")
    return ConditionValue(kind, False, Reason.STEADY, "nothing is stuck")


def _problem(view: View, capacity: bool) -> ClusterProblem | None:
    """The first problem that is (or is not) one of capacity, in a fixed order."""
    fitting = [problem for problem in view.service.problems if (problem.reason in CAPACITY_PROBLEMS) == capacity]
    return min(fitting, key=lambda problem: (problem.reason, problem.message), default=None)


def _setback(view: View) -> Setback | None:
    """A setback of an accelerator that would be preferred to the one chosen, or of that one itself."""
    return next((option.setback for option in view.considered if option.setback is not None), None)
