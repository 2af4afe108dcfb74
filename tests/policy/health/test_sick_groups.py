"""A sick group of pods: it cannot be chosen to go, so it is restarted where a single pod would be replaced."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Decision
from holdfast.domain.signals import SignalState
from holdfast.policy.decide import decide
from holdfast.policy.health.sick import QUIET_SECONDS
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceBuilder, ServiceView, a_snapshot, condition, node, sizes, traffic
from tests.policy.health.test_half_groups import MODEL, PAIR, SETTINGS, THREE, group

START_SECONDS = 60.0
TICK_SECONDS = 5.0
TWO = THREE.with_replicas_between(2, 4)
HUNG, LATE, FAILING = KINDS = "hung", "lagging", "failing"


@dataclass
class World:
    """Groups that are sick from the start; a restarted one serves again after a while, and is cured or not."""

    sick: dict[int, str]
    size: int = 2
    of: ServiceBuilder = TWO
    rate_rps: float = 5.0
    cured: bool = True
    nodes: int = 12
    state: SignalState = SignalState.FRESH
    rolling_out: bool = False
    made_at: dict[int, float] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    restarted: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: float) -> Iterator[Decision]:
        for tick in range(int(seconds / TICK_SECONDS)):
            yield self._decide(NOW + TICK_SECONDS * tick)

    def last(self, seconds: float) -> Decision:
        *_, found = self.run(seconds)
        return found

    def serving(self, now: float) -> list[int]:
        return [number for number in range(self.size) if now >= self.made_at[number] + START_SECONDS]

    def _decide(self, now: float) -> Decision:
        self.made_at |= {n: NOW - 9000.0 if now == NOW else now for n in range(self.size) if n not in self.made_at}
        self.made_at = {number: at for number, at in self.made_at.items() if number < self.size}
        decision = self._decided(now)
        self.size = sizes(decision)[PAIR.name]
        if decision.restart:
            number = int(decision.restart.leader.rpartition("-")[2])
            self.restarted.append((now - NOW, number))
            self.made_at[number] = now
            if self.cured:
                self.sick.pop(number)
        return decision

    def _decided(self, now: float) -> Decision:
        serving, shown = self.serving(now), traffic(self.rate_rps, state=self.state)
        names = {kind: tuple(group(n).name for n in serving if self.sick.get(n) == kind) for kind in KINDS}
        placement = Placement(
            PAIR.name, self.size, workload=Workload("chat-h100x16", "LeaderWorkerSet"), rolling_out=self.rolling_out
        )
        pods = tuple(self._pod(number, number in serving) for number in range(self.size))
        view = ServiceView(self.of, replace(shown, **names), pods, (placement,), born_at=NOW - 9000.0)
        nodes = tuple(node(f"n{at}", 8, used=8 * (at < 2 * self.size)) for at in range(self.nodes))
        (decision,), self.memory = decide(a_snapshot(view, now=now, nodes=nodes), self.memory, SETTINGS, MODEL)
        return decision

    def _pod(self, number: int, serves: bool) -> Replica:
        made_at = self.made_at[number]
        found = replace(group(number, made_at=made_at), ready_at=made_at + START_SECONDS)
        return found if serves else replace(found, phase=ReplicaPhase.STARTING, ready_at=None)


def test_a_stalled_group_is_restarted_once_and_the_size_stays() -> None:
    world = World({0: HUNG})
    decisions = list(world.run(600.0))
    ((at, number),) = world.restarted
    assert number == 0
    assert at <= 60.0
    assert {sizes(each)[PAIR.name] for each in decisions} == {2}, "no substitute, and no serving group goes"


def test_what_is_restarted_is_said_with_its_reason() -> None:
    found = next(decision for decision in World({1: HUNG}).run(600.0) if decision.restart)
    assert found.restart is not None
    assert (found.restart.leader, found.restart.reason) == ("chat-h100x16-1", Reason.ENGINE_HUNG)
    assert found.restart.message.endswith("; it is being restarted")
    assert condition(found, "Ready")[1] == Reason.ENGINE_HUNG


def test_the_only_group_is_restarted_where_it_serves_nothing_and_stays_where_it_serves() -> None:
    one = THREE.with_replicas_between(1, 1)
    stalled = World({0: HUNG}, size=1, of=one, nodes=2)
    stalled.last(300.0)
    assert [number for _, number in stalled.restarted] == [0]
    some = World({0: FAILING}, size=1, of=one, nodes=2)
    found = some.last(900.0)
    assert condition(found, "Ready")[1] == Reason.ENGINE_ERRORS
    assert some.restarted == []


def test_one_at_a_time_is_restarted() -> None:
    world = World({0: HUNG, 1: HUNG}, size=4, of=TWO.with_replicas_between(4, 4))
    world.last(600.0)
    (first, one), (second, other) = world.restarted
    assert {one, other} == {0, 1}
    assert second - first >= START_SECONDS


def test_a_late_group_goes_once_a_substitute_serves_where_the_others_cannot_carry_its_load() -> None:
    world = World({0: LATE}, rate_rps=12.0)
    decisions = list(world.run(900.0))
    ((at, number),) = world.restarted
    assert number == 0
    grown = next(index for index, each in enumerate(decisions) if sizes(each)[PAIR.name] == 3)
    assert at >= TICK_SECONDS * grown + START_SECONDS


def test_a_late_group_goes_without_a_substitute_at_the_maximum() -> None:
    world = World({0: LATE}, size=3, of=TWO.with_replicas_between(3, 3))
    assert {sizes(each)[PAIR.name] for each in world.run(900.0)} == {3}
    assert [number for _, number in world.restarted] == [0]


def test_a_group_that_is_late_again_waits_for_the_cooldown_as_another_pod_would() -> None:
    world = World({0: LATE}, size=3, of=TWO.with_replicas_between(3, 3), cured=False)
    world.last(6 * QUIET_SECONDS)
    times = [at for at, _ in world.restarted]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(pauses) == 2
    assert pauses[0] >= QUIET_SECONDS
    assert pauses[1] >= 2 * QUIET_SECONDS, "restarting it did not help"


@pytest.mark.parametrize(
    "world",
    [
        World({0: HUNG}, of=TWO.pinned_to(2)),
        World({0: HUNG}, of=TWO.recommending()),
        World({0: HUNG}, state=SignalState.PARTIAL),
        World({0: HUNG}, rolling_out=True),
        World({0: HUNG, 1: HUNG}),
    ],
    ids=["pinned", "recommending", "doubtful metrics", "a rollout", "all of them"],
)
def test_no_group_is_restarted_where_no_single_pod_would_be_replaced(world: World) -> None:
    world.last(600.0)
    assert world.restarted == []
