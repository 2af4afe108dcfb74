"""The conditions of a service: one function per condition, each naming what is missing."""

from __future__ import annotations

from functools import lru_cache

from holdfast.api import status
from holdfast.api.conditions import ConditionType
from holdfast.api.quantities import counted, format_duration, format_rate, utc
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import UNREADY, ClusterProblem, Replica
from holdfast.domain.decision import Action, ConditionValue
from holdfast.domain.schedules import unknown_timezone
from holdfast.domain.service import AcceleratorOption
from holdfast.domain.signals import SignalState
from holdfast.domain.valid_traffic import bad_by_cause
from holdfast.enginemodel.acceleratornames import taken_for
from holdfast.enginemodel.capacity import Bottleneck
from holdfast.policy.estimate.replica_capacity import MATERIAL
from holdfast.policy.estimate.slo_budget import recent
from holdfast.policy.explain import messages
from holdfast.policy.health.backoff import Backoff
from holdfast.policy.sizing.guards import BALANCE
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.transition.pinned import pinned_goal, pinned_sentence, recommended_because
from holdfast.policy.view import Load, Minimum, Replacement, Selection, ServiceState, View

LATE_SECONDS = 60.0
"""A replica that has been starting for so long and says what it waits for is worth a sentence."""

PROBED_SECONDS = 300.0
"""The same of one whose probe has not passed, or twice its usual start: engines load for minutes."""

LATELY_SECONDS, LEAST_JUDGED = 300.0, 20.0
"""Time over which the share of bad requests is judged, and the fewest requests that show it."""

METRICS_REASONS = {
    SignalState.UNREACHABLE: Reason.PROMETHEUS_UNREACHABLE,
    SignalState.ABSENT: Reason.METRICS_MISSING,
    SignalState.STALE: Reason.METRICS_STALE,
    SignalState.SKEWED: Reason.CLOCK_SKEW,
    SignalState.FOREIGN: Reason.FOREIGN_ENGINES,
}
"""Reasons of missing signals; of all other states it is MetricsPartial."""

CAPACITY_PROBLEMS = frozenset({Reason.QUOTA_EXCEEDED, Reason.INSUFFICIENT_GPUS, Reason.NO_MATCHING_NODES})

_HARMLESS = frozenset({Reason.API_MISSING, Reason.ROUTER_UNAVAILABLE})
"""Problems that stop no replica: Stalled names them, after all others."""

CAUSES = {
    "ttft_rps": "get a late first token",
    "tpot_rps": "get their tokens too slowly",
    "e2e_rps": "end too late",
    "rejected_rps": "are rejected at the admission",
    "error_rps": "end with an error of the engine, or with the engine",
}
"""What becomes of bad requests, by the fields of `BadByCause`."""

Told = tuple[bool | None, str, str]
"""Status, reason and message of a condition; the status is None where it is unknown."""


def conditions(view: View, sizes: Sizes) -> tuple[ConditionValue, ...]:
    """Return every condition as it stands now."""
    state, selection, minimum = view.state, view.selection, view.minimum
    stuck, bad = _stalled(state, selection, minimum), _mostly_bad(state, selection, sizes)
    scaling = _scaling_active(view, sizes, bad)
    told: dict[ConditionType, Told] = {
        ConditionType.READY: _ready(view, bad),
        ConditionType.SLO_MET: _slo_met(view, sizes),
        ConditionType.SCALING_ACTIVE: (*scaling[:2], scaling[2] + _capped_priority(state)),
        ConditionType.METRICS_AVAILABLE: _metrics_available(state, minimum),
        ConditionType.CAPACITY_AVAILABLE: _capacity_available(state, selection, sizes),
        # kstatus reads the first of the two that is true: what waits for a person is not under way.
        ConditionType.RECONCILING: (False, *stuck[1:]) if stuck[0] else _reconciling(state, selection, minimum),
        ConditionType.STALLED: stuck,
    }
    return tuple(ConditionValue(kind, *each) for kind, each in told.items())


def _ready(view: View, bad: str) -> Told:
    """At least one replica has served a token, the object was understood, and not most requests are bad."""
    state, selection, minimum, replacement = view.state, view.selection, view.minimum, view.replacement
    serving, problem = state.ready, _problem(state, capacity=False)
    if problem is not None and problem.reason in _HARMLESS:
        problem = None  # Stalled says it
    if problem is not None and (not serving or problem.reason in (Reason.INVALID, Reason.NAME_CONFLICT)):
        return False, problem.reason, problem.message
    if told := messages.ailing(state, replacement):
        doubted = state.supply.sick.doubted
        others = "" if doubted else f"{counted(serving, 'replica', 'serves', 'serve', of=state.size)} normally; "
        return None if doubted else serving > 0, state.supply.sick.reason, others + told
    if bad:
        return False, Reason.MOST_REQUESTS_BAD, f"{_shares(state)}, {bad}"
    broken = _broken(state)
    if serving:
        more = f"{counted(serving, 'replica', 'is', 'are')} ready, {state.size} desired"
        fails = broken[1] if broken else ""
        going, sick = messages.going(state, selection, replacement), messages.passed_over(state)
        shares = _shares(state) if serving <= state.size else more
        parts = (shares, going, sick or messages.unproven(state), fails, messages.slowed(selection.belief.rate))
        return True, Reason.SERVING, "; ".join(filter(None, parts)) + _unknown(state, selection)
    if minimum.at_zero and not state.left_at_zero:
        return True, Reason.IDLE, f"no replica runs; {messages.rests(state, minimum)}"
    if broken:
        return False, *broken
    backoff = _backoff(state, selection)
    if backoff is not None and backoff.reason not in (Reason.INSUFFICIENT_GPUS, Reason.CAPACITY_LIMITED):
        return False, backoff.reason, f"{backoff.accelerator}: {backoff.detail}"
    return False, Reason.NO_REPLICAS, _awaited(state) + _unknown(state, selection)


def _shares(state: ServiceState) -> str:
    return counted(state.ready, "replica", "is ready", "are ready", of=state.size)


def _unknown(state: ServiceState, selection: Selection) -> str:
    """What nobody knows of the engines, and how to say it; the same words for as long as the spec is the same."""
    if selection.belief.scaled.compared:
        return ""
    if not (unknown := selection.belief.rate.unknown):
        return "" if state.spec.adopted else _taken(state.spec.accelerator(selection.name))
    remedies = {
        "model": "name a model that `holdfast catalog` lists, run engines with the plugin, or run an LLMBenchmark",
        "accelerator": f"describe {selection.name} in accelerators[].hardware",
    }
    remedy = "; ".join(remedies[each] for each in unknown)
    told = f"; unknown {' and '.join(unknown)}: sizing starts from observation"
    return told if state.spec.adopted else f"{told}; to start from data, {remedy}"


@lru_cache(maxsize=4096)
def _taken(option: AcceleratorOption | None) -> str:
    """For which accelerator one is taken whose name is only like a known one."""
    if option is None or option.hardware is not None:
        return ""
    if (shape := taken_for(option.name, dict(option.node_selector), option.resource)) is None:
        return ""
    return (
        f"; accelerator {option.name} is taken for {shape.system} by its name: if it is another GPU, describe it in "
        "accelerators[].hardware"
    )


def _mostly_bad(state: ServiceState, selection: Selection, sizes: Sizes) -> str:
    """Say that most requests were bad, where more replicas are possible and none is starting; empty otherwise."""
    held = state.held_by_people or selection.allocation is not None
    limited = held or sizes.limits & messages.HARD_BOUNDS or selection.own.short
    judged = state.demand.budget.judged_at is not None
    if not judged or not state.seen.fresh or limited or state.starting or sizes.action is not Action.HOLD:
        return ""
    lately = recent(state.demand.budget, state.now, LATELY_SECONDS)
    if lately.judged < LEAST_JUDGED or lately.bad_share <= 0.5:
        return ""
    text = f"but {100.0 * lately.bad_share:.0f} % of the requests of the last 5 min missed the objectives"
    return f"{text}; see the message of SLOMet, and the engine logs"


def _broken(state: ServiceState) -> tuple[Reason, str] | None:
    """The first replica that will not serve by waiting, and its last words; else the pod that ended in its place."""
    group = next((group for group in state.groups if group.failing), None)
    if group is None:
        told = messages.ended(state)
        return (Reason.POD_ENDED, told) if told else None
    replica = group.failing[0]
    words = [word for word in (replica.reason, replica.detail) if word and word != replica.failure]
    return replica.failure, ": ".join((f"{replica.name} on {group.accelerator}", *words))


def _awaited(state: ServiceState) -> str:
    """What the first replica is waited for by; without passing time, so that waiting writes nothing."""
    if state.left_at_zero:
        return f"requests are held; {_left_at_zero(state)}" if state.held else _left_at_zero(state)
    if not state.size:
        return "the first replicas are being created"
    starting = [replica for group in state.groups for replica in group.starting]
    unplaced = sum(len(group.pending) + len(group.short) for group in state.groups)
    stuck = next((replica for group in state.groups for replica in group.stuck), None)
    usual = state.supply.cold_starts.p90_seconds
    late = next((replica for replica in starting if _is_late(replica, usual, state.now)), stuck)
    parts = (
        counted(len(starting), "replica", "is starting", "are starting", of=state.size) if starting else "",
        f"a start takes about {usual:.0f} s" if starting and usual is not None else "",
        counted(unplaced, "replica", "waits for a node", "wait for a node", of=state.size) if unplaced else "",
        f"{late.name} does not become ready: {late.detail or 'see its log'}" if late else "",
        "the activator holds requests until one is ready" if state.held else "",
    )
    return "; ".join(filter(None, parts)) or f"none of {counted(state.size, 'desired replica')} has a pod yet"


def _is_late(replica: Replica, usual_seconds: float | None, now: float) -> bool:
    """Whether what a starting replica waits for is worth a sentence: its probe passes last in any start."""
    probed = max(PROBED_SECONDS, 2.0 * (usual_seconds or 0.0)) if replica.reason == UNREADY else 0.0
    return bool(replica.detail) and now - replica.created_at >= max(LATE_SECONDS, probed)


def _left_at_zero(state: ServiceState) -> str:
    if state.spec.pinned_replicas == 0:
        return "spec.replicas is 0, so no replica runs; change or remove it"
    if state.let_go:
        return f"no replica runs, because {state.supply.set_backs.told}"
    return "no replica runs and mode is Recommend, so none is started; set mode to Auto, or scale a Deployment yourself"


def _slo_met(view: View, sizes: Sizes) -> Told:
    """Attainment over the window is at least the objective."""
    state, slo, attainment = view.state, view.state.objectives, view.state.slo.attainment
    window = format_duration(slo.window_seconds)
    if not any(option.belief.feasible for option in view.selection.considered):
        return False, Reason.SLO_INFEASIBLE, _infeasible(state, view.selection)
    if state.seen.state is SignalState.INCOMPLETE:
        return None, Reason.METRICS_PARTIAL, state.seen.detail
    if state.service.awaits_history:
        return None, Reason.WARMING_UP, f"the history of the last {window} is still being read from Prometheus"
    if attainment is None:
        text = f"too few requests to judge: fewer than {1.0 / slo.budget_share:.0f} in the last {window}"
        return None, Reason.WARMING_UP, f"{text}{_missing(state)}"
    good, objective = status.attainment(attainment), status.attainment(slo.objective)
    text = f"{good} of {messages.requests_of(state)} in the last {window} were good, objective {objective}"
    text = f"{text}{_missing(state)}"
    if state.demand.activator_misses.incomplete(slo.window_seconds, state.now):
        text = f"{text}; requests held before the operator started are not counted; let Prometheus scrape the activator"
    if attainment >= slo.objective:
        return True, Reason.OBJECTIVE_MET, text
    reason, cause = _missed_because(view, sizes)
    return False, reason, f"{text}; {cause}"


def _infeasible(state: ServiceState, selection: Selection) -> str:
    """Why no listed accelerator meets the objectives, what is possible at best, and what to change."""
    too_large = all(option.belief.rate.bound_by == Bottleneck.KV_CACHE for option in selection.considered)
    if too_large and not state.spec.adopted:
        memory = ", ".join(f"{each.belief.option.gpus_per_replica} x {each.name}" for each in selection.considered)
        text = f"the model and one request do not fit into the memory of {memory}"
        return f"{text}; raise accelerators[].count, list one with more memory, or serve a quantized model"
    names = ", ".join(option.name for option in selection.considered)
    best = max((option.belief.rate for option in selection.considered), key=lambda rate: rate.attainment or 0.0)
    slo, whose = state.spec.slo.of(best.name), messages.of_class(best)
    possible = f"at best {status.attainment(best.attainment or 0.0)} of the requests are good"
    bounds = f"ttft or tpot{whose}" if best.name else "slo.ttft or slo.tpot"
    remedy = f"relax {bounds}{'' if state.spec.adopted else ', or list a faster accelerator'}"
    text = f"not even a single request meets the objectives{whose} on {names}: {possible}, objective"
    return f"{text} {status.attainment(slo.objective)}; {remedy}"


def _missing(state: ServiceState) -> str:
    """What the window is said to be and is not: known from a start on, and the same words until it is whole."""
    known, missing = state.demand.budget, state.service.missing_history
    if missing is not None and missing.failure:
        return f"; requests from before the operator's start are not counted yet: {missing.failure}"
    if known.since is None or not known.incomplete(state.service.born_at, state.now):
        return ""
    since, gap = utc(known.since, "%Y-%m-%d %H:%M"), known.gap.format(window=format_duration(known.window_seconds))
    return f"; requests before {since} are not counted: {gap}"


def _missed_because(view: View, sizes: Sizes) -> tuple[Reason, str]:
    """The most likely cause, the one that somebody must act on first, and what it means."""
    state, selection, replacement = view.state, view.selection, view.replacement
    if told := _fails(state, replacement):
        return Reason.ENGINE_ERRORS, told
    limited = next((bound for bound in reversed(sizes.bounds) if bound.reason in messages.HARD_BOUNDS), None)
    if limited is not None:
        return limited.reason, limited.sentence
    if selection.own.short:
        more = f"one more {selection.name} replica would carry {format_rate(selection.belief.rate_rps)} req/s"
        short = counted(len(selection.own.short), "replica", "waits", "wait", of=selection.group.size)
        text = f"{short} for a free {selection.name}; {more}; add a node"
        return Reason.CAPACITY_LIMITED, text if state.spec.adopted else f"{text} or list another accelerator"
    if told := messages.ailing(state, replacement):
        return state.supply.sick.reason, told
    if failing := [replica for group in state.groups for replica in group.failing]:
        told = counted(len(failing), "replica", "fails", "fail", of=state.size)
        if all(replica.failure is Reason.NODE_LOST for replica in failing):  # its engine's log says nothing of that
            return Reason.NODE_LOST, f"{told}: {failing[0].detail}"
        return Reason.ENGINE_FAILING, f"{told}; see the engine log"
    if state.starting:
        missing = max(0, state.size - state.ready)
        return Reason.COLD_START, counted(missing, "replica", "is starting", "are starting", of=state.size)
    return _missed_at_rest(state, view.load, selection)


def _missed_at_rest(state: ServiceState, load: Load, selection: Selection) -> tuple[Reason, str]:
    """The cause where nothing fails, nothing starts and nothing bounds the size."""
    if told := messages.passed_over(state):
        return state.supply.sick.passed_over[0].reason, told
    if not state.slo.burning:
        text = "the objective is met at present; earlier requests missed it, usually while replicas started"
        return Reason.COLD_START, text
    forecast, carried = load.forecast, len(selection.group.ready) * selection.belief.rate_rps
    if forecast is not None and forecast.level_rps <= carried:
        return _missed_within_capacity(state, selection, forecast.level_rps, carried)
    carry = counted(state.ready, "replica", "carries", "carry")
    return Reason.BELOW_CAPACITY, f"the load exceeds the {format_rate(carried)} req/s that {carry}"


def _missed_within_capacity(
    state: ServiceState, selection: Selection, arriving: float, carried: float
) -> tuple[Reason, str]:
    """Why replicas miss that are believed to carry what arrives."""
    should = f"{counted(state.ready, 'replica')} should carry {format_rate(carried)} req/s"
    load = f"{format_rate(arriving)} req/s arrive and {should}"
    busiest = state.seen.total.busiest
    if state.supply.evidence.before.bad_share <= state.spec.slo.budget_share:
        return Reason.COLD_START, "the late requests arrived before replicas and load were stable"
    if busiest > 1.0 + MATERIAL and arriving * busiest > carried:
        uneven = f"the busiest has {busiest:.1f} times the mean load; {BALANCE}"
        return Reason.LOAD_IMBALANCED, f"{load}, but {uneven}"
    if told := messages.slow(state, selection):
        return Reason.ENGINE_SLOW, f"{load}, but {told}"
    why = "nothing that engines report shows why; compare with times at the clients, and see gateway and engine logs"
    return Reason.CAUSE_UNKNOWN, f"{load}, but most bad requests {CAUSES[_worst_cause(state)]}, and {why}"


def _worst_cause(state: ServiceState) -> str:
    """What became of most bad requests of the last interval, as a field of `BadByCause`."""
    found = bad_by_cause(state.seen, state.spec.slo)
    rates = {} if found is None else {name: getattr(found, name) or 0.0 for name in CAUSES}
    return max(CAUSES, key=lambda name: rates.get(name, 0.0))


def _fails(state: ServiceState, replacement: Replacement) -> str:
    """Say that most bad requests end with errors, and name the replicas if they are known; empty otherwise."""
    seen, sick = state.seen, state.supply.sick
    if _worst_cause(state) != "error_rps" or seen.failed <= state.spec.slo.budget_share * seen.arrived:
        return ""
    if sick.named and sick.reason is Reason.ENGINE_ERRORS:
        named = messages.ailing(state, replacement)
    elif any(symptom.reason is Reason.ENGINE_ERRORS for symptom in sick.passed_over):
        named = messages.passed_over(state)
    else:
        named = "see the engine logs, with --previous where it was restarted"
    return f"most bad requests {CAUSES['error_rps']}; {named}"


def _scaling_active(view: View, sizes: Sizes, bad: str) -> Told:
    """Sizes follow the SLO; the message says why the size is held now, without numbers that would change each tick."""
    state, minimum = view.state, view.minimum
    pinned, held, floor = state.spec.pinned_replicas, messages.reason_for(view, sizes), minimum.scheduled.now
    if pinned is not None:
        return False, *_pinned(state, view.selection, pinned)
    if state.spec.recommend_only:
        return False, *recommended_because(state)
    if state.doubt and not minimum.asleep and not (state.seen.fresh and state.service.awaits_history):
        return False, Reason.METRICS_HOLD, state.doubt
    if bad:
        return False, Reason.MOST_REQUESTS_BAD, f"the size stays at {state.size} ({held}: {held.meaning}), {bad}"
    text = "sizes follow the SLO" if floor is None else f"sizes follow the SLO; {floor.sentence}"
    if sizes.action is Action.HOLD:
        text = f"{text}; the size stays at {state.size} now ({held}): {held.meaning}"
    return True, Reason.FOLLOWING_SLO, f"{text}{_sized_by_others(state)}"


def _pinned(state: ServiceState, selection: Selection, pinned: int) -> tuple[Reason, str]:
    """Say what pins the size, and whether the manifest that was applied knows of it."""
    given = sum(pinned_goal(state, selection, pinned).values())
    text = pinned_sentence(pinned, given) + _set_back(state)
    if not (applier := state.spec.pin_lacked_by):
        return Reason.PINNED, text
    kept = f"the manifest that {applier} applied last does not set this size, and applying it again may keep the pin"
    return Reason.PINNED_OUTSIDE_MANIFEST, f"{text}; {kept}"


def _capped_priority(state: ServiceState) -> str:
    spec = state.spec
    if spec.declared_priority <= spec.priority:
        return ""
    most = f"the highest that --max-priority of the operator allows in namespace {spec.key.namespace}"
    return f"; spec.priority {spec.declared_priority} counts as {spec.priority}, {most}"


def _sized_by_others(state: ServiceState) -> str:
    """An autoscaler on a Deployment of ours and Holdfast undo each other's sizes for ever."""
    if told := _set_back(state):
        return told
    found = next((placement for placement in state.service.placements if placement.sized_by), None)
    if found is None or state.spec.adopted:  # as applied; nobody wrote another size yet
        return ""
    return f"; {found.sized_by} set the size of {found.workload} last; if that is an autoscaler, remove it"


def _set_back(state: ServiceState) -> str:
    """Who set the size back a moment ago; empty where nobody did."""
    found = state.supply.set_backs
    return f"; {found.who} set the size of {found.workload} back" if found.lately(state.now) else ""


def _metrics_available(state: ServiceState, minimum: Minimum) -> Told:
    """Every signal is fresh."""
    seen = state.seen
    if seen.fresh:
        late = f"all metrics are complete, {seen.late_seconds:.0f} s late: sizes leave room for what came since"
        return True, Reason.METRICS_FRESH, late if seen.late_seconds else "all metrics are fresh"
    if minimum.at_zero:
        held = "" if state.left_at_zero else "; the activator holds and counts requests"
        return True, Reason.METRICS_FRESH, f"no replica runs{held}"
    reason = METRICS_REASONS.get(seen.state, Reason.METRICS_PARTIAL)
    return False, reason, seen.detail or f"metrics are {seen.state.value}"


def _capacity_available(state: ServiceState, selection: Selection, sizes: Sizes) -> Told:
    """Whether every wanted replica has a node; unknown if a refused write kept replicas from being requested."""
    if problem := _problem(state, capacity=True):
        return False, problem.reason, problem.message
    if selection.allocation is not None:
        return False, Reason.CAPACITY_LIMITED, selection.allocation.sentence
    for group in state.groups:
        waiting = (*group.short, *group.pending)
        if waiting and group.size:
            said = waiting[0].detail or waiting[0].reason or "the scheduler found no node"
            noun = f"{group.accelerator} replica"
            text = counted(len(waiting), noun, "waits for a node", "wait for a node", of=group.size)
            return False, _shortage(state, selection, group.accelerator), f"{text}: {said}"
    if backoff := _backoff(state, selection):
        text = f"{backoff.accelerator} is in backoff until {utc(backoff.until, '%H:%M')}: {backoff.detail}"
        return False, Reason.ACCELERATOR_UNAVAILABLE, text
    refused, pinned = _problem(state, capacity=False), state.spec.pinned_replicas
    wanted = sizes.after if pinned is None else pinned
    if refused is not None and refused.reason is Reason.APPLY_FAILED and state.size < wanted:
        return None, refused.reason, refused.message
    return True, Reason.ALL_PLACED, f"every desired replica has a node{_uncounted(state, selection)}"


def _uncounted(state: ServiceState, selection: Selection) -> str:
    """Replicas run, and no node names their resource: DRA drivers whose devices cannot be counted."""
    option = selection.option(selection.name)
    if option is None or option.room.offering or not any(replica.node for replica in selection.group.ready):
        return ""
    resource = next(each.resource for each in state.spec.accelerators if each.name == option.name)
    return f"; free {resource} are unknown, because no node that takes pods offers any"


def _shortage(state: ServiceState, selection: Selection, accelerator: str) -> Reason:
    """Whether nodes are full, none matches at all, or a volume is missing."""
    option, own = selection.option(accelerator), state.part(accelerator)
    if any(replica.reason == Reason.VOLUME_MISSING for replica in (*own.short, *own.pending)):
        return Reason.VOLUME_MISSING
    if option is not None and option.room.nodes == 0 and option.room.offering > 0:
        return Reason.NO_MATCHING_NODES
    return Reason.INSUFFICIENT_GPUS


def _reconciling(state: ServiceState, selection: Selection, minimum: Minimum) -> Told:
    """What was declared is not yet what runs (kstatus); replicas above the declared ones come and go with the load."""
    if state.edited:
        return True, Reason.SPEC_NOT_OBSERVED, "the changes of the edited spec are being applied"
    if not all(group.observed for group in state.groups):
        return True, Reason.SPEC_NOT_OBSERVED, "Kubernetes has not observed the last change yet"
    rolling = any(group.rolling_out for group in state.groups)
    if not rolling and _declared_are_ready(state, selection):
        return False, Reason.STEADY, "as many replicas are ready as the spec declares"
    if broken := _broken(state):
        return True, broken[0], f"{_shares(state)}; {broken[1]}"
    paused = next((placement.workload.name for placement in state.service.placements if placement.paused), "")
    if rolling and (state.ready or paused):  # while none serves, it matters that they start
        resume = f"kubectl rollout resume -n {state.spec.key.namespace} deployment/{paused}"
        told = f"the rollout of Deployment {paused} is paused; resume it to replace the replicas: {resume}"
        return True, Reason.ROLLOUT_UNDER_WAY, told if paused else "replicas are being replaced"
    if state.starting or rolling or (not state.size and not minimum.at_zero):
        return True, Reason.REPLICAS_STARTING, _shares(state)
    return False, Reason.STEADY, "the cluster matches the last decision"


def _declared_are_ready(state: ServiceState, selection: Selection) -> bool:
    """Whether as many replicas serve as the spec asks for under any load, on accelerators that it still allows."""
    least = state.spec.min_replicas if state.spec.pinned_replicas is None else state.spec.pinned_replicas
    listed = ((group, selection.option(group.accelerator)) for group in state.groups)
    return sum(len(group.ready) for group, option in listed if option and not option.forbidden) >= max(1, least)


def _stalled(state: ServiceState, selection: Selection, minimum: Minimum) -> Told:
    """No waiting will help: somebody must act (kstatus), also where what was there before goes on serving."""
    if problem := _problem(state, capacity=False):
        return True, problem.reason, problem.message
    backoff = state.supply.backoffs.active(selection.name, state.now)
    if backoff is not None and not state.ready and not minimum.at_zero:
        lacking = backoff.reason is Reason.INSUFFICIENT_GPUS
        reason = _shortage(state, selection, backoff.accelerator) if lacking else backoff.reason
        return True, reason, f"{backoff.accelerator}: {backoff.detail}"
    if lost := state.service.lost_fields:
        return True, Reason.CRD_TOO_OLD, messages.lost_fields(lost)
    if unknown := unknown_timezone(state.spec.schedules):
        return True, Reason.TIMEZONE_UNKNOWN, unknown
    return False, Reason.STEADY, "nothing is stalled"


def _problem(state: ServiceState, capacity: bool) -> ClusterProblem | None:
    """The first problem that is (or is not) one of capacity, in a fixed order; some stop no replica."""
    fitting = [problem for problem in state.service.problems if (problem.reason in CAPACITY_PROBLEMS) == capacity]
    return min(fitting, key=lambda each: (each.reason in _HARMLESS, each.reason, each.message), default=None)


def _backoff(state: ServiceState, selection: Selection) -> Backoff | None:
    """The backoff of an accelerator that would be preferred to the one chosen, or of that one itself.

    Where people hold the size at none, none is tried again.
    """
    if state.left_at_zero:
        return None
    backoffs = (option.backoff for option in selection.considered if option.backoff and not option.forbidden)
    return next(backoffs, state.stopped(selection.name))
