"""Quantiles and lengths: what they say, how long they are believed, and when they are asked."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import LatencyQuantiles
from holdfast.observe import queries, slow
from tests.observe.observe_builders import CHAT, NOW, sample


def test_quantiles_without_observations_are_unknown_not_zero() -> None:
    rows = [sample(math.nan, quantile="0.5"), sample(0.4, quantile="0.95"), sample(math.inf, quantile="0.99")]
    assert slow.quantiles(rows) == {CHAT: LatencyQuantiles(None, 0.4, None)}


def test_lengths_are_sorted_by_edge_and_never_fall() -> None:
    rows = [sample(5.0, le="+Inf"), sample(4.0, le="200"), sample(1.0, le="50"), sample(0.9, le="100")]
    histogram = slow.lengths(rows)[CHAT]
    assert histogram.edges_tokens == (50.0, 100.0, 200.0, math.inf)
    assert histogram.cumulative == (1.0, 1.0, 4.0, 5.0)


def test_lengths_of_nobody_and_nonsense_are_left_out() -> None:
    assert slow.lengths([sample(0.0, le="50"), sample(0.0, le="+Inf")]) == {}
    assert slow.lengths([sample(math.nan, le="50"), sample(3.0, le="+Inf")]) == {}
    assert slow.lengths([sample(1.0, le="wide"), sample(3.0, le="+Inf")]) == {}


def cache() -> slow.SlowCache:
    return slow.SlowCache(tuple(query.name for query in queries.slow_queries()), 60.0, 300.0)


def test_at_first_all_are_asked_and_then_one_at_a_time_each_once_a_minute() -> None:
    turns = cache()
    assert len(turns.due(NOW)) == 4
    asked = {tick: turns.due(NOW + tick) for tick in range(5, 605, 5)}
    assert max(map(len, asked.values())) == 1
    assert 36 <= sum(map(len, asked.values())) <= 40


def test_answers_are_forgotten_when_they_are_too_old() -> None:
    kept = cache()
    kept.store("tpot_quantiles", [sample(0.02, quantile="0.5")], NOW)
    assert kept.signals(NOW + 300).tpot == {CHAT: LatencyQuantiles(0.02)}
    assert kept.signals(NOW + 301).tpot == {}


@given(st.lists(st.tuples(st.sampled_from(["1", "2.5", "+Inf", "NaN", ""]), st.floats()), max_size=6))
def test_histograms_that_are_kept_are_finite_and_rise(pairs: list[tuple[str, float]]) -> None:
    for histogram in slow.lengths([sample(value, le=le) for le, value in pairs]).values():
        assert list(histogram.edges_tokens) == sorted(set(histogram.edges_tokens))
        assert list(histogram.cumulative) == sorted(histogram.cumulative)
        assert all(map(math.isfinite, histogram.cumulative))
