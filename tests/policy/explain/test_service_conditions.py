"""What a person reads: conditions, reasons and sentences, each from the facts that make it so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ClusterProblem, Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, Decision
from holdfast.domain.signals import SignalState, Traffic
from holdfast.enginemodel.replica_model import StepLawModel
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import (
    NOW,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    accelerator,
    condition,
    no_traffic,
    node,
    replicas,
    service,
    sizes,
    traffic,
)
from tests.policy.fluid import FixedRates

CHAT = service().with_accelerators(accelerator("h100", cost_per_gpu_hour=2.95))
MODEL = FixedRates({"h100": 8.9, "l40s": 3.0})
QUIET = traffic(5.0)


def decided(view: ServiceView, *, looks: int = 1, nodes=(), settings: PolicySettings | None = None) -> Decision:  # type: ignore[no-untyped-def]
    """The last of some looks at the same facts, five seconds apart."""
    memory = Memory()
    for index in range(looks):
        snapshot = a_snapshot(view, now=NOW + 5.0 * index, nodes=nodes)
        (decision,), memory = decide(snapshot, memory, settings or PolicySettings(), MODEL)
    return decision


def test_every_condition_is_always_there_once() -> None:
    decision = decided(ServiceView(CHAT, QUIET, replicas(2)))
    # What engines do with their limits is no decision: it is told beside them.
    assert sorted(c.type for c in decision.conditions) == sorted(set(ConditionType) - {ConditionType.FAST_LOOP_ACTIVE})
    assert all(c.message and c.reason for c in decision.conditions)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (SignalState.FRESH, "MetricsFresh"),
        (SignalState.UNREACHABLE, "PrometheusUnreachable"),
        (SignalState.ABSENT, "MetricsMissing"),
        (SignalState.STALE, "MetricsStale"),
        (SignalState.SKEWED, "ClockSkew"),
        (SignalState.PARTIAL, "MetricsPartial"),
        (SignalState.FOREIGN, "ForeignEngines"),
        (SignalState.DUPLICATE, "MetricsPartial"),
        (SignalState.INVALID, "MetricsPartial"),
    ],
)
def test_every_state_of_the_metrics_has_its_reason_and_says_what_is_missing(state: SignalState, reason: str) -> None:
    seen = replace(QUIET, state=state, detail="engines lack the label holdfast_service")
    decision = decided(ServiceView(CHAT, seen, replicas(2)))
    fresh = state is SignalState.FRESH
    assert condition(decision, "MetricsAvailable") == (fresh, reason)
    assert condition(decision, "ScalingActive") == (fresh, "FollowingSLO" if fresh else "MetricsHold")
    message = next(c.message for c in decision.conditions if c.type == "MetricsAvailable")
    assert fresh or "holdfast_service" in message


@pytest.mark.parametrize(
    ("reason", "detail", "expected"),
    [
        ("CrashLoopBackOff", "CUDA out of memory", "EngineFailing"),
        ("ImagePullBackOff", "no such image", "ImagePullFailing"),
        ("ModelNotFound", "no model at /models", "ModelNotFound"),
        ("", "", "EngineFailing"),
    ],
)
def test_a_failing_engine_is_not_ready_and_its_last_words_are_told(reason: str, detail: str, expected: str) -> None:
    pods = replicas(1, ReplicaPhase.FAILING, reason=reason, detail=detail)
    decision = decided(ServiceView(CHAT, no_traffic(SignalState.ABSENT), pods))
    assert condition(decision, "Ready") == (False, expected)
    assert detail in next(c.message for c in decision.conditions if c.type == "Ready")
    stuck = decided(ServiceView(CHAT, no_traffic(SignalState.ABSENT), pods), looks=14)
    assert condition(stuck, "Stalled") == (True, expected)


def test_problems_only_the_operator_can_see_are_told_at_once() -> None:
    problem = ClusterProblem("SecretMissing", "Secret hugging-face has no key token")
    decision = decided(ServiceView(CHAT, replicas=(), sizes=(Placement("h100", 1),), problems=(problem,)))
    assert condition(decision, "Ready") == (False, "SecretMissing")
    assert condition(decision, "Stalled") == (True, "SecretMissing")
    serving = decided(ServiceView(CHAT, QUIET, replicas(2), problems=(problem,)))
    assert condition(serving, "Ready") == (True, "Serving")
    conflict = ClusterProblem("NameConflict", "Service chat belongs to someone else")
    assert condition(decided(ServiceView(CHAT, QUIET, replicas(2), problems=(conflict,))), "Ready")[0] is False


def test_quota_and_missing_nodes_are_about_capacity() -> None:
    quota = ClusterProblem("QuotaExceeded", "exceeded quota: gpus")
    decision = decided(ServiceView(CHAT, QUIET, replicas(1), (Placement("h100", 2),), (quota,)))
    assert condition(decision, "CapacityAvailable") == (False, "QuotaExceeded")
    elsewhere = service().with_accelerators(accelerator("h100", node_selector=(("gpu", "h100"),)))
    waiting = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=5.0, reason="Unschedulable", detail="0/1 nodes match")
    view = ServiceView(elsewhere, no_traffic(SignalState.ABSENT), waiting)
    decision = decided(view, nodes=(node("a", 8, gpu="a100"),))
    assert condition(decision, "CapacityAvailable") == (False, "NoMatchingNodes")
    assert condition(decided(view, nodes=(node("a", 8, gpu="h100"),)), "CapacityAvailable")[1] == "InsufficientGPUs"
    assert condition(decided(ServiceView(CHAT, QUIET, replicas(2))), "CapacityAvailable") == (True, "AllPlaced")


def test_too_few_requests_are_neither_met_nor_missed() -> None:
    decision = decided(ServiceView(CHAT, traffic(1.0), replicas(2)))
    assert condition(decision, "SLOMet") == (None, "WarmingUp")
    assert decision.slo.attainment is None


def test_what_comes_while_nothing_ends_is_not_called_good() -> None:
    memory, told = Memory(), []
    for index in range(40):
        hung = traffic(in_flight_growth=50.0, running=25.0 * (index - 19))
        view = ServiceView(CHAT, QUIET if index < 20 else hung, replicas(2))
        (decision,), memory = decide(a_snapshot(view, now=NOW + 5.0 * index), memory, PolicySettings(), MODEL)
        told.append((decision.slo.arrival_rps, decision.slo.good_rps))
    assert told[19] == (5.0, 5.0)
    assert told[-1] == (pytest.approx(5.0), None)


def test_where_nothing_comes_nothing_is_missing() -> None:
    decision = decided(ServiceView(CHAT, traffic(0.0), replicas(2)), looks=20)
    assert (decision.slo.arrival_rps, decision.slo.good_rps) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("pods", "rate", "reason"),
    [
        (replicas(2) + replicas(1, ReplicaPhase.STARTING, age=9.0), 40.0, "ColdStart"),
        (replicas(1) + replicas(1, ReplicaPhase.FAILING), 40.0, "EngineFailing"),
        (replicas(4), 5.0, "CauseUnknown"),
    ],
    ids=["starting", "failing", "enough replicas"],
)
def test_a_missed_objective_names_its_likely_cause(pods, rate: float, reason: str) -> None:  # type: ignore[no-untyped-def]
    decision = decided(ServiceView(CHAT, traffic(rate, good=0.5), pods), looks=12)
    assert condition(decision, "SLOMet") == (False, reason)


def test_objectives_that_nobody_can_meet_are_said_so_and_nothing_is_lowered() -> None:
    chat = CHAT.with_accelerators(accelerator("none"))
    (decision,), _ = decide(
        a_snapshot(ServiceView(chat, QUIET, replicas(3, on="none"))), Memory(), model=FixedRates({"none": 0.0})
    )
    assert condition(decision, "SLOMet") == (False, "SLOInfeasible")
    assert decision.verdict.replicas == 3


def test_the_decision_says_what_a_person_needs_to_know() -> None:
    decision = decided(ServiceView(CHAT, traffic(30.0), replicas(3)), looks=3)
    verdict = decision.verdict
    assert (verdict.action, verdict.reason) == (Action.SCALE_UP, "ForecastAboveCapacity")
    expected = decision.explanation
    assert verdict.message == (
        f"{expected.forecast_rps:.1f} req/s forecast (quantile {expected.quantile:.2f}) in the next 45 s, "
        f"8.9 req/s per h100 replica (bound by TPOT); 3 -> {verdict.replicas} replicas, "
        f"${(verdict.replicas - 3) * 2.95:.2f}/h more"
    )


def test_a_hold_lists_the_sizes_as_they_are_and_why() -> None:
    decision = decided(ServiceView(CHAT, traffic(1.0), replicas(3)))
    assert decision.verdict.action is Action.HOLD
    assert decision.verdict.reason == "DownHold"
    assert sizes(decision) == {"h100": 3}
    assert decision.explanation.guards[0].startswith("DownHold: ")


def test_a_new_service_gets_its_minimum_on_the_cheapest_accelerator() -> None:
    chat = service().with_replicas_between(2, 9)
    chat = chat.with_accelerators(
        accelerator("l40s", cost_per_gpu_hour=1.5), accelerator("h100", cost_per_gpu_hour=2.95)
    )
    verdict = decided(ServiceView(chat)).verdict
    assert (verdict.action, verdict.reason) == (Action.CREATE, "FirstSize")
    assert [(t.accelerator, t.replicas, t.observed_replicas) for t in verdict.targets] == [("h100", 2, None)]
    first = decided(ServiceView(chat.recommending()))
    assert sizes(first) == {"l40s": 2}
    pinned = decided(ServiceView(chat.pinned_to(5)))
    assert sizes(pinned) == {"h100": 5}


def test_a_pin_keeps_the_accelerators_in_use_and_takes_from_the_least_preferred() -> None:
    both = service().with_accelerators(accelerator("h100"), accelerator("l40s"))
    pods = replicas(3) + replicas(2, on="l40s")
    for pinned, expected in (
        (6, {"h100": 4, "l40s": 2}),
        (5, {"h100": 3, "l40s": 2}),
        (4, {"h100": 3, "l40s": 1}),
        (2, {"h100": 2, "l40s": 0}),
    ):
        decision = decided(ServiceView(both.pinned_to(pinned), QUIET, pods))
        assert sizes(decision) == expected
        assert (decision.verdict.action is Action.HOLD) == (pinned == 5)
        assert decision.verdict.reason == "Pinned"


def test_an_accelerator_that_is_no_longer_listed_is_left_once_another_serves() -> None:
    pods = replicas(2, on="gone")
    first = decided(ServiceView(CHAT, QUIET, pods))
    assert sizes(first) == {"h100": 1, "gone": 2}
    assert first.verdict.action is Action.SWITCH
    then = decided(ServiceView(CHAT, QUIET, pods + replicas(1)))
    assert sizes(then) == {"h100": 1, "gone": 0}
    names = next(t.remove_first for t in then.verdict.targets if t.accelerator == "gone")
    assert set(names) == {pod.name for pod in pods}


def test_an_unlisted_accelerator_that_holds_what_the_new_one_waits_for_gives_up_one_replica() -> None:
    def kept(serving: int, *more: Replica, at: str = "n1") -> int:
        old = tuple(replace(pod, node=at) for pod in replicas(serving, on="gone"))
        new = replicas(2, ReplicaPhase.UNSCHEDULABLE, age=400.0)
        full = node("n1", serving, used=serving)
        return sizes(decided(ServiceView(CHAT, QUIET, (*old, *new, *more)), nodes=(full,)))["gone"]

    assert kept(3) == 2
    assert kept(1) == 1, "the last one is all that serves"
    assert kept(3, at="n2") == 3, "its place is none for the new one"
    assert kept(3, *replicas(1, ReplicaPhase.DRAINING, on="gone")) == 3, "one goes already"
    assert kept(3, *replicas(1, ReplicaPhase.STARTING, age=5.0)) == 3, "one comes already"


def test_an_accelerator_that_the_spec_forbids_is_not_told_to_be_out() -> None:
    chat = service().with_accelerators(accelerator("h100", max_replicas=0), accelerator("l40s"))
    serving, short = replicas(2, on="l40s"), replicas(1, ReplicaPhase.UNSCHEDULABLE, age=900.0)
    before = ServiceView(chat, QUIET, (*short, *serving), (Placement("h100", 1), Placement("l40s", 2)))
    after = ServiceView(chat, QUIET, serving, (Placement("h100", 0), Placement("l40s", 2)))
    _, memory = decide(a_snapshot(before), Memory(), PolicySettings(), MODEL)
    assert memory.services[chat.spec.key].supply.backoffs.active("h100", NOW + 5.0)
    (decision,), _ = decide(a_snapshot(after, now=NOW + 5.0), memory, PolicySettings(), MODEL)
    assert condition(decision, "CapacityAvailable") == (True, "AllPlaced")


def test_a_replica_on_a_lost_node_is_replaced_and_told() -> None:
    lost = replicas(1, ReplicaPhase.FAILING, reason="NodeLost", detail="its node does not answer")
    decision = decided(ServiceView(CHAT.with_replicas_between(3, 6), QUIET, replicas(2) + lost), looks=3)
    assert decision.verdict.replicas == 4
    assert condition(decision, "Reconciling") == (True, "NodeLost")


@pytest.mark.parametrize("seen", [no_traffic(SignalState.ABSENT), traffic(5.0), traffic(5.0, state=SignalState.STALE)])
def test_the_only_replica_on_a_lost_node_is_replaced_once_also_without_metrics(seen: Traffic) -> None:
    lost = replicas(1, ReplicaPhase.FAILING, reason="NodeLost", detail="its node does not answer")
    one = CHAT.with_replicas_between(1, 6)
    assert decided(ServiceView(one, seen, lost), looks=3).verdict.replicas == 2
    came = replicas(1, ReplicaPhase.STARTING, age=5.0)
    assert decided(ServiceView(one, seen, lost + came), looks=3).verdict.replicas == 2
    crashing = replicas(1, ReplicaPhase.FAILING, reason="CrashLoopBackOff")
    assert decided(ServiceView(one, seen, crashing), looks=3).verdict.replicas == 1


def test_one_failing_replica_is_replaced_by_one_more_and_not_by_ever_more() -> None:
    pods = replicas(2) + replicas(1, ReplicaPhase.FAILING, reason="CrashLoopBackOff")
    view = ServiceView(CHAT, traffic(20.0), pods)
    wanted = decided(ServiceView(CHAT, traffic(20.0), replicas(3)), looks=6).explanation.wanted_replicas
    assert wanted is not None
    assert decided(view, looks=6).verdict.replicas == wanted + 1


@pytest.mark.parametrize("more", [1, 2])
def test_replicas_that_fail_one_after_the_other_bring_no_more_than_one_in_their_place(more: int) -> None:
    failing = replicas(more, ReplicaPhase.FAILING, age=60.0, reason="SecretMissing")
    fitting = decided(ServiceView(CHAT, traffic(20.0), replicas(3)), looks=6).explanation.wanted_replicas
    decision = decided(ServiceView(CHAT, traffic(20.0), replicas(2) + failing), looks=6)
    assert fitting is not None
    assert decision.explanation.wanted_replicas == fitting + 1


def test_a_rollout_whose_new_replica_fails_asks_for_no_further_one() -> None:
    pods = replicas(2) + replicas(1, ReplicaPhase.FAILING, age=60.0, reason="ImagePullBackOff", detail="no such image")
    rolling = (Placement("h100", 2, rolling_out=True),)
    decision = decided(ServiceView(CHAT, QUIET, pods, rolling), looks=6)
    assert decision.verdict.replicas == 2
    assert condition(decision, "Reconciling") == (True, "ImagePullFailing")


def test_a_rollout_that_a_person_paused_says_how_to_resume_it() -> None:
    paused = (Placement("h100", 2, rolling_out=True, paused=True, workload=Workload("chat-h100")),)
    decision = decided(ServiceView(CHAT, QUIET, replicas(2), paused))
    message = next(c.message for c in decision.conditions if c.type == "Reconciling")
    assert message.endswith("kubectl rollout resume -n prod deployment/chat-h100")


def test_another_autoscaler_on_the_deployment_is_told() -> None:
    sized = (Placement("h100", 2, workload=Workload("chat-h100"), sized_by="kube-controller-manager"),)
    decision = decided(ServiceView(CHAT, QUIET, replicas(2), sized))
    assert condition(decision, "ScalingActive") == (True, "FollowingSLO")
    message = next(c.message for c in decision.conditions if c.type == "ScalingActive")
    assert "kube-controller-manager set the size of Deployment chat-h100 last" in message


def test_what_fails_beside_replicas_that_serve_is_told() -> None:
    pods = replicas(2) + replicas(1, ReplicaPhase.FAILING, reason="SecretMissing", detail='secret "key" not found')
    decision = decided(ServiceView(CHAT, QUIET, pods))
    assert condition(decision, "Ready") == (True, "Serving")
    message = next(c.message for c in decision.conditions if c.type == "Ready")
    assert message.startswith("2 of 3 replicas are ready; ")
    assert 'secret "key" not found' in message


@pytest.mark.parametrize("reason", ["ApplyFailed", "PodsForbidden", "ProgressDeadlineExceeded"])
def test_a_change_that_cannot_be_made_is_told_while_what_was_there_serves(reason: str) -> None:
    problem = ClusterProblem(Reason(reason), "Deployment chat-h100 was refused: spec.template: Invalid value")
    decision = decided(ServiceView(CHAT, QUIET, replicas(2), problems=(problem,)))
    assert condition(decision, "Ready") == (True, "Serving")
    assert condition(decision, "Stalled") == (True, reason)


def test_whether_a_pinned_size_that_was_refused_could_be_placed_is_not_known() -> None:
    problem = ClusterProblem(Reason.APPLY_FAILED, "Deployment chat-h100 was not set to 3 replicas: a freeze")
    decision = decided(ServiceView(CHAT.pinned_to(3), QUIET, replicas(2), problems=(problem,)))
    assert condition(decision, "CapacityAvailable") == (None, "ApplyFailed")
    there = decided(ServiceView(CHAT.pinned_to(2), QUIET, replicas(2), problems=(problem,)))
    assert condition(there, "CapacityAvailable") == (True, "AllPlaced")


def test_a_decision_rests_while_nothing_new_is_known_and_wakes_with_the_next_scrape() -> None:
    view = ServiceView(CHAT, QUIET, replicas(1))
    first, memory = decide(a_snapshot(view, scrape=15.0), Memory(), model=MODEL)
    again, same = decide(a_snapshot(view, scrape=15.0, now=NOW + 5.0), memory, model=MODEL)
    assert again[0] is first[0]
    assert same.services == memory.services
    for changed in (replace(view, traffic=traffic(50.0)), replace(view, replicas=replicas(2))):
        other, _ = decide(a_snapshot(changed, scrape=15.0, now=NOW + 5.0), memory, model=MODEL)
        assert other[0] is not first[0]
    later, _ = decide(a_snapshot(view, scrape=15.0, now=NOW + 15.0), memory, model=MODEL)
    assert later[0] is not first[0]


def test_what_waits_for_a_person_is_not_under_way() -> None:
    conflict = ClusterProblem(Reason.NAME_CONFLICT, "Deployment prod/chat-h100 exists and is not owned by this")
    seen = decided(ServiceView(CHAT, problems=(conflict,)))
    assert condition(seen, ConditionType.STALLED)[0] is True
    assert condition(seen, ConditionType.RECONCILING)[0] is False


def test_a_window_is_told_as_it_was_written() -> None:
    seen = decided(ServiceView(CHAT.with_window(30 * 86_400.0)))
    (told,) = (each for each in seen.conditions if each.type == ConditionType.SLO_MET)
    assert "in the last 30d" in told.message


def test_replicas_that_start_because_of_the_load_are_no_change_in_progress() -> None:
    chat = CHAT.with_replicas_between(2, 10)

    def told(ready: int, starting: int, *placed: Placement, of: ServiceBuilder = chat) -> tuple[bool | None, str]:
        pods = replicas(ready) + replicas(starting, ReplicaPhase.STARTING, age=5.0)
        return condition(decided(ServiceView(of, traffic(20.0), pods, placed)), "Reconciling")

    assert told(2, 3) == (False, "Steady")
    assert told(1, 4) == (True, "ReplicasStarting"), "the declared minimum is not there yet"
    assert told(0, 1, of=CHAT.with_replicas_between(0, 4)) == (True, "ReplicasStarting"), "nothing serves"
    assert told(2, 3, of=chat.pinned_to(5)) == (True, "ReplicasStarting"), "people declared five"
    assert told(4, 1, of=chat.pinned_to(4)) == (False, "Steady")
    assert told(2, 3, Placement("h100", 5, rolling_out=True)) == (True, "RolloutUnderWay")


def test_replicas_on_an_accelerator_that_was_taken_off_the_list_are_not_those_declared() -> None:
    chat = CHAT.with_accelerators(accelerator("l40s")).with_replicas_between(2, 10)
    there = (Placement("l40s", 2), Placement("h100", 2))
    pods = replicas(2, on="h100") + replicas(2, ReplicaPhase.STARTING, on="l40s", age=5.0)
    assert condition(decided(ServiceView(chat, QUIET, pods, there)), "Reconciling") == (True, "ReplicasStarting")
    pods = replicas(2, on="h100") + replicas(2, on="l40s")
    assert condition(decided(ServiceView(chat, QUIET, pods, there)), "Reconciling") == (False, "Steady")


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(("model", "accelerators"), [("acme/model-405B", "pool-7"), ("Qwen/Qwen3-8B", "pool-7")])
def test_an_unmeasured_guess_never_calls_objectives_impossible(model: str, accelerators: str, count: int) -> None:
    option = accelerator(accelerators, gpus_per_replica=count)
    chat = service().with_accelerators(option).with_ttft(0.01).with_tpot(0.001)
    unknown = ServiceBuilder(replace(chat.spec, model_uri=model))
    (decision,), _ = decide(
        a_snapshot(ServiceView(unknown, no_traffic(SignalState.ABSENT))), Memory(), PolicySettings(), StepLawModel()
    )
    slo_met = next(each for each in decision.conditions if each.type is ConditionType.SLO_MET)
    assert slo_met.reason is not Reason.SLO_INFEASIBLE
    assert "cannot meet" not in decision.verdict.message
    assert decision.verdict.replicas == 1
