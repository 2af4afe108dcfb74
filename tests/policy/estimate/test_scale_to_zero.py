"""At zero only while idle, back at once for a held request, and never where anything is in doubt."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.conditions import ConditionType
from holdfast.api.reasons import Reason
from holdfast.domain.activator import NO_WAITS, SILENT, WAIT_EDGES, Activator
from holdfast.domain.cluster import ClusterProblem, Placement, Replica, ReplicaPhase, Workload
from holdfast.domain.decision import Action, Decision
from holdfast.domain.service import Schedule
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Snapshot, Timing
from holdfast.policy.decide import decide
from holdfast.policy.estimate.scale_to_zero import LEADING_SECONDS, SILENT_SECONDS
from holdfast.policy.memory import Memory
from holdfast.policy.settings import PolicySettings
from tests.builders import NOW, ServiceBuilder, condition, counts, no_traffic, service

TICK, COLD_START = 5.0, 40.0
CHAT = service().with_replicas_between(0, 4)
SETTINGS = PolicySettings()
FIRST_SECONDS = SETTINGS.idle_seconds


@dataclass
class Requests:
    """When requests come; each takes an engine two seconds."""

    at: Sequence[float] = ()

    def between(self, begin: float, end: float) -> int:
        return sum(begin < at <= end for at in self.at)


@dataclass
class World:
    """One service, decided on at every tick; what is decided is so at the next one."""

    of: ServiceBuilder = CHAT
    requests: Requests = field(default_factory=Requests)
    batch_until: float = -math.inf
    size: int | None = None
    metrics: Callable[[float], bool] = lambda _: True
    answers: Callable[[float], bool] = lambda _: True
    with_activator: bool = True
    problems: tuple[ClusterProblem, ...] = ()
    times: PolicySettings = SETTINGS
    now: float = NOW
    memory: Memory = field(default_factory=Memory)
    born: list[float] = field(default_factory=list)
    leads: bool = False
    held: list[float] = field(default_factory=list)
    quiet_since: float = -math.inf
    sizes: list[tuple[float, int]] = field(default_factory=list)
    lost: int = 0

    def run(self, seconds: float) -> Decision:
        for _ in range(round(seconds / TICK)):
            decision = self.tick()
        return decision

    def tick(self) -> Decision:
        self._serve()
        picture = Snapshot(self.now, (self._seen(),), (), Timing(TICK, TICK))
        decisions, self.memory = decide(picture, self.memory, self.times)
        (decision,) = decisions
        if self.size is None or decision.verdict.action is not Action.HOLD:
            self._resize(decision.verdict.replicas)
        self.leads = decision.holding and self.with_activator
        self.now += TICK
        return decision

    def _ready(self) -> int:
        return sum(self.now - at >= COLD_START for at in self.born)

    def _serve(self) -> None:
        """Requests since the last tick go where clients are led; held ones leave once a replica serves."""
        came = [at for at in self.requests.at if self.now - TICK < at <= self.now]
        if self.leads and came:
            self.quiet_since = came[-1]
        if self._ready():
            self.held.clear()
        elif self.leads:
            self.held += came
        else:
            self.lost += len(came)

    def _resize(self, wanted: int) -> None:
        self.size = wanted
        self.sizes.append((self.now, wanted))
        self.born = sorted(self.born)[:wanted] + [self.now] * (wanted - len(self.born))

    def _seen(self) -> ServiceSnapshot:
        told = None
        if self.with_activator:
            quiet = self.now - self.quiet_since
            oldest = self.now - min(self.held, default=self.now)
            told = Activator(True, self.leads, "boot", len(self.held), oldest, quiet)
            told = told if self.answers(self.now) else dataclasses.replace(SILENT, leads=self.leads)
        pods = tuple(
            Replica(f"pod-{at:.0f}-{number}", "h100", phase, at, at, at + COLD_START if done else None)
            for number, at in enumerate(self.born)
            for done in (self.now - at >= COLD_START,)
            for phase in (ReplicaPhase.READY if done else ReplicaPhase.STARTING,)
        )
        sizes = () if self.size is None else (Placement("h100", self.size, workload=Workload("chat-h100")),)
        return ServiceSnapshot(self.of.spec, self._traffic(), pods, sizes, self.problems, activator=told)

    def _traffic(self) -> Traffic:
        if not self._ready():
            return no_traffic(SignalState.ABSENT, "no replica is ready yet")
        if not self.metrics(self.now):
            return no_traffic(SignalState.STALE, "the newest sample is 61 s old")
        seconds = 2.0 * TICK
        rate = self.requests.between(self.now - seconds, self.now) / seconds
        running = self.requests.between(self.now - 2.0, self.now)
        seen = counts(rate, seconds, running=float(running))
        seen = dataclasses.replace(seen, batch=300.0 if self.now < self.batch_until else 0.0)
        return Traffic(SignalState.FRESH, "", seconds, 1.0, (("h100", seen),))


def asleep(**more: object) -> World:
    """A service that went to rest long ago."""
    world = World(**more)  # type: ignore[arg-type]
    world.run(COLD_START + FIRST_SECONDS + 120.0)
    assert world.size == 0
    return world


def test_a_new_service_starts_one_replica_so_that_a_mistake_shows_at_once() -> None:
    world = World()
    first = world.tick()
    assert (first.verdict.action, first.verdict.replicas, first.holding) == (Action.CREATE, 1, True)
    assert world.run(COLD_START + 60.0).holding is False
    assert world.size == 1


def test_without_any_request_the_last_replica_goes_after_ten_minutes() -> None:
    world = World()
    decision = world.run(COLD_START + FIRST_SECONDS + 60.0)
    assert world.size == 0
    assert decision.verdict.reason is Reason.IDLE
    assert decision.holding
    assert condition(decision, ConditionType.READY) == (True, "Idle")
    assert condition(decision, ConditionType.METRICS_AVAILABLE) == (True, "MetricsFresh")
    assert condition(decision, ConditionType.RECONCILING)[0] is False
    assert condition(decision, ConditionType.SCALING_ACTIVE)[0] is True


def test_whoever_raises_the_minimum_of_a_sleeping_service_has_nobody_sent_away_while_its_replica_starts() -> None:
    world = asleep()
    begun = world.now
    world.of = service().with_replicas_between(1, 4)
    assert world.tick().holding
    assert world.size == 1
    world.requests = Requests([begun + 1.0, begun + COLD_START / 2.0])
    assert world.run(COLD_START - TICK).holding
    assert world.run(30.0).holding is False
    assert world.lost == 0


def test_clients_are_led_to_the_activator_before_the_last_replica_goes() -> None:
    world, led = World(), []
    while world.size != 0:
        decision = world.tick()
        if decision.holding and world.size == 1 and world._ready():
            led.append(world.now)
    assert led
    assert led[-1] - led[0] >= LEADING_SECONDS


def test_a_service_at_rest_stays_so_and_changes_nothing() -> None:
    world = asleep()
    before = len(world.sizes)
    assert world.run(3600.0).verdict.action is Action.HOLD
    assert len(world.sizes) == before


def test_a_held_request_starts_a_replica_at_the_next_tick() -> None:
    world = asleep()
    world.requests = Requests((world.now - 1.0,))
    decision = world.tick()
    assert (decision.verdict.action, decision.verdict.reason, world.size) == (
        Action.SCALE_UP,
        Reason.REQUESTS_HELD,
        1,
    )
    assert world.run(COLD_START - TICK).holding
    assert world.run(30.0).holding is False


def test_a_client_that_gave_up_has_started_a_replica_all_the_same() -> None:
    world = asleep()
    world.quiet_since = world.now - 2.0
    world.tick()
    assert world.size == 1


def test_many_held_requests_start_as_many_replicas_as_they_take() -> None:
    world = asleep()
    world.requests = Requests(tuple(world.now - 4.0 + 0.01 * n for n in range(400)))
    world.tick()
    assert world.size is not None
    assert world.size > 1


def test_a_woken_service_stays_for_its_idle_time() -> None:
    world = asleep()
    world.requests = Requests((world.now - 1.0,))
    woken_at = world.now
    world.run(COLD_START + FIRST_SECONDS + 120.0)
    gone_at = next(at for at, size in world.sizes if at > woken_at and size == 0)
    assert gone_at - woken_at >= FIRST_SECONDS


def test_requests_in_flight_or_a_trickle_keep_the_last_replica() -> None:
    world = World(requests=Requests(tuple(NOW + 300.0 * n for n in range(1, 20))))
    world.run(5400.0)
    assert [size for _, size in world.sizes] == [1]
    assert world.lost == 0


def test_batch_keeps_the_last_replica_until_it_is_done_and_asks_for_no_second_one() -> None:
    world = World(batch_until=NOW + 5400.0)
    world.run(5400.0)
    assert [size for _, size in world.sizes] == [1]
    world.run(FIRST_SECONDS + 120.0)
    assert world.size == 0


@pytest.mark.parametrize(
    "world",
    [
        World(metrics=lambda _: False),
        World(metrics=lambda now: (now // 300.0) % 2 == 0),
        World(with_activator=False),
        World(answers=lambda _: False),
        World(problems=(ClusterProblem(Reason.NAME_CONFLICT, "Service chat-engines belongs to someone else"),)),
        World(of=CHAT.pinned_to(1)),
        World(of=CHAT.recommending()),
        World(of=service().with_replicas_between(1, 4)),
    ],
    ids=["blind", "blind at times", "nothing holds", "silent", "name taken", "pinned", "recommending", "min 1"],
)
def test_whatever_is_in_doubt_or_held_by_people_keeps_a_replica(world: World) -> None:
    world.run(2700.0)
    assert world.size == 1


def test_a_silent_activator_is_told_and_wakes_the_service() -> None:
    world = asleep()
    silent_since = world.now
    world.answers = lambda now: now < silent_since
    assert world.run(SILENT_SECONDS - TICK).verdict.replicas == 0
    decision = world.run(4 * TICK)
    assert world.size == 1
    assert "activator does not answer" in decision.verdict.message
    up = [size for at, size in world.sizes if at > silent_since]
    assert up == [1]


def test_the_floor_of_a_schedule_wakes_the_service_and_keeps_it() -> None:
    world = asleep()
    minute = int(world.now // 60) % 1440 + 10
    always = Schedule("day", "UTC", ZoneInfo("UTC"), minute % 1440, minute % 1440 + 60, frozenset(range(7)), 2)
    world.of = CHAT.with_schedules(always)
    world.run(1200.0)
    assert world.size == 2
    world.run(2700.0)
    assert world.size == 2
    world.run(1200.0)
    assert world.size == 0


def test_after_a_pin_at_zero_it_rests_and_claims_nothing_about_requests_that_nobody_saw() -> None:
    world = asleep()
    world.of = CHAT.pinned_to(0)
    world.run(60.0)
    world.of = CHAT
    decision = world.run(TICK)
    assert (world.size, decision.holding) == (0, True)
    assert "no request arrived" not in decision.verdict.message
    assert "the next request waits" in decision.verdict.message


def test_pinned_to_zero_is_told_as_such() -> None:
    world = World(of=CHAT.pinned_to(0))
    world.size = 0
    decision = world.run(60.0)
    assert (world.size, decision.holding) == (0, False)
    assert condition(decision, ConditionType.RECONCILING)[0] is False


@pytest.mark.parametrize("held", [CHAT.recommending(), CHAT.pinned_to(0)], ids=["recommending", "pinned"])
def test_where_people_hold_a_service_at_rest_nobody_waits_for_a_replica(held: ServiceBuilder) -> None:
    world = asleep()
    world.of = held
    decision = world.run(60.0)
    assert (world.size, decision.holding) == (0, False)
    assert condition(decision, ConditionType.READY) == (False, "NoReplicas")
    assert condition(decision, ConditionType.RECONCILING)[0] is False
    assert "no replica runs" in next(c for c in decision.conditions if c.type is ConditionType.READY).message


def test_a_restart_of_the_operator_does_not_wake_a_service() -> None:
    world = asleep()
    world.memory = Memory()
    world.run(600.0)
    assert world.size == 0


def test_a_restart_of_the_operator_begins_the_idle_time_anew() -> None:
    world = World()
    world.run(COLD_START + FIRST_SECONDS - 60.0)
    world.memory = Memory()
    world.run(FIRST_SECONDS - 60.0)
    assert world.size == 1


def test_the_idle_time_is_never_less_than_a_replica_takes_to_leave_and_to_come_back() -> None:
    world = World(times=PolicySettings(idle_seconds=10.0))
    world.run(COLD_START + FIRST_SECONDS)
    (gone_at,) = [at for at, size in world.sizes if size == 0]
    assert gone_at - NOW > COLD_START + SETTINGS.drain_seconds


def test_who_waited_for_a_cold_start_missed_its_objective() -> None:
    world = asleep()
    world.of = CHAT.with_objective(0.6)
    late = (0,) * (len(WAIT_EDGES) - 4) + (10, 0, 0, 0)
    before = world.memory.services[CHAT.spec.key].demand.budget.total
    told = world._seen().activator
    assert told is not None
    seen = dataclasses.replace(told, forwarded=late, turned_away=2, gone=NO_WAITS)
    picture = Snapshot(world.now, (dataclasses.replace(world._seen(), activator=seen),), (), Timing(TICK, TICK))
    _, memory = decide(picture, world.memory, SETTINGS)
    after = memory.services[CHAT.spec.key].demand
    assert after.budget.total.bad - before.bad == pytest.approx(12.0)
    assert after.activator_misses.owed == 10.0


def test_what_an_engine_calls_good_of_them_is_taken_back_once() -> None:
    def good(owed: float) -> float:
        world = asleep()
        memory = world.memory.services[CHAT.spec.key]
        held = dataclasses.replace(memory.demand.activator_misses, owed=owed)
        demand = dataclasses.replace(memory.demand, activator_misses=held)
        owing = dataclasses.replace(memory, last=None, demand=demand)
        world.memory = Memory({CHAT.spec.key: owing})
        world.size, world.born = 1, [world.now - 2 * COLD_START]
        world.requests = Requests(tuple(world.now - 1.0 - n for n in range(5)))
        world.run(60.0)
        after = world.memory.services[CHAT.spec.key].demand
        assert after.activator_misses.owed == pytest.approx(0.0)
        return after.budget.total.good

    assert good(0.0) - good(3.0) == pytest.approx(3.0)


TIMES = st.lists(st.floats(1.0, 3600.0), max_size=15)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(TIMES, st.sets(st.integers(0, 30), max_size=6), st.sets(st.integers(0, 30), max_size=6))
def test_no_request_is_lost_and_no_busy_service_is_put_to_rest(
    times: list[float], blind: set[int], silent: set[int]
) -> None:
    requests = sorted(NOW + at for at in times)
    world = World(
        requests=Requests(tuple(requests)),
        metrics=lambda now: int((now - NOW) // 180.0) not in blind,
        answers=lambda now: int((now - NOW) // 180.0) not in silent,
    )
    for _ in range(round(5400.0 / TICK)):
        before, held = world.size, bool(world.held)
        world.tick()
        if before and not world.size:
            last = max((at for at in requests if at < world.now - TICK), default=-math.inf)
            assert world.now - last >= 60.0 + COLD_START
        if held and world.answers(world.now - TICK):
            assert world.size
    assert world.lost == 0
    turns = [at for at, size in world.sizes if size == 0]
    assert all(later - earlier >= 2 * 60.0 for earlier, later in itertools.pairwise(turns))
