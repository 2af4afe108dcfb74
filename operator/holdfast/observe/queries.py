"""PromQL as data: a constant number of grouped queries for all services.

Counts are `sum by (...) (increase(...))` over three scrapes: resets are handled, a lost scrape costs nothing, a long
gap or a life-long counter seen for the first time is never booked as one burst, and stores that shard queries can.
What increase() misses is what a new engine counted before its first scrape: such engines appear in `anomalies`, and
`newborn_query` then reads what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey

SERVICE = "namespace, holdfast_service"
GROUP = f"{SERVICE}, holdfast_accelerator"
ENGINE = "namespace, pod, instance"
OURS = 'holdfast_service!=""'
QUANTILES = (0.5, 0.95, 0.99)

SUCCESS = "request_success_total"
REJECTIONS = "admission_rejections_total"
TTFT = "time_to_first_token_seconds"
TPOT = "request_time_per_output_token_seconds"
TPOT_BEFORE_0_11 = "time_per_output_token_seconds"
E2E = "e2e_request_latency_seconds"
CACHED_TOKENS = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")
PROMPT_LENGTH = "request_prompt_tokens"
OUTPUT_LENGTH = "request_generation_tokens"

REQUESTS = (SUCCESS, REJECTIONS, f"{TTFT}_count", f"{TPOT}_count", f"{TPOT_BEFORE_0_11}_count", f"{E2E}_count")
TOKENS = (
    "prompt_tokens_total",
    *CACHED_TOKENS,
    "generation_tokens_total",
    "num_preemptions_total",
    f"{PROMPT_LENGTH}_sum",
    f"{PROMPT_LENGTH}_count",
    f"{OUTPUT_LENGTH}_sum",
    f"{TPOT}_sum",
    f"{TPOT_BEFORE_0_11}_sum",
)


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
    """Return the shortest whole number of scrapes that holds three, and one more than a tick."""
    scrapes = max(3, -(-tick_seconds // scrape_seconds) + 1)
    return Window(scrapes * scrape_seconds, scrape_seconds)


@dataclass(frozen=True, slots=True)
class Edges:
    """The bucket edges worth asking for, in seconds: those that equal or neighbour some service's objective."""

    ttft: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()
    e2e: tuple[float, ...] = ()

    def by_family(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        families = ((TTFT, self.ttft), (TPOT, self.tpot), (TPOT_BEFORE_0_11, self.tpot), (E2E, self.e2e))
        return tuple((family, seconds) for family, seconds in families if seconds)


def fast_queries(span: Window, edges: Edges) -> tuple[Query, ...]:
    """Return what every tick asks: seven queries, whatever the number of services.

    Counters are asked for in two, of like cost: Prometheus spends one core on a query.
    """
    return (
        Query("requests", _counters(span, REQUESTS if edges.e2e else REQUESTS[:-1])),
        Query("tokens", _counters(span, TOKENS)),
        Query("edges", _edges(span, edges)),
        Query("gauges", _gauges(span)),
        Query("engines", f"max by ({GROUP}, pod) (timestamp({_engine()}))"),
        Query("anomalies", _anomalies(span)),
        Query("unlabelled", _unlabelled()),
    )


def newborn_query(span: Window, edges: Edges, namespaces: Iterable[str], pods: Iterable[str]) -> Query:
    """Return what increase() leaves out of the given engines, which were born about an interval ago: to be added.

    Of an engine older than the interval, the part of its life that lies inside is taken.
    """
    these = f'{OURS}, namespace=~"{_alternatives(namespaces)}", pod=~"{_alternatives(pods)}"'
    interval = span.interval_seconds
    inside = f"({interval} / clamp_min(time() - {_births(these)}, {interval}))"

    def missed(metric: str, more: str = "") -> str:
        counter = f"vllm:{metric}{{{these}{more}}}"
        whole = f"{counter} * on ({ENGINE}) group_left () {inside}"
        return f"({whole} - (increase({counter}[{_interval(span)}]) or {counter} * 0))"

    terms = [_summed(metric, missed(metric), "finished_reason") for metric in (*REQUESTS, *TOKENS)]
    terms += [
        _summed(f"{family}_bucket", missed(f"{family}_bucket", f', le=~"{_le(seconds)}"'), "le")
        for family, seconds in edges.by_family()
    ]
    terms.append(_summed("in_flight_growth", f"({_in_flight('{}', these)})"))
    return Query("newborn", " or ".join(terms))


def slow_queries() -> tuple[Query, ...]:
    """Return what is asked about once a minute: quantiles over 5 min, lengths over 10 min."""
    return (
        Query("ttft_quantiles", _quantiles(TTFT)),
        Query("tpot_quantiles", _quantiles(TPOT, TPOT_BEFORE_0_11)),
        Query("prompt_lengths", _lengths(PROMPT_LENGTH)),
        Query("output_lengths", _lengths(OUTPUT_LENGTH)),
    )


def history_query(step_seconds: float, edges: Edges) -> Query:
    """Return the range query behind History: requests by outcome and by edge, gained in each step."""
    step = _duration(step_seconds)
    terms = [
        _named(f"sum by ({SERVICE}, finished_reason) (increase(vllm:{SUCCESS}{{{OURS}}}[{step}]))", "metric", SUCCESS),
        _named(f"sum by ({SERVICE}) (increase(vllm:{REJECTIONS}{{{OURS}}}[{step}]))", "metric", REJECTIONS),
    ]
    for family, seconds in edges.by_family():
        bucket = f'vllm:{family}_bucket{{{OURS}, le=~"{_le(seconds)}"}}'
        terms.append(_named(f"sum by ({SERVICE}, le) (increase({bucket}[{step}]))", "metric", f"{family}_bucket"))
    return Query("history", " or ".join(terms))


def running_by_pod_query(keys: Iterable[ServiceKey]) -> Query:
    """Return requests in flight per pod of the given services; a pod scraped twice counts once."""
    wanted = sorted(keys)
    namespaces = _alternatives(key.namespace for key in wanted)
    names = _alternatives(key.name for key in wanted)
    in_flight = _in_flight("{}", f'namespace=~"{namespaces}", holdfast_service=~"{names}"')
    each = f"max by ({SERVICE}, pod, engine, model_name) ({in_flight})"
    return Query("running_by_pod", f"sum by ({SERVICE}, pod) ({each})")


def _counters(span: Window, metrics: Iterable[str]) -> str:
    interval = _interval(span)
    terms = (_summed(metric, f"increase(vllm:{metric}{{{OURS}}}[{interval}])", "finished_reason") for metric in metrics)
    return " or ".join(terms)


def _edges(span: Window, edges: Edges) -> str:
    interval = _interval(span)
    terms = [
        _summed(f"{family}_bucket", f'increase(vllm:{family}_bucket{{{OURS}, le=~"{_le(seconds)}"}}[{interval}])', "le")
        for family, seconds in edges.by_family()
    ]
    return " or ".join(terms)


def _gauges(span: Window) -> str:
    """Gauges now, and how requests in flight grew, over the engines seen at both ends (an ended one by its last)."""
    interval = _interval(span)
    last = _in_flight(f"last_over_time({{}}[{interval}])")
    before = _in_flight(f"{{}} offset {interval}")
    usage = f"avg by ({GROUP}) (vllm:kv_cache_usage_perc{{{OURS}}} or vllm:gpu_cache_usage_perc{{{OURS}}})"
    return " or ".join(
        (
            _summed("num_requests_running", _engine()),
            _summed("num_requests_waiting", f"vllm:num_requests_waiting{{{OURS}}}"),
            _summed("in_flight_growth", f"(({last}) - ({before}))"),
            _named(usage, "metric", "kv_usage"),
        )
    )


def _anomalies(span: Window) -> str:
    """Rows only where something needs attention: engines scraped twice, and engines without a known past.

    The value of a `born` row is when that engine began to count (seconds since the epoch), 0 where it does not say.
    """
    interval = _interval(span)
    engines = f"count by ({GROUP}, pod, instance, engine, model_name) ({_engine()})"
    copies = f"(sum by ({GROUP}) ({engines}) / count by ({GROUP}) ({engines})) > 1"
    with_past = f"((count_over_time({_engine()}[{interval}]) >= 2) and {_engine()} offset {interval})"
    without_past = f"(max by ({GROUP}, pod, instance) ({_engine()} unless {with_past}) * 0)"
    born = f"({without_past} + on ({ENGINE}) group_left () {_births(OURS)} or {without_past})"
    return f"{_named(copies, 'metric', 'copies')} or {_named(born, 'metric', 'born')}"


def _births(matchers: str) -> str:
    """When each engine began to count: its counters' own birth (after the model was loaded), else its process's."""
    created = f'max by ({ENGINE}) (vllm:request_success_created{{{matchers}, finished_reason="stop"}})'
    return f"({created} or max by ({ENGINE}) (process_start_time_seconds{{{matchers}}}))"


def _unlabelled() -> str:
    labels = ("namespace", "holdfast_service", "holdfast_accelerator")
    lacking = " or ".join(f'vllm:num_requests_running{{{label}=""}}' for label in labels)
    return f"count by ({GROUP}) ({lacking})"


def _quantiles(*families: str) -> str:
    rates = (f"sum by ({SERVICE}, le) (rate(vllm:{family}_bucket{{{OURS}}}[5m]))" for family in families)
    buckets = " or ".join(rates)
    return " or ".join(_named(f"histogram_quantile({q}, {buckets})", "quantile", str(q)) for q in QUANTILES)


def _lengths(family: str) -> str:
    return f"sum by ({SERVICE}, le) (increase(vllm:{family}_bucket{{{OURS}}}[10m]))"


def _engine() -> str:
    """One series per engine, in every vLLM version."""
    return f"vllm:num_requests_running{{{OURS}}}"


def _in_flight(form: str, matchers: str = OURS) -> str:
    """Running plus waiting, each selected in the given form (`{}` stands for the selector)."""
    gauges = ("num_requests_running", "num_requests_waiting")
    return " + ".join(form.format(f"vllm:{gauge}{{{matchers}}}") for gauge in gauges)


def _summed(metric: str, vector: str, *also_by: str) -> str:
    """Sum per service and accelerator. `!= 0` leaves out what did not move and keeps NaN, which must be seen."""
    by = ", ".join((GROUP, *also_by))
    return _named(f"(sum by ({by}) ({vector}) != 0)", "metric", metric)


def _named(vector: str, label: str, value: str) -> str:
    return f'label_replace({vector}, "{label}", "{value}", "", "")'


def _le(edges_seconds: Sequence[float]) -> str:
    """Edges as Python's client, Go's client and Prometheus 3 write them: 1 is `1` or `1.0`."""
    return _alternatives(spelling for edge in edges_seconds for spelling in (repr(float(edge)), f"{edge:.12g}"))


def _alternatives(texts: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts, quoted for a PromQL string."""
    return "|".join(sorted({re.escape(text) for text in texts})).replace("\\", "\\\\")


def _interval(span: Window) -> str:
    return _duration(span.interval_seconds)


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
