"""Rows that tell of hung engines: who is named, and what they leave untouched."""

from __future__ import annotations

import math

import pytest

from holdfast.domain.signals import SignalState, Traffic, fewest_looks
from holdfast.observe.series import queries
from holdfast.observe.series.histogram_edges import around
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample

FOUR = [f"chat-{index}" for index in range(4)]
ENGINES = [sample(NOW - 3, pod=pod) for pod in FOUR]


def hung(pod: str, value: float = 7.0, **labels: str) -> Sample:
    return sample(value, metric="hung", pod=pod, **labels)


def judged(*rows: Sample, **more: list[Sample]) -> Traffic:
    found = answers(engines=ENGINES, anomalies=list(rows), **more)
    return traffic.assemble([request(*map(ready, FOUR))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def test_a_hung_engine_is_named_and_its_counts_stay_whole() -> None:
    seen = judged(hung("chat-1"))
    assert (seen.state, seen.hung) == (SignalState.FRESH, ("chat-1",))


def test_without_a_row_nobody_hangs() -> None:
    assert judged().hung == ()


def test_an_engine_that_is_scraped_twice_hangs_once() -> None:
    seen = judged(hung("chat-1", instance="10.0.0.1:8000"), hung("chat-1", instance="10.0.0.1:9000"), hung("chat-0"))
    assert seen.hung == ("chat-0", "chat-1")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_no_number_names_nobody(value: float) -> None:
    assert judged(hung("chat-1", value)).hung == ()


def test_a_row_without_a_pod_names_nobody() -> None:
    assert judged(hung("")).hung == ()


def test_the_others_are_not_the_busiest_because_one_hangs() -> None:
    begun = [sample(300.0, metric="begun"), sample(100.0, metric="most_begun")]
    assert dict(judged(requests=begun).by_accelerator)["h100"].busiest > 1.0
    assert dict(judged(hung("chat-1"), requests=begun).by_accelerator)["h100"].busiest == 1.0


def test_where_all_hang_nobody_is_the_busiest() -> None:
    begun = [sample(3.0, metric="begun"), sample(3.0, metric="most_begun")]
    assert dict(judged(*map(hung, FOUR), requests=begun).by_accelerator)["h100"].busiest == 0.0


def test_hangs_are_asked_for_without_a_further_query() -> None:
    asked = queries.fast_queries(WINDOW, around([SLO]))
    assert len(asked) == 7
    assert '"hung"' in next(query.promql for query in asked if query.name == "anomalies")


@pytest.mark.parametrize(
    ("scrape", "seconds", "looks"),
    [(15.0, 75.0, 4), (5.0, 60.0, 9), (1.0, 60.0, 43), (30.0, 120.0, 3), (60.0, 210.0, 3)],
)
def test_a_hang_takes_a_minute_and_three_looks_at_least(scrape: float, seconds: float, looks: int) -> None:
    span = queries.window(5.0, scrape)
    assert (span.still_seconds, fewest_looks(span.still_seconds, scrape)) == (seconds, looks)
