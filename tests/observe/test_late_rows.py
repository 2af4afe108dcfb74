"""Rows that tell of engines of which a share is late: which of them lag, and when all are late alike."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import SignalState, Traffic, lags
from holdfast.observe.series import queries
from holdfast.observe.series.histogram_edges import around
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample
from tests.observe.test_plugin_rows import COVERED, OBJECTIVES

FOUR = [f"chat-{index}" for index in range(4)]
COUNTS = st.floats(allow_nan=True, allow_infinity=True)


def late(pod: str, value: float = 60.0, good: float = 30.0, **labels: str) -> tuple[Sample, Sample]:
    """The rows of an engine with so many late requests, and so many good ones."""
    return sample(value, metric="late", pod=pod, **labels), sample(good, metric="in_time", pod=pod, **labels)


def seen(
    *rows: Sample, others_late: float = 1.0, by_others: float = 400.0, plugins: list[Sample] | None = None
) -> Traffic:
    """Four engines: those of the rows have late requests, and others have so many more, and so many good ones."""
    own, good = (
        sum(row.value for row in rows if math.isfinite(row.value) and row.label("metric") == name)
        for name in ("late", "in_time")
    )
    judged = [
        COVERED,
        *OBJECTIVES,
        sample(own / 2 + others_late, metric="requests_bad_total", cause="ttft"),
        sample(own / 2, metric="requests_bad_total", cause="tpot"),
        sample(500.0, metric="requests_bad_total", cause="rejected"),
        sample(by_others + good, metric="requests_good_total"),
    ]
    engines = [sample(NOW - 3, pod=pod) for pod in FOUR]
    found = answers(engines=engines, anomalies=list(rows), plugins=judged if plugins is None else plugins)
    return traffic.assemble([request(*map(ready, FOUR))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def test_who_alone_is_late_lags_and_its_counts_stay_whole() -> None:
    found = seen(*late("chat-1"))
    assert (found.state, found.lagging, found.hung) == (SignalState.FRESH, ("chat-1",), ())
    assert found.by_accelerator[0][1].engines == 4


def test_without_a_row_nobody_lags() -> None:
    assert seen().lagging == ()


def test_a_tenth_that_is_late_is_enough_where_peers_have_next_to_none() -> None:
    assert seen(*late("chat-1", 10.0, 90.0)).lagging == ("chat-1",)
    assert seen(*late("chat-1", 9.9, 90.1)).lagging == ()


def test_where_others_are_late_as_well_nobody_lags() -> None:
    assert seen(*late("chat-1", 60.0, 0.0), others_late=45.0).lagging == ()
    assert seen(*late("chat-1", 10.0, 90.0), others_late=5.0).lagging == ()
    assert seen(*late("chat-1"), *late("chat-2")).lagging == ()


def test_where_others_have_hardly_any_requests_nobody_lags() -> None:
    assert seen(*late("chat-1", 60.0, 0.0), others_late=0.0, by_others=37.0).lagging == ()
    assert seen(*late("chat-1", 9.0, 0.0), others_late=0.0, by_others=21.0).lagging == ("chat-1",)


def test_who_is_late_because_of_too_many_requests_does_not_lag() -> None:
    assert seen(*late("chat-1", 140.0, 5.0)).lagging == ("chat-1",)  # the others have 134 each, and chance adds 12
    assert seen(*late("chat-1", 140.0, 6.0)).lagging == ()


def test_a_row_without_its_good_requests_names_nobody() -> None:
    assert seen(late("chat-1")[0]).lagging == ()


@given(st.integers(2, 40), st.integers(8, 2000), st.integers(0, 2000), st.integers(0, 2000))
def test_who_lags_had_no_more_load_than_the_others_but_by_chance(
    engines: int, own: int, good: int, others: int
) -> None:
    if lags(float(own), float(good), float(own), float(others + good), engines):
        mean = others / (engines - 1)
        assert own + good <= mean + math.sqrt(mean) + 1e-6


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
    assert seen(*late("chat-1"), plugins=plugins).lagging == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_names_nobody(value: float) -> None:
    assert seen(*late("chat-1", value)).lagging == ()
    assert seen(*late("chat-1", good=value)).lagging == ()


def test_a_row_without_a_pod_or_of_another_accelerator_names_nobody() -> None:
    assert seen(*late("")).lagging == ()
    assert seen(*late("chat-1", holdfast_accelerator="l40s")).lagging == ()


def test_a_row_that_comes_twice_counts_once() -> None:
    assert seen(*late("chat-1"), *late("chat-1"), others_late=1.0 - 60.0, by_others=370.0).lagging == ("chat-1",)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(-1, 9))
def test_numbers_that_make_no_sense_are_no_lag(
    own: float, good: float, late_of_all: float, good_of_all: float, engines: int
) -> None:
    if lags(own, good, late_of_all, good_of_all, engines):
        assert math.isfinite(own)
        assert late_of_all + good_of_all > own + good


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40))
def test_where_all_are_late_alike_whatever_their_number_nobody_lags(own: int, good: int, engines: int) -> None:
    assert not lags(float(own), float(good), float(own * engines), float(good * engines), engines)


def test_who_is_scraped_twice_makes_the_metrics_doubtful() -> None:
    twice = sample(2.0, metric="copies", pod="chat-1")
    assert seen(*late("chat-1", 120.0), twice).state is SignalState.DUPLICATE


def test_a_row_of_a_service_of_the_same_name_elsewhere_names_nobody_here() -> None:
    assert seen(*late("chat-1", namespace="test")).lagging == ()


def test_lags_are_asked_for_without_a_further_query() -> None:
    asked = queries.fast_queries(WINDOW, around([SLO]))
    anomalies = next(query.promql for query in asked if query.name == "anomalies")
    assert (len(asked), '"late"' in anomalies) == (7, True)
    assert anomalies.count("increase(holdfast:") == 4
