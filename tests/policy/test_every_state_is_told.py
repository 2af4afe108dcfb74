"""Every accepted object has conditions with reasons within half a minute, whatever its state and its number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.domain.cluster import ClusterProblem, Placement, ReplicaPhase
from holdfast.domain.decision import Decision
from holdfast.domain.service import Schedule
from holdfast.domain.signals import SignalState
from holdfast.policy.decide import decide
from holdfast.policy.memory import Memory
from tests.builders import (
    NOW,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    accelerator,
    no_traffic,
    node,
    replicas,
    service,
    traffic,
)

PROMISED_SECONDS, TICK_SECONDS = 30.0, 5.0
ALWAYS = {
    ConditionType.READY,
    ConditionType.SLO_MET,
    ConditionType.SCALING_ACTIVE,
    ConditionType.METRICS_AVAILABLE,
    ConditionType.CAPACITY_AVAILABLE,
}
ELSEWHERE = Schedule("lost", "Mars/Olympus", None, 0, 60, frozenset(range(7)), 2)
PENDING = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=10.0, reason="Unschedulable")
GATED = replicas(1, ReplicaPhase.UNSCHEDULABLE, age=10.0, reason="SchedulingGated")
CRASHING = replicas(1, ReplicaPhase.FAILING, reason="CrashLoopBackOff", detail="no memory")


def chat(**changes: object) -> ServiceBuilder:
    return ServiceBuilder(replace(service().spec, **changes))  # type: ignore[arg-type]


STATES = {
    "new": ServiceView(service()),
    "new, no accelerator known": ServiceView(service().with_accelerators(accelerator("of-nobody", resource="x.y/z"))),
    "new, an unknown model": ServiceView(chat(model_uri="nobody/knows-1B")),
    "infeasible objectives": ServiceView(service().with_ttft(0.001).with_tpot(0.0001)),
    "accelerator of max 0": ServiceView(service().with_accelerators(accelerator("h100", max_replicas=0))),
    "pinned": ServiceView(service().pinned_to(2)),
    "pinned at zero": ServiceView(chat(min_replicas=0, pinned_replicas=0), sizes=(Placement("h100", 0),)),
    "recommending, nothing runs": ServiceView(service().recommending()),
    "recommending": ServiceView(service().recommending(), traffic(1.0), replicas(1)),
    "no minimum, no activator": ServiceView(service().with_replicas_between(0, 2)),
    "at zero": ServiceView(service().with_replicas_between(0, 2), sizes=(Placement("h100", 0),)),
    "paused rollout": ServiceView(
        service(), traffic(1.0), replicas(1), sizes=(Placement("h100", 1, rolling_out=True, paused=True),)
    ),
    "pending": ServiceView(service(), replicas=PENDING),
    "waiting for quota": ServiceView(service(), replicas=GATED),
    "starting": ServiceView(service(), replicas=replicas(1, ReplicaPhase.STARTING, age=10.0)),
    "crashing": ServiceView(service(), replicas=CRASHING),
    "on a cordoned node": ServiceView(service(), traffic(1.0), tuple(replace(r, closing=True) for r in replicas(1))),
    "unknown time zone": ServiceView(service().with_schedules(ELSEWHERE)),
    "a refused write": ServiceView(service(), problems=(ClusterProblem("ApplyFailed", "the webhook says no"),)),
    "an absurd load": ServiceView(service(), traffic(1e12), replicas(1)),
    **{
        f"metrics {state.value}": ServiceView(service(), no_traffic(state, "nothing is seen"), replicas(1))
        for state in SignalState
        if state is not SignalState.FRESH
    },
}


def told_after(seconds: float, *views: ServiceView) -> list[Decision]:
    """The last decisions, when so many seconds of ticks have passed."""
    memory, decisions = Memory(), ()
    for at in range(0, int(seconds) + 1, int(TICK_SECONDS)):
        decisions, memory = decide(a_snapshot(*views, now=NOW + at, nodes=(node("n1", 8),)), memory)
    return list(decisions)


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_its_conditions_with_a_reason_and_a_sentence(state: str) -> None:
    (decision,) = told_after(PROMISED_SECONDS - TICK_SECONDS, STATES[state])
    assert {each.type for each in decision.conditions} >= ALWAYS
    for each in decision.conditions:
        assert each.reason, each.type
        assert each.message.strip(), each.type


def test_many_services_at_once_are_all_told_in_time() -> None:
    many = [
        ServiceView(ServiceBuilder(replace(service(f"chat-{n}").spec, model_uri=f"Qwen/Qwen3-{n % 9 + 1}B")))
        for n in range(100)
    ]
    assert len(told_after(PROMISED_SECONDS - TICK_SECONDS, *many)) == len(many)
