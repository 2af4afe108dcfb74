"""Stragglers that vLLM's own histograms show, without the plugin: late alone, and no busier than their peers."""

from __future__ import annotations

import math

import pytest

from holdfast.domain.signals import Traffic
from holdfast.observe.series import queries
from holdfast.observe.series.histogram_edges import around
from holdfast.observe.series.queries import TPOT, TPOT_BEFORE_0_11, TTFT
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample

FOUR = [f"chat-{index}" for index in range(4)]


def slow(pod: str, begun: float = 90.0, family: str = TTFT, le: str = "0.5", **labels: str) -> Sample:
    """An engine that began so many requests, almost all of them beyond the edge."""
    return sample(begun, metric="slow", slow=family, pod=pod, le=le, **labels)


def seen(*rows: Sample, late: float = 90.0, begun: float = 400.0, family: str = TTFT) -> Traffic:
    """Four engines that began `begun` requests together, of which so many were late by the family's objective."""
    counts = [sample(begun, metric=f"{name}_count") for name in {TTFT, TPOT, family} - _renamed(family)]
    edges = {TTFT: "0.5", TPOT: "0.03", TPOT_BEFORE_0_11: "0.03"}
    in_time = {name: begun - late * (name == family) for name in edges}
    edges = {name: le for name, le in edges.items() if name not in _renamed(family)}
    buckets = [sample(in_time[name], metric=f"{name}_bucket", le=le) for name, le in edges.items()]
    engines = [sample(NOW - 3, pod=pod) for pod in FOUR]
    found = answers(engines=engines, anomalies=list(rows), requests=counts, edges=buckets)
    return traffic.assemble([request(*map(ready, FOUR))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def _renamed(family: str) -> set[str]:
    """A release has one name of TPOT's histogram."""
    return {TPOT} if family == TPOT_BEFORE_0_11 else {TPOT_BEFORE_0_11}


@pytest.mark.parametrize(("family", "le"), [(TTFT, "0.5"), (TPOT, "0.05"), (TPOT_BEFORE_0_11, "0.05")])
def test_who_alone_is_late_and_no_busier_than_its_peers_lags(family: str, le: str) -> None:
    assert seen(slow("chat-1", family=family, le=le), family=family).lagging == ("chat-1",)


def test_without_a_row_nobody_lags() -> None:
    assert seen().lagging == ()


def test_where_peers_are_late_as_well_by_either_objective_nobody_lags() -> None:
    assert seen(slow("chat-1"), late=130.0).lagging == ()
    assert seen(slow("chat-1", family=TPOT, le="0.05"), late=130.0).lagging == ()
    assert seen(slow("chat-1"), late=130.0, family=TPOT).lagging == ()


def test_who_is_late_because_of_too_many_requests_does_not_lag() -> None:
    assert seen(slow("chat-1", 107.0), late=107.0).lagging == ("chat-1",)  # the others have 98 each
    assert seen(slow("chat-1", 108.0), late=108.0).lagging == ()


def test_an_edge_within_the_objective_proves_nothing() -> None:
    assert seen(slow("chat-1", le="0.25")).lagging == ()
    assert seen(slow("chat-1", family=TPOT, le="0.025")).lagging == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -5.0, 0.0])
def test_a_row_that_is_no_number_of_requests_names_nobody(value: float) -> None:
    assert seen(slow("chat-1", value)).lagging == ()


def test_a_row_without_its_labels_names_nobody() -> None:
    assert seen(slow("")).lagging == ()
    assert seen(slow("chat-1", le="")).lagging == ()
    assert seen(slow("chat-1", namespace="test")).lagging == ()


def test_edges_are_those_of_vllm_at_or_above_each_objective() -> None:
    asked = around([SLO])
    assert (asked.late_ttft, asked.late_tpot) == ((0.5,), (0.05,))


def test_they_are_asked_for_without_a_further_query() -> None:
    asked = queries.fast_queries(WINDOW, around([SLO]))
    anomalies = next(query.promql for query in asked if query.name == "anomalies")
    assert (len(asked), anomalies.count('"slow"')) == (7, 6)
