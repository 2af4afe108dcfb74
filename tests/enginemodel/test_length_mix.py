"""Moments of request lengths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.mix import BIN_WEIGHTS, LENGTH_EDGES, LengthMix, histogram_moments, shortest_tokens

pairs = st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 5_000)), min_size=1, max_size=50)


def test_pairs_give_exact_moments() -> None:
    mix = LengthMix.from_pairs([(100, 10), (300, 30)])
    assert mix.prompt_tokens == 200
    assert mix.output_tokens == 20
    assert mix.output_prompt == (100 * 10 + 300 * 30) / 2
    assert mix.output_squared == (100 + 900) / 2
    assert mix.prefill_pairs == (100**2 + 300**2) / 4


@given(pairs, st.floats(1.0, 8.0))
def test_accepted_drafts_make_fewer_steps_that_read_the_same_context(
    lengths: list[tuple[int, int]], most: float
) -> None:
    mix = LengthMix.from_pairs(lengths)
    steps = mix.in_steps(most)
    assert steps.output_tokens * most == pytest.approx(mix.output_tokens)
    assert steps.kv_token_steps * most == pytest.approx(mix.kv_token_steps)
    assert steps.output_cv == pytest.approx(mix.output_cv, abs=1e-6)
    assert steps.computed_tokens == mix.computed_tokens
    assert mix.in_steps(1.0) is mix


def test_equal_lengths_have_no_spread() -> None:
    mix = LengthMix.from_pairs([(512, 128)] * 3)
    assert mix.computed_cv == 0
    assert mix.output_cv == 0


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        LengthMix.from_pairs([])


@given(pairs, st.floats(0.0, 0.95))
def test_caching_computes_less_and_never_more(lengths: list[tuple[int, int]], share: float) -> None:
    plain, cached = LengthMix.from_pairs(lengths), LengthMix.from_pairs(lengths, cached_share=share)
    assert cached.computed_tokens <= plain.computed_tokens
    assert cached.prefill_pairs <= plain.prefill_pairs * (1 + 1e-9)
    assert cached.prompt_tokens == plain.prompt_tokens


@pytest.mark.parametrize("share", [-1.0, 2.0])
def test_a_cached_share_out_of_range_is_clipped(share: float) -> None:
    mix = LengthMix.from_means(100, 10, cached_share=share)
    assert 0 < mix.computed_tokens <= 100


def test_means_alone_get_the_assumed_spread() -> None:
    mix = LengthMix.from_means(1000, 200, prompt_cv=0.5, output_cv=2.0)
    assert mix.computed_cv == pytest.approx(0.5)
    assert mix.output_cv == pytest.approx(2.0)


def test_a_histogram_is_log_linear_inside_a_bucket() -> None:
    moments = histogram_moments([10.0, 100.0, math.inf], [0.0, 5.0, 5.0])
    assert moments is not None
    assert moments[0] == pytest.approx(90 / math.log(10))


def test_the_open_bucket_counts_at_its_lower_edge() -> None:
    assert histogram_moments([10.0, math.inf], [0.0, 4.0]) == (10.0, 100.0)


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        ([], []),
        ([10.0, math.inf], [0.0, 0.0]),
        ([10.0, math.inf], [5.0, 4.0]),
        ([10.0, math.inf], [math.nan, 4.0]),
        ([10.0, math.inf], [math.inf, math.inf]),
        ([10.0, 10.0], [1.0, 2.0]),
        ([10.0, math.inf], [-1.0, 4.0]),
        ([math.nan, math.inf], [1.0, 4.0]),
    ],
)
def test_a_histogram_without_sense_gives_no_moments(edges: list[float], counts: list[float]) -> None:
    assert histogram_moments(edges, counts) is None
    assert shortest_tokens(edges, counts) == 0.0


@given(pairs)
def test_histograms_of_vllm_edges_come_near_the_exact_moments(lengths: list[tuple[int, int]]) -> None:
    edges = [*LENGTH_EDGES, math.inf]
    rough = histogram_moments(edges, [float(sum(prompt <= edge for prompt, _ in lengths)) for edge in edges])
    exact = LengthMix.from_pairs(lengths)
    assert rough is not None
    assert exact.prompt_tokens / 2.5 <= rough[0] <= exact.prompt_tokens * 2.5


@pytest.mark.parametrize(
    ("at_most_five", "requests", "shortest"),
    [(0, 1000, 5.0), (4, 1000, 5.0), (5, 1000, 2.0), (0, 198, 5.0), (0, 197, 0.0), (0, 3, 0.0)],
)
def test_the_shortest_answer_is_what_next_to_none_is_below_once_enough_were_seen(
    at_most_five: float, requests: float, shortest: float
) -> None:
    edges, counts = [2.0, 5.0, 10.0, math.inf], [0.0, at_most_five, requests / 2, requests]
    assert shortest_tokens(edges, counts) == shortest


def test_answers_keep_their_mean_and_none_is_shorter_than_the_shortest() -> None:
    lone, code = (LengthMix.from_means(2000, 28, output_cv=2.2, shortest_output=shortest) for shortest in (0.0, 5.0))
    assert lone.output_bins.min() < 2.0
    assert code.output_bins.min() > 5.0
    assert code.output_bins @ BIN_WEIGHTS == pytest.approx(lone.output_bins @ BIN_WEIGHTS) == pytest.approx(28.0)


@given(st.floats(1.0, 1e4), st.floats(0.0, 1e6), st.floats(0.0, 4.0))
def test_a_shortest_answer_of_other_minutes_leaves_finite_ones(mean: float, shortest: float, cv: float) -> None:
    bins = LengthMix.from_means(1000, mean, output_cv=cv, shortest_output=shortest).output_bins
    assert (bins > 0.0).all()
    assert bins @ BIN_WEIGHTS == pytest.approx(mean)
