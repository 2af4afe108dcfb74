"""Replicas that hang: who is taken for one, what becomes of it, and when nobody is."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.snapshot import Timing
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.slo_budget import Verdicts
from holdfast.policy.health.replicas import Group
from holdfast.policy.health.sick import Sick, watch_sick
from holdfast.policy.placement.on_demand_pair import Pair, together
from holdfast.policy.transition.sizes import decide_sizes
from tests.builders import (
    NOW,
    ServiceBuilder,
    ServiceView,
    accelerator,
    condition,
    no_traffic,
    replicas,
    service,
    traffic,
)
from tests.policy.fluid import FluidCluster, Pod, steps
from tests.policy.views import changed, view

TIMING = Timing(5.0, 15.0)
CHAT = service().with_replicas_between(1, 20)
STILL_SECONDS = 75.0
KNOWN_SECONDS = 100.0
"""By then a hang is seen, and seen again."""


def look(
    memory: Sick,
    names: Collection[str],
    second: float,
    pods: Sequence[Replica] = replicas(4),
    state: SignalState = SignalState.FRESH,
) -> Sick:
    """What is remembered after one look at pods of which some seem to hang."""
    told = traffic(5.0) if state is SignalState.FRESH else no_traffic(state)
    told = replace(told, hung=tuple(sorted(names)))
    seen = ServiceView(CHAT, told, tuple(pods)).snapshot()
    return watch_sick(memory, seen, judge(told), NOW + second, TIMING)


def watched(*looks: tuple[float, Sequence[str]], ready: int = 4, state: SignalState = SignalState.FRESH) -> Sick:
    """What is remembered after looks of (seconds, pods that look hung); only the last one is of that state."""
    memory, pods = Sick(), replicas(ready)
    for index, (second, names) in enumerate(looks):
        last = index == len(looks) - 1
        memory = look(memory, names, second, pods, state if last else SignalState.FRESH)
    return memory


def ailing(memory: Sick) -> set[str]:
    """The replicas that count as no capacity."""
    return {symptom.name for symptom in memory.believed}


FIRST, SECOND, THIRD = (replica.name for replica in replicas(3))


def test_one_look_is_no_hang_and_the_next_scrape_makes_it_one() -> None:
    assert ailing(watched((0, [FIRST]))) == set()
    assert ailing(watched((0, [FIRST]), (10, [FIRST]))) == set()
    assert ailing(watched((0, [FIRST]), (10, [FIRST]), (15, [FIRST]))) == {FIRST}


def test_a_token_ends_a_hang_at_once_and_a_new_one_begins_anew() -> None:
    assert watched((0, [FIRST]), (15, [FIRST]), (20, [])) == Sick()
    assert ailing(watched((0, [FIRST]), (15, [FIRST]), (20, []), (25, [FIRST]))) == set()


@pytest.mark.parametrize("state", [SignalState.UNREACHABLE, SignalState.STALE, SignalState.PARTIAL, SignalState.ABSENT])
def test_missing_metrics_neither_end_a_hang_nor_make_one(state: SignalState) -> None:
    assert ailing(watched((0, [FIRST]), (15, [FIRST]), (20, []), state=state)) == {FIRST}
    assert ailing(watched((0, [FIRST]), (60, []), state=state)) == set()


def test_a_pod_that_is_not_ready_any_more_is_forgotten() -> None:
    memory = watched((0, [FIRST]), (15, [FIRST]))
    draining = replicas(4, ReplicaPhase.DRAINING)
    assert look(memory, [FIRST], 20.0, draining) == Sick()


def test_pods_that_nobody_knows_do_not_hang() -> None:
    assert watched((0, ["somebody"]), (15, ["somebody"])) == Sick()


@pytest.mark.parametrize(
    ("ready", "hung", "doubted"),
    [(1, 1, False), (2, 1, False), (2, 2, True), (3, 1, False), (3, 2, True), (4, 2, False), (4, 3, True)],
)
def test_where_more_than_half_of_several_hang_none_is_believed_to(ready: int, hung: int, doubted: bool) -> None:
    names = [replica.name for replica in replicas(ready)][:hung]
    memory = watched((0, names), (15, names), ready=ready)
    assert [symptom.name for symptom in memory.found] == names
    assert (memory.doubted, ailing(memory)) == (doubted, set() if doubted else set(names))


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.sets(st.sampled_from([FIRST, SECOND, THIRD, "x"]))), max_size=12))
def test_whoever_is_believed_to_hang_has_been_seen_so_for_a_scrape(looks: list[tuple[float, set[str]]]) -> None:
    memory, second, since = Sick(), 0.0, dict[str, float]()
    for passed, names in looks:
        second += passed
        since = {name: since.get(name, second) for name in names}
        memory = look(memory, names, second, replicas(3))
        assert all(second - since[name] >= TIMING.scrape_seconds for name in ailing(memory))
        assert not memory.doubted or not memory.believed


@dataclass
class HangingCluster(FluidCluster):
    """Replicas that hang keep their share of the requests, which are lost; nothing of them is counted."""

    hung_since: dict[str, float] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def stall(self, *indices: int) -> HangingCluster:
        alive = [pod.name for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        self.hung_since |= {alive[index]: self.clock for index in indices}
        return self

    def _second(self) -> None:
        ready = [pod for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        lost = sum(self._hangs(pod) for pod in ready) / max(1, len(ready))
        whole, self.rate = self.rate, lambda second: (1.0 - lost) * whole(second)
        super()._second()
        self.rate = whole
        missed = lost * whole(self.clock)
        self.seconds[-1] |= {"lost": missed}

    def _hangs(self, pod: Pod) -> bool:
        return pod.name in self.hung_since

    def _stock_second(self, arrivals: float, physical: float) -> dict[str, float]:
        ready = [pod for pod in self.pods if self._phase(pod) is ReplicaPhase.READY]
        working = sum(self.rates[pod.accelerator] for pod in ready if not self._hangs(pod))
        return super()._stock_second(arrivals, min(physical, self.slack * working))

    def _traffic(self) -> Traffic:
        seen = super()._traffic()
        told = tuple(sorted(n for n, at in self.hung_since.items() if self.clock - at >= STILL_SECONDS))
        alive = {pod.name for pod in self.pods}
        return replace(seen, hung=tuple(name for name in told if name in alive and name not in self.hidden))

    def _counts(self, past: Sequence[Mapping[str, float]]) -> AcceleratorTraffic:
        counts, hung = super()._counts(past), sum(self._hangs(pod) for pod in self.pods)
        return replace(counts, engines=max(1, len(self.pods)), running=counts.running + 9.0 * hung)

    def kept(self, start: float, end: float) -> float:
        """Good share of all requests, those that hung ones swallowed included."""
        past = self.seconds[int(start) : int(end)]
        lost = sum(second["lost"] for second in past)
        arrived = sum(second["arrivals"] for second in past) + lost
        return 1.0 - (lost + sum(second["bad"] for second in past)) / max(1.0, arrived)


def cluster(rate: float = 14.0, of: ServiceBuilder = CHAT, size: int | None = None) -> HangingCluster:
    """Replicas of 4 requests/s each under an even load, at rest."""
    return HangingCluster(of, steps((0, rate)), {"h100": 4.0}, hung_since={}).run(600)


def names_of(seen: FluidCluster) -> set[str]:
    return {pod.name for pod in seen.pods if pod.leaving_at is None}


def test_a_hung_replica_goes_and_what_the_load_needs_comes_without_anything_else_going() -> None:
    fleet = cluster()
    before, size = names_of(fleet), fleet.replicas()
    assert size >= 4
    fleet.stall(1)
    (hung,) = fleet.hung_since
    fleet.run(KNOWN_SECONDS)
    assert before - names_of(fleet) == {hung}
    verdicts = [decision.verdict for at, decision in fleet.decisions if at >= 600]
    assert ("ScaleDown", "EngineHung") in [(verdict.action.value, str(verdict.reason)) for verdict in verdicts]
    fleet.run(200)
    assert before - names_of(fleet) == {hung}
    assert fleet.replicas() >= math.ceil(14.0 / 4.0)
    assert fleet.kept(760, 900) >= 0.99
    assert condition(fleet.last(), "Ready") == (True, "Serving")


def test_without_the_signal_requests_are_lost_for_ever() -> None:
    fleet = cluster()
    fleet.hidden = frozenset(names_of(fleet))
    fleet.stall(1).run(300)
    assert fleet.kept(760, 900) < 0.9


def test_the_only_replica_is_kept_until_another_serves() -> None:
    fleet = cluster(2.0)
    (only,) = names_of(fleet)
    fleet.stall(0).run(KNOWN_SECONDS)
    assert only in names_of(fleet)
    assert fleet.replicas() == 2
    assert condition(fleet.last(), "Ready") == (False, "EngineHung")
    assert next(d for at, d in fleet.decisions if at > 600 and d.verdict.replicas == 2).verdict.reason == "EngineHung"
    fleet.run(60)
    assert only not in names_of(fleet)
    assert condition(fleet.last(), "Ready") == (True, "Serving")


def test_the_minimum_holds_while_a_hung_replica_is_replaced() -> None:
    fleet = cluster(2.0, CHAT.with_replicas_between(3, 5))
    fleet.stall(0)
    (hung,) = fleet.hung_since
    for _ in range(60):
        fleet.run(5)
        assert fleet.replicas() >= 3
    assert hung not in names_of(fleet)
    assert fleet.replicas() == 3


def test_at_the_maximum_a_hung_replica_makes_room_for_its_successor() -> None:
    fleet = cluster(14.0, CHAT.with_replicas_between(1, 4))
    assert fleet.replicas() == 4
    fleet.stall(2).run(200)
    assert not names_of(fleet) & fleet.hung_since.keys()
    assert fleet.replicas() == 4


def test_where_the_minimum_is_the_maximum_a_hung_replica_makes_room_all_the_same_and_the_only_one_stays() -> None:
    fleet = cluster(9.0, CHAT.with_replicas_between(4, 4))
    fleet.stall(2).run(200)
    assert not names_of(fleet) & fleet.hung_since.keys()
    assert fleet.replicas() == 4
    alone = cluster(2.0, CHAT.with_replicas_between(1, 1)).stall(0).run(200)
    assert names_of(alone) == alone.hung_since.keys()


def test_where_all_hang_at_once_everything_stays_and_says_so() -> None:
    fleet = cluster()
    size = fleet.replicas()
    fleet.stall(*range(len(names_of(fleet)))).run(KNOWN_SECONDS + 300.0)
    assert fleet.replicas() >= size
    assert names_of(fleet) >= fleet.hung_since.keys()
    assert condition(fleet.last(), "Ready") == (None, "EngineHung")


@pytest.mark.parametrize("of", [CHAT.pinned_to(4), CHAT.recommending().with_replicas_between(4, 8)])
def test_people_who_hold_the_size_are_told_the_name(of: ServiceBuilder) -> None:
    fleet = cluster(9.0, of).stall(1).run(KNOWN_SECONDS)
    (hung,) = fleet.hung_since
    assert fleet.replicas() == 4
    assert hung in names_of(fleet)
    message = next(c.message for c in fleet.last().conditions if c.type == "Ready")
    assert f"kubectl delete pod -n prod {hung}" in message


def test_nothing_is_removed_on_doubtful_metrics() -> None:
    fleet = cluster().stall(1)
    fleet.sight = lambda second: SignalState.PARTIAL
    fleet.run(KNOWN_SECONDS + 100.0)
    assert names_of(fleet) >= fleet.hung_since.keys()


def test_a_hang_teaches_nothing_about_what_a_replica_carries() -> None:
    fleet = cluster()
    fleet.sight = lambda second: SignalState.PARTIAL if second > 660.0 else SignalState.FRESH  # it must stay
    fleet.stall(1).run(300)
    supply = fleet.memory.services[CHAT.spec.key].supply
    assert supply.sick.believed
    assert supply.evidence.verdicts == Verdicts()


def test_a_flapping_engine_does_not_flap_the_size() -> None:
    fleet = cluster()
    rest = fleet.changes(600)
    draw = random.Random(1)
    for _ in range(60):
        fleet.hung_since = {name: fleet.clock - STILL_SECONDS for name in names_of(fleet) if draw.random() < 0.3}
        fleet.run(5)
        fleet.hung_since = {}
        fleet.run(5)
    assert [change for change in fleet.changes(600) if change[1] == "ScaleDown"] == [
        change for change in rest if change[1] == "ScaleDown"
    ]


@pytest.mark.parametrize(("lost_on", "after"), [("h100-spot", (2, 2)), ("h100", (4, 1))])
def test_beside_spot_those_without_a_node_go_only_where_a_hung_one_does(lost_on: str, after: tuple[int, int]) -> None:
    def part(name: str, ready: int, short: int) -> Group:
        pods, waiting = replicas(ready + 1, on=name), replicas(short, ReplicaPhase.UNSCHEDULABLE, on=name)
        hung, serving = (pods[:1], pods[1:]) if name == lost_on else ((), pods)
        return Group(name, size=ready + 1 + short, exists=True, ready=serving, ailing=hung, short=waiting)

    pair = Pair("h100", 2, cost_per_hour=3.0)
    groups = part("h100-spot", 2, 1), part("h100", 1, 0)
    whole, left = together(groups, "h100-spot", pair)
    option = accelerator("h100-spot", spot=True)
    calm = view(of=CHAT, option=option)
    chosen = replace(calm.selection.chosen, pair=pair)
    seen = changed(calm, group=whole, others=left, groups=groups, chosen=chosen)
    assert tuple(target.replicas for target in decide_sizes(seen).targets) == after
