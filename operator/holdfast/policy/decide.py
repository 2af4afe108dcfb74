"""The one pure function behind every size: snapshot and memory in, decisions and memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.api.reasons import Reason
from holdfast.domain.decision import Action, BatchingTarget, CapacityView, Decision, Explanation, SloView, Verdict
from holdfast.domain.service import ServiceKey, ServiceSpec
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot
from holdfast.policy.allocation.fleet import allocate
from holdfast.policy.allocation.request import request_of
from holdfast.policy.batching.controller import Batching
from holdfast.policy.capacity_request import Allocation, CapacityRequest
from holdfast.policy.estimate import demand, forecast, scale_to_zero, slo_budget
from holdfast.policy.estimate.cold_start import node_seconds
from holdfast.policy.estimate.engine_model import EngineModel, RationedModel, StepLawModel
from holdfast.policy.estimate.flapping import remember_change
from holdfast.policy.estimate.replica_capacity import same_engines
from holdfast.policy.estimate.scheduled_minimum import (
    NO_SCHEDULED_MINIMUMS,
    ScheduledMinimums,
    raised,
    scheduled_minimums,
)
from holdfast.policy.estimate.slo_budget import SloState
from holdfast.policy.estimate.traffic import Seen, bad_by_cause, judge
from holdfast.policy.explain.candidates import candidates
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.explain.messages import describe, reason_for
from holdfast.policy.health.replicas import Group, anything_starting, group_replicas
from holdfast.policy.health.stalled import watch_stalls
from holdfast.policy.health.stragglers import Straggler, watch_straggler
from holdfast.policy.learn import learn, with_history
from holdfast.policy.memory import Fleet, FleetContext, Learned, Memory, Promise, ServiceMemory
from holdfast.policy.placement.choice import Choice, choose
from holdfast.policy.placement.node_inventory import Inventory
from holdfast.policy.placement.on_demand_pair import together
from holdfast.policy.placement.options import describe_options
from holdfast.policy.settings import PolicySettings
from holdfast.policy.sizing.proposal import Sizes
from holdfast.policy.transition.batching_limits import advice, tune
from holdfast.policy.transition.pinned import pinned_verdict, recommend_verdict
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.unchanged import Last, facts, still_holds
from holdfast.policy.view import View

DEFAULTS = PolicySettings()
STEP_LAW = StepLawModel()

Made = tuple[Decision | None, ServiceMemory]
"""What one service is decided, None where its capacity is not known yet, and what is remembered of it."""


def decide(
    snapshot: Snapshot,
    memory: Memory,
    settings: PolicySettings = DEFAULTS,
    model: EngineModel = STEP_LAW,
    failed: Callable[[ServiceKey, Exception], None] | None = None,
    unshared: Callable[[Exception], None] | None = None,
    recorded: Callable[[ServiceKey, FleetContext], None] | None = None,
) -> tuple[tuple[Decision, ...], Memory]:
    """Decide for all services, in order of their keys whatever the order of the snapshot.

    First each for itself; then policy.allocation decides who gives way where accelerators do not suffice for all.

    Pure: the same snapshot and memory give the same answer. Services that are gone are forgotten. Where many services
    come at once, some have to wait for the engine model, and then their decision for a later tick.

    `failed` is told of a service that cannot be decided on, instead of an exception: all others are decided. `unshared`
    is told where accelerators cannot be shared out: everybody keeps what was granted before. `recorded` gets what
    the decision about each service depends on of the rest of the fleet; of two calls for a service the last one counts.
    """
    inventory, frugal = Inventory(tuple(sorted(snapshot.nodes, key=lambda node: node.name))), RationedModel(model)

    def attempt(service: ServiceSnapshot, known: ServiceMemory, allocation: Allocation | None) -> Made:
        promise = memory.fleet.promises.get(service.spec.key)
        frugal.count_anew()
        try:
            made = decide_service(service, known, allocation, promise, snapshot, inventory, settings, frugal)
        except Exception as error:
            if failed is None:
                raise
            failed(service.spec.key, error)
            return None, known
        if recorded is not None:
            recorded(service.spec.key, FleetContext(allocation, promise, frugal.unanswered))
        return made

    services = {service.spec.key: service for service in sorted(snapshot.services, key=_key)}
    known = {key: known_of(memory.services.get(key), service) for key, service in services.items()}
    made: dict[ServiceKey, Made] = {}
    turns = _in_turn(tuple(services), snapshot.now)
    for key in turns:
        made[key] = attempt(services[key], known[key], known[key].allocation)
    try:
        allocations, fleet = _share(made, memory, snapshot, inventory, settings)
    except Exception as error:
        if unshared is None:
            raise
        unshared(error)
        allocations, fleet = (
            {key: allocation for key in services if (allocation := known[key].allocation)},
            memory.fleet,
        )
    for key in turns:
        if made[key][0] is not None and made[key][1].allocation != allocations.get(key):
            made[key] = attempt(services[key], known[key], allocations.get(key))
    decided = tuple([decision for key in services if (decision := made[key][0]) is not None])
    return decided, Memory({key: found for key, (_, found) in made.items()}, fleet)


def known_of(memory: ServiceMemory | None, service: ServiceSnapshot) -> ServiceMemory:
    """What is remembered of this very object: another one of its name has nothing in common with it."""
    if memory is None or (memory.spec is not None and memory.spec.uid != service.spec.uid):
        return ServiceMemory()
    return memory


def _share(
    made: Mapping[ServiceKey, Made], memory: Memory, snapshot: Snapshot, inventory: Inventory, settings: PolicySettings
) -> tuple[dict[ServiceKey, Allocation], Fleet]:
    """Who has to give way, with the GPUs left out that are not theirs to give."""
    requests = {key: found.request for key, (_, found) in made.items() if found.request is not None}
    if memory.fleet.is_idle(requests):
        return {}, Fleet()
    theirs = inventory.available_to(service for service in snapshot.services if service.spec.key in requests)
    return allocate(requests, memory.fleet, theirs, snapshot.now, settings)


def _key(service: ServiceSnapshot) -> ServiceKey:
    return service.spec.key


def _in_turn(ordered: tuple[ServiceKey, ...], now: float) -> tuple[ServiceKey, ...]:
    """All in their order, each time from another one on: whoever is first gets an answer first."""
    first = int(now) % len(ordered) if ordered else 0
    return ordered[first:] + ordered[:first]


def decide_service(
    service: ServiceSnapshot,
    known: ServiceMemory,
    allocation: Allocation | None,
    promise: Promise | None,
    snapshot: Snapshot,
    inventory: Inventory,
    settings: PolicySettings,
    model: EngineModel,
) -> Made:
    """Decide for one service, within what is granted: look, learn, forecast, place, size, explain."""
    now, looked_at = snapshot.now, facts(service)
    known = with_history(known, service, now, snapshot.timing, settings)
    if (
        service.history is None
        and known.last is not None
        and known.allocation == allocation
        and still_holds(known.last, looked_at, now, snapshot.timing)
    ):
        return known.last.decision, known
    seen = judge(service.traffic)
    stalls = watch_stalls(known.learned.stalls, service.traffic.hung, service.replicas, seen, now, snapshot.timing)
    old = (
        known.learned.straggler if known.decided_at is not None else Straggler(last_at=now)
    )  # nobody knows who was replaced
    straggler = watch_straggler(old, service, stalls, seen, now, snapshot.timing)
    groups = group_replicas(service, now, settings, stalls.believed | straggler.believed)
    starting = anything_starting(groups)
    awaited = _awaited(known, promise, now, settings)
    learned, state = learn(
        known, service, seen, groups, stalls, straggler, starting, now, snapshot.timing, settings, model, awaited
    )
    if not learned.capacity.beliefs:
        return None, known
    moves_to = "" if allocation is None else allocation.moves_to
    if allocation is not None and moves_to:
        backoffs = learned.backoffs.given_up(allocation.leaves, allocation.sentence, now, settings)
        learned = replace(learned, backoffs=backoffs)
    view = _view(known, learned, state, service, seen, groups, starting, inventory, now, settings, moves_to)
    sizes = decide_sizes(view)
    request = request_of(view, sizes)
    if allocation is not None and not moves_to:
        view = replace(view, allocation=allocation)
        sizes = decide_sizes(view)
    free = Verdict(sizes.action, reason_for(view, sizes), describe(view, sizes), sizes.targets)
    verdict, recommendation = _in_mode(view, free)
    passed = seen.interval_seconds if known.decided_at is None else max(0.0, now - known.decided_at)
    batching, target = tune(known.batching, view, passed, model)
    if view.spec.recommend_only and recommendation is not None:
        recommendation = _advised(recommendation, advice(batching, view))
    decision = _decision(view, sizes, verdict, recommendation, target)
    until = now if view.edited else view.scheduled.change_at  # the next look sees what became of the edit
    return decision, _remembered(view, request, sizes, batching, Last(decision, looked_at, now, until))


def _awaited(known: ServiceMemory, promise: Promise | None, now: float, settings: PolicySettings) -> str:
    """The accelerator in use, as long as others give up some of it, or were not asked to yet."""
    name, request = known.choice.accelerator, known.request
    asked = request is not None and request.short and request.option.name == name
    return name if not asked or (promise is not None and promise.holds(name, now, settings)) else ""


def _view(
    known: ServiceMemory,
    learned: Learned,
    state: SloState,
    service: ServiceSnapshot,
    seen: Seen,
    groups: tuple[Group, ...],
    starting: bool,
    inventory: Inventory,
    now: float,
    settings: PolicySettings,
    moves_to: str,
) -> View:
    """Forecast the demand and choose the accelerator, unless the fleet has."""
    spec, lead = service.spec, learned.lead_seconds
    expected = forecast.forecast(
        learned.arrivals, learned.residuals, learned.headroom.sizing, lead, seen.interval_seconds
    )
    hopeful = seen.total.waiting - seen.total.waiting_late  # late ones wait behind all that can still be good
    waiting = demand.backlog(hopeful, expected, spec.slo.ttft_seconds)
    demand_rps = demand.demand_rps(expected, waiting, spec.slo.ttft_seconds, starting)
    cycle = demand.hold_seconds(lead, settings.drain_seconds)
    compared = known.learned.capacity.spec
    renewed = compared is not None and not same_engines(compared, spec)  # nobody knows what these carry
    scheduled = _scheduled(spec, learned, now, cycle, settings)
    least_idle = scale_to_zero.idle_seconds(learned.idle, cycle, settings.idle_seconds)
    slumber = scale_to_zero.slumber(learned.idle, service, seen, starting, scheduled, least_idle, now)
    fallback = max((group.baseline for group in groups), default=0)
    beliefs, least = learned.capacity.beliefs, raised(_awake(spec), scheduled)
    considered = describe_options(least, beliefs, groups, learned.backoffs, inventory, demand_rps, fallback, now)
    edited = known.spec is not None and known.spec.generation != spec.generation
    before = Choice() if edited else known.choice
    choice = choose(before, spec, considered, groups, cycle, now, known.peaks.rate_rps)
    choice = Choice(moves_to, judged_at=now) if moves_to else choice
    hold = known.flapping.patience * cycle
    chosen = next(option for option in considered if option.name == choice.accelerator)
    group, others = together(groups, chosen.name, chosen.pair)
    return View(
        service=service,
        now=now,
        seen=seen,
        groups=groups,
        group=group,
        others=others,
        starting=starting,
        learned=learned,
        peaks=demand.remember_peak(known.peaks, expected, demand_rps, now, hold, seen.fresh and not renewed),
        choice=choice,
        flapping=known.flapping,
        slo=state,
        forecast=expected,
        backlog_requests=waiting,
        demand_rps=demand_rps,
        hold_seconds=hold,
        considered=considered,
        chosen=chosen,
        scheduled=scheduled,
        slumber=slumber,
        idle_seconds=least_idle,
        edited=edited,
    )


def _scheduled(
    spec: ServiceSpec, learned: Learned, now: float, cycle: float, settings: PolicySettings
) -> ScheduledMinimums:
    """The floors of the schedules, asked for early enough for nodes to come where replicas had to wait for them.

    How long that took is learned anew with each replica: within the longest wait that may be none is let go.
    """
    if not spec.schedules:
        return NO_SCHEDULED_MINIMUMS
    waits = node_seconds(learned.cold_starts, settings)
    spare = settings.provisioning_seconds - waits if waits else 0.0
    return scheduled_minimums(spec.schedules, now, learned.lead_seconds + waits, cycle + spare)


def _awake(spec: ServiceSpec) -> ServiceSpec:
    """The spec as accelerators are chosen for: at least one replica, for a service at rest the next one."""
    least = max(1, spec.min_replicas, spec.min_on_demand)
    return spec if spec.min_replicas == least else replace(spec, min_replicas=least)


def _advised(recommendation: Verdict, batching: str) -> Verdict:
    return replace(recommendation, message="; ".join(filter(None, (recommendation.message, batching))))


def _in_mode(view: View, free: Verdict) -> tuple[Verdict, Verdict | None]:
    """What is done, and what is only recommended because people hold the size themselves."""
    if view.spec.pinned_replicas is not None:
        return pinned_verdict(view, view.spec.pinned_replicas), free
    if view.spec.recommend_only:
        return recommend_verdict(view), free
    return free, None


LIMITING = frozenset({Reason.AT_MAXIMUM, Reason.BUDGET_LIMITED, Reason.CAPACITY_LIMITED})
"""Bounds under which misses say nothing about headroom."""

RESTING = frozenset({Reason.IDLE, Reason.REQUESTS_HELD, Reason.ACTIVATOR_SILENT})
REPLACING = frozenset({Reason.ENGINE_HUNG, Reason.ENGINE_LAGGING})
NO_TURNS = frozenset({Reason.SCHEDULED_FLOOR, Reason.CAPACITY_LIMITED}) | RESTING | REPLACING
"""Reasons of changes that were no turn of the load."""


def _remembered(view: View, request: CapacityRequest, sizes: Sizes, batching: Batching, last: Last) -> ServiceMemory:
    level = 0.0 if view.forecast is None else view.forecast.level_rps
    verdict = last.decision.verdict
    turned = not view.ailing_to_let_go and verdict.reason not in NO_TURNS
    action = verdict.action if turned else Action.HOLD
    return ServiceMemory(
        last=last,
        learned=view.learned,
        peaks=view.peaks,
        choice=view.choice,
        flapping=remember_change(view.flapping, action, view.now, view.learned.lead_seconds, level),
        limited=view.held_by_people or view.schedule_rules or bool(view.held),
        short=bool(sizes.limits & LIMITING),
        batching=batching,
        request=request,
        allocation=view.allocation,
    )


def _decision(
    view: View, sizes: Sizes, verdict: Verdict, recommendation: Verdict | None, target: BatchingTarget | None
) -> Decision:
    belief = view.belief
    return Decision(
        key=view.spec.key,
        generation=view.spec.generation,
        verdict=verdict,
        conditions=conditions(view, sizes),
        slo=_slo_view(view),
        capacity=CapacityView(
            belief.option.name,
            belief.rate_rps,
            belief.rate.bound_by,
            belief.confidence,
            measured=belief.scaled.measured if belief.scaled.compared else None,
            learned_gain=belief.correction.gain,
            learned_slowness=belief.correction.slowness,
        ),
        implausible=tuple(
            each.scaled.measured
            for each in view.learned.capacity.beliefs
            if each.scaled.measured and not each.scaled.compared
        ),
        cold_start_seconds=view.learned.cold_starts.p90_seconds,
        recommendation=recommendation,
        explanation=_explanation(view, sizes),
        batching=target,
        holding=_holding(view),
    )


def _holding(view: View) -> bool:
    """Requests go to the activator before the last replica has gone, and until one serves again.

    Where people hold the size at none, nobody would come for those who wait; who raises scaling.min above none wants
    nobody sent away.
    """
    if view.service.activator is None or view.spec.pinned_replicas == 0 or view.left_at_zero:
        return False
    return view.slumber is not scale_to_zero.Slumber.AWAKE or not view.ready


def _slo_view(view: View) -> SloView:
    traffic, rate = view.service.traffic, None if view.forecast is None else view.forecast.level_rps
    return SloView(
        attainment=view.slo.attainment,
        budget_remaining=view.slo.budget_remaining,
        good_rps=None if rate is None else _good_rps(rate, slo_budget.recent(view.learned.budget, view.now, 60.0)),
        arrival_rps=rate,
        ttft=traffic.ttft,
        tpot=traffic.tpot,
        e2e=traffic.e2e,
        bad=bad_by_cause(view.seen, view.spec.slo),
        source="exact" if view.learned.budget.exact else "bounds",
    )


def _good_rps(rate_rps: float, last_minute: slo_budget.Verdicts) -> float | None:
    """None while requests come and none of them ends: nobody knows whether they are good."""
    return rate_rps * (1.0 - last_minute.bad_share) if last_minute.judged or rate_rps * 60.0 < 1.0 else None


def _explanation(view: View, sizes: Sizes) -> Explanation:
    expected = view.forecast
    return Explanation(
        forecast_rps=None if expected is None else expected.wanted_rps,
        quantile=None if expected is None else expected.quantile,
        lead_time_seconds=view.learned.lead_seconds,
        backlog_requests=view.backlog_requests,
        wanted_replicas=sizes.wanted,
        candidates=candidates(view.considered, view.chosen.name, view.spec.slo.objective),
        guards=_guards(view, sizes),
    )


def _guards(view: View, sizes: Sizes) -> tuple[str, ...]:
    """What bounded the size, a schedule's floor included that was reckoned with from the start."""
    told = tuple(f"{bound.reason}: {bound.sentence}" for bound in sizes.bounds)
    if not view.schedule_rules or Reason.SCHEDULED_FLOOR in sizes.limits:
        return told
    return (f"{view.least.reason}: {view.least.sentence}", *told)
