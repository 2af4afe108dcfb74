"""Quantiles and lengths: what they say, how long they are believed, and when they are asked."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import StepSums
from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import Concurrency, LatencyQuantiles
from holdfast.observe.adoption.adopted_metrics import targets
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import slow_queries
from tests.observe.observe_builders import CHAT, NOW, sample


def buckets(counts: dict[str, float]) -> list[Sample]:
    return [sample(count, le=le) for le, count in counts.items()]


def test_quantiles_are_linear_within_a_bucket_and_never_beyond_the_last_edge() -> None:
    seen = slow_queries.quantiles(buckets({"0.1": 5.0, "0.5": 9.0, "1.0": 9.8, "+Inf": 10.0}))[CHAT]
    assert seen.p50_seconds == pytest.approx(0.1)
    assert seen.p95_seconds == pytest.approx(0.5 + 0.5 * 0.5 / 0.8)
    assert seen.p99_seconds == 1.0


def test_quantiles_without_observations_are_unknown_not_zero() -> None:
    assert slow_queries.quantiles(buckets({"0.1": 0.0, "+Inf": 0.0})) == {}
    assert slow_queries.quantiles(buckets({"0.1": math.nan, "+Inf": 1.0})) == {}
    assert slow_queries.quantiles(buckets({"+Inf": 1.0})) == {CHAT: LatencyQuantiles()}
    assert slow_queries.quantiles(buckets({"0.1": 1.0})) == {CHAT: LatencyQuantiles()}


def test_lengths_are_sorted_by_edge_and_never_fall() -> None:
    rows = [sample(5.0, le="+Inf"), sample(4.0, le="200"), sample(1.0, le="50"), sample(0.9, le="100")]
    histogram = slow_queries.lengths(rows)[CHAT]
    assert histogram.edges_tokens == (50.0, 100.0, 200.0, math.inf)
    assert histogram.cumulative == (1.0, 1.0, 4.0, 5.0)


def test_lengths_of_nobody_and_nonsense_are_left_out() -> None:
    assert slow_queries.lengths([sample(0.0, le="50"), sample(0.0, le="+Inf")]) == {}
    assert slow_queries.lengths([sample(math.nan, le="50"), sample(3.0, le="+Inf")]) == {}
    assert slow_queries.lengths([sample(1.0, le="wide"), sample(3.0, le="+Inf")]) == {}


def test_concurrency_is_read_by_quantile_and_what_is_no_number_is_unknown() -> None:
    rows = [sample(3.0, metric="p50"), sample(8.5, metric="p90"), sample(math.nan, metric="p99")]
    assert slow_queries.concurrency(rows)[CHAT] == Concurrency(3.0, 8.5, None)
    assert slow_queries.concurrency([]) == {}
    for nonsense in (math.nan, math.inf, -1.0):
        assert slow_queries.concurrency([sample(nonsense, metric="p50")]) == {}
    kept = cache()
    kept.store("concurrency", rows, NOW)
    assert kept.signals(NOW + 300).concurrency[CHAT].p50 == 3.0
    assert kept.signals(NOW + 301).concurrency == {}, "an old answer is none"


def test_concurrency_counts_what_runs_and_what_waits_and_is_asked_of_targets_too() -> None:
    (query,) = (each for each in slow_queries.ALL if each.name == "concurrency")
    assert query.promql.count("vllm:num_requests_running") == query.promql.count("vllm:num_requests_waiting") == 3
    theirs = targets([ServiceKey("prod", "vllm")])
    assert query.write(theirs).count("label_replace") == 3 + 6


def cache() -> slow_queries.SlowCache:
    return slow_queries.SlowCache(tuple(query.name for query in slow_queries.ALL), 60.0, 300.0)


def test_at_first_all_are_asked_and_then_one_at_a_time_each_once_a_minute() -> None:
    turns = cache()
    assert len(turns.due(NOW)) == 4
    assert [name for name, _ in turns.due(NOW)] == ["steps", "ahead", "e2e_buckets", "facts"]
    assert [name for name, _ in turns.due(NOW)] == ["concurrency", "series"]
    asked = {tick: turns.due(NOW + tick) for tick in range(5, 605, 5)}
    assert max(map(len, asked.values())) == 1
    assert 9 <= sum(map(len, asked.values())) / len(slow_queries.ALL) <= 10


def test_who_may_ask_only_one_at_a_time_lets_each_have_its_turn() -> None:
    turns = cache()
    asked = [turns.due(NOW + 5 * tick, parts=3, most=1) for tick in range(60)]
    assert max(map(len, asked)) == 1
    assert len({turn for some in asked[:33] for turn in map(str, some)}) == 3 * len(slow_queries.ALL)
    assert turns.due(NOW + 1e6, parts=3, most=-2) == ()


def test_sums_over_steps_come_in_the_units_of_the_step_law() -> None:
    sums = {"one": 1000.0, "prefill": 50.0, "decodes": 120.0, "kv": 150.0, "pairs": 30.0, "seconds": 9.0}
    rows = [sample(value, term=name) for name, value in sums.items()]
    whole = ("h100", StepSums(1000.0, 50_000.0, 12_000.0, 15e6, 30e6, 9.0))
    assert slow_queries.step_sums(rows)[CHAT] == (whole,)
    assert slow_queries.step_sums(rows[:-1])[CHAT] == ()
    for nonsense in (math.nan, math.inf, -1.0):
        odd = sample(nonsense, term="kv", holdfast_accelerator="l40s")
        others = [sample(value, term=name, holdfast_accelerator="l40s") for name, value in sums.items() if name != "kv"]
        assert slow_queries.step_sums([*rows, *others, odd])[CHAT] == (whole,)


def test_many_services_are_asked_about_in_parts_and_never_all_at_once() -> None:
    turns = cache()
    asked = [turn for tick in range(0, 60, 5) for turn in turns.due(NOW + tick, parts=3)]
    assert 14 <= len(asked) == len({(name, part.start) for name, part in asked}) <= 3 * len(slow_queries.ALL)
    later = [turns.due(NOW + tick, parts=2) for tick in range(60, 660, 5)]
    assert max(map(len, later)) <= 3
    often = Counter(name for some in later for name, _ in some)
    assert {name for name, times in often.items() if times <= 15} == slow_queries.RARELY, "those every other round"
    assert all(27 <= times <= 30 for name, times in often.items() if name not in slow_queries.RARELY)


def test_an_answer_about_some_services_leaves_those_of_the_others() -> None:
    kept = cache()
    kept.store("tpot_buckets", buckets({"0.04": 1.0, "+Inf": 1.0}), NOW)
    kept.store("tpot_buckets", [], NOW, others=lambda key: key == CHAT)
    assert CHAT in kept.signals(NOW).tpot
    kept.store("tpot_buckets", [], NOW, others=lambda key: key != CHAT)
    assert kept.signals(NOW).tpot == {}


def test_times_in_the_future_are_read_where_they_make_sense() -> None:
    assert slow_queries.ahead_seconds([sample(39.6)]) == {CHAT: 39.6}
    assert slow_queries.ahead_seconds([sample(math.nan)]) == slow_queries.ahead_seconds([sample(-1.0)]) == {}


def test_answers_are_forgotten_when_they_are_too_old() -> None:
    kept = cache()
    kept.store("tpot_buckets", buckets({"0.04": 1.0, "+Inf": 1.0}), NOW)
    assert kept.signals(NOW + 300).tpot[CHAT].p50_seconds == 0.02
    assert kept.signals(NOW + 301).tpot == {}


@given(st.lists(st.tuples(st.sampled_from(["1", "2.5", "+Inf", "NaN", ""]), st.floats()), max_size=6))
def test_histograms_that_are_kept_are_finite_and_rise(pairs: list[tuple[str, float]]) -> None:
    for histogram in slow_queries.lengths([sample(value, le=le) for le, value in pairs]).values():
        assert list(histogram.edges_tokens) == sorted(set(histogram.edges_tokens))
        assert list(histogram.cumulative) == sorted(histogram.cumulative)
        assert all(map(math.isfinite, histogram.cumulative))
