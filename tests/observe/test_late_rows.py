"""Rows that tell of engines with next to nothing in time: which of them lag, and when all are late alike."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import LATE_PER_GOOD, SignalState, Traffic, lags
from holdfast.observe import queries, traffic
from holdfast.observe.histogram_edges import around
from holdfast.observe.samples import Sample
from holdfast.observe.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample
from tests.observe.test_plugin_rows import COVERED, OBJECTIVES

FOUR = [f"chat-{index}" for index in range(4)]
COUNTS = st.floats(allow_nan=True, allow_infinity=True)


def late(pod: str, value: float = 60.0, **labels: str) -> Sample:
    return sample(value, metric="late", pod=pod, **labels)


def seen(*rows: Sample, others_late: float = 2.0, good: float = 400.0, plugins: list[Sample] | None = None) -> Traffic:
    """Four engines: those of the rows have late requests, and others so many more; `good` ones are of all."""
    own = sum(row.value for row in rows if math.isfinite(row.value))
    judged = [
        COVERED,
        *OBJECTIVES,
        sample(own / 2 + others_late, metric="requests_bad_total", cause="ttft"),
        sample(own / 2, metric="requests_bad_total", cause="tpot"),
        sample(500.0, metric="requests_bad_total", cause="rejected"),
        sample(good, metric="requests_good_total"),
    ]
    engines = [sample(NOW - 3, pod=pod) for pod in FOUR]
    found = answers(engines=engines, anomalies=list(rows), plugins=judged if plugins is None else plugins)
    return traffic.assemble([request(*map(ready, FOUR))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def test_who_alone_makes_next_to_nothing_in_time_lags_and_its_counts_stay_whole() -> None:
    found = seen(late("chat-1"))
    assert (found.state, found.lagging, found.hung) == (SignalState.FRESH, ("chat-1",), ())
    assert found.by_accelerator[0][1].engines == 4


def test_without_a_row_nobody_lags() -> None:
    assert seen().lagging == ()


def test_where_others_are_late_as_well_nobody_lags() -> None:
    assert seen(late("chat-1"), others_late=45.0).lagging == ()
    assert seen(late("chat-1"), late("chat-2"), good=300.0).lagging == ()


def test_where_others_have_hardly_any_requests_nobody_lags() -> None:
    assert seen(late("chat-1"), others_late=0.0, good=37.0).lagging == ()
    assert seen(late("chat-1", 9.0), others_late=0.0, good=20.0).lagging == ("chat-1",)


def test_who_is_late_because_of_too_many_requests_does_not_lag() -> None:
    assert seen(late("chat-1", 189.0)).lagging == ("chat-1",)  # at most 236 requests, the others have 134 each
    assert seen(late("chat-1", 190.0)).lagging == ()


@pytest.mark.parametrize(("engines", "share"), [(2, 1.14), (3, 1.33), (4, 1.41), (8, 1.51)])
def test_more_than_an_even_share_is_believed_only_as_far_as_it_is_at_most_twice_that_of_the_others(
    engines: int, share: float
) -> None:
    others = 100.0 * (engines - 1)
    assert lags(100.0 * share, 100.0 * share, others, engines)
    assert not lags(100.0 * (share + 0.01), 100.0 * (share + 0.01), others, engines)


@given(st.integers(2, 40), st.integers(8, 2000), st.floats(0.0, 0.99), st.integers(0, 2000))
def test_who_lags_had_at_most_twice_the_mean_load_of_the_others(
    engines: int, own: int, good: float, others: int
) -> None:
    in_time = good * own / LATE_PER_GOOD
    if lags(float(own), float(own), others + in_time, engines):
        assert own + in_time <= 2.0 * others / (engines - 1) + 1e-6


@pytest.mark.parametrize(
    "plugins",
    [
        [],
        OBJECTIVES,
        [COVERED],
        [COVERED, *OBJECTIVES],
        [COVERED, *OBJECTIVES, sample(math.nan, metric="requests_good_total")],
        [COVERED, *OBJECTIVES, sample(-5.0, metric="requests_good_total")],
        [COVERED, OBJECTIVES[0], sample(400.0, metric="requests_good_total")],
    ],
)
def test_where_plugins_do_not_judge_every_request_nobody_lags(plugins: list[Sample]) -> None:
    assert seen(late("chat-1"), plugins=plugins).lagging == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_names_nobody(value: float) -> None:
    assert seen(late("chat-1", value)).lagging == ()


def test_a_row_without_a_pod_or_of_another_accelerator_names_nobody() -> None:
    assert seen(late("")).lagging == ()
    assert seen(late("chat-1", holdfast_accelerator="l40s")).lagging == ()


def test_a_row_that_comes_twice_counts_once() -> None:
    assert seen(late("chat-1"), late("chat-1"), others_late=2.0 - 60.0).lagging == ("chat-1",)


@given(COUNTS, COUNTS, COUNTS, st.integers(-1, 9))
def test_numbers_that_make_no_sense_are_no_lag(own: float, late_of_all: float, good: float, engines: int) -> None:
    if lags(own, late_of_all, good, engines):
        assert math.isfinite(own)
        assert late_of_all + good > own


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=6))
def test_of_several_engines_less_than_half_lag(judged: list[tuple[int, int]]) -> None:
    late_of_all, good_of_all = (float(sum(each)) for each in zip(*judged, strict=True))
    lagging = [own for own, good in judged if own >= 8 and own > LATE_PER_GOOD * good and
               lags(float(own), late_of_all, good_of_all, len(judged))]  # fmt: skip
    assert 2 * len(lagging) <= len(judged)


def test_who_is_scraped_twice_makes_the_metrics_doubtful() -> None:
    twice = sample(2.0, metric="copies", pod="chat-1")
    assert seen(late("chat-1", 120.0), twice).state is SignalState.DUPLICATE


def test_a_row_of_a_service_of_the_same_name_elsewhere_names_nobody_here() -> None:
    assert seen(late("chat-1", namespace="test")).lagging == ()


def test_lags_are_asked_for_without_a_further_query() -> None:
    asked = queries.fast_queries(WINDOW, around([SLO]))
    anomalies = next(query.promql for query in asked if query.name == "anomalies")
    assert (len(asked), '"late"' in anomalies) == (7, True)
    assert anomalies.count("increase(") == 4  # two of them are those of errors
