"""The query about engines that Prometheus scraped for the first time just now: what increase() misses of them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.observe import queries
from holdfast.observe.histograms import without_classic
from holdfast.observe.promql import any_edge, any_of, duration, named
from holdfast.observe.queries import ENGINE, GROUP, OURS, Edges, Query, QueryWindow


def newcomer_query(span: QueryWindow, edges: Edges, namespaces: Iterable[str], pods: Iterable[str]) -> Query:
    """Return the start times of engines without a past, and the counts that increase() misses for new engines.

    For an engine older than the interval, the count is scaled to the part of its life inside the interval. All metrics
    are joined first, because each selector names many pods.
    """
    # Skip series that have their own label `metric`: two of them would collide here and fail the whole query.
    these = f'{OURS}, metric="", namespace=~"{any_of(namespaces)}", pod=~"{any_of(pods)}"'
    births = queries.births(these, ENGINE)
    seconds, interval = span.interval_seconds, duration(span.interval_seconds)
    inside = f"({seconds} / clamp_min(time() - ({births} > time() - {span.newborn_seconds}), {seconds}))"
    born = named(queries.births(these, f"{GROUP}, {ENGINE}"), "metric", "born")

    def missed(values: list[str], gains: list[str]) -> str:
        return f"({' or '.join(values)}) * on ({ENGINE}) group_left () {inside} - ({' or '.join(gains)})"

    counts = missed(*_counts(these, edges, interval))
    natives = missed(*_natives(these, edges, interval))
    by = f"{GROUP}, metric, finished_reason, le, cause"
    return Query("newcomers", f"{born} or (sum by ({by}) ({counts}) != 0) or sum by ({by}) ({natives})")


def _counts(these: str, edges: Edges, interval: str) -> tuple[list[str], list[str]]:
    values: list[str] = []
    gains: list[str] = []

    def add(metric: str, name: str = "", more: str = "", gained: str = "increase", of: str = "vllm") -> None:
        value = f"{of}:{metric}{{{these}{more}}}"
        values.append(named(value, "metric", name or metric))
        gains.append(named(f"({gained}({value}[{interval}]) or {value} * 0)", "metric", name or metric))

    for metric in (*queries.REQUESTS, *queries.TOKENS):
        add(metric)
    for family, seconds in edges.by_family():
        add(f"{family}_bucket", more=f', le=~"{any_edge(seconds)}"')
    for gauge in queries.IN_FLIGHT:
        add(gauge, f"{gauge}_growth", gained="delta")
    for metric in queries.JUDGED:
        add(metric, of="holdfast")
    return values, gains


def _natives(these: str, edges: Edges, interval: str) -> tuple[list[str], list[str]]:
    families = queries.histograms(edges)
    values = [named(without_classic(family, these), "metric", family) for family in families]
    native = {family: f"vllm:{family}{{{these}}}" for family in families}
    gains = [named(f"(increase({each}[{interval}]) or {each} * 0)", "metric", name) for name, each in native.items()]
    return values, gains
