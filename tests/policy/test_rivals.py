"""A size that somebody else sets back is left to them for a while; whoever does it is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cluster import Placement, Workload
from holdfast.domain.decision import Decision, PlacementTarget
from holdfast.domain.snapshot import ServiceSnapshot
from holdfast.policy.decide import decide
from holdfast.policy.estimate.set_backs import FIRST_SECONDS, LONGEST_SECONDS, NONE, SetBacks, watch
from holdfast.policy.memory import Memory
from tests.builders import (
    NOW,
    ServiceBuilder,
    ServiceView,
    a_snapshot,
    accelerator,
    condition,
    node,
    replicas,
    service,
    sizes,
    traffic,
)
from tests.policy.fluid import FixedRates

CHAT = service().with_replicas_between(1, 10)
TICK = 5.0
Seen = Callable[[ServiceSnapshot], ServiceSnapshot]


class Fight:
    """A service that needs more than its two replicas, and somebody who sets its Deployment back within a tick."""

    def __init__(self, manager: str = "argocd-controller", memory: Memory | None = None, at: float = NOW) -> None:
        self.manager, self.memory, self.now = manager, memory or Memory(), at
        self.tries: list[float] = []
        self.size = 2
        self.decision: Decision

    def tick(self, of: ServiceBuilder = CHAT, sets_back: bool = True, seen: Seen = lambda each: each) -> Decision:
        """Decide once; what is decided is written, and stays unless it is set back."""
        placed = (Placement("h100", self.size, workload=Workload("my-vllm"), sized_by=self.manager),)
        load = traffic(30.0, good=0.2, waiting=60.0, running=64.0)
        view = ServiceView(of, load, replicas(self.size, now=self.now), placed, born_at=NOW - 9000.0)
        picture = a_snapshot(view, now=self.now, nodes=(node("n", 20, used=self.size),))
        picture = dataclasses.replace(picture, services=(seen(picture.services[0]),))
        (self.decision,), self.memory = decide(picture, self.memory, model=FixedRates({"h100": 8.9}))
        wanted = sizes(self.decision)["h100"]
        if wanted != self.size:
            self.tries.append(self.now)
        self.size = self.size if sets_back else wanted
        self.now += TICK
        return self.decision

    def until(self, at: float) -> None:
        """Go on to this time."""
        while self.now < at:
            self.tick()

    @property
    def message(self) -> str:
        return next(each.message for each in self.decision.conditions if each.type == "ScalingActive")


@pytest.mark.parametrize("of", [CHAT, CHAT.adopting()])
def test_a_size_that_is_set_back_three_times_is_only_recommended_and_who_did_it_is_named(of: ServiceBuilder) -> None:
    fight = Fight()
    for _ in range(120):
        fight.tick(of)
    assert len(fight.tries) == 3
    assert condition(fight.decision, "ScalingActive") == (False, "OtherAutoscaler")
    assert "argocd-controller sets the size of Deployment my-vllm back each time" in fight.message
    assert fight.decision.recommendation is not None
    assert fight.decision.recommendation.replicas > 2
    assert fight.decision.verdict.reason == "OtherAutoscaler"


def test_two_set_backs_are_no_fight_and_who_did_it_is_named_already() -> None:
    fight = Fight()
    for _ in range(3):
        fight.tick(CHAT.adopting())
    assert condition(fight.decision, "ScalingActive") == (True, "FollowingSLO")
    assert "argocd-controller set the size of Deployment my-vllm back" in fight.message


def test_a_manager_that_nobody_knows_is_somebody_else() -> None:
    fight = Fight(manager="")
    for _ in range(12):
        fight.tick(CHAT.adopting())
    assert fight.message.startswith("somebody else sets the size")


def test_a_size_of_our_own_deployment_that_nobody_else_set_is_not_written_yet() -> None:
    fight = Fight(manager="")
    for _ in range(12):
        fight.tick()
    assert condition(fight.decision, "ScalingActive") == (True, "FollowingSLO")


def test_one_size_is_tried_after_an_hour_and_then_ever_more_rarely_but_once_a_day() -> None:
    fight = Fight()
    fight.until(NOW + 60.0)
    for hours in (1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 24.0):
        known, before = fight.memory.services[CHAT.spec.key].supply.set_backs, len(fight.tries)
        assert known.pause_seconds == 3600.0 * hours
        end = known.paused_at + known.pause_seconds
        fight.now = end - 20.0
        fight.until(end)
        assert len(fight.tries) == before
        fight.until(end + 60.0)
        assert len(fight.tries) == before + 1


def test_a_size_that_stays_at_the_next_try_ends_the_fight() -> None:
    fight = Fight()
    fight.until(NOW + 60.0)
    fight.now = NOW + 3700.0
    for _ in range(40):
        fight.tick(sets_back=False)
    assert fight.size > 2
    assert condition(fight.decision, "ScalingActive")[1] != "OtherAutoscaler"
    assert fight.memory.services[CHAT.spec.key].supply.set_backs == NONE


def test_a_pinned_size_is_written_however_often_it_is_set_back_and_that_is_told() -> None:
    fight = Fight()
    fight.until(NOW + 60.0)
    before = len(fight.tries)
    for _ in range(30):
        fight.tick(CHAT.pinned_to(5).at_generation(2))
    assert len(fight.tries) == before + 30
    assert condition(fight.decision, "ScalingActive") == (False, "Pinned")
    assert "argocd-controller set the size of Deployment my-vllm back" in fight.message


def test_an_edit_has_the_size_tried_once_at_once() -> None:
    fight = Fight()
    fight.until(NOW + 60.0)
    for _ in range(30):
        fight.tick(CHAT.at_generation(2))
    assert len(fight.tries) == 4
    assert condition(fight.decision, "ScalingActive") == (False, "OtherAutoscaler")


def test_in_mode_recommend_sizes_of_others_are_no_set_backs() -> None:
    fight = Fight()
    for number in range(30):
        fight.size = 2 + number % 2
        fight.tick(CHAT.recommending())
    assert condition(fight.decision, "ScalingActive") == (False, "Recommend")
    assert fight.memory.services[CHAT.spec.key].supply.set_backs == NONE


def test_a_size_that_was_not_written_was_not_set_back() -> None:
    """Refused, held back or not observed yet: the layer that writes says that nobody changed it."""
    fight = Fight()
    for _ in range(30):
        fight.tick(seen=lambda each: dataclasses.replace(each, set_back=()))
    assert len(fight.tries) == 30
    assert condition(fight.decision, "ScalingActive") == (True, "FollowingSLO")


def test_what_the_layer_that_writes_saw_counts() -> None:
    fight = Fight()
    for _ in range(30):
        fight.tick(seen=lambda each: dataclasses.replace(each, set_back=("h100",) if fight.tries else ()))
    assert len(fight.tries) == 3


def test_after_a_restart_one_set_back_is_enough() -> None:
    fight = Fight()
    for _ in range(30):
        fight.tick(
            seen=lambda each: dataclasses.replace(each, recalled=dataclasses.replace(each.recalled, set_back=True))
        )
    assert len(fight.tries) == 1
    assert condition(fight.decision, "ScalingActive") == (False, "OtherAutoscaler")


def test_of_several_deployments_the_one_that_is_fought_over_is_named() -> None:
    of = CHAT.with_accelerators(accelerator("h100"), accelerator("l40s"))
    placed = (
        Placement("h100", 2, workload=Workload("chat-h100")),
        Placement("l40s", 1, workload=Workload("chat-l40s"), sized_by="hpa"),
    )
    known = ServiceView(of, sizes=placed).snapshot()
    memory = NONE
    for number in range(3):
        memory = watch(memory, dataclasses.replace(known, set_back=("l40s",)), (), False, NOW + 10.0 * number)
    assert memory.paused(NOW + 20.0)
    assert "hpa sets the size of Deployment chat-l40s back" in memory.told


@pytest.mark.parametrize(
    ("times", "paused"), [((0.0, 60.0, 120.0), True), ((0.0, 60.0, 121.0), False), ((0.0, 1.0), False)]
)
def test_three_set_backs_within_two_minutes_are_a_fight(times: tuple[float, ...], paused: bool) -> None:
    memory = after(times)
    assert memory.paused(NOW + times[-1]) is paused


@given(st.lists(st.floats(0.0, 30 * 86_400.0), max_size=40).map(sorted))
def test_a_pause_lasts_an_hour_to_a_day(times: list[float]) -> None:
    memory = after(times)
    assert memory.pause_seconds == 0.0 or FIRST_SECONDS <= memory.pause_seconds <= LONGEST_SECONDS


def test_a_clock_that_goes_back_ends_a_pause() -> None:
    memory = after((0.0, 1.0, 2.0))
    assert not memory.paused(NOW - 1.0)
    assert seen(memory, (), NOW - 300.0) == NONE


def after(times: tuple[float, ...] | list[float]) -> SetBacks:
    memory = NONE
    for at in times:
        memory = seen(memory, ("h100",), NOW + at)
    return memory


def seen(memory: SetBacks, set_back: tuple[str, ...], now: float) -> SetBacks:
    placed = (Placement("h100", 2, workload=Workload("my-vllm")),)
    told = dataclasses.replace(ServiceView(CHAT, sizes=placed).snapshot(), set_back=set_back)
    return watch(memory, told, (PlacementTarget("h100", 2),), False, now)
