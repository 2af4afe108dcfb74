"""Clients that leave a queue are in no series of vLLM: the queue itself tells how many there are, at least."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import ExactCounts
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.domain.valid_traffic import Seen, judge
from holdfast.policy.estimate.hidden_requests import GHOST_SECONDS, MOST_HIDDEN, Queue, hidden_requests, watch_queue
from tests.builders import NOW

TTFT, INTERVAL, TICK = 0.5, 45.0, 5.0
STANDS = Queue(NOW, 200.0, 200.0, (200.0, 200.0))


def counts(begun: float = 60.0, waiting: float = 200.0, **more: float) -> AcceleratorTraffic:
    return AcceleratorTraffic(
        finished=begun, ttft_count=begun, ttft_within=begun, running=64.0, waiting=waiting, engines=2, **more
    )


def seen(traffic: AcceleratorTraffic, state: SignalState = SignalState.FRESH) -> Seen:
    return judge(Traffic(state, "", INTERVAL, 1.0, (("h100", traffic),)))


def hidden(traffic: AcceleratorTraffic, queue: Queue = STANDS) -> float:
    return hidden_requests(queue, traffic, TTFT, INTERVAL)


def watched(*waiting: float, undisturbed: bool = True, state: SignalState = SignalState.FRESH) -> Queue:
    queue = Queue()
    for tick, requests in enumerate(waiting):
        queue = watch_queue(queue, seen(counts(waiting=requests), state), 2, undisturbed, NOW + TICK * tick)
    return queue


def test_a_queue_that_stands_beside_first_tokens_in_time_hides_requests() -> None:
    assert hidden(counts()) == MOST_HIDDEN * 60.0


def test_the_mean_ttft_tells_how_many_leave_the_queue() -> None:
    """200 wait and 60 in 45 s get their first token, after 60 s: 150 leave in that time, so 90 are in no series."""
    assert hidden(counts(queue_flow=200.0 / 60.0 * INTERVAL)) == pytest.approx(90.0)


def test_patient_clients_hide_nothing() -> None:
    """3 req/s arrive, 2 are served, all wait: the queue grows by what is not served, and each waits in order."""
    waiting = 200.0
    patient = counts(begun=90.0, queue_flow=waiting / (waiting / 3.0) * INTERVAL, in_flight_growth=45.0)
    assert hidden(patient) == 0.0


def test_counted_aborts_are_not_hidden_as_well() -> None:
    flow = 200.0 / 60.0 * INTERVAL
    assert hidden(counts(queue_flow=flow, aborted=90.0)) == pytest.approx(0.0)


def test_a_queue_within_the_objective_hides_nothing() -> None:
    busy = counts(begun=60.0 * INTERVAL, waiting=40.0)
    assert hidden(busy, Queue(NOW, 40.0, 40.0, (40.0, 40.0))) == 0.0


def test_a_burst_between_two_looks_is_no_queue_that_stands() -> None:
    assert watched(*[0.0] * 9, 200.0, *[0.0] * 4).standing == 0.0
    assert hidden(counts(), watched(*[0.0] * 5, *[200.0] * 8)) == 0.0


def test_a_queue_stands_once_two_intervals_have_shown_it() -> None:
    looks = math.ceil(INTERVAL / TICK)
    assert watched(*[200.0] * looks).standing == 0.0
    assert watched(*[200.0] * (looks + 1)).standing == 200.0


def test_a_growing_queue_without_a_mean_ttft_hides_nothing() -> None:
    grows = watched(*[100.0 + 10.0 * tick for tick in range(12)])
    assert grows.standing > 99.0
    assert hidden(counts(), grows) == 0.0


@pytest.mark.parametrize("state", [state for state in SignalState if state is not SignalState.FRESH])
def test_nothing_is_known_of_a_queue_behind_metrics_with_gaps(state: SignalState) -> None:
    assert watched(*[200.0] * 30, state=state) == Queue(ready=2)


def test_nothing_is_known_of_a_queue_while_a_replica_seems_sick() -> None:
    assert watched(*[200.0] * 30, undisturbed=False) == Queue(ready=2)


def test_what_a_replica_that_left_showed_last_is_no_queue_for_five_minutes() -> None:
    queue = watched(*[200.0] * 30)
    for tick in range(1, 90):
        now = NOW + TICK * (30 + tick)
        queue = watch_queue(queue, seen(counts()), 1, True, now)
        assert (queue.standing == 0.0) == (tick * TICK < GHOST_SECONDS + INTERVAL + TICK)


def test_what_plugins_count_is_not_guessed() -> None:
    assert hidden(replace(counts(), exact=ExactCounts(arrived=60.0, good=60.0, engines=2))) == 0.0


def test_hidden_requests_arrive_and_are_late() -> None:
    plain = seen(counts())
    some = replace(plain, hidden=90.0)
    assert (some.arrived - plain.arrived, some.late - plain.late, some.started - plain.started) == (90.0,) * 3


@given(
    begun=st.floats(0.0, 1e6),
    waiting=st.floats(0.0, 1e6),
    flow=st.floats(0.0, 1e9),
    growth=st.floats(-1e6, 1e6),
    aborted=st.floats(0.0, 1e6),
    interval=st.sampled_from([0.0, 1.0, INTERVAL]),
)
def test_hidden_requests_are_never_negative_and_bounded_by_what_is_served(
    begun: float, waiting: float, flow: float, growth: float, aborted: float, interval: float
) -> None:
    traffic = counts(begun, waiting, queue_flow=flow, in_flight_growth=growth, aborted=aborted)
    queue = Queue(NOW, waiting, waiting, (waiting, waiting))
    assert 0.0 <= hidden_requests(queue, traffic, TTFT, interval) <= MOST_HIDDEN * begun


@pytest.mark.parametrize("patience", [3.0, 10.0, 60.0, math.inf])
@pytest.mark.parametrize("rate", [1.0, 2.1, 3.0, 6.0])
def test_in_a_played_queue_no_more_are_hidden_than_left(rate: float, patience: float) -> None:
    """One engine that serves two requests per second in order; clients leave it after their patience."""
    random, queue, line, begun = Random(1), Queue(), list[float](), list[tuple[float, float]]()
    left, found, looks = 0, 0.0, list[int]()
    for step in range(1200):
        now = NOW + 0.5 * step
        line += [now] * sum(random.random() < rate / 20.0 for _ in range(10))
        stays = [at for at in line if now - at < patience]
        left, line = left + len(line) - len(stays), stays
        if line:
            begun.append((now, now - line.pop(0)))
        looks.append(len(line))
        if step % 10 == 0:
            waits = [wait for at, wait in begun if at > now - INTERVAL]
            flow = min(looks[-90:]) * len(waits) / max(1e-9, sum(waits)) * INTERVAL
            growth = looks[-1] - looks[max(0, len(looks) - 91)]
            traffic = counts(float(len(waits)), float(len(line)), queue_flow=flow, in_flight_growth=float(growth))
            queue = watch_queue(queue, seen(traffic), 1, True, now)
            found += hidden(traffic, queue) * TICK / INTERVAL
    assert found <= left
    if rate == 6.0 and patience < 60.0:
        assert found >= 0.3 * left, "the fewest that waited in an interval are fewer than the mean"
