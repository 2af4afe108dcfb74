"""Several fast queries combined into one; the label `metric` separates their rows again.

What a verdict compares comes from one response. Behind the Service of two Prometheus replicas each connection goes to
one of them, they scrape at different times, and requests that one of them has counted would be late for the other.
Prometheus uses one core per query, so values that are not compared are queried in parallel if there are many services.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.observe.series import queries
from holdfast.observe.series.promql import EngineSelector, named
from holdfast.observe.series.queries import Query
from holdfast.observe.series.samples import QueryResult, Sample

SAMPLED_AT = "sampled_at"

_ANOMALIES = frozenset(
    {
        "copies",
        "newcomer",
        "gappy",
        "unlabelled",
        queries.HUNG,
        queries.FAILING,
        queries.LATE,
        queries.IN_TIME,
        queries.SLOW,
    }
)
_PLUGINS = frozenset(
    {
        *queries.JUDGED,
        queries.COVERED,
        queries.CLIENT_TIMES,
        queries.WAITING_LATE,
        *queries.BATCH,
        "objective",
        "limit",
        "mode",
    }
)

COMPARED = ("requests", "tokens", "edges", "gauges")
"""Arrivals are requests that ended plus the growth in flight; late requests are counts minus those within an edge."""

ALL_IN_ONE = ((*COMPARED, "engines", "anomalies", "plugins"),)
"""For few services."""

IN_TWO = (COMPARED, ("engines", "anomalies", "plugins"))
"""For many services, and where no tick waits for the answer."""


def bundled(asked: Iterable[Query], bundles: Sequence[Sequence[str]]) -> tuple[Query, ...]:
    """Return one query for each bundle of names."""
    found = {query.name: query for query in asked}
    return tuple(_bundle([found[name] for name in names]) for names in bundles)


def _bundle(asked: Sequence[Query]) -> Query:
    def written(engines: EngineSelector) -> str:
        return _any([_told_apart(each, each.write(engines)) for each in asked])

    return Query("+".join(each.name for each in asked), written, asked[0].engines)


def unbundled(answers: Mapping[str, QueryResult]) -> dict[str, QueryResult]:
    """Return the answers by the names of the fast queries; counts of combined queries are returned as `requests`."""
    found = {name: answers.get(name, QueryResult()) for name in ALL_IN_ONE[0]}
    together = [answer for name, answer in answers.items() if name not in found]
    rows: dict[str, list[Sample]] = {"requests": []}
    for answer in together:
        for sample in answer.samples:
            rows.setdefault(_query_of(sample.label("metric")), []).append(sample)
    warnings = tuple(text for answer in together for text in answer.warnings)
    more = {name: QueryResult((*found[name].samples, *samples), found[name].warnings) for name, samples in rows.items()}
    return found | more | {"requests": QueryResult(more["requests"].samples, more["requests"].warnings + warnings)}


def _query_of(metric: str) -> str:
    if metric == SAMPLED_AT:
        return "engines"
    if metric in _ANOMALIES:
        return "anomalies"
    return "plugins" if metric in _PLUGINS else "requests"


def _told_apart(query: Query, promql: str) -> str:
    """The engines are the only rows of a single kind, without a name yet."""
    return named(promql, "metric", SAMPLED_AT) if query.name == "engines" else f"({promql})"


def _any(vectors: Sequence[str]) -> str:
    """Build the union as a balanced tree: each `or` scans all rows of both its sides."""
    if len(vectors) == 1:
        return vectors[0]
    middle = (len(vectors) + 1) // 2
    return f"({_any(vectors[:middle])} or {_any(vectors[middle:])})"
