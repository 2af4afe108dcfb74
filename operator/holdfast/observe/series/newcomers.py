"""The query about engines that Prometheus scraped for the first time just now: what increase() misses of them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.observe.series import queries
from holdfast.observe.series.histograms import without_classic
from holdfast.observe.series.promql import EngineSelector, any_of, duration, named
from holdfast.observe.series.queries import ENGINE, GROUP, Edges, Query, QueryWindow


def newcomer_query(span: QueryWindow, edges: Edges, namespaces: Iterable[str], pods: Iterable[str]) -> Query:
    """Return the start times of engines without a past, and the counts that increase() misses for new engines.

    For an engine older than the interval, the count is scaled to the part of its life inside the interval. All metrics
    are joined first, because each selector names many pods.
    """
    # Skip series that have their own label `metric`: two of them would collide here and fail the whole query.
    new = 'metric=""', f'namespace=~"{any_of(namespaces)}"', f'pod=~"{any_of(pods)}"'
    seconds, interval = span.interval_seconds, duration(span.interval_seconds)
    by = f"{GROUP}, metric, finished_reason, le, cause, class"

    def written(engines: EngineSelector) -> str:
        these = engines.also(*new)
        births = queries.births(these, ENGINE)
        inside = f"({seconds} / clamp_min(time() - ({births} > time() - {span.newborn_seconds}), {seconds}))"
        born = named(queries.births(these, f"{GROUP}, {ENGINE}"), "metric", "born")
        counts, natives = (
            f"({' or '.join(values)}) * on ({ENGINE}) group_left () {inside} - ({' or '.join(gains)})"
            for values, gains in (_counts(these, edges, interval), _natives(these, edges, interval))
        )
        return f"{born} or (sum by ({by}) ({counts}) != 0) or sum by ({by}) ({natives})"

    return Query("newcomers", written)


def _counts(these: EngineSelector, edges: Edges, interval: str) -> tuple[list[str], list[str]]:
    values: list[str] = []
    gains: list[str] = []

    def add(metric: str, *more: str, name: str = "", over: str = "increase", of: str = "vllm") -> None:
        series = f"{of}:{metric}"
        value, gained = these.read(series, *more), these.read(series, *more, over=over, span=interval)
        values.append(named(value, "metric", name or metric))
        gains.append(named(f"({gained} or {value} * 0)", "metric", name or metric))

    for metric in (*queries.REQUESTS, *queries.TOKENS):
        add(metric)
    for family, seconds in edges.by_family():
        add(f"{family}_bucket", queries.within(seconds))
    for gauge in queries.IN_FLIGHT:
        add(gauge, name=f"{gauge}_growth", over="delta")
    for metric in queries.JUDGED:
        add(metric, of="holdfast")
    return values, gains


def _natives(these: EngineSelector, edges: Edges, interval: str) -> tuple[list[str], list[str]]:
    values, gains = [], []
    for family in queries.histograms(edges):
        native = f"vllm:{family}"
        values.append(named(without_classic(these, family), "metric", family))
        gains.append(named(f"({these.increase(native, interval)} or {these.read(native)} * 0)", "metric", family))
    return values, gains
