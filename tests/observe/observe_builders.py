"""Rows of Prometheus and the requests that go with them, with sensible defaults."""

from __future__ import annotations

from typing import Any

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey, Slo
from holdfast.observe.series import combined_queries, histogram_edges, needed_series, queries
from holdfast.observe.series.samples import QueryResult, Sample
from holdfast.observe.signals import slow_queries
from holdfast.observe.signals.traffic import TrafficRequest

NOW = 1_700_000_000.0
LONG_AGO = NOW - 7200.0
CHAT = ServiceKey("prod", "chat")
SLO = Slo(ttft_seconds=0.5, tpot_seconds=0.03, objective=0.99, window_seconds=3600.0)
WINDOW = queries.window(5.0, 15.0)
FAST = ("requests", "tokens", "edges", "gauges", "engines", "anomalies", "plugins")
ALL_IN_ONE = "requests+tokens+edges+gauges+engines+anomalies+plugins"
IN_TWO = ("requests+tokens+edges+gauges", "engines+anomalies+plugins")


def ready(pod: str, accelerator: str = "h100", at: float = LONG_AGO) -> Replica:
    return Replica(pod, accelerator, ReplicaPhase.READY, created_at=at, ready_at=at)


def request(*replicas: Replica, key: ServiceKey = CHAT, slo: Slo = SLO) -> TrafficRequest:
    return TrafficRequest(key, slo, replicas)


def sample(value: float, **labels: str) -> Sample:
    group = {"namespace": "prod", "holdfast_service": "chat", "holdfast_accelerator": "h100"}
    return Sample(group | labels, value)


def row(value: float | str, **labels: str) -> dict[str, Any]:
    """One row as Prometheus's JSON has it."""
    group = {"namespace": "prod", "holdfast_service": "chat", "holdfast_accelerator": "h100"}
    return {"metric": group | labels, "value": [NOW, str(value)]}


def answers(**samples: list[Sample]) -> dict[str, QueryResult]:
    """All fast answers; those not named are empty."""
    return {name: QueryResult(tuple(samples.get(name, ()))) for name in {*FAST, *samples}}


def known_queries(slo: Slo = SLO) -> dict[str, str]:
    """PromQL -> name, for every query of one tick, of few services or of many."""
    fast = queries.fast_queries(WINDOW, histogram_edges.around([slo]))
    together = combined_queries.bundled(fast, (*combined_queries.ALL_IN_ONE, *combined_queries.IN_TWO))
    of_chat = queries.narrowed(needed_series.series_query(), [CHAT])
    return {query.promql: query.name for query in (*together, *slow_queries.ALL, of_chat)}
