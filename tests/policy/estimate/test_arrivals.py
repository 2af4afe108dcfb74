"""How many requests arrive: counting once, finding changes, telling a trend from noise."""

from __future__ import annotations

import math
import random

import pytest

from holdfast.domain.signals import History, RateSample, SignalState
from holdfast.domain.valid_traffic import judge
from holdfast.policy.estimate.arrivals import Arrivals, from_history, observe_arrivals, threshold
from tests.builders import NOW, traffic

LEAD, INTERVAL = 45.0, 10.0


def watched(
    rates: list[float], *, tick: float = 5.0, seed: int | None = None, memory: Arrivals | None = None
) -> Arrivals:
    """Look at those rates, one per tick; with a seed through Poisson noise."""
    chance, memory = random.Random(seed), memory or Arrivals()
    began = memory.seen_at or NOW
    for index, rate in enumerate(rates, start=1):
        mean = rate * INTERVAL
        count = max(0.0, chance.gauss(mean, mean**0.5)) if seed is not None else mean
        now = began + index * tick
        memory = observe_arrivals(memory, judge(traffic(count / INTERVAL, seconds=INTERVAL)), count, now, LEAD)
    return memory


def remembered(*samples: RateSample) -> Arrivals:
    """What Prometheus teaches that has those samples."""
    return list(from_history(History(samples), NOW, LEAD))[-1]


def level(memory: Arrivals) -> float:
    assert memory.line is not None
    return memory.line.level_rps


def test_arrivals_are_what_ended_was_refused_and_is_newly_in_flight() -> None:
    seen = judge(traffic(10.0, failed=1.0, aborted=2.0, rejected=40.0, in_flight_growth=-3.0))
    assert seen.arrived == 100.0 + 1.0 + 2.0 + 40.0 - 3.0


def test_a_queue_that_empties_is_never_a_negative_arrival() -> None:
    assert judge(traffic(0.0, in_flight_growth=-30.0)).arrived == 0.0


@pytest.mark.parametrize("tick", [1.0, 5.0, 10.0, 30.0])
def test_overlapping_counting_intervals_count_every_request_once(tick: float) -> None:
    memory = watched([8.0] * 40, tick=tick)
    watched_seconds = sum(cell.seconds for cell in memory.cells)
    assert sum(cell.arrivals for cell in memory.cells) == pytest.approx(8.0 * watched_seconds)
    assert level(memory) == pytest.approx(8.0)


def test_a_rise_is_taken_at_once_and_the_level_jumps_to_the_newest_interval() -> None:
    memory = watched([8.0] * 40 + [24.0])
    assert level(memory) == pytest.approx(24.0)
    assert memory.regime == 1


def test_a_fall_is_taken_when_two_cells_show_it() -> None:
    steady = watched([24.0] * 40)
    assert level(watched([8.0], memory=steady)) >= 16.0  # half of the newest cell is from before the fall
    assert level(watched([8.0] * 4, memory=steady)) == pytest.approx(8.0, rel=0.05)
    assert level(watched([8.0] * 8, memory=steady)) == pytest.approx(8.0, rel=0.2)


def test_noise_does_not_begin_a_new_regime() -> None:
    memory = watched([20.0] * 300, seed=1)
    assert memory.regime > 60
    assert level(memory) == pytest.approx(20.0, rel=0.05)
    assert memory.noise == pytest.approx(1.0, abs=0.5)


def test_bursty_arrivals_are_learned_as_noise() -> None:
    chance, memory = random.Random(4), Arrivals()
    for index in range(300):
        count = 8.0 * sum(chance.random() < 0.5 for _ in range(40))  # batches of eight, variance 4 x the mean
        memory = observe_arrivals(memory, judge(traffic(count / 10.0)), count, NOW + 10.0 * index, LEAD)
    assert 3.0 < memory.noise < 6.0


def test_a_ramp_is_a_trend_and_not_a_chain_of_changes() -> None:
    memory = watched([5.0 + 0.25 * index for index in range(120)], seed=2)
    assert memory.line is not None
    assert memory.line.slope == pytest.approx(0.05, rel=0.3)
    assert memory.line.ahead(LEAD) > level(memory)


def test_growth_beyond_double_is_not_believed() -> None:
    memory = watched([1.0 + index for index in range(30)])
    assert memory.line is not None
    assert memory.line.ahead(1e6) == 2.0 * level(memory)


def test_degraded_sight_reports_a_rise_and_nothing_else() -> None:
    steady = watched([10.0] * 40)
    for count, changed in ((300.0, True), (20.0, False), (110.0, False)):
        seen = judge(traffic(count / 10.0, state=SignalState.PARTIAL))
        memory = observe_arrivals(steady, seen, count, NOW + 205.0, LEAD)
        assert (memory != steady) is changed


def test_a_rise_needs_less_evidence_while_requests_are_late() -> None:
    steady = watched([2.0] * 40)
    seen, now = judge(traffic(3.9)), NOW + 205.0
    assert observe_arrivals(steady, seen, 39.0, now, LEAD).regime > 1
    assert observe_arrivals(steady, seen, 39.0, now, LEAD, strained=True).regime == 1
    assert threshold(10.0, corroborated=True) < threshold(10.0) < 6.0


def test_history_gives_a_level_before_the_first_look() -> None:
    samples = tuple(RateSample(NOW - 30.0 * index, 30.0, 300.0, 300.0, 0.0) for index in range(20))
    assert level(remembered(*samples)) == pytest.approx(10.0)
    assert not list(from_history(History(), NOW, LEAD))


def test_history_teaches_what_looking_would_have_taught() -> None:
    counts = ([20.0] * 4 + [400.0] * 2) * 4 + [20.0] * 5
    began, looked = NOW - INTERVAL * len(counts), Arrivals()
    for index, count in enumerate(counts, start=1):
        seen = judge(traffic(count / INTERVAL, seconds=INTERVAL))
        looked = observe_arrivals(looked, seen, count, began + INTERVAL * index, LEAD)
    samples = [RateSample(began + INTERVAL * i, INTERVAL, count, count, 0.0) for i, count in enumerate(counts, 1)]
    assert remembered(*reversed(samples)) == looked
    assert len(looked.rises) >= 3


@pytest.mark.parametrize(
    "nonsense",
    [
        RateSample(NOW - 5.0, 10.0, math.nan, 0.0, 0.0),
        RateSample(NOW - 5.0, 10.0, math.inf, 0.0, 0.0),
        RateSample(NOW - 5.0, 10.0, -1.0, 0.0, 0.0),
        RateSample(NOW - 5.0, 0.0, 10.0, 0.0, 0.0),
        RateSample(NOW - 5.0, math.nan, 10.0, 0.0, 0.0),
        RateSample(math.nan, 10.0, 10.0, 0.0, 0.0),
        RateSample(NOW + 5.0, 10.0, 10.0, 0.0, 0.0),
    ],
)
def test_samples_that_make_no_sense_teach_nothing(nonsense: RateSample) -> None:
    steady = [RateSample(NOW - 10.0 * index, 10.0, 50.0, 50.0, 0.0) for index in range(1, 20)]
    for place in (0, 9, 19):
        assert remembered(*steady[:place], nonsense, *steady[place:]) == remembered(*steady)


def test_what_is_told_twice_counts_once() -> None:
    steady = [RateSample(NOW - 10.0 * index, 10.0, 50.0, 50.0, 0.0) for index in range(1, 20)]
    assert remembered(*steady, *steady) == remembered(*steady)


def test_load_that_begins_and_load_that_steps_are_changes_and_not_noise() -> None:
    demand = watched([0.0] * 3 + [1.3] + [2.0] * 12 + [6.0] * 6)
    assert demand.noise < 2.5
    assert demand.line is not None
    assert demand.line.level_rps == pytest.approx(6.0, rel=0.1)
