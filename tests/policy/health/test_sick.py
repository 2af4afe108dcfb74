"""Replicas that end most of their requests with an error: who is taken for one, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, Workload
from holdfast.domain.decision import Action, Decision
from holdfast.domain.engine import ExactCounts
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.domain.valid_traffic import judge
from holdfast.policy.decide import decide
from holdfast.policy.health.sick import QUIET_SECONDS, Sick, watch_sick
from holdfast.policy.memory import Memory
from tests.builders import NOW, ServiceBuilder, ServiceView, a_snapshot, condition, node, replicas, traffic
from tests.policy.fluid import FixedRates, FluidCluster, steps
from tests.policy.health.test_stalled import CHAT, HangingCluster, ailing, names_of

FIRST, SECOND, THIRD, FOURTH = (replica.name for replica in replicas(4))
TWO_MINUTES = 120.0
plugins = pytest.mark.parametrize("plugin", [False, True], ids=["without the plugin", "with the plugin"])


def look(
    memory: Sick,
    second: float,
    failing: Sequence[str] = (),
    lagging: Sequence[str] = (),
    hung: Sequence[str] = (),
    silent: Sequence[str] = (),
    pods: Sequence[Replica] = replicas(4),
    state: SignalState = SignalState.FRESH,
    **placement: object,
) -> Sick:
    """What is remembered after one look; counts are of 45 s."""
    told = traffic(5.0, seconds=45.0, state=state)
    told = replace(told, failing=tuple(failing), lagging=tuple(lagging), hung=tuple(hung), silent=tuple(silent))
    sizes = (Placement("h100", len(pods), **placement),)  # type: ignore[arg-type]
    seen = ServiceView(CHAT, told, tuple(pods), sizes).snapshot()
    return watch_sick(memory, seen, judge(told), NOW + second, Timing(5.0, 15.0))


def failing(*names: str, seconds: int = 30, memory: Sick = Sick(), start: int = 0, **more: object) -> Sick:  # noqa: B008
    """What is remembered after so many seconds in which these replicas fail."""
    for second in range(start, start + seconds + 1, 5):
        memory = look(memory, second, names, **more)  # type: ignore[arg-type]
    return memory


def test_a_replica_that_fails_is_sick_once_that_has_lasted() -> None:
    assert ailing(failing(FIRST, seconds=25)) == set()
    assert [(symptom.name, symptom.reason) for symptom in failing(FIRST).believed] == [(FIRST, Reason.ENGINE_ERRORS)]


def test_two_of_four_are_replaced_one_after_the_other() -> None:
    both = failing(FIRST, SECOND)
    assert (ailing(both), [symptom.name for symptom in both.passed_over]) == ({FIRST}, [SECOND])
    without_first = replicas(4)[1:]
    other = failing(SECOND, memory=both, start=35, seconds=int(QUIET_SECONDS) - 10, pods=without_first)
    assert (ailing(other), [symptom.name for symptom in other.passed_over]) == (set(), [SECOND])
    assert ailing(failing(SECOND, memory=other, start=int(QUIET_SECONDS) + 30, pods=without_first)) == {SECOND}


def test_where_most_fail_the_cause_is_shared_and_all_stay() -> None:
    memory = failing(FIRST, SECOND, THIRD)
    assert (memory.doubted, ailing(memory), memory.reason) == (True, set(), Reason.ENGINE_ERRORS)


def test_the_only_replica_and_a_new_one_may_fail() -> None:
    assert ailing(failing(FIRST, pods=replicas(1))) == {FIRST}
    young = [replace(pod, ready_at=NOW) for pod in replicas(4)]
    assert ailing(failing(FIRST, pods=young)) == {FIRST}


@pytest.mark.parametrize("placement", [{"rolling_out": True}, {"batching_before": CHAT.spec.batching}])
def test_while_replicas_differ_by_design_none_is_replaced_for_errors(placement: dict[str, object]) -> None:
    assert failing(FIRST, **placement).each == ()


def test_errors_and_lateness_in_turn_are_one_sickness() -> None:
    memory = Sick()
    for second in range(0, 31, 5):
        kind = {"failing": [FIRST]} if second % 10 else {"lagging": [FIRST]}
        memory = look(memory, second, **kind)  # type: ignore[arg-type]
    assert ailing(memory) == {FIRST}


def test_a_replica_that_fails_time_and_again_is_named_within_two_minutes() -> None:
    memory, named = Sick(), []
    for second in range(0, 300, 5):
        memory = look(memory, second, [FIRST] if second % 60 < 30 else [])
        named.append(bool(memory.believed))
    assert named.index(True) * 5 <= TWO_MINUTES - 45.0  # a counting interval passes before the first look
    assert all(named[named.index(True) :])


def test_a_stalled_replica_is_replaced_before_one_that_fails() -> None:
    memory = failing(FIRST, hung=[SECOND])
    assert (ailing(memory), memory.reason) == ({SECOND}, Reason.ENGINE_HUNG)
    assert ailing(failing(FIRST, memory=memory, start=35, pods=[replicas(4)[0], *replicas(4)[2:]])) == {FIRST}


class FailingCluster(HangingCluster):
    """Replicas that fail end their share of the requests with an error at once."""

    def _traffic(self) -> Traffic:
        seen, alive = super()._traffic(), {pod.name for pod in self.pods}
        told = [n for n, at in self.hung_since.items() if n in alive and self.clock - at > 0.5 * self.interval]
        return replace(seen, hung=(), failing=tuple(sorted(told)))

    def _counts(self, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        counts, lost = FluidCluster._counts(self, past), sum(second.get("lost", 0.0) for second in past)
        exact = counts.exact and replace(counts.exact, arrived=counts.exact.arrived + lost, bad_error=lost)
        return replace(counts, failed=lost, engines=max(1, len(self.pods)), exact=exact)


def cluster(plugin: bool, rate: float = 14.0, of: ServiceBuilder = CHAT) -> FailingCluster:
    """Replicas of 4 requests/s each under an even load, scraped every 15 s, at rest."""
    return FailingCluster(of, steps((0, rate)), {"h100": 4.0}, hung_since={}, plugin=plugin, scrape=15.0).run(600)


@plugins
def test_a_replica_that_answers_with_errors_is_named_in_two_minutes_and_replaced_by_another(plugin: bool) -> None:
    fleet = cluster(plugin)
    before, size = names_of(fleet), fleet.replicas()
    (sick,) = fleet.stall(1).hung_since
    while condition(fleet.last(), "Ready") != (True, "EngineErrors"):
        assert fleet.run(5).clock <= 600 + TWO_MINUTES
    assert sick in next(c.message for c in fleet.last().conditions if c.type == "Ready")
    assert names_of(fleet) > before  # its successor first: its requests would make its peers late
    fleet.run(120)
    assert before - names_of(fleet) == {sick}
    assert fleet.replicas() == size
    fleet.run(60)
    assert fleet.kept(fleet.clock - 60, fleet.clock) >= 0.99
    assert condition(fleet.last(), "Ready") == (True, "Serving")


@plugins
def test_who_holds_the_size_is_told_the_replica_and_that_requests_end_with_errors(plugin: bool) -> None:
    fleet = cluster(plugin, 9.0, CHAT.pinned_to(4)).stall(1).run(300)
    (sick,) = fleet.hung_since
    told = next(c for c in fleet.last().conditions if c.type == "SLOMet")
    assert (told.status, told.reason) == (False, "EngineErrors")
    assert f"replica {sick} ends most of its requests with an error" in told.message
    assert "late" not in told.message


@plugins
def test_errors_teach_nothing_about_capacity_and_lengths(plugin: bool) -> None:
    fleet = cluster(plugin, 9.0, CHAT.pinned_to(4)).stall(1).run(25)
    known = fleet.memory.services[CHAT.spec.key]
    before, lengths = known.supply, known.demand.lengths
    assert before.sick.each
    fleet.run(400)
    after = fleet.memory.services[CHAT.spec.key].supply
    assert after.sick.believed
    assert after.evidence.verdicts.judged == 0.0
    assert [belief.correction for belief in after.capacity.beliefs] == [b.correction for b in before.capacity.beliefs]
    assert fleet.memory.services[CHAT.spec.key].demand.lengths == lengths


@plugins
def test_errors_of_nobody_knows_which_replica_are_called_errors(plugin: bool) -> None:
    """A quarter of the requests of four replicas ends with an error for half an hour."""
    memory, total, failed = Memory(), 240.0, 60.0
    for index in range(360):
        now, seen = NOW + 5.0 * index, traffic(24.0, running=20.0)
        ((name, counts),), good = seen.by_accelerator, total - failed
        exact = ExactCounts(arrived=total, good=good, bad_error=failed, engines=4) if plugin else None
        counts = replace(
            counts, engines=4, finished=good, failed=failed, ttft_count=good, ttft_within=good, exact=exact
        )
        told = replace(seen, by_accelerator=((name, counts),))
        view = ServiceView(CHAT, told, replicas(4, now=now), (Placement("h100", 4, workload=Workload("chat-h100")),))
        shown = a_snapshot(view, now=now, nodes=(node("n", 20, used=4),))
        (decision,), memory = decide(shown, memory, model=FixedRates({"h100": 8.9}))
    found = next(each for each in decision.conditions if each.type == "SLOMet")
    assert (found.status, found.reason) == (False, "EngineErrors")
    assert "late" not in found.message


def stale(of: ServiceBuilder, looks: int, silent: Sequence[str], hung: Sequence[str] = ()) -> tuple[Memory, Decision]:
    """A load test was cut off: the gauges of the only replica stay, no counter moves, and no request comes."""
    memory, pods = Memory(), replicas(1)
    for index in range(looks):
        now = NOW + 5.0 * index
        told = traffic(0.0, running=106.0, waiting=15.0) if index > 60 else traffic(5.0, running=106.0)
        told = replace(told, silent=tuple(silent), hung=tuple(hung)) if index > 75 else told
        view = ServiceView(of, told, pods, (Placement("h100", 1, workload=Workload("chat-h100")),), born_at=NOW - 9000)
        shown = a_snapshot(view, now=now, nodes=(node("n", 8, used=1),))
        (decision,), memory = decide(shown, memory, model=FixedRates({"h100": 8.9}))
    return memory, decision


def test_gauges_that_stay_after_all_clients_left_cost_no_replica() -> None:
    memory, decision = stale(CHAT, 300, silent=[FIRST])
    assert (decision.verdict.action, decision.verdict.replicas) == (Action.HOLD, 1)
    told = next(each for each in decision.conditions if each.type == "Ready")
    assert (told.status, told.reason) == (True, "Serving")
    assert f"{FIRST} looks stalled by the metrics alone" in told.message
    assert memory.services[CHAT.spec.key].supply.sick.believed == ()


def test_a_dead_engine_that_gave_no_token_when_asked_is_replaced() -> None:
    _, decision = stale(CHAT, 100, silent=[], hung=[FIRST])
    told = next(each for each in decision.conditions if each.type == "Ready")
    assert (told.status, told.reason) == (False, "EngineHung")
    assert decision.verdict.replicas == 2


def test_a_suspect_is_replaced_within_a_tick_of_the_proof() -> None:
    memory = Sick()
    for second in range(0, 25, 5):
        memory = look(memory, second, silent=[FIRST])
    assert (ailing(memory), [symptom.name for symptom in memory.unproven]) == (set(), [FIRST])
    assert ailing(look(memory, 25, hung=[FIRST])) == {FIRST}
    assert ailing(look(look(memory, 25, hung=[FIRST]), 30, silent=[FIRST])) == set()
    assert look(memory, 25) == Sick()
