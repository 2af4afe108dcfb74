"""The sentences that condition, Event, log line and metric share: true in every case, for people woken at night."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.api.quantities import LEAST_SHOWN_RPS, MOST_NAMED, counted, format_duration, format_rate, some_of, utc
from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, Restart
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.policy.health.backoff import FLOOD_SECONDS
from holdfast.policy.health.replicas import ended_since
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.view import Load, Minimum, Replacement, Selection, ServiceState, View

SURPRISE = 2.0
"""Factor that a message mentions: between expected and measured step times, and of replicas for one class."""

SYMPTOMS = {
    Reason.ENGINE_HUNG: (
        "is stalled: it holds requests and produces no tokens",
        "are stalled: they hold requests and produce no tokens",
    ),
    Reason.ENGINE_ERRORS: ("ends most of its requests with an error", "end most of their requests with an error"),
    Reason.ENGINE_LAGGING: (
        "is a straggler: it misses the objectives while its peers meet them",
        "are stragglers: they miss the objectives while their peers meet them",
    ),
}
"""What is true of one sick replica, and of several, the worst symptom first."""

MOST_PATHS = 10
UPDATE_CRDS = "Update the CRDs (`holdfast crd | kubectl apply -f -`, with holdfast of the operator's version)"


def describe(view: View, sizes: Sizes) -> str:
    """Say what is expected, what a replica carries, what follows, and what bounded it."""
    state, load, selection, minimum, replacement = view.state, view.load, view.selection, view.minimum, view.replacement
    parts = (
        ", ".join(filter(None, (_load(state, load), _backlog(load), _batch(load), _capacity(selection)))),
        _kv_cache(state, selection, minimum),
        _change(state, selection, sizes),
        _switch(state, selection)[1] if sizes.action is Action.SWITCH else "",
        _on_demand(state, selection, sizes),
        _replacements(load, selection, replacement),
        ailing(state, replacement),
        going(state, selection, replacement),
        _floor(minimum, sizes),
        rests(state, minimum),
        _caution(load, selection, replacement, sizes),
        _doubt(state, load, sizes),
        *(bound.sentence for bound in sizes.bounds),
    )
    return "; ".join(filter(None, parts))


def ailing(state: ServiceState, replacement: Replacement) -> str:
    """Which replicas are sick, and what becomes of them; without times, which would change each tick."""
    sick, names = state.supply.sick, [symptom.name for symptom in state.supply.sick.named]
    if not names:
        return ""
    told = _sick(sick.reason, names)
    if sick.doubted:
        shared = "check what they share: driver, storage, network, metrics"
        return f"{told}; most replicas are affected, so none is replaced; {shared}"
    return f"{told}; {_removed(state, replacement, names[:MOST_NAMED])}"


def _sick(reason: Reason, names: Sequence[str]) -> str:
    """Which replicas are sick, and how."""
    one, many = SYMPTOMS[reason]
    return f"replica {names[0]} {one}" if len(names) == 1 else f"replicas {some_of(names)} {many}"


def slow(state: ServiceState, selection: Selection) -> str:
    """Say which replicas are slower than expected, and since when; empty where that was not measured."""
    since, slowness = dict(state.supply.slow_since).get(selection.name), selection.belief.correction.slowness
    if since is None or selection.belief.rate.unknown:
        return ""
    steps, names = state.seen.steps_on(selection.name), some_of([replica.name for replica in selection.own.ready])
    told = f"steps of {names} take {slowness:.1f} times as long as expected of {selection.name}"
    if steps is not None and steps.steps > 0.0:
        mean = 1000.0 * steps.seconds / steps.steps
        told = f"{told} ({mean:.0f} ms in place of {mean / slowness:.0f} ms)"
    return f"{told} since {utc(since, '%Y-%m-%d %H:%M')}; check their nodes for throttling, neighbours and drivers"


def going(state: ServiceState, selection: Selection, replacement: Replacement) -> str:
    """Which serving replica goes with its node, and what becomes of it."""
    if not replacement.going:
        return ""
    replica, more = replacement.going[0], len(replacement.going) - 1
    others = f", as are the nodes of {more} more" if more else ""
    told = f"replica {replica.name} is on node {replica.node}, which is cordoned or about to be removed{others}"
    if replacement.going_to_let_go:
        return f"{told}; it is being removed, because the other replicas carry the load"
    if state.held_by_people:
        return f"{told}; people hold the size, so no successor is started before it is evicted"
    if state.in_backoff(selection.name):
        return f"{told}; no GPU was found for a successor, so it may be evicted: add a node, or uncordon this one"
    if state.starting or selection.group.size < selection.chosen.most:
        return f"{told}; it is removed once a successor serves"
    return f"{told}; scaling.max, a max or the budget leaves no room for a successor, so it may be evicted: raise it"


def ended(state: ServiceState) -> str:
    """The last pod that ended in place of a wanted replica; next to ready ones for ten minutes only."""
    for group in state.groups:
        pods = ended_since(group, state.now - FLOOD_SECONDS) if group.ready else group.ended
        if pods and (len(group.ready) < group.size or group.rolling_out):
            return f"{pods[-1].name} on {group.accelerator} ended: {pods[-1].words}"
    return ""


def passed_over(state: ServiceState) -> str:
    """Which sick replica is not replaced, because another one was a while ago, or nobody knows whether."""
    symptoms = state.supply.sick.passed_over
    if not symptoms:
        return ""
    soon = "not replaced yet, because another replacement or an operator start was recent (cooldown)"
    remedy = f"check its node, or replace it now: {_command(state, (symptoms[0].name,))}"
    return f"{_sick(symptoms[0].reason, (symptoms[0].name,))}; {soon}; {remedy}"


def unproven(state: ServiceState) -> str:
    """Which replicas look stalled by their metrics alone, and how to find out."""
    names = [symptom.name for symptom in state.supply.sick.unproven]
    if not names:
        return ""
    told = f"{some_of(names)} {'looks' if len(names) == 1 else 'look'} stalled by the metrics alone: requests, no token"
    asked = "a replica that gives no token when the operator asks for one is replaced"
    remedy = f"if this lasts, it did not answer the operator: send it a request, or {_command(state, names[:1])}"
    return f"{told}; {asked}; {remedy}"


def _removed(state: ServiceState, replacement: Replacement, names: Sequence[str]) -> str:
    it, command = "it" if len(names) == 1 else "them", _command(state, names)
    if state.held_by_people:
        return f"replace {it}: {command}"
    they_are, in_turn = ("it is", "") if len(names) == 1 else ("they are", ", one at a time")
    is_group = not all(replica.can_be_chosen for group in state.groups for replica in group.ailing)
    verb, once = ("restart", "the other replicas carry its load") if is_group else ("remove", "a replacement is ready")
    done = f"{verb.removesuffix('e')}ed"
    if replacement.ailing_to_let_go or replacement.restarting:
        return f"{they_are} being {done}{in_turn}"
    return f"{they_are} {done} once {once}{in_turn}; to {verb} {it} now: {command}"


def restart(state: ServiceState, replacement: Replacement) -> Restart | None:
    """The group of pods that is restarted now, and why."""
    group = replacement.restarting
    return None if group is None else Restart(group.name, state.supply.sick.reason, ailing(state, replacement))


def _command(state: ServiceState, names: Sequence[str]) -> str:
    return f"kubectl delete pod -n {state.spec.key.namespace} {' '.join(names)}"


def rests(state: ServiceState, minimum: Minimum) -> str:
    """That no replica is wanted, and what the next request waits for; without passing time.

    What came while none ran, nobody may have seen: the size may have been pinned at none.
    """
    if not minimum.asleep:
        return ""
    usual = state.supply.cold_starts.p90_seconds
    held = f"waits {'' if usual is None else f'about {usual:.0f} s '}while a replica starts"
    if not state.size:
        return f"the next request {held}"
    return f"no request arrived for {format_duration(float(round(minimum.idle_seconds)))}; the next request {held}"


def _load(state: ServiceState, load: Load) -> str:
    """What sizes are made for; with budget to spare that may be less than what arrives, which is then said."""
    forecast = load.forecast
    if forecast is None:
        return "no traffic observed yet"
    level, wanted, ahead = forecast.level_rps, forecast.wanted_rps, f"in the next {forecast.lead_seconds:.0f} s"
    if not math.isfinite(wanted):
        return "the load forecast is not a finite number"
    if max(level, wanted) < LEAST_SHOWN_RPS:
        return f"no requests arrive and none are expected {ahead}"
    if forecast.bursts.rises:
        minutes = round(forecast.bursts.period_seconds / 60.0)
        known = f"bursts like the last {forecast.bursts.rises}{f', every {minutes} min' if minutes else ''}"
        return f"sized for {format_rate(wanted)} req/s {ahead} (quantile {forecast.quantile:.2f}: covers {known})"
    if wanted >= level:
        return f"{format_rate(wanted)} req/s forecast (quantile {forecast.quantile:.2f}) {ahead}"
    spare = (state.slo.budget_remaining or 0.0) > 0.0
    lenient = f"(quantile {forecast.quantile:.2f}{': error budget to spare' if spare else ''})"
    # While replicas start, less than what arrives may be sized for.
    sized = max(wanted, min(level, load.demand_rps or 0.0))
    return f"{format_rate(level)} req/s arrive, sized for {format_rate(sized)} req/s {ahead} {lenient}"


def _is_queued(load: Load) -> bool:
    """Whether requests that wait ask for more than the forecast, or than what arrives, does."""
    forecast, demand_rps = load.forecast, load.demand_rps
    if forecast is None or demand_rps is None or load.batch is not None or not load.backlog_requests > 0.0:
        return False
    return demand_rps > max(forecast.wanted_rps, forecast.level_rps)


def _backlog(load: Load) -> str:
    late = math.ceil(load.backlog_requests) if math.isfinite(load.backlog_requests) else 0
    return f"{counted(late, 'request')} queued beyond what slo.ttft allows" if _is_queued(load) else ""


def _batch(load: Load) -> str:
    """Which batch work asks for more than all other requests do."""
    if load.batch is None:
        return ""
    work, more = load.batch.by, f"{format_rate(load.batch.rate_rps)} req/s more"
    left = "" if work.unfinished is None else f"{counted(math.ceil(work.unfinished), 'request')} "
    return (
        f"{more} for batch class {work.of.name}, {left}to be done within {format_duration(work.of.finish_seconds or 0)}"
    )


def _capacity(selection: Selection) -> str:
    belief = selection.belief
    if not belief.feasible:
        return f"{selection.name} cannot meet the objectives{of_class(belief.rate)} even without load"
    if not math.isfinite(belief.rate_rps):
        return f"the capacity of one {selection.name} replica is not a finite number"
    carried, bound = f"{format_rate(belief.rate_rps)} req/s per {selection.name} replica", belief.rate.bound_by
    return f"{carried} (bound by {bound}{of_class(belief.rate)}){_surprise(selection)}"


def requests_of(found: ReplicaRate | ServiceState) -> str:
    """Which requests this is about."""
    slo, name = (found.slo, found.name) if isinstance(found, ReplicaRate) else (found.spec.slo, found.objectives.name)
    if slo is None or not slo.classes:
        return "requests"
    return f"requests of class {name}" if name else "requests without a class"


def of_class(found: ReplicaRate | ServiceState) -> str:
    """The same as an addition to what is said of all requests, for which it is empty."""
    which = requests_of(found)
    return "" if which == "requests" else f" of {which.removeprefix('requests of ')}"


def slowed(found: ReplicaRate) -> str:
    """Which class makes the requests of all others dear, also while it has none itself."""
    if found.slo is None or found.slowed < SURPRISE:
        return ""
    tight = min(found.slo.classes, key=lambda each: each.tpot_seconds)
    pace = f"tpot {1000.0 * tight.tpot_seconds:g} ms of class {tight.name} is the pace of all requests"
    more = f"those without a class need about {found.slowed:.0f} times the replicas"
    return f"{pace}: {more}; relax it, or give the class a service of its own"


def _kv_cache(state: ServiceState, selection: Selection, minimum: Minimum) -> str:
    """What the requests will take of the KV cache, where that rules."""
    kv_tokens = selection.belief.facts.kv_tokens
    if not minimum.cache_rules or kv_tokens is None:
        return ""
    peak, lead = state.supply.kv_cache.peak_tokens(state.supply.lead_seconds), state.supply.lead_seconds
    times = f"{peak / kv_tokens:.1f} times the KV cache of a replica"
    return f"requests will take {times} within {lead:.0f} s; the size leaves room for faster growth"


def _surprise(selection: Selection) -> str:
    """What somebody should know whose engines are another kind of thing than the spec says."""
    slowness, name = selection.belief.correction.slowness, selection.name
    if 1.0 / SURPRISE < slowness < SURPRISE:
        return ""
    slower, faster = f"take {slowness:.1f} times as long as", f"are {1.0 / slowness:.1f} times as fast as"
    told = f"steps {slower if slowness > 1.0 else faster}"
    return f", {told} expected of {name}: check its labels and the model's name"


def _change(state: ServiceState, selection: Selection, sizes: Sizes) -> str:
    name = selection.name
    names = dict.fromkeys((*selection.paired, *(group.accelerator for group in selection.others)))
    others = [(other, state.part(other).size, _target(sizes, other)) for other in names]
    told = [
        _move(other, before, after)
        for other, before, after in others
        if before or (other in selection.paired and after)
    ]
    before, after = state.part(name).size, _target(sizes, name)
    if told:
        return ", ".join([_move(name, before, after), *told] if before or after else told)
    cost, more = selection.belief.option.cost_per_replica_hour, after - before
    if not more:
        return counted(after, "replica")
    price = "" if cost is None else f", ${abs(more) * cost:.2f}/h {'more' if more > 0 else 'less'}"
    return f"{before} -> {counted(after, 'replica')}{price}"


def _move(accelerator: str, before: int, after: int) -> str:
    return f"{accelerator} stays at {after}" if before == after else f"{accelerator} {before} -> {after}"


def _target(sizes: Sizes, accelerator: str) -> int:
    return next((t.replicas for t in sizes.targets if t.accelerator == accelerator), 0)


def _switch(state: ServiceState, selection: Selection) -> tuple[Reason, str]:
    """Why the accelerator that had most of the replicas is being left."""
    old = max((group for group in selection.others), key=lambda group: group.size, default=None)
    if old is None:
        return Reason.SWITCHING_ACCELERATOR, ""
    option = selection.option(old.accelerator)
    if option is None:
        return Reason.SWITCHING_ACCELERATOR, f"{old.accelerator} is no longer listed"
    if backoff := state.supply.backoffs.last(option.name):
        return Reason.ACCELERATOR_UNAVAILABLE, f"{option.name} was unavailable ({backoff.detail})"
    if not option.belief.feasible:
        whose = of_class(option.belief.rate)
        return Reason.SLO_INFEASIBLE, f"{option.name} cannot meet the objectives{whose} even without load"
    needed = f"the load needs {counted(option.replicas, f'{option.name} replica')}"
    if option.allowed < option.replicas and option.most == option.allowed:
        return Reason.SWITCHING_ACCELERATOR, f"{needed}, but the spec allows only {option.allowed}"
    if not option.fits:
        return Reason.CAPACITY_LIMITED, f"{needed}, but only {option.most} can be placed"
    new, cost, old_cost = selection.name, selection.chosen.cost_per_hour, option.cost_per_hour
    if cost is None or old_cost is None:
        return Reason.SWITCHING_ACCELERATOR, f"{new} is listed before {option.name} in spec.accelerators"
    costs = f"for the same load {new} costs ${cost:.2f}/h, {option.name} ${old_cost:.2f}/h"
    return Reason.SWITCHING_ACCELERATOR, costs


def _on_demand(state: ServiceState, selection: Selection, sizes: Sizes) -> str:
    """Why some run on the dearer nodes."""
    if not selection.chosen.belief.option.spot or not any(_target(sizes, name) for name in selection.paired):
        return ""
    return f"scaling.minOnDemand requires {counted(state.spec.min_on_demand, 'on-demand replica')}"


def _is_succession(selection: Selection, replacement: Replacement) -> bool:
    """Whether the only replica to run in place of another one is a successor."""
    return replacement.spare == replacement.successors > selection.group.in_place_of_failing


def _replacements(load: Load, selection: Selection, replacement: Replacement) -> str:
    spare = replacement.spare
    if not spare or _is_succession(selection, replacement) or load.demand_rps is None or not selection.belief.feasible:
        return ""
    return f"{spare} of them {'replaces a replica' if spare == 1 else 'replace replicas'} that cannot serve"


def _floor(minimum: Minimum, sizes: Sizes) -> str:
    """Why there are replicas that the load does not need, where no guard says so."""
    least = minimum.least
    if least.reason in (Reason.REQUESTS_HELD, Reason.ACTIVATOR_SILENT):
        return least.sentence
    told = least.reason in sizes.limits or sizes.after != least.replicas
    return "" if told or not minimum.above_demand else least.sentence


def _caution(load: Load, selection: Selection, replacement: Replacement, sizes: Sizes) -> str:
    """Why more stay than the forecast needs, where no guard says so."""
    needed = replacement.needed
    kept = needed < sizes.wanted <= selection.group.baseline and not replacement.leaving
    if load.forecast is None or not selection.belief.feasible or not kept:
        return ""
    carry = counted(needed, "replica", "carries", "carry")
    return f"{carry} the forecast, {sizes.wanted} also cover its error"


def _doubt(state: ServiceState, load: Load, sizes: Sizes) -> str:
    at_zero = not state.spec.min_replicas and not state.size
    if at_zero or state.seen.fresh or Reason.METRICS_HOLD in sizes.limits or load.forecast is None:
        return ""
    return f"metrics are {state.seen.state.value}: the size can rise on visible load but does not shrink"


HARD_BOUNDS = frozenset({Reason.BUDGET_LIMITED, Reason.CAPACITY_LIMITED, Reason.AT_MAXIMUM, Reason.POD_ENDED})


def lost_fields(paths: Sequence[str]) -> str:
    """Say that the API server dropped fields of the applied manifest, and how to get them back."""
    told = f"{counted(len(paths), 'field', 'has', 'have')} no effect: {some_of(paths, MOST_PATHS)}"
    which = "it" if len(paths) == 1 else "them"
    why = f"the API server dropped {which} from the applied manifest, because its CRD is older than the operator"
    return f"{told}; {why}. {UPDATE_CRDS}, then apply the manifest again"


def reason_for(view: View, sizes: Sizes) -> Reason:
    """The one reason of a decision: what moved the size, or what kept it."""
    state, minimum = view.state, view.minimum
    if sizes.action is Action.CREATE:
        return Reason.FIRST_SIZE
    if sizes.action is Action.SWITCH:
        return _switch(state, view.selection)[0]
    if sizes.action is Action.HOLD:
        if minimum.asleep and not sizes.after:
            return Reason.IDLE
        return sizes.bounds[-1].reason if sizes.bounds else _steady_reason(state, minimum, sizes)
    if sizes.action is Action.SCALE_UP:
        return _up_reason(view, sizes)
    return _down_reason(state, minimum, view.replacement, sizes)


def _steady_reason(state: ServiceState, minimum: Minimum, sizes: Sizes) -> Reason:
    least = minimum.least
    if not state.seen.fresh:
        return Reason.METRICS_HOLD
    rules = minimum.schedule_rules or least.reason is Reason.ACTIVATOR_SILENT
    return least.reason if rules and sizes.after == least.replicas else Reason.STEADY


def _up_reason(view: View, sizes: Sizes) -> Reason:
    state, selection, minimum, replacement = view.state, view.selection, view.minimum, view.replacement
    least = minimum.least
    if least.reason is Reason.REQUESTS_HELD or least.reason in sizes.limits or sizes.after <= least.replicas:
        return least.reason
    if _on_demand(state, selection, sizes) and _target(sizes, selection.name) <= state.part(selection.name).size:
        return Reason.AT_MINIMUM
    if replacement.spare and replacement.needed - replacement.spare <= selection.group.baseline:
        if replacement.spare == replacement.lacking:
            return Reason.ACCELERATOR_UNAVAILABLE
        if _is_succession(selection, replacement):
            return Reason.NODE_CLOSING
        return state.supply.sick.reason if selection.group.ailing else Reason.ENGINE_FAILING
    if minimum.cache_rules:
        return Reason.KV_CACHE_PRESSURE
    if view.load.batch is not None:
        return Reason.BATCH_TO_FINISH
    return Reason.BACKLOG_TO_DRAIN if _is_queued(view.load) else Reason.FORECAST_ABOVE_CAPACITY


def _down_reason(state: ServiceState, minimum: Minimum, replacement: Replacement, sizes: Sizes) -> Reason:
    if minimum.asleep:
        return Reason.IDLE
    forced = [bound.reason for bound in sizes.bounds if bound.reason in HARD_BOUNDS]
    if forced:
        return forced[-1]
    if replacement.going_to_let_go:
        return Reason.NODE_CLOSING
    return state.supply.sick.reason if replacement.ailing_to_let_go else Reason.DEMAND_BELOW_CAPACITY
