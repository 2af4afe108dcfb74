"""What a service asks of the fleet: nobody gives up GPUs for replicas that may not be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import ClusterProblem, Replica, ReplicaPhase
from holdfast.domain.decision import PlacementTarget
from holdfast.domain.node_inventory import Room
from holdfast.domain.service import AcceleratorOption, BatchClass
from holdfast.policy.allocation.request import request_of
from holdfast.policy.capacity_request import CapacityRequest
from holdfast.policy.decide import decide
from holdfast.policy.estimate.batch_work import BatchAsk, ClassWork
from holdfast.policy.estimate.demand import Peaks
from holdfast.policy.health.replicas import Group
from holdfast.policy.transition.sizes import decide_sizes
from tests.builders import NOW, accelerator, replicas, service
from tests.policy.contest import RATE_RPS, SETTINGS, Contest
from tests.policy.fluid import FixedRates
from tests.policy.views import changed, view


def asked(*problems: Reason, ready: int = 4, exists: bool = True) -> CapacityRequest:
    """Of a service that is promised ten replicas and has fewer pods."""
    group = Group("h100", size=10 if exists else 0, exists=exists, ready=replicas(ready))
    seen = view(of=service().with_replicas_between(10, 20), group=group)
    told = tuple(ClusterProblem(reason, "chat-h100: no") for reason in problems)
    seen = changed(seen, service=replace(seen.state.service, problems=told))
    return request_of(seen, decide_sizes(seen))


def test_replicas_on_their_way_count() -> None:
    request = asked()
    assert (request.want, request.least) == (10, 10)


@pytest.mark.parametrize("reason", [Reason.QUOTA_EXCEEDED, Reason.PODS_FORBIDDEN])
def test_replicas_that_may_not_be_made_take_gpus_from_nobody_whoever_is_promised_them(reason: Reason) -> None:
    request = asked(reason)
    assert (request.want, request.least, request.running) == (4, 4, 4)


@pytest.mark.parametrize("reason", [Reason.APPLY_FAILED, Reason.NAME_CONFLICT, Reason.INVALID])
def test_a_service_whose_deployment_cannot_be_made_takes_gpus_from_nobody(reason: Reason) -> None:
    request = asked(reason, ready=0, exists=False)
    assert (request.want, request.least, request.running) == (0, 0, 0)
    assert asked(ready=0, exists=False).want == 10


def test_where_the_deployment_is_there_another_object_that_is_refused_takes_no_replica_back() -> None:
    assert asked(Reason.APPLY_FAILED).want == 10


@pytest.mark.parametrize(("reason", "want"), [("ImagePullBackOff", 1), (Reason.NODE_LOST, 3)])
def test_only_engines_that_fail_ask_for_no_more_gpus(reason: str, want: int) -> None:
    failing, short = replicas(1, ReplicaPhase.FAILING, reason=reason), replicas(2, ReplicaPhase.UNSCHEDULABLE)
    group = Group("h100", size=3, exists=True, failing=failing, short=short)
    seen = view(of=service().with_replicas_between(3, 20), group=group)
    request = request_of(seen, decide_sizes(seen))
    assert (request.want, request.short) == (want, want == 3)


def test_another_trouble_takes_no_replica_back() -> None:
    assert asked(Reason.PROGRESS_DEADLINE_EXCEEDED).want == 10
    assert asked(Reason.QUOTA_EXCEEDED, ready=10).want == 10


def test_where_gpus_cannot_be_shared_out_all_keep_what_was_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, batch = service("chat").with_priority(10), service("batch")
    contest = Contest(8, {"batch": (batch, 20.0, 6), "chat": (chat, 20.0, 2)})
    contest.run(300.0)
    before, failures = contest.memory, list[Exception]()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the solver is ill")

    monkeypatch.setattr("holdfast.policy.decide.allocate", fail)
    model = FixedRates({"h100": RATE_RPS})
    decisions, after = decide(contest.snapshot(), before, SETTINGS, model, unshared=failures.append)
    assert len(decisions) == 2
    assert [str(failure) for failure in failures] == ["the solver is ill"]
    assert after.fleet == before.fleet
    kept = {key: memory.allocation for key, memory in after.services.items()}
    assert kept == {key: memory.allocation for key, memory in before.services.items()}
    assert any(kept.values())
    with pytest.raises(RuntimeError):
        decide(contest.snapshot(), before, SETTINGS, model)


@pytest.mark.parametrize(
    ("left", "on", "size", "kept", "running"),
    [
        (accelerator("left", max_replicas=0), "n1", 2, 0, 4),
        (accelerator("left", max_replicas=0), "n1", 1, 0, 3),
        (accelerator("left", max_replicas=0), "cordoned", 2, 2, 2),
        (accelerator("left", max_replicas=0), "n1", 9, 7, 4),  # no more than are wanted take over slots
        (accelerator("left"), "n1", 2, 2, 2),
        (accelerator("left", max_replicas=0, gpus_per_replica=2), "n1", 2, 2, 2),
        (accelerator("left", max_replicas=0, resource="example.com/gpu"), "n1", 2, 2, 2),
    ],
)
def test_what_the_next_ones_take_the_places_of_counts_as_those(
    left: AcceleratorOption, on: str, size: int, kept: int, running: int
) -> None:
    ready = tuple(replace(replica, node="n1") for replica in replicas(2))
    there = tuple(replace(replica, node=on) for replica in replicas(size, on="left"))
    request = moving(left, ready, Group("left", size=size, exists=True, ready=there), (*ready, *there))
    assert (request.want, sum(count for _, count in request.kept), request.running) == (4, kept, running)


def test_what_drains_keeps_its_place_for_the_next_one() -> None:
    request = draining("n1")
    assert (request.kept, request.running) == ((), 4)


def test_what_drains_elsewhere_leaves_it_nothing() -> None:
    request = draining("cordoned")
    assert (request.kept, request.running) == ((), 2)


def draining(on: str) -> CapacityRequest:
    """Two serve already, and two of those that were left drain."""
    pods = [replace(pod, node=on, phase=ReplicaPhase.DRAINING) for pod in replicas(2, on="left")]
    group = Group("left", exists=True, draining=2)
    return moving(accelerator("left", max_replicas=0), replicas(2), group, tuple(pods))


def test_what_stays_beyond_the_goal_is_no_part_of_the_minimum() -> None:
    there = tuple(replace(replica, node="n1") for replica in replicas(6, on="left"))
    request = moving(accelerator("left", max_replicas=0), (), Group("left", size=6, exists=True, ready=there), there)
    assert (request.want, request.least, request.running) == (4, 4, 4)
    assert sum(count for _, count in request.kept) == 2


def moving(
    left: AcceleratorOption, ready: tuple[Replica, ...], group: Group, pods: tuple[Replica, ...]
) -> CapacityRequest:
    """Of a service that wants four h100 on n1, of which some are ready, and keeps all of those left meanwhile."""
    of = service().with_replicas_between(4, 20).with_accelerators(left, accelerator("h100"))
    seen = view(of=of, others=(group,), group=Group("h100", size=4, exists=True, ready=ready))
    chosen = replace(seen.selection.chosen, replicas=4, room=Room(0, frozenset({"n1"}), 1))
    allowed = 9 if left.max_replicas is None else left.max_replicas
    other = replace(chosen, belief=replace(chosen.belief, option=left), allowed=allowed)
    seen = changed(seen, groups=(seen.selection.group, group), chosen=chosen, considered=(other, chosen),
                   service=replace(seen.state.service, replicas=pods))  # fmt: skip
    targets = PlacementTarget("h100", 4), PlacementTarget("left", group.size)
    return request_of(seen, replace(decide_sizes(seen), targets=targets))


def test_replicas_for_batch_are_worth_nothing_to_the_fleet() -> None:
    six = replace(view().selection.chosen, replicas=6)
    night = BatchAsk(ClassWork(BatchClass("night", 0, 3600.0), 36_000.0), 12.0)
    peaks = {"peaks": Peaks(((NOW, 29.0),), NOW - 3600.0), "useful": Peaks(((NOW, 19.0),), NOW - 3600.0)}
    for ask, demand in ((night, 29.0), (None, 17.0)):  # while it asks, and when it has just ended
        seen = view(chosen=six, considered=(six,), batch=ask, demand_rps=demand, **peaks)
        request = request_of(seen, replace(decide_sizes(seen), targets=(PlacementTarget("h100", 6),)))
        assert (request.want, request.demand_rps) == (6, 19.0)
        assert [request.worth(nth) > 0.0 for nth in (4, 5, 6)] == [True, False, False]
