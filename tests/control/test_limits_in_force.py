"""What is told of the fast loop follows what engines show, and does not move with every scrape."""

from __future__ import annotations

import math

import pytest

from holdfast.api.conditions import ConditionType
from holdfast.control.limits.limits_in_force import (
    NOTHING_APPLIED,
    Applied,
    Watched,
    applied,
    can_see,
    stands_until,
    unseen,
    watch,
)
from holdfast.domain.engine import EngineState, PluginMode
from holdfast.domain.signals import SignalState, Traffic

SCRAPE = 15.0
PATIENCE = 30.0 + 2 * SCRAPE


def state(pod: str, version: int | None = 7, mode: PluginMode = PluginMode.ACTIVE, active: float = 96) -> EngineState:
    return EngineState(pod, mode, version, active, 2048.0)


class Watcher:
    """Looks every five seconds, as the loop does."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: Applied = NOTHING_APPLIED
        self._watched: dict[str, Watched] = {}

    def look(self, wanted: dict[str, int], *seen: EngineState, seconds: float = 5.0) -> Applied:
        """Look for so long at the same; the last answer."""
        until = self.now + seconds
        while self.now < until:
            self.now += 5.0
            self._watched = watch(self._watched, wanted, seen, self.now)
            self.told = applied(self._watched, self.told, SCRAPE, self.now)
        return self.told


def said(told: Applied) -> tuple[bool | None, str]:
    assert told.condition is not None
    assert told.condition.type == ConditionType.FAST_LOOP_ACTIVE
    return told.condition.status, str(told.condition.reason)


def test_engines_that_show_their_limits_have_applied_them() -> None:
    told = Watcher().look({"a": 7, "b": 7}, state("a", active=96), state("b", active=80))
    assert said(told) == (True, "LimitsApplied")
    assert (told.live, told.active_sequences, told.tokens_per_step) == (True, 80, 2048.0)


def test_nothing_is_claimed_before_an_engine_was_seen() -> None:
    told = Watcher().look({"a": 7})
    assert said(told) == (None, "LimitsPending")
    assert told.live is None


def test_a_change_on_its_way_shows_in_applied_live_and_not_in_the_condition() -> None:
    watcher = Watcher()
    watcher.look({"a": 7}, state("a", 7))
    told = watcher.look({"a": 8}, state("a", 7), seconds=30.0)
    assert said(told) == (True, "LimitsApplied")
    assert told.live is False
    told = watcher.look({"a": 8}, state("a", 8))
    assert (said(told), told.live) == ((True, "LimitsApplied"), True)


def test_an_engine_that_does_not_apply_its_limits_is_named_until_it_does() -> None:
    watcher = Watcher()
    watcher.look({"a": 7, "b": 7}, state("a"), state("b"))
    told = watcher.look({"a": 8, "b": 8}, state("a", 8), state("b", 7), seconds=PATIENCE + 10.0)
    assert said(told) == (False, "LimitsNotApplied")
    assert told.condition is not None
    assert "not taken effect in b" in told.condition.message
    assert told.live is False
    assert said(watcher.look({"a": 8, "b": 8}, state("a", 8), state("b", 8))) == (True, "LimitsApplied")


def test_one_change_after_the_other_does_not_excuse_an_engine_for_ever() -> None:
    watcher = Watcher()
    watcher.look({"a": 7}, state("a"))
    for version in range(8, 20):
        told = watcher.look({"a": version}, state("a", 7), seconds=10.0)
    assert said(told) == (False, "LimitsNotApplied")


def test_a_scrape_that_misses_an_engine_changes_nothing() -> None:
    watcher = Watcher()
    before = watcher.look({"a": 7, "b": 7}, state("a"), state("b"))
    assert watcher.look({"a": 7, "b": 7}, state("a"), seconds=600.0) == before


def test_a_rollout_of_the_only_replica_does_not_move_the_condition() -> None:
    watcher = Watcher()
    before = watcher.look({"a": 7}, state("a")).condition
    assert watcher.look({}).condition == before
    assert watcher.look({"b": 7}, seconds=30.0).condition == before
    assert watcher.look({"b": 7}, state("b")).condition == before


def test_a_plugin_that_is_off_is_told_with_what_serves_instead() -> None:
    off = state("a", None, PluginMode.OFF)
    told = Watcher().look({"a": 7, "b": 7}, off, state("b"), seconds=PATIENCE + 10.0)
    assert said(told) == (False, "PluginOff")
    assert told.condition is not None
    assert "the plugin is off in a," in told.condition.message
    assert told.active_sequences == 96


def test_an_engine_that_never_shows_the_plugin_is_named() -> None:
    told = Watcher().look({"a": 7, "b": 7}, state("b"), seconds=PATIENCE + 10.0)
    assert said(told) == (False, "LimitsNotApplied")
    assert told.condition is not None
    assert told.condition.message.startswith("no plugin metrics from a:")
    assert told.live is False


def test_an_engine_without_limits_has_not_applied_them() -> None:
    waiting = state("a", None, PluginMode.WAITING)
    assert said(Watcher().look({"a": 7}, waiting, seconds=PATIENCE + 10.0)) == (False, "LimitsNotApplied")


def test_many_names_are_counted() -> None:
    pods = {f"p{number}": 7 for number in range(9)}
    told = Watcher().look(pods, seconds=PATIENCE + 10.0)
    assert told.condition is not None
    assert " p0, p1, p2 and 6 more:" in told.condition.message


@pytest.mark.parametrize(
    ("kind", "sees"), [(kind, kind.value in {"fresh", "partial", "duplicate", "mixed"}) for kind in SignalState]
)
def test_blindness_is_told_from_silence(kind: SignalState, sees: bool) -> None:
    assert can_see(Traffic(kind)) is sees


def test_while_nothing_is_seen_the_condition_stays_and_nothing_is_claimed() -> None:
    before = Watcher().look({"a": 7}, state("a"))
    assert unseen(before).condition == before.condition
    assert unseen(before).live is None
    assert said(unseen(NOTHING_APPLIED)) == (None, "LimitsPending")


def test_time_alone_changes_nothing_before_an_engine_is_overdue() -> None:
    silent, slow = Watched(7, None, 100.0), Watched(7, state("b", 6), 130.0)
    both = {"a": silent, "b": slow}
    for now in (130.0, 100.0 + PATIENCE, 100.5 + PATIENCE, 130.0 + PATIENCE, 130.5 + PATIENCE):
        until = stands_until(both.values(), SCRAPE, now)
        told = applied(both, NOTHING_APPLIED, SCRAPE, now)
        later = min(until, now + 1e6)
        assert applied(both, NOTHING_APPLIED, SCRAPE, later) == told
        if math.isfinite(until):
            assert applied(both, NOTHING_APPLIED, SCRAPE, until + 0.5) != told
    assert stands_until([Watched(7, state("a", 7))], SCRAPE, 0.0) == math.inf
