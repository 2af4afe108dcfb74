"""PromQL as data: a constant number of grouped queries for all services.

Every counter is read as the difference of two instants, never through rate() or increase(): those extrapolate, and
miss what a new series counted before its first scrape. With `A` the last value at the evaluation time, `B` the last
value one interval earlier, both reaching back over `GAP_SECONDS` so that lost scrapes are bridged,

    sum by (group) ( ((A - B) >= 0)  or  A * share )

`share` answers for a series without a known past (a new or restarted engine, or one that Prometheus did not scrape
for long): the part of the engine's life that lies inside the interval. A new engine counts whole; a life-long counter
is never booked as one burst. Since A at one tick is B one interval later, nothing is counted twice or lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey

GROUP = "namespace, holdfast_service, holdfast_accelerator"
OURS = 'holdfast_service!=""'
GAP_SECONDS = 300.0
QUANTILES = (0.5, 0.95, 0.99)

TTFT = "time_to_first_token_seconds"
TPOT = "request_time_per_output_token_seconds"
TPOT_BEFORE_0_11 = "time_per_output_token_seconds"
E2E = "e2e_request_latency_seconds"
CACHED_TOKENS = ("prompt_tokens_cached_total", "prefix_cache_hits_total", "gpu_prefix_cache_hits_total")

COUNTERS = (
    "request_success_total",
    "admission_rejections_total",
    "prompt_tokens_total",
    *CACHED_TOKENS,
    "generation_tokens_total",
    "num_preemptions_total",
    "request_prompt_tokens_sum",
    "request_prompt_tokens_count",
    "request_generation_tokens_sum",
    f"{TTFT}_count",
    f"{TPOT}_count",
    f"{TPOT}_sum",
    f"{TPOT_BEFORE_0_11}_count",
    f"{TPOT_BEFORE_0_11}_sum",
    f"{E2E}_count",
)
IN_FLIGHT = ("num_requests_running", "num_requests_waiting")
ENGINE = f"vllm:num_requests_running{{{OURS}}}"  # one series per engine, in every vLLM version


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `name` is how results, logs and metrics call it."""

    name: str
    promql: str


@dataclass(frozen=True, slots=True)
class Window:
    """The interval that counts are taken over, and the scrape interval behind it, in seconds."""

    interval_seconds: float
    scrape_seconds: float

    @property
    def birth_grace_seconds(self) -> float:
        """How long after its birth an engine may be scraped first: discovery and one lost scrape."""
        return 2 * self.scrape_seconds + 5.0

    @property
    def stale_seconds(self) -> float:
        return 3 * self.scrape_seconds


def window(tick_seconds: float, scrape_seconds: float) -> Window:
    """Return the shortest whole number of scrapes that holds two of them and one tick.

    Whole, because both ends of the interval then see samples of the same age.
    """
    scrapes = max(2, -(-tick_seconds // scrape_seconds))
    return Window(scrapes * scrape_seconds, scrape_seconds)


@dataclass(frozen=True, slots=True)
class Edges:
    """The bucket edges worth asking for, in seconds: those that equal or neighbour some service's objective."""

    ttft: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()
    e2e: tuple[float, ...] = ()


def fast_queries(span: Window, edges: Edges) -> tuple[Query, ...]:
    """Return what every tick asks: six queries, whatever the number of services."""
    return (
        Query("counters", _counters(span)),
        Query("edges", _edges(span, edges)),
        Query("gauges", _gauges(span)),
        Query("engines", f"max by ({GROUP}, pod) (timestamp({ENGINE}))"),
        Query("anomalies", _anomalies(span)),
        Query("unlabelled", _unlabelled()),
    )


def slow_queries() -> tuple[Query, ...]:
    """Return what is asked about once a minute: quantiles over 5 min, lengths over 10 min."""
    return (
        Query("ttft_quantiles", _quantiles(TTFT)),
        Query("tpot_quantiles", _quantiles(TPOT, TPOT_BEFORE_0_11)),
        Query("prompt_lengths", _lengths("request_prompt_tokens")),
        Query("output_lengths", _lengths("request_generation_tokens")),
    )


def history_query(step_seconds: float, edges: Edges) -> Query:
    """Return the range query behind History: requests by outcome and by edge, gained in each step."""
    step = _duration(step_seconds)
    outcomes = {
        "finished": f'vllm:request_success_total{{{OURS}, finished_reason!~"abort|error"}}',
        "failed": f'vllm:request_success_total{{{OURS}, finished_reason="error"}}',
        "aborted": f'vllm:request_success_total{{{OURS}, finished_reason="abort"}}',
        "rejected": f"vllm:admission_rejections_total{{{OURS}}}",
    }
    terms = [
        _named(f"sum by (namespace, holdfast_service) (increase({selector}[{step}]))", "metric", name)
        for name, selector in outcomes.items()
    ]
    terms += [
        _named(f"sum by (namespace, holdfast_service, le) (increase({selector}[{step}]))", "metric", family)
        for family, selector in _edge_selectors(edges)
    ]
    return Query("history", " or ".join(terms))


def running_by_pod_query(keys: Iterable[ServiceKey]) -> Query:
    """Return requests in flight per pod of the given services; a pod scraped twice counts once."""
    wanted = sorted(keys)
    namespaces = _alternatives(key.namespace for key in wanted)
    names = _alternatives(key.name for key in wanted)
    selector = f'{{__name__=~"{_names(IN_FLIGHT)}", namespace=~"{namespaces}", holdfast_service=~"{names}"}}'
    each = f"max by (namespace, holdfast_service, pod, engine, model_name, __name__) ({selector})"
    return Query("running_by_pod", f"sum by (namespace, holdfast_service, pod) ({each})")


def _counters(span: Window) -> str:
    selector = f'{{__name__=~"{_names(COUNTERS)}", {OURS}}}'
    # `!= 0` leaves out what did not move (most of a quiet fleet) and keeps NaN, which must be seen.
    return f"sum by ({GROUP}, metric, finished_reason) ({_gained(selector, span)}) != 0"


def _edges(span: Window, edges: Edges) -> str:
    gained = [_gained(selector, span) for _, selector in _edge_selectors(edges)]
    return f"sum by ({GROUP}, metric, le) ({' or '.join(gained)}) != 0" if gained else "vector(0) != 0"


def _edge_selectors(edges: Edges) -> list[tuple[str, str]]:
    families = ((TTFT, edges.ttft), (TPOT, edges.tpot), (TPOT_BEFORE_0_11, edges.tpot), (E2E, edges.e2e))
    return [
        (family, f'{{__name__="vllm:{family}_bucket", {OURS}, le=~"{_le(seconds)}"}}')
        for family, seconds in families
        if seconds
    ]


def _gauges(span: Window) -> str:
    in_flight = f'{{__name__=~"{_names(IN_FLIGHT)}", {OURS}}}'
    now = f"sum by ({GROUP}, metric) ({_metric(in_flight)})"
    last, before = _last(in_flight), _last(in_flight, span)
    growth = f"sum by ({GROUP}) (({last} - {before}) or {last} * {_share(span)})"
    usage = f"avg by ({GROUP}) (vllm:kv_cache_usage_perc{{{OURS}}} or vllm:gpu_cache_usage_perc{{{OURS}}})"
    return f"{now} or {_named(growth, 'metric', 'in_flight_growth')} or {_named(usage, 'metric', 'kv_usage')}"


def _anomalies(span: Window) -> str:
    """Rows only where something is wrong: engines scraped twice, engines whose past is not known."""
    engines = f"count by ({GROUP}, pod, instance, engine, model_name) ({ENGINE})"
    copies = f"(sum by ({GROUP}) ({engines}) / count by ({GROUP}) ({engines})) > 1"
    before = f"last_over_time({ENGINE}[{_duration(GAP_SECONDS)}] offset {_duration(span.interval_seconds)})"
    newborn = f"{_births()} > time() - {span.interval_seconds + span.birth_grace_seconds}"
    no_past = f"({ENGINE} unless {before}) unless on (namespace, pod, instance) ({newborn})"
    return f"{_named(copies, 'metric', 'copies')} or {_named(f'count by ({GROUP}) ({no_past})', 'metric', 'no_past')}"


def _unlabelled() -> str:
    name = "vllm:num_requests_running"
    lacking = " or ".join(
        f'{name}{{{label}=""}}' for label in ("namespace", "holdfast_service", "holdfast_accelerator")
    )
    return f"count by ({GROUP}) ({lacking})"


def _quantiles(*families: str) -> str:
    rates = (
        f"sum by (namespace, holdfast_service, le) (rate(vllm:{family}_bucket{{{OURS}}}[5m]))" for family in families
    )
    buckets = " or ".join(rates)
    return " or ".join(_named(f"histogram_quantile({q}, {buckets})", "quantile", str(q)) for q in QUANTILES)


def _lengths(family: str) -> str:
    return f"sum by (namespace, holdfast_service, le) (increase(vllm:{family}_bucket{{{OURS}}}[10m]))"


def _gained(selector: str, span: Window) -> str:
    last, before = _last(selector), _last(selector, span)
    return f"((({last} - {before}) >= 0) or {last} * {_share(span)})"


def _last(selector: str, span: Window | None = None) -> str:
    """Last value now, or one interval ago; the metric's name becomes a label, which arithmetic would drop."""
    offset = f" offset {_duration(span.interval_seconds)}" if span else ""
    return _metric(f"last_over_time({selector}[{_duration(GAP_SECONDS)}]{offset})")


def _share(span: Window) -> str:
    """Part of an engine's life that lies in the interval: 1 up to its age plus grace, then falling with age."""
    age = f"(time() - {_births()} - {span.birth_grace_seconds})"
    interval = span.interval_seconds
    return f"on (namespace, pod, instance) group_left () ({interval} / clamp_min({age}, {interval}))"


def _births() -> str:
    """When each engine began to count, in seconds since the epoch."""
    by = "max by (namespace, pod, instance)"
    return f"({by} (vllm:request_success_created{{{OURS}}}) or {by} (process_start_time_seconds{{{OURS}}}))"


def _metric(vector: str) -> str:
    return f'label_replace({vector}, "metric", "$1", "__name__", "vllm:(.+)")'


def _named(vector: str, label: str, value: str) -> str:
    return f'label_replace({vector}, "{label}", "{value}", "", "")'


def _names(metrics: Iterable[str]) -> str:
    return "|".join(f"vllm:{metric}" for metric in metrics)


def _le(edges_seconds: Sequence[float]) -> str:
    """Edges as vLLM's client, Go's client and Prometheus 3 write them: 1 is `1`, `1.0` or `1e+00`."""
    spellings = {spelling for edge in edges_seconds for spelling in (repr(float(edge)), f"{edge:.12g}")}
    return _alternatives(spellings)


def _alternatives(texts: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts, quoted for a PromQL string."""
    return "|".join(sorted({re.escape(text) for text in texts})).replace("\\", "\\\\")


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
