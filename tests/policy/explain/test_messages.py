"""Every reason with the sentence that a person reads beside it, in the situation that calls for it.

The sentences stand in tests/golden/messages.txt, to be read as a whole;
`python -m tests.policy.explain.test_messages` writes them anew.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.act.apply import ForeignObject
from holdfast.api.benchmark_summary import Failed, RunFigures, Summary, SweepFigures, TuneFigures
from holdfast.api.conditions import ConditionType
from holdfast.api.inference_pool import InferencePool, api_missing
from holdfast.api.reasons import Reason
from holdfast.control.benchmarks.benchmark_progress import Progress, begun, look, waiting
from holdfast.control.benchmarks.benchmark_use import Standing, use_of
from holdfast.control.limits.limits_in_force import NOTHING_APPLIED, Watched, applied
from holdfast.control.objects.objects import correction
from holdfast.control.objects.router_problem import no_image, router_problem
from holdfast.control.status.pools import with_prefill
from holdfast.control.status.report import invalid_status, with_adoption
from holdfast.domain.activator import SILENT, Activator
from holdfast.domain.benchmark import Engines, JobSeen, JobState
from holdfast.domain.cluster import ClusterProblem, QueueLimit, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import ConditionValue
from holdfast.domain.engine import EngineFacts, EngineState, PluginMode, StepSums
from holdfast.domain.node_inventory import Room
from holdfast.domain.service import BatchClass, BatchingLimits, Schedule, ServiceKey
from holdfast.domain.signals import SignalState
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.domain.valid_traffic import judge
from holdfast.enginemodel.replica_model import ReplicaRate
from holdfast.maths.normal_belief import NormalBelief
from holdfast.observe.adoption.adoption import TargetState, adopted
from holdfast.observe.objects import mapping
from holdfast.observe.objects.cluster import Invalid, PrefillPool
from holdfast.observe.objects.ended import ended_from_pod
from holdfast.observe.signals import foreign_engines
from holdfast.policy.batching.controller import Batching, Situation, Trial, Wanted, step
from holdfast.policy.estimate.batch_work import BatchAsk, ClassWork
from holdfast.policy.estimate.cold_start import ColdStarts
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.estimate.evidence_window import EvidenceWindow
from holdfast.policy.estimate.forecast import Forecast
from holdfast.policy.estimate.growth import Growth
from holdfast.policy.estimate.kv_cache import KvCache
from holdfast.policy.estimate.replica_capacity import Belief, Correction, Scaled
from holdfast.policy.estimate.scale_to_zero import Idle, Slumber
from holdfast.policy.estimate.scheduled_minimum import scheduled_minimums
from holdfast.policy.estimate.set_backs import SetBacks
from holdfast.policy.estimate.slo_budget import Budget, Gap, SloState, Verdicts
from holdfast.policy.explain.conditions import conditions
from holdfast.policy.explain.messages import describe, reason_for
from holdfast.policy.health.backoff import Backoff, Backoffs
from holdfast.policy.health.replicas import Group
from holdfast.policy.health.sick import Sick, Symptom
from holdfast.policy.memory import Demand, Supply
from holdfast.policy.placement.on_demand_pair import Pair, together
from holdfast.policy.placement.options import Option
from holdfast.policy.transition.pinned import pinned_verdict, recommend_verdict, recommended_because
from holdfast.policy.transition.queue_limit import follow
from holdfast.policy.transition.sizes import decide_sizes
from holdfast.policy.view import View
from holdfast.render.refusals import refusal_told
from tests.builders import NOW, ServiceBuilder, ServiceView, accelerator, no_traffic, replicas, traffic
from tests.control.parts import llmservice, parts, with_router
from tests.observe.foreign import deployment, owned, service
from tests.policy.views import CHAT, changed, sized, stock, view

Told = tuple[str, str]
MISSED = SloState(0.95, -4.0, True, 1000.0)
TUNED = BatchingLimits(None, 1024)
ON_TRIAL = Trial(
    "h100",
    BatchingLimits(),
    TUNED,
    NOW - 1800.0,
    NOW - 1700.0,
    Verdicts(3190.0, 20.0),
    Verdicts(9600.0, 60.0),
)
AT_WORK = EngineState("", PluginMode.ACTIVE, 7)
LATE, OFF = EngineState("", PluginMode.ACTIVE, 6), EngineState("", PluginMode.OFF)
OFFICE = Schedule("office", "Europe/Berlin", ZoneInfo("Europe/Berlin"), 480, 1080, frozenset(range(5)), 6)
NOT_PLACED = Supply(45.0, backoffs=Backoffs((Backoff("h100", NOW + 500.0, 600.0, Reason.INSUFFICIENT_GPUS, "no GPU"),)))
BEGINS = 1_799_996_400.0  # 8:00 in Berlin on the day of NOW
OPEN, ASKED, SOON = (scheduled_minimums((OFFICE,), at, 45.0, 75.0) for at in (NOW, BEGINS - 40.0, BEGINS - 100.0))
KEPT_AGAIN = SloState(0.95, -4.0, False, 1000.0)


def verdict(seen: View) -> Told:
    """Reason and message of the decision."""
    sizes = decide_sizes(seen)
    return str(reason_for(seen, sizes)), describe(seen, sizes)


def condition(kind: str) -> Callable[[View], Told]:
    """Reason and message of one condition."""

    def told(seen: View) -> Told:
        found = next(c for c in conditions(seen, decide_sizes(seen)) if c.type == kind)
        return str(found.reason), found.message

    return told


def benchmark(step: Progress) -> tuple[Callable[[View], Told], View]:
    """Reason and message of a step of a benchmark."""
    return lambda _: (str(step.reason), step.message), view()


def capacity(**known: Any) -> tuple[Callable[[View], Told], View]:
    """Reason and message of whether a benchmark's result is in use."""
    told = use_of(Standing(**known))
    return lambda _: (str(told.reason), told.message), view()


def run_ended(summary: Summary | None = None, state: JobState = JobState.ENDED, words: str = "") -> Progress:
    """A benchmark whose Job is seen so."""
    return look(JobSeen(state, summary.to_json() if summary else "", words), "chat", None, "1h")


GOOD_RUN = RunFigures(attainment=0.996, requests=400, arrival_rps=3.5)
SWEEP = SweepFigures(objective=0.99, carried_rps=4.0, saturates_rps=4.4, attains_rps=3.5, misses_rps=3.9)

TUNE = TuneFigures(
    objective=0.99, max_num_seqs=64, max_num_batched_tokens=2048, rate_rps=3.4, missed_rps=3.6, confirmed=True, made=7
)


def batching(trial: Trial | None, **changes: Any) -> Callable[[View], Told]:
    """Reason and message of a step of the batching controller, in a situation that calls for other limits."""
    better = Batching(trial, better=("h100", TUNED, NOW - 3600.0))
    seen = Situation(
        now=NOW,
        accelerator="h100",
        limits=TUNED if trial else BatchingLimits(),
        before=BatchingLimits() if trial else None,
        size=6,
        settled=True,
        surge=True,
        free=True,
        calm=True,
        demand_rps=50.0,
        rate_rps=10.0,
        cold_start_seconds=90.0,
        wanted=Wanted(TUNED, 14.3),
    )

    def told(_: View) -> Told:
        taken = step(better, replace(seen, **changes))[1]
        return str(taken.reason), taken.message

    return told


def fast_loop(**engines: EngineState | None) -> Callable[[View], Told]:
    """Reason and message about engines that should work with limits of version 7, two minutes after they were told."""
    watched = {pod: Watched(7, state, NOW - 120.0) for pod, state in engines.items()}
    watched |= {pod: replace(engine, lacking_since=None) for pod, engine in watched.items() if engine.at_work}

    def told(_: View) -> Told:
        found = applied(watched, NOTHING_APPLIED, 15.0, NOW).condition
        assert found is not None
        return str(found.reason), found.message

    return told


CAPPED = CHAT.with_priority(10).declaring_priority(100)
READY, SLO_MET, SCALING = condition("Ready"), condition("SLOMet"), condition("ScalingActive")
METRICS, CAPACITY = condition("MetricsAvailable"), condition("CapacityAvailable")
RECONCILING, STALLED = condition("Reconciling"), condition("Stalled")


NIGHT = BatchAsk(ClassWork(BatchClass("nightly", 0, 3600.0), unfinished=36_000.0), 10.0)


def load(rps: float, *, sized_for: float | None = None, q: float = 0.9, **more: object) -> dict[str, object]:
    """A level and what sizes are made for at quantile q."""
    wanted = rps if sized_for is None else sized_for
    return {"forecast": Forecast(rps, wanted, wanted, q, 45.0), "demand_rps": wanted, **more}


def needing(count: int, **option: object) -> dict[str, object]:
    """The chosen accelerator, of which the load takes so many replicas."""
    found = an_option("h100", count, **option)
    return {"chosen": found, "considered": (found,)}


def an_option(name: str, count: int, *, rps: float = 5.0, most: int = 10, cost: float | None = None,
              feasible: bool = True, offering: int = 0, out: Backoff | None = None,
              known: Correction | None = None, unknown: tuple[str, ...] = (), bound: str = "TPOT",
              compared: bool = False) -> Option:  # fmt: skip
    declared = accelerator(name, cost_per_gpu_hour=cost)
    rate = ReplicaRate(rps, bound, feasible, 0.8, attainment=None if feasible else 0.873, unknown=unknown)
    belief = Belief(declared, rate, 1.0, known or Correction(), scaled=Scaled(compared=compared))
    return Option(belief, 0, count, most,
                  Room(0, frozenset(), offering), out)  # fmt: skip


def running(ready: int = 0, *, size: int | None = None, on: str = "h100", **more: object) -> Group:
    wanted = ready if size is None else size
    return Group(on, size=wanted, exists=True, ready=replicas(ready, on=on), **more)  # type: ignore[arg-type]


def unserved(**more: object) -> View:
    """A service whose only replica is not ready."""
    return view(group=running(size=1), **more)


def pod(**status: object) -> Replica:
    """One pod as Kubernetes shows it."""
    meta = {"name": "chat-h100-x", "labels": {"holdfast.dev/accelerator": "h100"}}
    return mapping.replica_from_pod({"metadata": meta, "spec": {"nodeName": "node-7"}, "status": status})


LOST = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]


def ended(words: str, code: int = 1) -> dict[str, object]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}},
                                   "lastState": {"terminated": {"exitCode": code, "message": words}}}]}  # fmt: skip


def rejected(reason: str, message: str) -> Replica:
    """A pod that ended at once, a minute ago."""
    made = (datetime.datetime.fromtimestamp(NOW, datetime.UTC) - datetime.timedelta(minutes=1)).isoformat()
    owners = [{"controller": True, "kind": "ReplicaSet"}]
    labels = {"holdfast.dev/accelerator": "h100"}
    meta = {"name": "chat-h100-x", "labels": labels, "ownerReferences": owners, "creationTimestamp": made}
    status = {"phase": "Failed", "reason": reason, "message": message}
    replica = ended_from_pod({"metadata": meta, "spec": {"nodeName": "node-7"}, "status": status})
    assert replica is not None
    return replica


REJECTED = rejected("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to no healthy devices present")
EVICTED = rejected("Evicted", "The node was low on resource: ephemeral-storage.")
FLOOD = Supply(
    45.0,
    backoffs=Backoffs(
        (Backoff("h100", NOW + 600.0, 600.0, Reason.POD_ENDED, f"{REJECTED.reason}: {REJECTED.detail}", asked=4),)
    ),
)


TAKEN = {"kind": "Service", "metadata": {"namespace": "prod", "name": "chat"}}
ROUTED = parts(llmservice(router={}), ready={"h100": 2})
(UNROUTED,) = router_problem(with_router(ROUTED, away_since=30.0), 90.0)
(UNROUTED_WITHOUT_IMAGE,) = no_image(ROUTED, has_router=False)
FORBIDDEN = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}
(PODS_REFUSED,) = mapping.problems_from_deployment(
    {"metadata": {"name": "chat-h100"}, "status": {"conditions": [FORBIDDEN]}}
)


def failing(replica: Replica) -> View:
    return view(group=running(size=1, failing=(replica,)))


def stopped_by(reason: Reason, message: str, ready: int = 0, **more: object) -> View:
    told = ServiceView(CHAT, traffic(5.0), problems=(ClusterProblem(reason, message),)).snapshot()
    return view(**{"group": running(ready, size=max(1, ready)), "service": told, **more})


def invalid(_: View) -> Told:
    return not_acted_on(
        Invalid(ServiceKey("prod", "chat"), 2, "template.hostPID: start the operator with --allow-template=hostPID")
    )


def leaving(_: View) -> Told:
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/billing"]}
    entry = Invalid.leaving(ServiceKey("prod", "chat"), {"metadata": meta})
    assert entry is not None
    return not_acted_on(entry)


def not_acted_on(entry: Invalid) -> Told:
    told = invalid_status(entry, {}, NOW)["conditions"][0]
    return told["reason"], told["message"]


def of_target(kind: ConditionType, state: TargetState) -> tuple[Callable[[View], Told], View]:
    """What a service with a target is told."""
    found = adopted(service(), state, {})
    if isinstance(found, Invalid):
        return lambda _: not_acted_on(found), view()
    active = ConditionValue(ConditionType.SCALING_ACTIVE, True, Reason.FOLLOWING_SLO, "sizes follow the SLO")
    (told,) = [each for each in with_adoption((active,), found) if each.type == kind]
    return lambda _: (str(told.reason), told.message), view()


def prefilled(*phases: ReplicaPhase) -> tuple[Callable[[View], Told], View]:
    """What a service with two prefill engines in these phases is told, while its replica serves."""
    found = enumerate(phases)
    engines = tuple(Replica(f"chat.prefill-h100-{n}", "h100", phase, 0.0, reason="Pulling") for n, phase in found)
    pair = parts(llmservice(router={}, replicas=1, prefill={"replicas": 2}), ready={"h100": 1})
    pair = replace(pair, prefill=PrefillPool(engines))
    serving = ConditionValue(ConditionType.READY, True, Reason.SERVING, "1 of 1 replica is ready")
    (told,) = with_prefill((serving,), pair)
    return lambda _: (str(told.reason), told.message), view()


def set_back(manager: str) -> View:
    """A size that was set back three times."""
    fought = SetBacks((NOW,) * 3, manager, Workload("chat-h100"), NOW, 3600.0)
    seen = view(of=CHAT.recommending())
    return changed(seen, supply=replace(seen.state.supply, set_backs=fought))


def unseen(state: SignalState, detail: str = "") -> View:
    return view(seen=judge(no_traffic(state, detail)))


def leaving_l40s(*old: Option, backoffs: Backoffs = Backoffs()) -> View:  # noqa: B008  # frozen
    """Three l40s run, h100 was chosen and has none yet."""
    new, running_there = an_option("h100", 2, cost=2.0), running(3, on="l40s")
    if old and old[0].cost_per_hour is None:
        new = an_option("h100", 2)
    return view(
        group=Group("h100", exists=True), others=(running_there,), groups=(running_there,), chosen=new,
        considered=(new, *old), supply=Supply(45.0, backoffs=backoffs), **load(9.0),
    )  # fmt: skip


def spot_beside(regular: int, count: int, floor: int = 2, short: int = 0, **more: object) -> View:
    """Two replicas on spot nodes beside regular ones of the same hardware, of which minOnDemand asks for some."""
    found, pair = an_option("h100-spot", count), Pair("h100", floor, cost_per_hour=3.0)
    belief = replace(found.belief, option=accelerator("h100-spot", cost_per_gpu_hour=1.0, spot=True))
    groups = running(2, on="h100-spot"), running(regular, size=regular + short, short=WAITING[:short])
    chosen = replace(found, pair=pair, belief=belief)
    whole, left = together(groups, "h100-spot", pair)
    considered = chosen, an_option("h100", count, cost=3.0)
    seen = {"group": whole, "others": left, "groups": groups, "chosen": chosen, "considered": considered}
    return view(**{"of": CHAT.with_on_demand(floor), **seen, **more})


def last_guard(seen: View) -> Told:
    """What `holdfast explain` shows of the guard that bounded the size."""
    bound = decide_sizes(seen).bounds[-1]
    return str(bound.reason), bound.sentence


def pinned(seen: View) -> Told:
    assert seen.state.spec.pinned_replicas is not None
    told = pinned_verdict(seen, seen.state.spec.pinned_replicas)
    return str(told.reason), told.message


def recommended(seen: View) -> Told:
    told = recommend_verdict(seen.state, seen.selection, seen.minimum)
    return str(told.reason), told.message


def set_back_because(seen: View) -> Told:
    reason, message = recommended_because(seen.state)
    return str(reason), message


def corrected(*objects: str) -> Callable[[View], Told]:
    return lambda _: (str(Reason.DRIFT_CORRECTED), correction(objects))


def queue_limit(seen: View) -> Told:
    found = follow(seen.state, seen.load, seen.selection, sized(4))
    assert found is not None
    return str(Reason.QUEUE_LIMIT_CHANGED), found.message


NO_NODE = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu"
OUT = Backoff("h100", NOW + 600.0, 600.0, Reason.INSUFFICIENT_GPUS, NO_NODE)
WAITING = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=5.0, detail=NO_NODE)
COMING = replicas(1, ReplicaPhase.STARTING)
STALE = judge(no_traffic(SignalState.STALE, "the newest sample is 61 s old, the scrape interval is 15 s"))
FREE = {"demand_rps": 9.0, "forecast": Forecast(9.0, 9.0, 14.0, 0.9, 45.0)}


def cannot_start(reason: str, message: str) -> View:
    return failing(pod(containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}]))


def unplaced(message: str) -> View:
    return failing(pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}]))


def on_their_way() -> View:
    known = Supply(45.0, ColdStarts((38.0,)))
    return view(group=running(size=2, starting=COMING, pending=WAITING), supply=known)


MISSING = Supply(45.0, evidence=EvidenceWindow(since=NOW - 30.0, before=Verdicts(100.0, 50.0)))


def drained(count: int = 1, *, more: tuple[Replica, ...] = (), starting: tuple[Replica, ...] = (), **rest: Any) -> View:
    """So many serving replicas are on a node that is cordoned, more are not."""
    going = tuple(replace(pod, node="gpu-7", closing=True) for pod in replicas(count))
    others = tuple(replace(pod, name=f"{pod.name}-new") for pod in more)
    size = rest.pop("size", len(going) + len(others) + len(starting))
    group = Group("h100", size=size, exists=True, ready=going + others, starting=starting)
    return view(group=group, **rest)


def hanging(count: int, size: int, *, doubted: bool = False, **more: object) -> View:
    """So many of the replicas look hung; in doubt they count as ready all the same."""
    pods = replicas(size)
    stalls = Sick(tuple(symptom(pod, Reason.ENGINE_HUNG) for pod in pods[:count]), doubted)
    hung = () if doubted else pods[:count]
    group = Group("h100", size=size, exists=True, ready=pods[len(hung) :], ailing=hung)
    return view(group=group, supply=Supply(45.0, sick=stalls), **more)


def symptom(pod: Replica, reason: Reason) -> Symptom:
    """What a replica has shown for long enough."""
    return Symptom(pod.name, reason, NOW - 90.0, NOW, sure=True)


def suspected(count: int) -> Supply:
    """So many replicas look stalled by their metrics, and nothing proves it."""
    symptoms = (replace(symptom(pod, Reason.ENGINE_HUNG), sure=False) for pod in replicas(count))
    return Supply(45.0, sick=Sick(tuple(symptoms)))


def lagging(size: int, reason: Reason = Reason.ENGINE_LAGGING, **more: object) -> View:
    """One of the replicas lags."""
    pods = replicas(size)
    group = Group("h100", size=size, exists=True, ready=pods[1:], ailing=pods[:1])
    sick = Sick((symptom(pods[0], reason),), last=pods[0].name, last_at=NOW)
    return view(group=group, supply=Supply(45.0, sick=sick), **more)


def lagging_again(reason: Reason = Reason.ENGINE_LAGGING, **more: object) -> View:
    """One that lags soon after another one was replaced."""
    sick = Sick((symptom(replicas(4)[1], reason),), last="chat-gone", last_at=NOW - 90.0)
    return view(supply=Supply(45.0, sick=sick), **more)


def filling(**more: object) -> View:
    """Replicas whose cache will be full within the lead time."""
    known = KvCache(350_000.0, 4_000.0, 90.0, NOW, each_tokens=1_500.0, usual_tokens=800.0, running=230.0)
    found = view(supply=Supply(45.0, kv_cache=known), **more)
    belief = replace(found.selection.belief, facts=EngineFacts(kv_tokens=100_000.0))
    return changed(found, chosen=replace(found.selection.chosen, belief=belief))


def missed(group: Group | None = None, **more: object) -> View:
    return view(slo=MISSED, group=group or running(4), **more)


ERRORS = judge(traffic(5.0, failed=30.0))
STEPS = StepSums(steps=1000.0, seconds=24.0)


def slow(factor: float, steps: StepSums | None = None) -> View:
    """Engines of which the steps were measured to take longer than expected."""
    correction = Correction(NormalBelief(math.log(factor), 0.05), looks=9)
    known = replace(MISSING, slow_since=(("h100", NOW - 3600.0),))
    seen = judge(replace(traffic(5.0), steps=() if steps is None else (("h100", steps),)))
    return missed(supply=known, seen=seen, correction=correction)


def mostly_bad(**more: object) -> View:
    """Replicas that seem enough, and three quarters of the requests of the last minutes are bad."""
    lately = Budget((100.0,), (300.0,), int(NOW // 30.0), judged_at=NOW, window_seconds=3600.0)
    return missed(**{**needing(4), **load(19.0), "demand": Demand(budget=lately), **more})


GUESS = Correction(NormalBelief(0.0, 1.2))
SLOW, FAST = (Correction(NormalBelief(math.log(factor), 0.05), looks=3) for factor in (9.1, 0.2))
USELESS = Supply(45.0, growth=Growth("h100", 4, 0.31, 19.0, largest=9, steps=2))
ZERO = CHAT.with_replicas_between(0, 10)
NOBODY = Activator(True)
SOME = Activator(True, waiting=3, oldest_seconds=20.0)


def recalled(gap: Gap, **more: object) -> View:
    """A service of a month, of whose window the last ten minutes are known."""
    known = Budget(window_seconds=3600.0, since=NOW - 600.0, gap=gap)
    old = replace(view().state.service, born_at=NOW - 2_592_000.0)
    return view(service=old, demand=Demand(budget=known), **more)


ANSWERED = {"demand": Demand(idle=Idle(answered_at=NOW, looked_at=NOW)), "supply": Supply(45.0, ColdStarts((38.0,)))}
QUIET = judge(traffic(0.0))


def at_zero(told: Activator, of: ServiceBuilder = ZERO) -> ServiceSnapshot:
    """A service that may rest, and what its activator tells."""
    return replace(ServiceView(of, traffic(0.0)).snapshot(), activator=told)


def resting(**more: object) -> View:
    """A service that rests since long ago."""
    asleep = {"slumber": Slumber.ASLEEP, "service": at_zero(NOBODY), **ANSWERED, "group": running(0)}
    gone = {"seen": judge(no_traffic(SignalState.ABSENT, "no replica is ready yet")), "idle_seconds": 600.0}
    return view(**{"of": ZERO, **needing(1), **load(0.0), **asleep, **gone, **more})


SITUATIONS: dict[str, tuple[Callable[[View], Told], View]] = {
    "Ready, all serve": (READY, view()),
    "Ready, unknown accelerator": (READY, view(**needing(4, unknown=("accelerator",)))),
    "Ready, an accelerator that is only called like a known one": (
        READY,
        view(of=CHAT.with_accelerators(accelerator("h200-foo")), chosen=an_option("h200-foo", 4)),
    ),
    "Ready, unknown model": (READY, view(**needing(4, unknown=("model",)))),
    "Ready, nothing is known": (READY, view(**needing(4, unknown=("model", "accelerator")))),
    "Ready, nothing is known of a target": (
        READY,
        view(of=CHAT.adopting(), **needing(4, unknown=("model", "accelerator"))),
    ),
    "Ready, nothing is known, but an LLMBenchmark counts": (
        READY,
        view(**needing(4, unknown=("model", "accelerator"), compared=True)),
    ),
    "Ready, none serves and nothing is known": (READY, unserved(**needing(4, unknown=("model", "accelerator")))),
    "Ready, most requests are bad": (READY, mostly_bad()),
    "Ready, most requests are bad at the maximum": (
        READY,
        mostly_bad(of=CHAT.with_replicas_between(1, 4), **needing(9)),
    ),
    "ScalingActive, most requests are bad": (SCALING, mostly_bad()),
    "Ready, one is leaving": (READY, view(group=running(3, size=2))),
    "Ready, nothing there yet": (READY, unserved()),
    "Ready, on their way": (READY, on_their_way()),
    "Ready, a volume is missing": (
        READY,
        view(
            group=running(size=1, starting=replicas(1, ReplicaPhase.STARTING, detail="/var/cache must be a directory"))
        ),
    ),
    "Ready, node lost": (READY, failing(pod(conditions=LOST))),
    "Ready, crash loop": (READY, failing(pod(**ended("CUDA out of memory")))),
    "Ready, rejected by its node": (READY, view(group=running(size=1, ended=(REJECTED,)))),
    "Ready, evicted, another one starts": (READY, view(group=running(size=1, starting=COMING, ended=(EVICTED,)))),
    "Ready, one ended while others serve": (READY, view(group=running(2, size=3, ended=(EVICTED,)), starting=True)),
    "Ready, too many ended": (READY, view(group=running(0, size=0), supply=FLOOD)),
    "Ready, one hangs": (READY, hanging(1, 4, starting=True)),
    "Ready, one hangs and goes": (READY, hanging(1, 4)),
    "Ready, the only one hangs": (READY, hanging(1, 1)),
    "Ready, one goes with its node": (READY, drained(starting=COMING, size=2)),
    "Ready, one goes, its successor serves": (READY, drained(more=replicas(2, age=60.0), size=3)),
    "Ready, two go": (READY, drained(2)),
    "Ready, one goes without a free GPU": (READY, drained(supply=NOT_PLACED)),
    "Ready, one goes without room for more": (READY, drained(10, **needing(10), **load(49.0))),
    "Ready, one goes that people hold": (READY, drained(of=CHAT.pinned_to(2))),
    "Stalled, a claim for one node": (
        STALLED,
        stopped_by(
            Reason.VOLUME_NOT_SHARED,
            "claim weights is ReadWriteOnce, but 2 replicas on 2 nodes use it, so chat-h100-b cannot start; "
            "use a ReadWriteMany claim, or emptyDir for model.cache",
            ready=1,
        ),
    ),
    "Ready, most hang": (READY, hanging(5, 6, doubted=True)),
    "Ready, one lags": (READY, lagging(4, **needing(4))),
    "Ready, one lags and goes": (READY, lagging(4, **needing(3))),
    "Ready, another lags soon after": (READY, lagging_again()),
    "Ready, one looks stalled": (READY, view(supply=suspected(1))),
    "Ready, four look stalled": (READY, view(supply=suspected(4))),
    "Ready, one fails requests": (READY, lagging(4, Reason.ENGINE_ERRORS, **needing(4))),
    "Ready, the only one fails requests": (READY, lagging(1, Reason.ENGINE_ERRORS, **needing(1))),
    "Ready, two hang and go": (READY, hanging(2, 6)),
    "Ready, old image": (READY, failing(pod(**ended("image unsupported: vLLM 0.8.1 is too old", 64)))),
    "Ready, no text": (READY, failing(pod(**ended("engine unsupported: /v1/completions answered 404", 65)))),
    "Ready, no such image": (READY, cannot_start("ImagePullBackOff", 'Back-off pulling image "vllm/vlm"')),
    "Ready, no such model": (READY, failing(pod(**ended("RepositoryNotFoundError: 404 Client Error. qwen/none")))),
    "Ready, gated model": (READY, failing(pod(**ended("OSError: You are trying to access a gated repo.")))),
    "Ready, no hub": (READY, failing(pod(**ended("OSError: We couldn't connect to 'https://huggingface.co'")))),
    "Ready, no such adapter": (
        READY,
        failing(pod(**ended("holdfast launcher: adapter sql cannot be loaded: its rank is 64"))),
    ),
    "Ready, full disk": (READY, failing(pod(**ended("OSError: [Errno 28] No space left on device")))),
    "Ready, no such Secret": (READY, cannot_start("CreateContainerConfigError", 'secret "hf" not found')),
    "Ready, no such key": (
        READY,
        cannot_start("CreateContainerConfigError", "couldn't find key token in Secret prod/hf"),
    ),
    "Ready, no such claim": (READY, unplaced('persistentvolumeclaim "models" not found')),
    "Ready, name taken": (READY, stopped_by(Reason.NAME_CONFLICT, ForeignObject(TAKEN).message, 2)),
    "Ready, pods refused": (READY, stopped_by(Reason.PODS_FORBIDDEN, PODS_REFUSED.message)),
    "Ready, write refused": (
        READY,
        stopped_by(Reason.APPLY_FAILED, f"the API server rejected Service chat: {refusal_told('port is taken')}"),
    ),
    "Ready, no API for an InferencePool": (
        READY,
        stopped_by(Reason.API_MISSING, api_missing(InferencePool.model_validate({"endpointPicker": {"name": "epp"}}))),
    ),
    "Ready, not understood": (invalid, view()),
    "Ready, held by a finalizer": (leaving, view()),
    "SLOMet": (SLO_MET, view()),
    "SLOMet, too few requests": (SLO_MET, view(slo=SloState(None, None, False, 12.0))),
    "SLOMet, the window forgotten": (SLO_MET, recalled(Gap.FORGOTTEN)),
    "SLOMet, the window not answered for": (SLO_MET, recalled(Gap.UNANSWERED)),
    "SLOMet, another window": (SLO_MET, recalled(Gap.EDITED, slo=SloState(None, None, False, 12.0))),
    "SLOMet, too much load": (SLO_MET, missed(**needing(4), **load(30.0))),
    "SLOMet, starting": (SLO_MET, missed(running(2, size=4), starting=True, **needing(4))),
    "SLOMet, over": (SLO_MET, view(slo=KEPT_AGAIN)),
    "SLOMet, slow engines": (SLO_MET, slow(1.6)),
    "SLOMet, slow engines with the plugin": (SLO_MET, slow(1.6, STEPS)),
    "SLOMet, nobody knows why": (SLO_MET, missed(supply=MISSING)),
    "SLOMet, nobody knows why, rejected": (SLO_MET, missed(supply=MISSING, seen=judge(traffic(5.0, rejected=9.0)))),
    "SLOMet, errors": (SLO_MET, missed(supply=MISSING, seen=ERRORS)),
    "SLOMet, errors at the maximum": (SLO_MET, missed(running(10), **needing(12), **(load(59.0) | {"seen": ERRORS}))),
    "SLOMet, one fails requests": (SLO_MET, lagging(4, Reason.ENGINE_ERRORS, slo=MISSED, seen=ERRORS, **needing(4))),
    "SLOMet, another fails requests soon after": (
        SLO_MET,
        lagging_again(Reason.ENGINE_ERRORS, slo=MISSED, seen=ERRORS),
    ),
    "SLOMet, uneven": (SLO_MET, missed(supply=MISSING, seen=judge(traffic(5.0, busiest=3.4)), **load(12.0))),
    "SLOMet, just started": (SLO_MET, missed()),
    "SLOMet, impossible": (SLO_MET, missed(**needing(1, feasible=False))),
    "SLOMet, impossible by a guess": (SLO_MET, missed(**needing(1, feasible=False, unknown=("model",)))),
    "SLOMet, impossible, measured since": (
        SLO_MET,
        missed(**needing(1, feasible=False, unknown=("model",), known=Correction(looks=2))),
    ),
    "SLOMet, too large a model": (SLO_MET, missed(**needing(1, feasible=False, bound="KVCache"))),
    "SLOMet, impossible for a target": (SLO_MET, missed(of=CHAT.adopting(), **needing(1, feasible=False))),
    "SLOMet, failing": (SLO_MET, missed(running(2, size=3, failing=replicas(1, ReplicaPhase.FAILING)))),
    "SLOMet, node lost": (
        SLO_MET,
        missed(
            running(
                2,
                size=3,
                failing=replicas(1, ReplicaPhase.FAILING, reason="NodeLost", detail="its node does not respond"),
            )
        ),
    ),
    "SLOMet, one hangs": (SLO_MET, hanging(1, 4, slo=MISSED)),
    "SLOMet, one lags": (SLO_MET, lagging(4, slo=MISSED, **needing(4))),
    "SLOMet, another lags soon after": (SLO_MET, lagging_again(slo=MISSED)),
    "SLOMet, no GPU": (SLO_MET, missed(running(3, size=4, short=WAITING), **needing(4))),
    "SLOMet, no GPU for a target": (
        SLO_MET,
        missed(running(3, size=4, short=WAITING), of=CHAT.adopting(), **needing(4)),
    ),
    "SLOMet, at the maximum": (SLO_MET, missed(running(10), **needing(12), **load(59.0))),
    "SLOMet, too dear": (SLO_MET, missed(of=CHAT.costing_at_most(9.0), **needing(6, cost=2.0), **load(29.0))),
    "ScalingActive, held": (SCALING, view(**needing(4))),
    "ScalingActive, held up": (SCALING, view(**needing(2), starting=True)),
    "ScalingActive, moving": (SCALING, view(**needing(6), **load(29.0))),
    "ScalingActive, pinned outside the manifest": (
        SCALING,
        view(of=CHAT.pinned_to(3, lacked_by="kustomize-controller")),
    ),
    "ScalingActive, pinned": (SCALING, view(of=CHAT.pinned_to(3))),
    "ScalingActive, recommending": (SCALING, view(of=CHAT.recommending())),
    "ScalingActive, blind": (SCALING, view(seen=STALE)),
    "ScalingActive, capped priority": (SCALING, view(of=CAPPED, **needing(4))),
    "ScalingActive, pinned with a capped priority": (SCALING, view(of=CAPPED.pinned_to(3))),
    "MetricsAvailable": (METRICS, view()),
    "MetricsAvailable, late": (METRICS, view(seen=replace(view().state.seen, late_seconds=45.0))),
    "MetricsAvailable, no answer": (METRICS, unseen(SignalState.UNREACHABLE)),
    "MetricsAvailable, absent": (METRICS, unseen(SignalState.ABSENT, "no replica is ready yet")),
    "MetricsAvailable, stale": (METRICS, view(seen=STALE)),
    "MetricsAvailable, partial": (
        METRICS,
        unseen(SignalState.PARTIAL, ("1 of 2 ready replicas reports no metrics: chat-a")),
    ),
    "MetricsAvailable, foreign": (
        METRICS,
        unseen(SignalState.FOREIGN, foreign_engines.told(("chat-h100-x7k2p", "chat-h100-zzp4q"))),
    ),
    "MetricsAvailable, a clock ahead": (METRICS, unseen(SignalState.SKEWED, "its clock is ahead of the operator's")),
    "CapacityAvailable": (CAPACITY, view()),
    "CapacityAvailable, no GPU": (CAPACITY, view(group=running(3, size=4, pending=WAITING))),
    "CapacityAvailable, no such node": (
        CAPACITY,
        view(group=running(3, size=4, pending=WAITING), **needing(4, offering=3)),
    ),
    "CapacityAvailable, quota": (CAPACITY, stopped_by(Reason.QUOTA_EXCEEDED, "chat-h100: exceeded quota: gpus")),
    "CapacityAvailable, size refused": (
        CAPACITY,
        stopped_by(Reason.APPLY_FAILED, "Deployment chat-h100 was not set to 6 replicas: a freeze", 4, **needing(6)),
    ),
    "CapacityAvailable, out": (CAPACITY, view(**needing(4, out=OUT))),
    "CapacityAvailable, too many ended next to ready ones": (CAPACITY, view(group=running(2), supply=FLOOD)),
    "Reconciling, one of the declared ended": (
        RECONCILING,
        view(of=CHAT.with_replicas_between(3, 9), group=running(2, size=3, ended=(EVICTED,)), starting=True),
    ),
    "Reconciling, more start because of the load": (RECONCILING, view(group=running(2, size=3), starting=True)),
    "Stalled, too many ended": (STALLED, view(group=running(0, size=0), supply=FLOOD)),
    "SLOMet, too many ended": (SLO_MET, missed(running(2, size=2), **needing(4), **load(19.0), supply=FLOOD)),
    "Reconciling, rollout": (RECONCILING, view(group=running(4, rolling_out=True))),
    "Reconciling, edited before the first one serves": (RECONCILING, view(group=running(size=1, rolling_out=True))),
    "Reconciling, starting": (RECONCILING, unserved(starting=True)),
    "Reconciling, unobserved": (RECONCILING, view(group=running(4, observed=False))),
    "Stalled, rollout": (STALLED, stopped_by(Reason.PROGRESS_DEADLINE_EXCEEDED, "chat-h100: timed out progressing")),
    "Stalled, no GPU": (STALLED, unserved(supply=Supply(45.0, backoffs=Backoffs((OUT,))))),
    "Stalled, no such node": (
        STALLED,
        unserved(supply=Supply(45.0, backoffs=Backoffs((OUT,))), **needing(1, offering=3)),
    ),
    "first size": (verdict, view(group=Group("h100"), groups=(), forecast=None, demand_rps=None, **needing(2))),
    "up, steps take longer": (verdict, view(**needing(6, cost=2.95, known=SLOW), **load(29.0))),
    "up, steps are faster": (verdict, view(**needing(6, known=FAST), **load(29.0))),
    "up, nobody knows": (verdict, view(of=CHAT.with_replicas_between(1, 40), **needing(20, known=GUESS), **load(99.0))),
    "up, the KV cache fills": (verdict, filling(**needing(4), **load(19.0))),
    "up, load": (verdict, view(**needing(6, cost=2.95), **load(29.0))),
    "up, backlog": (verdict, view(**needing(6), **{**load(19.0), "demand_rps": 29.0}, backlog_requests=41.2)),
    "up, batch": (
        verdict,
        view(**needing(6), **{**load(19.0), "demand_rps": 29.0}, batch=NIGHT, backlog_requests=41.2),
    ),
    "up, batch that engines do not tell of": (
        verdict,
        view(
            **needing(6),
            **{**load(19.0), "demand_rps": 29.0},
            batch=replace(NIGHT, by=replace(NIGHT.by, unfinished=None)),
        ),
    ),
    "stays, batch": (verdict, view(**needing(4), **{**load(9.0), "demand_rps": 19.0}, batch=NIGHT)),
    "up, minimum": (verdict, view(of=CHAT.with_replicas_between(6, 10), **needing(6), **load(19.0))),
    "up, one fails": (
        verdict,
        view(group=running(3, size=4, failing=replicas(1, ReplicaPhase.FAILING)), **needing(4), **load(19.0)),
    ),
    "up, one goes with its node": (verdict, drained(of=CHAT.with_replicas_between(1, 10), **needing(1), **load(4.0))),
    "down, one went with its node": (verdict, drained(more=replicas(2, age=60.0), size=3, **needing(2), **load(4.0))),
    "up, the only one hangs": (verdict, hanging(1, 1, of=CHAT.with_replicas_between(1, 10), **needing(1), **load(4.0))),
    "up, one lags": (verdict, lagging(4, **needing(4), **load(19.0))),
    "up, one step": (verdict, view(of=CHAT.with_replicas_between(1, 40), **needing(30), **load(149.0))),
    "guard, nobody knows": (
        last_guard,
        view(of=CHAT.with_replicas_between(1, 40), **needing(20, known=GUESS), **load(99.0)),
    ),
    "guard, more did not help": (last_guard, view(supply=USELESS, **needing(9), **load(44.0))),
    "guard, too many ended": (last_guard, view(group=running(2), supply=FLOOD, **needing(4), **load(19.0))),
    "guard, one step": (last_guard, view(of=CHAT.with_replicas_between(1, 40), **needing(30), **load(149.0))),
    "down": (verdict, view(**needing(2, cost=2.95), **load(9.0))),
    "down, but not all the way": (verdict, view(**needing(2), **FREE)),
    "down, one hangs": (verdict, hanging(1, 4, **needing(4), **load(19.0))),
    "down, one lags": (verdict, lagging(4, **needing(3), **load(14.0))),
    "down, maximum": (
        verdict,
        view(group=running(10), of=CHAT.with_replicas_between(1, 8), **needing(9), **load(44.0)),
    ),
    "hold": (verdict, view(**needing(4), **load(19.0))),
    "hold, lenient": (verdict, view(**needing(4), **load(19.0, sized_for=17.0, q=0.05))),
    "hold, idle": (verdict, view(of=CHAT.with_replicas_between(4, 9), **needing(4), **load(0.0, q=0.05))),
    "hold, a trickle": (verdict, view(group=running(2), **needing(2), **load(0.004, q=0.9))),
    "hold, not long enough": (verdict, view(**needing(2), peaks=Peaks(((NOW, 5.0),), NOW - 30.0))),
    "hold, a peak": (verdict, view(**needing(2), peaks=Peaks(((NOW, 19.0),), NOW - 3600.0))),
    "hold, a load that may return": (
        verdict,
        view(
            **needing(2),
            peaks=Peaks(((NOW, 9.0),), NOW - 3600.0, ((NOW - 900.0, 19.0),)),
            return_seconds=1000.0,
        ),
    ),
    "hold, most hang": (verdict, hanging(3, 4, doubted=True, **needing(2))),
    "hold, burning": (verdict, missed(**needing(2))),
    "hold, rollout": (verdict, view(**needing(2), group=running(4, rolling_out=True))),
    "hold, starting": (verdict, view(**needing(2), starting=True)),
    "hold, unobserved": (verdict, view(**needing(2), group=running(4, observed=False))),
    "hold, blind and fewer would do": (verdict, view(**needing(2), seen=STALE)),
    "hold, schedule": (verdict, view(group=running(6), scheduled=OPEN, **needing(6), **load(4.0))),
    "hold, schedule to come": (verdict, view(group=running(6), scheduled=SOON, **needing(2), **load(4.0))),
    "hold, schedule above the budget": (
        verdict,
        view(of=CHAT.costing_at_most(9.0), scheduled=OPEN, **needing(6, cost=2.0), **load(4.0)),
    ),
    "hold, blind": (verdict, view(**needing(4), **load(19.0), seen=STALE)),
    "hold, not a number": (verdict, view(**needing(6), **load(math.inf))),
    "hold, maximum": (verdict, view(group=running(10), **needing(12), **load(59.0))),
    "hold, too dear": (verdict, view(of=CHAT.costing_at_most(9.0), **needing(6, cost=2.0), **load(29.0))),
    "hold, no GPU": (verdict, view(group=running(3, size=4, short=WAITING), **needing(6), **load(29.0))),
    "hold, impossible": (verdict, view(**needing(4, feasible=False), **load(29.0))),
    "hold, some off spot": (verdict, spot_beside(2, 4, **load(19.0))),
    "up, some off spot": (verdict, spot_beside(2, 6, **load(29.0))),
    "up, a floor off spot above the load": (verdict, spot_beside(0, 4, floor=4, **load(4.0))),
    "up, spot in place of one off spot": (verdict, spot_beside(1, 4, short=1, **load(19.0))),
    "switch, back to spot": (verdict, spot_beside(4, 4, **load(19.0))),
    "switch, no longer listed": (verdict, leaving_l40s()),
    "switch, cheaper": (verdict, leaving_l40s(an_option("l40s", 5, cost=1.0))),
    "switch, preferred": (verdict, leaving_l40s(an_option("l40s", 5))),
    "switch, no room": (verdict, leaving_l40s(an_option("l40s", 5, most=3))),
    "switch, impossible there": (verdict, leaving_l40s(an_option("l40s", 5, feasible=False))),
    "switch, out there": (
        verdict,
        leaving_l40s(an_option("l40s", 5), backoffs=Backoffs((replace(OUT, accelerator="l40s"),))),
    ),
    "up, schedule": (verdict, view(scheduled=OPEN, **needing(6), **load(4.0))),
    "up, schedule to come": (verdict, view(scheduled=ASKED, **needing(6), **load(4.0))),
    "ScalingActive, schedule": (condition("ScalingActive"), view(group=running(6), scheduled=OPEN, **needing(6))),
    "Stalled, fields dropped": (
        STALLED,
        view(service=replace(ServiceView(CHAT).snapshot(), lost_fields=("spec.accelerators[].spot", "spec.slo.e2e"))),
    ),
    "Stalled, no API for an InferencePool": (
        condition("Stalled"),
        stopped_by(
            Reason.API_MISSING, api_missing(InferencePool.model_validate({"endpointPicker": {"name": "epp"}})), 2
        ),
    ),
    "Stalled, no router": (
        condition("Stalled"),
        stopped_by(Reason.ROUTER_UNAVAILABLE, UNROUTED.message, 2),
    ),
    "Ready, no router": (READY, stopped_by(Reason.ROUTER_UNAVAILABLE, UNROUTED.message, 2)),
    "Stalled, no router, without an image": (
        condition("Stalled"),
        stopped_by(Reason.ROUTER_UNAVAILABLE, UNROUTED_WITHOUT_IMAGE.message, 2),
    ),
    "Stalled, no such time zone": (condition("Stalled"), view(of=CHAT.with_schedules(replace(OFFICE, zone=None)))),
    "down, idle": (verdict, resting(group=running(1), seen=QUIET)),
    "hold, asleep": (verdict, resting()),
    "hold, asleep, no cold start known": (verdict, resting(supply=Supply(45.0))),
    "hold, may rest": (
        verdict,
        view(
            group=running(1),
            of=ZERO,
            service=at_zero(NOBODY),
            idle_seconds=600.0,
            **ANSWERED,
            **needing(1),
            **load(0.0),
        ),
    ),
    "hold, nothing holds": (verdict, view(group=running(1), of=ZERO, **needing(1), **load(0.0))),
    "up, held": (verdict, resting(slumber=Slumber.AWAKE, service=at_zero(SOME), **ANSWERED)),
    "up, silent": (verdict, resting(slumber=Slumber.AWAKE, service=at_zero(SILENT), demand=Demand())),
    "Ready, asleep": (READY, resting()),
    "Ready, waking": (
        READY,
        view(of=ZERO, service=at_zero(SOME), group=running(size=1, starting=COMING), **ANSWERED),
    ),
    "Ready, pinned at zero": (READY, view(of=CHAT.pinned_to(0), group=running(0))),
    "Ready, pinned at zero, requests held": (READY, resting(service=at_zero(SOME, ZERO.pinned_to(0)))),
    "Ready, recommending at zero": (READY, view(of=CHAT.recommending(), group=running(0))),
    "MetricsAvailable, pinned at zero": (METRICS, view(of=CHAT.pinned_to(0), group=running(0), seen=STALE)),
    "Reconciling, asleep": (RECONCILING, resting()),
    "MetricsAvailable, asleep": (METRICS, resting()),
    "ScalingActive, asleep": (SCALING, resting()),
    "pinned": (pinned, view(of=CHAT.pinned_to(3))),
    "pinned, as it is": (pinned, view(of=CHAT.pinned_to(4))),
    "recommend": (recommended, view(of=CHAT.recommending())),
    "object, changed by somebody": (corrected("Deployment chat-h100"), view()),
    "objects, changed by somebody": (corrected("Service chat", "ServiceAccount chat"), view()),
    "fast loop, at work": (fast_loop(a=AT_WORK), view()),
    "fast loop, not seen yet": (fast_loop(), view()),
    "fast loop, other limits": (fast_loop(a=AT_WORK, b=LATE), view()),
    "fast loop, no limits": (fast_loop(b=replace(LATE, mode=PluginMode.WAITING, limits_version=None)), view()),
    "fast loop, not there": (fast_loop(a=AT_WORK, b=None), view()),
    "fast loop, off": (fast_loop(a=AT_WORK, b=OFF), view()),
    "fast loop, all kinds of trouble": (fast_loop(a=OFF, b=LATE, c=None, d=OFF, e=OFF, f=OFF, g=OFF), view()),
    "batching, better limits": (batching(None), view()),
    "batching, as good": (batching(ON_TRIAL), view()),
    "batching, worse": (
        batching(replace(ON_TRIAL, canary=Verdicts(261.0, 60.0), rest=Verdicts(950.0, 10.0))),
        view(),
    ),
    "batching, broken": (batching(ON_TRIAL, canary_fails=True), view()),
    "batching, now fixed": (batching(ON_TRIAL, free=False), view()),
    "queue limit, too large": (queue_limit, stock(QueueLimit(41_000))),
    "queue limit, none": (queue_limit, stock(QueueLimit(None), 0.93)),
    "benchmark, runs": benchmark(begun("chat", Engines((("h100", 2),), 1))),
    "benchmark, queued": benchmark(waiting(Reason.QUEUED, "waits until another benchmark of chat ends")),
    "benchmark, not ready": benchmark(waiting(Reason.TARGET_NOT_READY, "no replica of chat is ready")),
    "benchmark, no image": benchmark(
        waiting(Reason.NO_IMAGE, "the operator does not know its own image; set --activator-image")
    ),
    "benchmark, one rate": benchmark(run_ended(Summary(run=GOOD_RUN))),
    "benchmark, saturation": benchmark(run_ended(Summary(run=GOOD_RUN, sweep=SWEEP))),
    "benchmark, not saturated": benchmark(
        run_ended(Summary(run=GOOD_RUN, sweep=SWEEP.model_copy(update={"saturates_rps": None, "attains_rps": 0.0})))
    ),
    "benchmark, always saturated": benchmark(
        run_ended(Summary(run=GOOD_RUN, sweep=SWEEP.model_copy(update={"carried_rps": 0.0})))
    ),
    "benchmark, tunes": benchmark(begun("chat", Engines((("h100", 1),), 1, own=True))),
    "benchmark, tuned": benchmark(run_ended(Summary(run=GOOD_RUN, tune=TUNE))),
    "benchmark, tuned, unsure": benchmark(
        run_ended(Summary(run=GOOD_RUN, tune=TUNE.model_copy(update={"confirmed": False, "exhausted": True})))
    ),
    "benchmark, tuned in vain": benchmark(
        run_ended(Summary(run=RunFigures(), tune=TuneFigures(objective=0.99, note="no limits meet the objectives")))
    ),
    "benchmark, nobody there": benchmark(run_ended(Summary.failed(Failed.UNREACHABLE, "cannot reach http://a:8000"))),
    "benchmark, slow client": benchmark(run_ended(Summary.failed(Failed.REFUSED, "requests left 9.1 ms late (p99)"))),
    "benchmark, nothing left": benchmark(run_ended(words="OOMKilled, exit code 137")),
    "benchmark, no time left": benchmark(run_ended(state=JobState.TIMED_OUT, words="ImagePullBackOff: no such image")),
    "benchmark, Job deleted": benchmark(run_ended(state=JobState.ABSENT)),
    "benchmark, engine ends": benchmark(run_ended(state=JobState.BROKEN, words="vllm: CrashLoopBackOff: no memory")),
    "capacity, in force": capacity(services=("chat",)),
    "capacity, of many services": capacity(services=("chat", "code", "docs", "mail", "voice")),
    "capacity, of an earlier run": capacity(services=("chat",), by_earlier_run=True),
    "capacity, older engine": capacity(services=("chat", "code"), edited="chat"),
    "capacity, superseded": capacity(newer="chat-limits"),
    "capacity, no such engine": capacity(),
    "capacity, implausible": capacity(services=("chat",), refusing=("chat",)),
    "Ready, a prefill engine starts": prefilled(ReplicaPhase.READY, ReplicaPhase.STARTING),
    "Ready, no prefill engine": prefilled(ReplicaPhase.STARTING),
    "Ready, target missing": of_target(ConditionType.READY, TargetState()),
    "ScalingActive, target with an HPA": of_target(
        ConditionType.SCALING_ACTIVE, TargetState(deployment(), autoscaler="HorizontalPodAutoscaler web")
    ),
    "ScalingActive, target with an owner": of_target(ConditionType.SCALING_ACTIVE, TargetState(owned())),
    "ScalingActive, set back": (set_back_because, set_back("argocd-controller")),
    "ScalingActive, set back by an HPA": (set_back_because, set_back("kube-controller-manager")),
    "FastLoopActive, target": of_target(ConditionType.FAST_LOOP_ACTIVE, TargetState(deployment())),
}
GOLDEN = Path(__file__).parents[2] / "golden" / "messages.txt"


def lines() -> list[str]:
    """What is told in every situation."""
    return [f"{name} | {' | '.join(teller(seen))}" for name, (teller, seen) in SITUATIONS.items()]


def test_what_a_person_reads_is_what_was_agreed() -> None:
    assert lines() == GOLDEN.read_text().splitlines()


def test_one_of_anything_is_spoken_of_in_the_singular() -> None:
    plural = re.compile(r"(?<![\w.-])1 ([a-z]\w* )?(replicas|requests|pods|nodes|engines|services|GPUs|tokens)\b")
    assert [line for line in lines() if plural.search(line)] == []


@pytest.mark.parametrize("reason", list(Reason))
def test_no_reason_is_without_its_sentence(reason: Reason) -> None:
    assert any(f" | {reason} | " in line for line in lines())


RATES = st.floats(0, 1e6)


@given(RATES, RATES, RATES, st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
def test_no_message_says_that_less_is_expected_than_arrives(
    level: float, wanted: float, demand: float, needed: int, ready: int, size: int
) -> None:
    forecast = Forecast(level, wanted, wanted, 0.5, 45.0)
    seen = view(group=running(ready, size=size), forecast=forecast, demand_rps=demand, **needing(needed))
    message = verdict(seen)[1]
    assert "req/s forecast" not in message or wanted >= level
    assert not message.startswith(("0 req", "0.0 req"))


def test_passing_time_and_drifting_figures_alone_change_no_condition() -> None:
    """Nothing is written while nothing happens."""
    before = view(**needing(4), **load(19.0))
    for moved in (changed(before, now=NOW + 5.0), view(**needing(4), **load(18.2, q=0.89))):
        assert conditions(moved, decide_sizes(moved)) == conditions(before, decide_sizes(before))


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(lines()) + "\n")
