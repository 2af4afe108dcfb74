"""Several of the fast queries asked as one, and their rows told apart again by what they bear as `metric`.

Prometheus spends one core on a query: apart they are answered sooner, together they are fewer. So they are bundled
where services are few, or where nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.observe import queries
from holdfast.observe.queries import Query
from holdfast.observe.samples import QueryResult, Sample

SAMPLED_AT = "sampled_at"

_ANOMALIES = frozenset({"copies", "newcomer", "gappy", "unlabelled", queries.HUNG, queries.LATE})
_PLUGINS = frozenset({*queries.JUDGED, queries.COVERED, queries.WAITING_LATE, "objective", "limit", "mode"})

ALL_IN_ONE = (("requests", "tokens", "edges", "gauges", "engines", "anomalies", "plugins"),)
"""For few services that are waited for."""

WHERE_NOBODY_WAITS = (("requests",), ("tokens",), ("edges",), ("gauges", "engines"), ("anomalies", "plugins"))


def bundled(asked: Iterable[Query], bundles: Sequence[Sequence[str]]) -> tuple[Query, ...]:
    """Return one query for each bundle of names."""
    promql = {query.name: _told_apart(query) for query in asked}
    return tuple(Query("+".join(names), _any([promql[name] for name in names])) for names in bundles)


def unbundled(answers: Mapping[str, QueryResult]) -> dict[str, QueryResult]:
    """Return the answers by the names of the fast queries; counts that were asked for together come as `requests`."""
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


def _told_apart(query: Query) -> str:
    if query.name == "engines":  # the only one of a single kind of row
        return f'label_replace({query.promql}, "metric", "{SAMPLED_AT}", "", "")'
    return f"({query.promql})"


def _any(vectors: Sequence[str]) -> str:
    """The union in halves of halves: each `or` goes through all rows of both its sides."""
    if len(vectors) == 1:
        return vectors[0]
    middle = (len(vectors) + 1) // 2
    return f"({_any(vectors[:middle])} or {_any(vectors[middle:])})"
