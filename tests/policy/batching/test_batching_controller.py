"""When other batching limits are tried, kept, sent back and left alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.reasons import Reason
from holdfast.domain.decision import BatchingTarget
from holdfast.domain.service import BatchingLimits
from holdfast.policy.batching.controller import (
    HORIZON_SECONDS,
    LONGEST_START_SECONDS,
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    TRIAL_SECONDS,
    Batching,
    Situation,
    Wanted,
    step,
)
from holdfast.policy.estimate.slo_budget import Verdicts
from tests.builders import NOW

DEFAULT, BEST, OTHER = BatchingLimits(), BatchingLimits(None, 1024), BatchingLimits(None, 512)
CALM = Situation(
    now=NOW,
    accelerator="l40s",
    limits=DEFAULT,
    before=None,
    size=6,
    settled=True,
    surge=True,
    free=True,
    calm=True,
    demand_rps=11.0,
    rate_rps=2.0,
    cold_start_seconds=120.0,
    wanted=Wanted(BEST, 4.0),
)
GOOD, WORSE = Verdicts(74.5, 0.5), Verdicts(55.0, 20.0)
REST = Verdicts(367.5, 7.5)


class Service:
    """A Deployment that takes up what it is told one tick later."""

    def __init__(self, **changes: Any) -> None:
        self.memory = Batching()
        self.seen = replace(CALM, **changes)
        self.told: list[Reason] = []
        self.last = BatchingTarget("l40s", DEFAULT)

    def tick(self, seconds: float = 15.0, obeys: bool = True, **changes: Any) -> BatchingTarget:
        self.seen = replace(self.seen, now=self.seen.now + seconds, **changes)
        self.memory, self.last = step(self.memory, self.seen)
        if self.last.reason is not None:
            self.told.append(self.last.reason)
        if obeys:
            self.seen = replace(self.seen, limits=self.last.limits, before=self.last.before)
        return self.last

    def wait(self, seconds: float, **changes: Any) -> BatchingTarget:
        for _ in range(round(seconds / 15.0)):
            self.tick(**changes)
        return self.last

    def on_trial(self) -> Service:
        self.wait(PATIENCE_SECONDS + 30.0)
        assert self.last == BatchingTarget("l40s", BEST, DEFAULT)
        return self

    def serving(self) -> Service:
        self.tick(canary_serves=True)
        return self


def test_better_limits_are_tried_on_one_replica_once_they_have_been_better_for_long_enough() -> None:
    chat = Service()
    assert chat.wait(PATIENCE_SECONDS - 30.0) == BatchingTarget("l40s", DEFAULT)
    chat.on_trial()
    assert chat.told == [Reason.BATCHING_TRIAL]


def test_the_message_says_what_is_expected_of_what() -> None:
    chat = Service()
    while chat.last.reason is None:
        chat.tick()
    assert chat.last.message == (
        "canary: one l40s replica runs with 1024 tokens per step; "
        "expected 4.0 req/s per replica, 2.0 req/s with vLLM's own limits"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"wanted": None},
        {"wanted": Wanted(DEFAULT, 9.0)},
        {"wanted": Wanted(BEST, 2.08)},
        {"wanted": Wanted(BEST, math.nan)},
        {"free": False},
        {"settled": False},
        {"calm": False},
        {"demand_rps": None},
        {"demand_rps": 1.0},
        {"demand_rps": 0.0},
        {"rate_rps": 0.0},
        {"rate_rps": math.nan},
        {"surge": False, "size": 1},
        {"surge": False, "demand_rps": 11.9},
        {"cold_start_seconds": 3600.0},
    ],
    ids=str,
)
def test_what_speaks_against_a_trial(changes: dict[str, Any]) -> None:
    assert Service().wait(3.0 * PATIENCE_SECONDS, **changes) == BatchingTarget("l40s", DEFAULT)


def test_without_a_surge_the_others_must_carry_the_load() -> None:
    chat = Service(surge=False, demand_rps=9.5)
    assert chat.wait(PATIENCE_SECONDS + 30.0) == BatchingTarget("l40s", BEST, DEFAULT)


def test_limits_that_change_with_the_noise_of_the_lengths_are_never_tried() -> None:
    chat = Service()
    for turn in range(400):
        assert chat.tick(wanted=Wanted((BEST, OTHER)[turn // 20 % 2], 4.0)) == BatchingTarget("l40s", DEFAULT)


def test_a_replica_that_does_well_is_followed_by_the_rest_and_then_left_alone() -> None:
    chat = Service().on_trial().serving()
    chat.wait(TRIAL_SECONDS - 15.0, canary=GOOD, rest=REST)
    assert chat.told == [Reason.BATCHING_TRIAL]
    chat.wait(30.0)
    assert chat.told == [Reason.BATCHING_TRIAL, Reason.BATCHING_KEPT]
    assert (chat.seen.limits, chat.seen.before) == (BEST, None)
    chat.wait(HORIZON_SECONDS - 60.0, wanted=Wanted(OTHER, 9.0), rate_rps=4.0, demand_rps=22.0)
    assert chat.last == BatchingTarget("l40s", BEST)


def test_a_replica_that_does_worse_goes_back_and_is_tried_ever_more_rarely() -> None:
    chat = Service()
    waits = []
    for _ in range(3):
        began = chat.seen.now
        while chat.last.before is None:
            chat.tick(60.0, canary_serves=False)
        waits.append(chat.seen.now - began)
        chat.serving().wait(600.0, canary=WORSE, rest=REST)
        assert chat.told[-1] is Reason.BATCHING_RETURNED
        assert chat.seen.limits == DEFAULT
    assert waits[0] < HORIZON_SECONDS
    assert RETRY_SECONDS - 1200.0 <= waits[1] < waits[2] / 1.8


@pytest.mark.parametrize("changes", [{"canary_fails": True}, {"free": False}], ids=str)
def test_a_trial_ends_at_once_where_it_cannot_go_on(changes: dict[str, Any]) -> None:
    chat = Service().on_trial()
    assert chat.tick(**changes).reason is Reason.BATCHING_RETURNED
    assert chat.seen.limits == DEFAULT


def test_a_replica_that_never_serves_goes_back() -> None:
    chat = Service().on_trial()
    assert chat.wait(LONGEST_START_SECONDS + 30.0).limits == DEFAULT
    assert chat.told[-1] is Reason.BATCHING_RETURNED


def test_a_replica_that_served_too_little_goes_back_in_the_end() -> None:
    chat = Service().on_trial().serving()
    chat.wait(TRIAL_SECONDS + 30.0, canary=Verdicts(1.0), rest=REST)
    assert chat.told[-1] is Reason.BATCHING_RETURNED
    assert chat.seen.limits == DEFAULT


def test_what_the_deployment_has_not_taken_up_is_asked_for_again() -> None:
    chat = Service().on_trial().serving()
    chat.tick(canary_fails=True, obeys=False)
    assert (chat.seen.limits, chat.seen.before) == (BEST, DEFAULT)
    assert chat.tick(canary_fails=False) == BatchingTarget("l40s", DEFAULT)
    assert chat.told[-1] is Reason.BATCHING_RETURNED


def test_limits_that_are_kept_are_asked_for_until_the_deployment_shows_them() -> None:
    chat = Service().on_trial().serving()
    chat.wait(TRIAL_SECONDS - 15.0, canary=GOOD, rest=REST)
    chat.tick(canary=GOOD, rest=REST, obeys=False)
    assert chat.told[-1] is Reason.BATCHING_KEPT
    assert (chat.seen.limits, chat.seen.before) == (BEST, DEFAULT)
    assert chat.tick() == BatchingTarget("l40s", BEST)
    assert chat.told.count(Reason.BATCHING_KEPT) == 1


def test_a_trial_that_somebody_ends_does_not_begin_again_at_once() -> None:
    chat = Service().on_trial().serving()
    chat.tick()
    chat.seen = replace(chat.seen, limits=DEFAULT, before=None)
    assert chat.wait(PATIENCE_SECONDS - 30.0) == BatchingTarget("l40s", DEFAULT)
    assert chat.wait(60.0) == BatchingTarget("l40s", BEST, DEFAULT)


def test_a_trial_outlives_the_operators_memory() -> None:
    chat = Service().on_trial().serving()
    chat.memory = Batching()
    assert chat.tick() == BatchingTarget("l40s", BEST, DEFAULT)
    chat.wait(TRIAL_SECONDS + 30.0, canary=GOOD, rest=REST)
    assert chat.told[-1] is Reason.BATCHING_KEPT


situations = st.builds(
    replace,
    st.just(CALM),
    now=st.floats(NOW, NOW + 1e5),
    limits=st.sampled_from((DEFAULT, BEST, OTHER)),
    before=st.sampled_from((None, DEFAULT, BEST)),
    size=st.integers(0, 9),
    settled=st.booleans(),
    surge=st.booleans(),
    free=st.booleans(),
    calm=st.booleans(),
    demand_rps=st.none() | st.floats(allow_nan=True),
    rate_rps=st.floats(allow_nan=True),
    cold_start_seconds=st.floats(allow_nan=True),
    wanted=st.none() | st.builds(Wanted, st.sampled_from((DEFAULT, BEST, OTHER)), st.floats(allow_nan=True)),
    canary=st.builds(Verdicts, st.floats(allow_nan=True), st.floats(allow_nan=True)),
    canary_serves=st.booleans(),
    canary_fails=st.booleans(),
)


@given(st.lists(situations, max_size=20))
def test_whatever_is_seen_limits_are_known_ones_and_one_change_is_made_at_a_time(seen: list[Situation]) -> None:
    memory = Batching()
    for situation in sorted(seen, key=lambda each: each.now):
        before = memory
        memory, taken = step(memory, situation)
        assert taken.limits in (DEFAULT, BEST, OTHER)
        assert step(before, situation) == (memory, taken)
        if situation.before is None and taken.before is not None:
            assert situation.free
        if not situation.free and situation.before is None:
            assert taken == BatchingTarget("l40s", situation.limits)
