"""End-to-end latencies cost Prometheus a query only where a service has an objective for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import UNKNOWN_QUANTILES, Traffic
from holdfast.observe.series import queries
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.signals.prometheus import PrometheusSource
from holdfast.observe.signals.traffic import TrafficRequest
from tests.fakes import FakePrometheus
from tests.observe.observe_builders import CHAT, NOW, SLO, known_queries, ready, request, row

TIMED = ServiceKey("prod", "timed")
TIMED_SLO = dataclasses.replace(SLO, e2e_seconds=20.0)
(ASKED,) = (query for query in queries.slow_queries() if query.name == queries.E2E_BUCKETS)
ROWS = [row(1.0, holdfast_service="timed", le="10"), row(1.0, holdfast_service="timed", le="+Inf")]


async def looks(fake: FakePrometheus, *requests: TrafficRequest) -> Mapping[ServiceKey, Traffic]:
    """What is known after the slow queries have had their turn."""
    source = PrometheusSource(PrometheusAddress(fake.url, timeout_seconds=30.0))
    seen: Mapping[ServiceKey, Traffic] = {}
    for tick in range(4):
        seen = await source.observe(requests, NOW + 5 * tick)
        await source.settle()
    await source.close()
    return seen


def end_to_end(fake: FakePrometheus) -> list[str]:
    return [
        form["query"]
        for form in fake.asked
        if "e2e_request_latency_seconds_bucket" in form["query"] and "[5m]" in form["query"]
    ]


async def test_without_an_objective_for_them_nobody_is_asked() -> None:
    async with FakePrometheus(known_queries()) as fake:
        seen = await looks(fake, request(ready("chat-0")))
        assert end_to_end(fake) == []
        assert "tpot_buckets" in fake.names
    assert seen[CHAT].e2e == UNKNOWN_QUANTILES


async def test_percentiles_are_read_of_those_that_have_one_and_only_they_are_asked_about() -> None:
    narrowed = queries.narrowed(ASKED, [TIMED])
    async with FakePrometheus({narrowed.promql: queries.E2E_BUCKETS}) as fake:
        fake.rows[queries.E2E_BUCKETS] = ROWS
        seen = await looks(fake, request(ready("chat-0")), request(ready("timed-0"), key=TIMED, slo=TIMED_SLO))
        assert end_to_end(fake) == [narrowed.promql]
    assert seen[TIMED].e2e.p95_seconds == 9.5
    assert seen[CHAT].e2e == UNKNOWN_QUANTILES


async def test_where_all_have_one_the_question_names_nobody() -> None:
    async with FakePrometheus(known_queries(TIMED_SLO)) as fake:
        fake.rows[queries.E2E_BUCKETS] = ROWS
        seen = await looks(fake, request(ready("timed-0"), key=TIMED, slo=TIMED_SLO))
        assert end_to_end(fake) == [ASKED.promql]
    assert seen[TIMED].e2e.p50_seconds == 5.0
