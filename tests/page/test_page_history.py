"""Two hours of figures in few bytes: what was not known is a gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.page.history import COLUMNS, POINTS, SPAN_SECONDS, Track, plain, worst_of
from tests.page.scenes import NOW

ARRIVALS = COLUMNS.index("arrival_rps")


def arrivals(track: Track, at: float = NOW) -> list[float | None]:
    return plain(track.until(at)[ARRIVALS])


def test_a_service_takes_less_than_twelve_kibibytes() -> None:
    assert Track().size_bytes <= 12 * 1024


def test_nothing_is_known_before_the_first_tick() -> None:
    assert arrivals(Track()) == [None] * POINTS


def test_spans_without_a_tick_are_gaps_and_never_zero() -> None:
    track = Track()
    track.record(NOW - 5 * SPAN_SECONDS, {"arrival_rps": 3.0})
    track.record(NOW - 2 * SPAN_SECONDS, {"arrival_rps": 5.0})
    assert arrivals(track)[-6:] == [3.0, None, None, 5.0, None, None]


def test_a_figure_that_is_not_known_any_more_is_a_gap() -> None:
    track = Track()
    track.record(NOW - SPAN_SECONDS, {"arrival_rps": 3.0})
    track.record(NOW, {"arrival_rps": None})
    assert arrivals(track)[-2:] == [3.0, None]


def test_the_last_tick_of_a_span_speaks_for_it() -> None:
    track = Track()
    track.record(NOW, {"arrival_rps": 3.0})
    track.record(NOW + 1, {"arrival_rps": 4.0})
    assert arrivals(track)[-1] == 4.0


def test_what_is_older_than_the_history_is_forgotten() -> None:
    track = Track()
    track.record(NOW, {"arrival_rps": 3.0})
    later = NOW + POINTS * SPAN_SECONDS
    track.record(later, {"arrival_rps": 4.0})
    assert arrivals(track, later) == [None] * (POINTS - 1) + [4.0]


def test_a_clock_that_is_set_back_starts_the_history_anew() -> None:
    track = Track()
    track.record(NOW, {"arrival_rps": 3.0})
    track.record(NOW - 3600.0, {"arrival_rps": 4.0})
    assert arrivals(track, NOW - 3600.0) == [None] * (POINTS - 1) + [4.0]


def test_attainment_is_told_apart_close_to_one() -> None:
    track = Track()
    for step, missed in enumerate((0.0005, 0.0001)):
        track.record(NOW + step * SPAN_SECONDS, {"missed_share": missed})
    shown = plain(track.until(NOW + SPAN_SECONDS)[COLUMNS.index("missed_share")], digits=3)
    assert shown[-2:] == [0.0005, 0.0001]


@pytest.mark.parametrize(("value", "shown"), [(math.nan, None), (math.inf, None), (-math.inf, None), (1e300, 65500.0)])
def test_absurd_figures_are_gaps_or_bounded(value: float, shown: float | None) -> None:
    track = Track()
    track.record(NOW, {"arrival_rps": value})
    assert arrivals(track)[-1] == shown


def test_what_is_recalled_fills_gaps_before_the_newest_tick_only() -> None:
    track = Track()
    assert not track.recall(NOW, {"arrival_rps": 1.0}), "no tick yet: nothing says what now is"
    track.record(NOW - 2 * SPAN_SECONDS, {"arrival_rps": 3.0})
    track.record(NOW, {"arrival_rps": 4.0})
    steps = (-POINTS, -3, -2, -1, 0, 1)
    kept = [step for step in steps if track.recall(NOW + step * SPAN_SECONDS, {"arrival_rps": 9.0})]
    assert kept == [-3, -1]
    assert arrivals(track)[-5:] == [None, 9.0, 3.0, 9.0, 4.0]


@given(st.lists(st.integers(0, 3 * POINTS), min_size=1, max_size=20))
def test_only_spans_that_a_tick_fell_into_show_anything(steps: list[int]) -> None:
    track, spans = Track(), sorted(steps)
    for span in spans:
        track.record(span * SPAN_SECONDS, {"arrival_rps": float(span)})
    last = spans[-1]
    expected = [float(span) if span in spans else None for span in range(last - POINTS + 1, last + 1)]
    assert plain(track.until(last * SPAN_SECONDS)[ARRIVALS]) == expected


def test_the_worst_of_nothing_is_nothing() -> None:
    values = np.array([1.0, np.nan, np.nan, np.nan], np.float16)
    assert plain(worst_of(values, 2)) == [1.0, None]
