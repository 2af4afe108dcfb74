"""What each revision of a service did, while one of them is on trial."""

from __future__ import annotations

import dataclasses
import math

import pytest

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import RevisionTraffic
from holdfast.observe.series import histogram_edges, queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.promql import OURS
from holdfast.observe.series.samples import Sample
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.trials import read_trials
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, SLO, WINDOW, known_queries, ready, request, row, sample

ROWS = [
    ("request_time_per_output_token_seconds_count", "", 90.0),
    ("time_to_first_token_seconds_count", "", 100.0),
    ("time_to_first_token_seconds_bucket", "0.4", 70.0),
    ("time_to_first_token_seconds_bucket", "0.5", 95.0),
    ("time_to_first_token_seconds_bucket", "1.0", 99.0),
    ("request_time_per_output_token_seconds_bucket", "0.03", 88.0),
    ("admission_rejections_total", "", 3.0),
]
CANARY = RevisionTraffic("h100", "new", 3.0, 100.0, 95.0, 90.0, 88.0)


def rows(revision: str, **changes: float) -> list[Sample]:
    return [
        sample(changes.get(metric, value), metric=metric, holdfast_revision=revision, **({"le": edge} if edge else {}))
        for metric, edge, value in ROWS
    ]


def test_misses_are_counted_by_revision() -> None:
    found = read_trials([*rows("new"), *rows("old", admission_rejections_total=0.0)], {CHAT: SLO})
    assert found == {CHAT: (CANARY, dataclasses.replace(CANARY, revision="old", rejected=0.0))}


def test_engines_of_before_0_11_count_as_well() -> None:
    older = [
        item._replace(labels={**item.labels, "metric": item.labels["metric"].replace("request_time_per", "time_per")})
        for item in rows("new")
    ]
    assert read_trials(older, {CHAT: SLO})[CHAT] == (CANARY,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_value_that_makes_no_sense_is_left_out(value: float) -> None:
    (found,) = read_trials(rows("new", admission_rejections_total=value), {CHAT: SLO})[CHAT]
    assert found == dataclasses.replace(CANARY, rejected=0.0)


def test_series_without_a_revision_or_of_other_services_say_nothing() -> None:
    assert read_trials(rows(""), {CHAT: SLO}) == {}
    assert read_trials(rows("new"), {ServiceKey("prod", "other"): SLO}) == {}


async def test_only_services_on_trial_are_asked_about_by_revision() -> None:
    query = queries.trial_query(WINDOW, histogram_edges.around([SLO]), [CHAT])
    assert OURS not in query.promql
    async with FakePrometheus(known_queries() | {query.promql: "trials"}) as fake:
        fake.rows["engines"] = [row(NOW - 3, pod="chat-0")]
        fake.rows["trials"] = [
            row(value, metric=metric, holdfast_revision="new", **({"le": edge} if edge else {}))
            for metric, edge, value in ROWS
        ]
        source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
        try:
            calm = request(ready("chat-0"))
            assert (await source.observe([calm], NOW))[CHAT].revisions == ()
            assert "trials" not in fake.names
            trying = dataclasses.replace(calm, on_trial=True)
            assert (await source.observe([trying], NOW))[CHAT].revisions == (CANARY,)
        finally:
            await source.close()
