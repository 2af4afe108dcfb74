"""What a policy is shown of the engines' counters: the increase() of Prometheus, for all engines at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.scheduler import SchedulerLimits
from holdfast.twin.arrays.fleet import EngineFleet, EngineSpec, Routing
from holdfast.twin.pods.series import COLUMNS, EngineSeries, gained, rows_of, usage_of
from tests.twin.twin_builders import LAW, SLO, drawn_workload

FINISHED, REJECTED, OUTPUT, RUNNING = (
    COLUMNS.index(name) for name in ("finished", "rejected", "output_tokens", "running")
)


def sampled(*samples: tuple[float, float], born_at: float = 0.0, column: int = FINISHED) -> EngineSeries:
    """An engine whose counter had these values at these moments."""
    series = EngineSeries("h100", born_at)
    for at, value in samples:
        take(series, at, {column: value})
    return series


def take(series: EngineSeries, at: float, values: dict[int, float], usage: float = 0.5, hangs: bool = False) -> None:
    row = np.zeros(len(COLUMNS))
    for column, value in values.items():
        row[column] = value
    series.scrape(at, None, row, usage, hangs)


def finished(series: EngineSeries, start: float, end: float) -> float:
    return float(gained([series], start, end)[0, FINISHED])


def test_what_lies_between_the_samples_is_stretched_to_the_interval() -> None:
    series = sampled((5.0, 40.0), (10.0, 100.0), (15.0, 110.0), (20.0, 120.0))
    # (8, 22] holds three samples 5 s apart: two seconds before and two after them count as those between.
    assert finished(series, 8.0, 22.0) == pytest.approx(20.0 * 14.0 / 10.0)


def test_far_from_the_edge_half_a_spacing_counts_and_a_counter_never_came_from_below_zero() -> None:
    assert finished(sampled((5.0, 90.0), (20.0, 100.0), (25.0, 110.0)), 10.0, 25.0) == pytest.approx(10.0 * 7.5 / 5.0)
    assert finished(sampled((5.0, 0.0), (10.0, 1.0), (15.0, 11.0)), 6.0, 15.0) == pytest.approx(11.0)


def test_a_gauge_may_have_come_from_anywhere() -> None:
    series = sampled((5.0, 0.0), (10.0, 1.0), (15.0, 11.0), column=RUNNING)
    assert gained([series], 6.0, 15.0)[0, RUNNING] == pytest.approx(10.0 * 9.0 / 5.0)


def test_all_that_a_new_engine_ever_counted_was_gained_and_what_it_counts_of_a_longer_life_in_part() -> None:
    assert finished(sampled((12.0, 7.0), (14.0, 9.0), born_at=11.0), 10.0, 20.0) == 9.0
    assert finished(sampled((12.0, 7.0), (14.0, 9.0), born_at=-10.0), 10.0, 20.0) == pytest.approx(9.0 * 10.0 / 30.0)


@pytest.mark.parametrize("samples", [(), ((1.0, 5.0),), ((1.0, 5.0), (12.0, 9.0)), ((30.0, 9.0),)])
def test_without_two_samples_to_compare_nothing_is_gained(samples: Sequence[tuple[float, float]]) -> None:
    assert finished(sampled(*samples), 10.0, 20.0) == 0.0


@given(st.lists(st.lists(st.floats(0.0, 1e6), max_size=8), min_size=1, max_size=5), st.floats(0.0, 60.0))
def test_of_many_engines_each_gains_what_it_gains_alone(values: list[list[float]], start: float) -> None:
    many = [sampled(*((5.0 * place, value) for place, value in enumerate(sorted(each)))) for each in values]
    together = gained(many, start, start + 15.0)
    for row, each in zip(together, many, strict=True):
        assert row.tolist() == gained([each], start, start + 15.0)[0].tolist()
    assert np.isfinite(together).all()


def test_an_engine_hangs_that_holds_requests_and_moves_nowhere_for_long_enough() -> None:
    series = EngineSeries("h100", 0.0)
    for at, tokens in ((5.0, 10.0), (10.0, 20.0), (15.0, 20.0), (20.0, 20.0)):
        take(series, at, {RUNNING: 3.0, OUTPUT: tokens})
    assert series.looks_hung(since=8.0, least=3)
    assert not series.looks_hung(since=8.0, least=4)
    assert not series.looks_hung(since=0.0, least=3)


def test_an_idle_engine_does_not_hang() -> None:
    series = EngineSeries("h100", 0.0)
    for at in (5.0, 10.0, 15.0):
        take(series, at, {RUNNING: 3.0 * (at != 10.0), OUTPUT: 20.0})
    assert not series.looks_hung(since=0.0, least=3)


def test_of_an_engine_that_hangs_only_the_refused_go_on() -> None:
    series = EngineSeries("h100", 0.0)
    take(series, 5.0, {FINISHED: 1.0}, hangs=True)
    take(series, 10.0, {FINISHED: 2.0, REJECTED: 4.0}, usage=0.9, hangs=True)
    assert (series.rows[-1][FINISHED], series.rows[-1][REJECTED], series.usage[-1]) == (1.0, 4.0, 0.5)


def test_the_newest_sample_before_what_is_asked_for_is_kept() -> None:
    series = sampled(*((at, at) for at in (5.0, 10.0, 15.0, 20.0)))
    series.forget(14.0)
    assert series.times == [10.0, 15.0, 20.0]
    series.forget(math.inf)
    assert series.times == [20.0]


def test_a_row_has_every_column_of_an_engine() -> None:
    load = drawn_workload([(0.05, 300, 50, 0) for _ in range(20)])
    fleet = EngineFleet(load, [EngineSpec(LAW, SchedulerLimits(16, 2048, 20_000))], SLO, Routing("round-robin"))
    fleet.add()
    fleet.add()
    fleet.advance(1.0)
    rows = rows_of(fleet.states([0, 1]), fleet.verdicts([0, 1]))
    assert rows.shape == (2, len(COLUMNS))
    for number in (0, 1):
        state = fleet.state(number)
        assert rows[number].tolist() == [float(state[name][0]) for name in COLUMNS]
        assert usage_of(state) == pytest.approx(1.0 - state["free_blocks"] / state["blocks"])
