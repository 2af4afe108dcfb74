"""Rows that tell of engines where most requests end with an error: which of them fail, and when all do alike."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.signals import SignalState, Traffic, failing
from holdfast.observe.series import queries
from holdfast.observe.series.combined_queries import ALL_IN_ONE, unbundled
from holdfast.observe.series.histogram_edges import around
from holdfast.observe.series.samples import QueryResult, Sample
from holdfast.observe.signals import traffic
from holdfast.observe.signals.slow_queries import SlowSignals
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, answers, ready, request, sample
from tests.observe.test_plugin_rows import COVERED, OBJECTIVES

FOUR = [f"chat-{index}" for index in range(4)]


def fails(pod: str, errors: float = 270.0, metric: str = "failing", **labels: str) -> Sample:
    return sample(errors, metric=metric, pod=pod, **labels)


def seen(*rows: Sample, others: float = 0.0, served: float = 810.0, plugins: list[Sample] | None = None) -> Traffic:
    """Four engines, of which those of the rows fail; the others have so many errors, and all served so many."""
    errors = others + sum(row.value for row in rows if math.isfinite(row.value) and row.labels["metric"] == "failing")
    counts = [
        sample(errors, metric="request_success_total", finished_reason="error"),
        sample(served, metric="request_success_total", finished_reason="stop"),
    ]
    engines = [sample(NOW - 3, pod=pod) for pod in FOUR]
    found = answers(engines=engines, requests=counts, anomalies=list(rows), plugins=plugins or [])
    return traffic.assemble([request(*map(ready, FOUR))], found, SlowSignals(), WINDOW, NOW)[CHAT]


def judged(pod_errors: float, late: float = 0.0, good: float = 810.0) -> list[Sample]:
    return [
        COVERED,
        *OBJECTIVES,
        sample(late, metric="requests_bad_total", cause="ttft"),
        sample(pod_errors, metric="requests_bad_total", cause="error"),
        sample(good, metric="requests_good_total"),
    ]


def test_who_alone_ends_requests_with_errors_fails_and_its_counts_stay_whole() -> None:
    found = seen(fails("chat-1"))
    assert (found.state, found.failing, found.lagging, found.hung) == (SignalState.FRESH, ("chat-1",), (), ())
    assert found.by_accelerator[0][1].failed == 270.0


def test_who_fails_at_once_and_draws_nearly_all_requests_is_named() -> None:
    assert seen(fails("chat-1", 5000.0), served=40.0).failing == ("chat-1",)
    assert seen(fails("chat-1", 5000.0), served=0.0).failing == ("chat-1",)


def test_several_may_fail_beside_others_that_do_not() -> None:
    assert seen(fails("chat-1"), fails("chat-2"), served=540.0).failing == ("chat-1", "chat-2")


def test_where_others_fail_as_well_nobody_is_named() -> None:
    assert seen(fails("chat-1"), others=200.0).failing == ()


def test_by_the_judgement_of_the_plugin_alone_it_fails_too_and_does_not_lag() -> None:
    late = fails("chat-1", metric="late"), fails("chat-1", 0.0, metric="in_time")
    assert (seen(*late, plugins=judged(270.0)).failing, seen(*late, plugins=judged(270.0)).lagging) == (("chat-1",), ())
    assert (seen(*late, plugins=judged(0.0, 270.0)).failing, seen(*late, plugins=judged(0.0, 270.0)).lagging) == (
        (),
        ("chat-1",),
    )
    both = seen(*late, plugins=judged(100.0, 170.0))
    assert (both.failing, both.lagging) == ((), ("chat-1",))


@pytest.mark.parametrize("row", [fails("chat-1", math.nan), fails("chat-1", math.inf), fails(""), fails("", -5.0)])
def test_a_row_that_is_no_number_or_of_no_pod_names_nobody(row: Sample) -> None:
    assert seen(row).failing == ()


def test_a_row_of_another_service_names_nobody_here() -> None:
    assert seen(fails("chat-1", namespace="test")).failing == ()


@given(
    st.dictionaries(st.sampled_from(FOUR), st.floats(8.0, 1e6)),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_numbers_that_make_no_sense_name_at_most_those_of_the_rows(
    errors: dict[str, float], of_all: float, served: float
) -> None:
    assert failing(errors, of_all, served) <= errors.keys()


def test_errors_are_asked_for_without_a_further_query_and_survive_a_combined_one() -> None:
    asked = queries.fast_queries(WINDOW, around([SLO]))
    anomalies = next(query.promql for query in asked if query.name == "anomalies")
    assert (len(asked), '"failing"' in anomalies, anomalies.count("increase(vllm:request_success")) == (7, True, 2)
    together = {"+".join(ALL_IN_ONE[0]): QueryResult((fails("chat-1"),))}
    assert unbundled(together)["anomalies"].samples == (fails("chat-1"),)
