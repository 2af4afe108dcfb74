"""A replica that lags: which one is taken for it, what becomes of it, and when none is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.reasons import Reason
from holdfast.domain.cluster import Placement, Replica, ReplicaPhase
from holdfast.domain.signals import SignalState, Traffic
from holdfast.domain.snapshot import ServiceSnapshot, Timing
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.flapping import Flapping
from holdfast.policy.estimate.headroom import Headroom
from holdfast.policy.estimate.slo_budget import Verdicts
from holdfast.policy.health.replicas import Group
from holdfast.policy.health.sick import LONGEST_QUIET_SECONDS, QUIET_SECONDS, Sick, Symptom, watch_sick
from holdfast.policy.memory import Supply
from holdfast.policy.settings import PolicySettings
from holdfast.policy.transition.sizes import decide_sizes
from tests.builders import NOW, ServiceBuilder, ServiceView, condition, no_traffic, replicas, traffic
from tests.policy.fluid import steps
from tests.policy.health.test_stalled import CHAT, HangingCluster, ailing, names_of
from tests.policy.views import view

TIMING = Timing(5.0, 15.0)
INTERVAL_SECONDS, SURE_SECONDS = 45.0, 30.0

FIRST, SECOND, THIRD = (replica.name for replica in replicas(3))
HALF_BLIND = [
    SignalState.UNREACHABLE,
    SignalState.STALE,
    SignalState.PARTIAL,
    SignalState.ABSENT,
    SignalState.DUPLICATE,
]


def look(
    memory: Sick,
    second: float,
    names: Sequence[str],
    pods: Sequence[Replica] = replicas(4),
    state: SignalState = SignalState.FRESH,
    hung: Sequence[str] = (),
    **placement: object,
) -> Sick:
    """What is remembered after one look at pods of which some are told to lag."""
    told = replace(traffic(5.0, seconds=INTERVAL_SECONDS, state=state), lagging=tuple(names), hung=tuple(hung))
    sizes = (Placement("h100", len(pods), **placement),)  # type: ignore[arg-type]
    seen = ServiceView(CHAT, told, tuple(pods), sizes).snapshot()
    return watch_sick(memory, seen, judge(told), NOW + second, TIMING)


def watched(*looks: tuple[float, Sequence[str]], memory: Sick = Sick()) -> Sick:  # noqa: B008  # nobody changes it
    """What is remembered after looks of (seconds, pods that are told to lag)."""
    for second, names in looks:
        memory = look(memory, second, names)
    return memory


def lagged(name: str, since: float = 0.0) -> tuple[tuple[float, list[str]], tuple[float, list[str]]]:
    """Two looks that make it sure, and end."""
    return (since, [name]), (since + SURE_SECONDS, [name])


def test_a_replica_lags_once_it_has_looked_so_for_as_long_as_a_hang_takes_to_be_seen() -> None:
    assert ailing(watched((0, [FIRST]))) == set()
    assert ailing(watched((0, [FIRST]), (25, [FIRST]))) == set()
    assert ailing(watched((0, [FIRST]), (25, [FIRST]), (30, [FIRST]))) == {FIRST}


def test_a_share_in_time_that_recovers_for_an_interval_ends_it_and_the_same_replica_may_lag_again() -> None:
    assert ailing(watched(*lagged(FIRST), (75, []))) == {FIRST}
    ended = watched(*lagged(FIRST), (76, []))
    assert ailing(ended) == set()
    assert ailing(watched((80, [FIRST]), memory=ended)) == set()
    assert ailing(watched((80, [FIRST]), (110, [FIRST]), memory=ended)) == {FIRST}


def test_a_replica_that_lags_time_and_again_is_named_within_two_minutes() -> None:
    on_and_off = [(second, [FIRST] if second % 60 < 30 else []) for second in range(0, 75, 5)]
    assert ailing(watched(*on_and_off)) == {FIRST}


@pytest.mark.parametrize("state", HALF_BLIND)
def test_without_fresh_metrics_nobody_begins_to_lag_or_ceases(state: SignalState) -> None:
    assert look(Sick(), 0, [FIRST], state=state) == Sick()
    begun = watched((0, [FIRST]))
    assert look(begun, 60, [FIRST], state=state) == begun
    assert ailing(look(watched(*lagged(FIRST)), 60, [], state=state)) == {FIRST}


@pytest.mark.parametrize("ready_at", [None, NOW - 120.0, NOW + 30.0])
def test_a_replica_that_is_new_does_not_lag(ready_at: float | None) -> None:
    pods = [replace(pod, ready_at=ready_at) if pod.name == FIRST else pod for pod in replicas(3)]
    assert look(Sick(), 0, [FIRST], pods) == Sick()


def test_the_only_replica_and_one_that_nobody_knows_do_not_lag() -> None:
    assert look(Sick(), 0, [FIRST], replicas(1)) == Sick()
    assert look(Sick(), 0, ["somebody", ""]) == Sick()


def test_one_that_is_not_ready_any_more_is_forgotten() -> None:
    others = (*replicas(1, ReplicaPhase.DRAINING), *replicas(3)[1:])
    gone = look(watched(*lagged(FIRST)), 35, [FIRST], others)
    assert (gone.each, gone.last) == ((), FIRST)


@pytest.mark.parametrize("placement", [{"rolling_out": True}, {"batching_before": CHAT.spec.batching}])
def test_nobody_lags_while_replicas_differ_by_design(placement: dict[str, object]) -> None:
    assert look(Sick(), 0, [FIRST], **placement).each == ()
    assert look(watched(*lagged(FIRST)), 35, [FIRST], **placement).each == ()


def test_nobody_lags_while_others_hang() -> None:
    found = look(watched(*lagged(FIRST)), 35, [FIRST], hung=[SECOND])
    assert [symptom.name for symptom in found.each] == [SECOND]


def test_one_at_a_time_lags_and_no_other_for_ten_minutes() -> None:
    both = watched((0, [SECOND, FIRST]), (30, [SECOND, FIRST]))
    assert ailing(both) == {FIRST}
    other = watched((35, [SECOND]), (25 + QUIET_SECONDS, [SECOND]), memory=both)
    assert ailing(other) == set()
    assert ailing(watched(*lagged(SECOND, 30 + QUIET_SECONDS), memory=other)) == {SECOND}


def test_what_a_replacement_does_not_end_is_replaced_ever_more_rarely() -> None:
    memory, second, quiet = Sick(), 0.0, []
    for name in (FIRST, SECOND) * 5:
        memory = watched(*lagged(name, second), memory=memory)
        assert ailing(memory) == {name}
        quiet.append(memory.quiet_seconds)
        second += SURE_SECONDS + memory.quiet_seconds
    assert quiet[:4] == [600.0, 1200.0, 2400.0, 4800.0]
    assert quiet[-1] == LONGEST_QUIET_SECONDS
    later = watched(*lagged(THIRD, second + 2 * LONGEST_QUIET_SECONDS), memory=memory)
    assert later.quiet_seconds == QUIET_SECONDS


def test_a_lag_that_was_not_to_be_seen_for_more_than_an_interval_begins_anew_and_a_sure_one_stays() -> None:
    begun = watched((0, [FIRST]), (25, [FIRST]))
    assert ailing(watched((600, [FIRST]), memory=begun)) == set()
    assert ailing(watched((600, [FIRST]), (630, [FIRST]), memory=begun)) == {FIRST}
    blind = look(begun, 60, [FIRST], state=SignalState.STALE)
    assert ailing(watched((80, [FIRST]), memory=blind)) == set()
    assert ailing(watched(*lagged(FIRST), (600, [FIRST]))) == {FIRST}


LOOKS = st.tuples(
    st.one_of(st.sampled_from([5.0, 15.0, 45.0]), st.floats(0.0, 400.0)),
    st.sets(st.sampled_from([FIRST, SECOND, THIRD, "x"])),
    st.sampled_from([SignalState.FRESH, SignalState.FRESH, *HALF_BLIND]),
)


@given(st.lists(LOOKS, max_size=20))
def test_whoever_lags_has_long_been_seen_so_and_comes_long_after_the_last(
    looks: list[tuple[float, set[str], SignalState]],
) -> None:
    memory, second, seen_at, since, sure_at = Sick(), 0.0, dict[str, float](), dict[str, float](), dict[str, float]()
    for passed, names, state in looks:
        second += passed
        for name in names if state is SignalState.FRESH else ():
            unbroken = second - seen_at.get(name, -math.inf) <= INTERVAL_SECONDS
            since[name] = since[name] if unbroken else second
            seen_at[name] = second
        before, memory = ailing(memory), look(memory, second, sorted(names), state=state)
        assert state is SignalState.FRESH or ailing(memory) <= before
        for name in ailing(memory) - before:
            assert name in names
            assert second - since[name] >= SURE_SECONDS
            assert all(second - at >= QUIET_SECONDS for other, at in sure_at.items() if other != name)
        if state is SignalState.FRESH:
            sure_at |= dict.fromkeys(ailing(memory), second)


class LaggingCluster(HangingCluster):
    """Replicas that lag keep their share of the requests, which are late."""

    def _second(self) -> None:
        super()._second()
        late = self.seconds[-1]["lost"]
        for name, more in (("arrivals", late), ("bad", late), ("lost", -late)):
            self.seconds[-1][name] += more

    def _traffic(self) -> Traffic:
        seen = super()._traffic()
        return replace(seen, hung=(), lagging=seen.hung)


KNOWN_SECONDS = 150.0
"""By then a lag is seen, and has been for long enough."""


def cluster(rate: float = 14.0, of: ServiceBuilder = CHAT, then: float | None = None) -> LaggingCluster:
    """Replicas of 4 requests/s each under an even load, at rest; a minute later under another one."""
    load = steps((0, rate), (660, rate if then is None else then))
    return LaggingCluster(of, load, {"h100": 4.0}, hung_since={}).run(600)


def remembered(fleet: LaggingCluster, **changes: object) -> None:
    """Let the operator remember something else of the service."""
    service = replace(fleet.memory.services[CHAT.spec.key], **changes)  # type: ignore[arg-type]
    fleet.memory = replace(fleet.memory, services={CHAT.spec.key: service})


def told(fleet: LaggingCluster) -> list[tuple[str, int]]:
    """Actions and sizes for which the lag was the reason."""
    verdicts = [decision.verdict for _, decision in fleet.decisions]
    return [(each.action.value, each.replicas) for each in verdicts if each.reason == "EngineLagging"]


def test_where_the_others_carry_the_load_a_lagging_replica_goes_at_once_and_alone() -> None:
    fleet = cluster(14.0, then=5.0)
    before = names_of(fleet)
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(KNOWN_SECONDS)
    assert before - names_of(fleet) == {laggard}
    assert told(fleet) == [("ScaleDown", len(before) - 1)]


def test_where_they_do_not_another_serves_first_and_the_objective_holds_again() -> None:
    fleet = cluster()
    before, size = names_of(fleet), fleet.replicas()
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(KNOWN_SECONDS)
    assert laggard in names_of(fleet)
    assert condition(fleet.last(), "Ready") == (True, "EngineLagging")
    fleet.run(100)
    assert told(fleet) == [("ScaleUp", size + 1), ("ScaleDown", size)]
    assert before - names_of(fleet) == {laggard}
    assert fleet.kept(860, 900) >= 0.99
    assert condition(fleet.last(), "Ready") == (True, "Serving")


def test_at_the_maximum_a_lagging_replica_makes_room_for_its_successor() -> None:
    fleet = cluster(14.0, CHAT.with_replicas_between(1, 4))
    fleet.stall(2).run(300)
    assert not names_of(fleet) & fleet.hung_since.keys()
    assert fleet.replicas() == 4


def test_where_the_minimum_is_the_maximum_it_makes_room_for_its_successor_all_the_same() -> None:
    fleet = cluster(9.0, CHAT.with_replicas_between(4, 4))
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(KNOWN_SECONDS)
    assert laggard not in names_of(fleet)
    assert told(fleet) == [("ScaleDown", 3)]
    assert fleet.run(100).replicas() == 4


def test_where_its_successor_finds_no_node_it_goes_first_and_the_successor_comes_in_its_place() -> None:
    fleet = cluster()
    before = fleet.replicas()
    fleet.gpus = {"h100": before}
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(KNOWN_SECONDS + PolicySettings().provisioning_seconds)
    assert told(fleet) == [("ScaleUp", before + 1), ("ScaleDown", before - 1)]
    assert laggard not in names_of(fleet)
    assert fleet.run(100).kept(fleet.clock - 30, fleet.clock) >= 0.99


def test_a_second_one_that_lags_stays_for_ten_minutes() -> None:
    fleet = cluster()
    fleet.stall(1).run(300)
    fleet.stall(1)
    second = (fleet.hung_since.keys() & names_of(fleet)).pop()
    fleet.run(100)
    remembered(fleet, demand=replace(fleet.memory.services[CHAT.spec.key].demand, headroom=Headroom(0.5, 0.5)))
    fleet.run(300)
    assert second in names_of(fleet)
    assert condition(fleet.last(), "SLOMet") == (False, "EngineLagging")
    assert fleet.memory.services[CHAT.spec.key].demand.headroom == Headroom(0.5, 0.5)
    fleet.run(400)
    assert second not in names_of(fleet)


def test_after_a_start_of_the_operator_nobody_lags_for_ten_minutes() -> None:
    fleet = cluster()
    fleet.restart_operator()
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(QUIET_SECONDS)
    assert (laggard in names_of(fleet), told(fleet)) == (True, [])
    fleet.run(KNOWN_SECONDS + 50.0)
    assert laggard not in names_of(fleet)


def test_a_replacement_is_no_turn_of_the_load() -> None:
    fleet = cluster()
    before = Flapping(lowered_rps=14.0)
    remembered(fleet, flapping=before)
    fleet.stall(1).run(KNOWN_SECONDS + 100.0)
    assert [action for action, _ in told(fleet)] == ["ScaleUp", "ScaleDown"]
    assert fleet.memory.services[CHAT.spec.key].flapping == before


def test_a_replica_that_recovers_before_its_successor_serves_stays() -> None:
    fleet = cluster()
    before = names_of(fleet)
    fleet.stall(1).run(KNOWN_SECONDS - 10.0)
    fleet.hung_since = {}
    fleet.run(200)
    assert [action for action, _ in told(fleet)] == ["ScaleUp"]
    assert names_of(fleet) >= before


@pytest.mark.parametrize("state", [SignalState.PARTIAL, SignalState.STALE])
def test_nothing_moves_on_doubtful_metrics(state: SignalState) -> None:
    fleet = cluster().stall(1)
    fleet.sight = lambda second: state
    fleet.run(KNOWN_SECONDS + 100.0)
    assert told(fleet) == []
    assert names_of(fleet) >= fleet.hung_since.keys()


@pytest.mark.parametrize("of", [CHAT.pinned_to(4), CHAT.recommending().with_replicas_between(4, 8)])
def test_people_who_hold_the_size_are_told_the_name(of: ServiceBuilder) -> None:
    fleet = cluster(9.0, of).stall(1).run(KNOWN_SECONDS)
    (laggard,) = fleet.hung_since
    message = next(c.message for c in fleet.last().conditions if c.type == "Ready")
    assert laggard in names_of(fleet)
    assert message.endswith(f"while its peers meet them; replace it: kubectl delete pod -n prod {laggard}")


def test_a_lag_teaches_nothing_about_what_a_replica_carries() -> None:
    fleet = cluster(9.0, CHAT.pinned_to(4))
    before = fleet.memory.services[CHAT.spec.key].supply
    fleet.stall(1).run(400)
    supply = fleet.memory.services[CHAT.spec.key].supply
    assert supply.sick.believed
    assert supply.evidence.verdicts == Verdicts()
    assert [belief.slowness for belief in supply.capacity.beliefs] == [b.slowness for b in before.capacity.beliefs]


def test_nobody_to_be_seen_lags_in_an_empty_snapshot() -> None:
    empty = no_traffic(SignalState.ABSENT)
    seen: ServiceSnapshot = ServiceView(CHAT, empty).snapshot()
    assert watch_sick(Sick(), seen, judge(empty), NOW, TIMING) == Sick()


def test_what_a_lagging_replica_holds_spares_it_nothing() -> None:
    fleet = cluster()
    (laggard,) = fleet.stall(1).hung_since
    fleet.run(300)
    lagging = [decision.verdict for _, decision in fleet.decisions if decision.verdict.reason == "EngineLagging"]
    (target,) = lagging[-1].targets
    assert (target.remove_first[0], target.lost) == (laggard, (laggard,))


@pytest.mark.parametrize("state", [SignalState.FRESH, SignalState.STALE])
def test_on_an_accelerator_that_is_being_left_it_stays_as_the_others_do_until_new_ones_serve(
    state: SignalState,
) -> None:
    laggard, *others = replicas(4, on="l40s")
    old = Group("l40s", size=4, exists=True, ready=tuple(others), ailing=(laggard,))
    new = Group("h100", size=2, exists=True, starting=replicas(2, ReplicaPhase.STARTING))
    lags = Symptom(laggard.name, Reason.ENGINE_LAGGING, NOW - 60.0, NOW, sure=True)
    supply = Supply(lead_seconds=45.0, sick=Sick((lags,), last=laggard.name, last_at=NOW))
    seen = judge(traffic(5.0, state=state))
    leaving = view(group=new, others=(old,), groups=(new, old), supply=supply, seen=seen, starting=True)
    kept = {target.accelerator: target.replicas for target in decide_sizes(leaving).targets}
    assert kept["l40s"] == 4
