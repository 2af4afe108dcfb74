"""What is lost while capacity is short, and how long until it is not: runs whose every request is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.autoscaling.bars import SHORT_SHARE, _recovered, _short
from benchmarks.autoscaling.journal import Journal, Key, Row
from benchmarks.autoscaling.played import played, serving
from benchmarks.autoscaling.scarcity import (
    WINDOW_SECONDS,
    Played,
    Recovery,
    Scarcity,
    Span,
    Steps,
    middle,
    recoveries,
    scarcity,
    short,
)
from holdfast.cli.simulate import declare
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.pods.cluster import SimulatedPod
from holdfast.twin.policies import make_policy
from holdfast.twin.runs.run import simulate
from holdfast.twin.scenarios.scenario import Fault, Scenario
from tests.twin.twin_builders import scenario_file, small_scenario

ENDS = 600.0
JUMP, MORE = 200.0, 320.0
"""10 req/s, of which a replica carries 10, until the jump to 20; the second replica serves from `MORE` on."""

REACTION = 120.0
PATIENCE = 5.0


def steps(*changes: tuple[float, float]) -> Steps:
    since, worth = zip(*changes, strict=True)
    return Steps(np.array(since), np.array(worth, float))


def arrivals(*rates: tuple[float, float, float]) -> Floats:
    """Evenly at each rate from one second to another."""
    return np.concatenate([np.arange(begins, ends, 1.0 / rate) for begins, ends, rate in rates])


AT = arrivals((0.0, JUMP, 9.5), (JUMP, ENDS, 19.0))


def made(bad: Sequence[tuple[float, float]] = (), at: Floats = AT, ends: float = ENDS) -> Played:
    """The jump, where every request is good but those that arrive in some spans; none of these waits for long."""
    good = np.ones(len(at), bool)
    for begins, until in bad:
        good &= (at < begins) | (at >= until)
    return Played(
        at=at,
        work=np.full(len(at), 0.1),
        good=good,
        answered_at=at,
        queued=np.ones(len(at), bool),
        serving=steps((0.0, 1.0), (MORE, 2.0)),
        most_replicas=4,
        objective=0.99,
        patience_seconds=PATIENCE,
        reaction_seconds=REACTION,
        warmup_seconds=30.0,
        ends=ends,
    )


def share(run: Played) -> float:
    found = scarcity(run).goodput_share
    assert found is not None
    return found


def recovery(run: Played) -> Recovery:
    found = scarcity(run).recovery
    assert found is not None
    return found


def met(found: Scarcity) -> dict[str, bool | None]:
    return {verdict.name.partition(": ")[2]: verdict.met for verdict in _short("step", found)}


GOODPUT, RECOVERY = "goodput while capacity is short", "recovery"


def test_a_run_that_is_never_short_is_not_judged() -> None:
    ample = replace(made([(0.0, ENDS)]), serving=steps((0.0, 2.0)))
    found = scarcity(ample)
    assert found == Scarcity(0.0, None, None)
    assert met(found) == {GOODPUT: None, RECOVERY: None}


def test_capacity_is_short_from_the_jump_until_more_replicas_serve() -> None:
    spans, carried = short(made().at, made().work, made().serving, PATIENCE)
    (span,) = spans
    assert span.begins == pytest.approx(JUMP, abs=1.0)
    assert span.ends == pytest.approx(MORE, abs=1.0)
    lost = made().work.sum() - carried.sum()
    assert lost == pytest.approx(0.9 * (MORE - JUMP) - PATIENCE, abs=0.5)


def test_who_drops_everything_while_short_misses_the_bar() -> None:
    found = scarcity(made([(JUMP - 1.0, MORE)]))
    assert found.goodput_share == pytest.approx(0.0, abs=0.01)
    assert met(found) == {GOODPUT: False, RECOVERY: True}


def test_who_serves_all_while_short_carries_more_than_is_asked() -> None:
    found = scarcity(made())
    assert found.goodput_share is not None
    assert found.goodput_share > 1.5
    assert met(found) == {GOODPUT: True, RECOVERY: True}


@pytest.mark.parametrize("keeps", [0.85, 0.95])
def test_goodput_is_held_to_what_the_replicas_in_place_carry(keeps: float) -> None:
    run = made([(JUMP, MORE)])
    good = run.good.copy()
    inside = np.flatnonzero(~good)
    could = (MORE - JUMP + PATIENCE) / 0.1
    good[inside[: round(keeps * could)]] = True
    assert share(replace(run, good=good)) == pytest.approx(keeps, abs=0.02)
    assert met(scarcity(replace(run, good=good)))[GOODPUT] is (keeps >= SHORT_SHARE)


def test_what_comes_in_the_warm_up_does_not_count() -> None:
    early = made([(JUMP - 1.0, 250.0)])
    assert share(replace(early, warmup_seconds=250.0)) > 1.5
    late = replace(early, warmup_seconds=MORE + 30.0)
    assert scarcity(late) == Scarcity(0.0, None, None)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(1e-3, 20.0)), min_size=1, max_size=15),
    st.lists(st.tuples(st.floats(1.0, 100.0), st.integers(0, 4)), max_size=3),
    st.floats(0.1, 30.0),
)
def test_what_is_carried_is_bounded_by_what_came_and_by_who_served(
    requests: list[tuple[float, float]], changes: list[tuple[float, int]], patience: float
) -> None:
    gaps, work = (np.array(column) for column in zip(*requests, strict=True))
    at = np.cumsum(gaps)
    serves = Steps(
        np.cumsum([0.0, *(after for after, _ in changes)]), np.array([1.0, *(count for _, count in changes)])
    )
    spans, carried = short(at, work, serves, patience)
    assert ((carried >= 0.0) & (carried <= work)).all()
    assert carried.sum() <= serves.sums(at)[-1] + patience * serves.worth.max() + 1e-6
    inside = np.zeros(len(at), bool)
    for span in spans:
        inside |= (at >= span.begins) & (at <= span.ends)
    assert (carried[~inside] == work[~inside]).all()
    assert all(before.ends < after.begins for before, after in itertools.pairwise(spans))
    assert bool(spans) is bool((carried < work).any())


def test_where_nobody_serves_nothing_can_be_carried() -> None:
    idle = replace(made([(0.0, ENDS)]), serving=steps((0.0, 0.0)))
    assert scarcity(idle).goodput_share is None
    assert scarcity(idle).short_seconds == pytest.approx(ENDS, abs=1.0)
    assert recovery(idle).seconds == math.inf
    assert met(scarcity(idle)) == {GOODPUT: None, RECOVERY: False}


@pytest.mark.parametrize(("back", "in_time"), [(MORE - 1.0, True), (MORE + 30.0, False)])
def test_recovery_is_until_goodput_is_back(back: float, in_time: bool) -> None:
    found = scarcity(made([(JUMP, back)]))
    assert found.recovery is not None
    assert found.recovery.seconds == pytest.approx(back - JUMP, abs=1.5)
    assert found.recovery.allowed_seconds == pytest.approx(REACTION)
    assert met(found)[RECOVERY] is in_time


def test_who_never_recovers_is_late_for_ever() -> None:
    found = recovery(made([(JUMP, ENDS)]))
    assert found.seconds == math.inf
    assert _recovered("", found).met is False
    assert "not before the run ends" in _recovered("", found).told


def test_a_run_that_ends_before_recovery_is_due_tells_nothing() -> None:
    found = recovery(made([(JUMP, ENDS)], at=AT[AT < MORE], ends=MORE))
    assert found.seconds is None
    assert _recovered("", found).met is None


def test_goodput_that_is_back_for_less_than_a_window_is_not_back() -> None:
    found = recovery(made([(JUMP, 250.0), (290.0, MORE + 30.0)]))
    assert found.seconds == pytest.approx(MORE + 30.0 - JUMP, abs=1.5)


def test_shortages_less_than_a_window_apart_are_one() -> None:
    burst = arrivals((0.0, 100.0, 5.0), (100.0, 120.0, 40.0), (120.0, 170.0, 1.0), (170.0, 190.0, 40.0))
    far = np.append(burst, arrivals((190.0, 400.0, 1.0), (400.0, 420.0, 40.0), (420.0, ENDS, 1.0)))
    run = replace(made(at=far), serving=steps((0.0, 1.0)))
    assert len(short(run.at, run.work, run.serving, PATIENCE)[0]) == 3
    spans, _ = short(run.at, run.work, run.serving, PATIENCE)
    assert [round(each.began_at_seconds, -1) for each in recoveries(run, spans)] == [100.0, 400.0]


def test_one_bad_request_of_few_tells_nothing_but_two_do() -> None:
    at = np.append(AT[AT < MORE], np.arange(MORE, ENDS, 3.0))
    assert round(WINDOW_SECONDS / 3.0) == 20
    one = made([(JUMP, MORE), (MORE + 18.0, MORE + 19.0)], at=at)
    assert recovery(one).seconds == pytest.approx(MORE - JUMP, abs=1.5)
    two = made([(JUMP, MORE), (MORE + 18.0, MORE + 22.0)], at=at)
    assert recovery(two).seconds == pytest.approx(MORE + 21.0 - JUMP, abs=3.0)


def test_the_clock_stands_still_while_there_are_no_metrics() -> None:
    blind = replace(made([(JUMP, MORE + 90.0)]), blind=[Span(JUMP - 10.0, JUMP + 100.0)])
    assert recovery(blind).seconds == pytest.approx(MORE + 90.0 - JUMP - 100.0, abs=1.5)
    assert met(scarcity(blind))[RECOVERY] is True


def test_the_clock_stands_still_while_the_largest_fleet_would_not_carry_it_either() -> None:
    at = arrivals((0.0, JUMP, 9.5), (JUMP, MORE, 19.0), (MORE, ENDS, 5.0))
    run = replace(made([(JUMP, MORE + 30.0)], at=at), serving=steps((0.0, 1.0)), most_replicas=1)
    assert recovery(run).seconds == pytest.approx(30.0, abs=1.5)


def test_what_waits_may_drain_first() -> None:
    run = replace(made([(JUMP, MORE + 20.0)]), serving=steps((0.0, 1.0), (MORE, 2.9)))
    waiting = (run.at > MORE - 20.0) & (run.at < MORE)
    late = np.where(waiting, MORE + 20.0, run.answered_at)
    found = recovery(replace(run, answered_at=late))
    assert found.allowed_seconds == pytest.approx(REACTION + 38.0 / (2.9 - 1.9), abs=3.0)
    assert found.late_seconds < 0.0
    refused = replace(run, answered_at=np.where(waiting, math.inf, late), queued=~waiting)
    assert recovery(refused).allowed_seconds == pytest.approx(REACTION)


def test_what_does_not_drain_is_no_excuse() -> None:
    run = replace(made([(JUMP, ENDS)]), serving=steps((0.0, 1.0)))
    run = replace(run, answered_at=np.full(len(run.at), math.inf))
    assert recovery(run).allowed_seconds == REACTION


def test_a_fault_that_takes_capacity_away_is_to_be_recovered_from_though_the_others_could_carry_it() -> None:
    run = replace(made([(JUMP, 400.0)]), serving=steps((0.0, 4.0), (JUMP, 3.0)), losses=[JUMP])
    found = scarcity(run)
    assert found.goodput_share is None
    assert found.recovery is not None
    assert found.recovery.seconds == pytest.approx(200.0, abs=1.5)
    assert met(found) == {GOODPUT: None, RECOVERY: False}
    harmless = replace(run, good=np.ones(len(run.at), bool))
    assert recovery(harmless).seconds == 0.0


def judged(late_seconds: float | None, goodput_share: float | None = 1.0) -> Scarcity:
    seconds = None if late_seconds is None else 100.0 + late_seconds
    return Scarcity(60.0, goodput_share, Recovery(10.0, seconds, 100.0))


def test_of_several_seeds_the_median_counts() -> None:
    seeds = [judged(-50.0, 0.8), judged(math.inf, 1.2), judged(5.0, 0.95), judged(-20.0, None), judged(None, 1.3)]
    found = middle(seeds)
    assert found is not None
    assert found.goodput_share == pytest.approx((0.95 + 1.2) / 2.0)
    assert found.recovery == Recovery(10.0, 80.0, 100.0)
    assert middle([]) is None
    assert middle([Scarcity(0.0, None, None)]) == Scarcity(0.0, None, None)


def test_bars_are_told_with_what_they_ask() -> None:
    goodput, back = _short("step", Scarcity(120.4, 0.899, Recovery(600.2, 139.0, 138.4)))
    assert (goodput.name, goodput.met) == ("step: goodput while capacity is short", False)
    assert goodput.told == "90 % of what the replicas in place carry, bar 90 %; short for 120 s"
    assert (back.name, back.met) == ("step: recovery", False)
    assert back.told == "139 s from second 600 on, allowed 138 s"


@pytest.mark.parametrize(
    "found", [None, judged(math.inf), judged(None, None), Scarcity(0.0, None, None), judged(3.0, 0.5)]
)
def test_what_was_judged_is_read_back_as_it_was_written(tmp_path: Path, found: Scarcity | None) -> None:
    key = Key("step", "abc", "holdfast", None, 1, "def")
    row = Row(0.99, 2.0, 1.0, 1.0, 1.0, 0.1, 2, 0.5, "holdfast", scarcity=found)
    Journal(tmp_path).add(key, row)
    assert Journal(tmp_path).get(key) == row


def pod(number: int, ready_at: float, leaving_at: float | None = None, gone_at: float | None = None) -> SimulatedPod:
    return SimulatedPod(f"chat-{number}", number, "l40s", 1, 0.0, 0.0, ready_at, leaving_at, gone_at, engine=number)


def fault(kind: str, at: float, lasts: float | None, replica: int = 0) -> Fault:
    given = {"at": f"{at}s", "kind": kind, "replica": replica, "factor": 4}
    return Fault.model_validate(given if lasts is None else {**given, "for": f"{lasts}s"})


def worth(pods: Sequence[SimulatedPod], *faults: Fault, at: Sequence[float]) -> list[float]:
    return list(serving(pods, faults).at(np.array(at)))


def test_replicas_serve_from_when_they_are_ready_until_they_leave() -> None:
    never = SimulatedPod("chat-4", 4, "l40s", 1, 0.0, 0.0, 100.0, 50.0, 50.0)
    pods = [pod(3, 0.0, 200.0, 230.0), never, pod(1, 0.0), pod(2, 100.0)]
    assert worth(pods, at=[0.0, 99.0, 100.0, 199.0, 200.0, 500.0]) == [2.0, 2.0, 3.0, 3.0, 2.0, 2.0]
    assert worth([], at=[0.0, 10.0]) == [0.0, 0.0]


def test_a_hung_replica_carries_nothing_and_a_slow_one_its_share_of_the_work() -> None:
    pods = [pod(1, 0.0), pod(2, 0.0)]
    assert worth(pods, fault("replica-hang", 50, 50), at=[49.0, 50.0, 99.0, 100.0]) == [2.0, 1.0, 1.0, 2.0]
    assert worth(pods, fault("replica-slow", 50, None, 5), at=[49.0, 50.0, 900.0]) == [2.0, 1.25, 1.25]


def test_a_hung_replica_that_was_replaced_hangs_on_until_it_is_gone_and_its_heir_does_not() -> None:
    pods = [pod(1, 0.0, 80.0, 95.0), pod(2, 0.0), pod(3, 90.0)]
    hang = fault("replica-hang", 50, 60)
    assert worth(pods, hang, at=[50.0, 80.0, 90.0, 95.0, 110.0]) == [1.0, 1.0, 2.0, 2.0, 2.0]


def test_a_run_of_the_twin_is_judged_by_who_served_in_it(tmp_path: Path) -> None:
    content = small_scenario()
    content["services"][0]["workload"]["arrivals"]["poisson"] = [
        {"at": "0s", "rps": 3},
        {"at": "60s", "rps": 160},
        {"at": "75s", "rps": 3},
    ]
    path = scenario_file(tmp_path, content)
    scenario = Scenario.read(path)
    (each,) = [declare(scenario, entry, path, tmp_path, seed=1) for entry in scenario.services]
    policy = make_policy("holdfast", {})
    run = simulate(scenario, [each], policy, seed=1)
    found = played(run, each, policy.tick_seconds)
    assert (np.diff(found.at) >= 0.0).all()
    assert found.serving.at(np.array(run.sizes[0].at)).tolist() == run.sizes[0].ready
    assert found.reaction_seconds == pytest.approx(30.0 + 2 * policy.tick_seconds)
    assert found.patience_seconds == pytest.approx(1.0 + 0.05 * 100.0)
    judged = scarcity(found)
    assert judged.goodput_share is not None
    assert judged.recovery is not None
    assert judged.recovery.began_at_seconds == pytest.approx(60.0, abs=10.0)
