"""PromQL as data: a constant number of grouped queries for all services.

Counts are `sum by (...) (increase(...))` over three scrapes: resets are handled, a lost scrape costs nothing, a long
gap or a life-long counter seen for the first time is never booked as one burst, and stores that shard queries can.
What increase() misses is what a new engine counted before its first scrape: such engines appear in `anomalies`, and
`newcomers.newcomer_query` then reads what is missing.

Histograms may be stored as classic or as native ones: see `observe.histograms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import (
    LATE_SHARE,
    LEAST_LATE,
    LEAST_LOOK_SECONDS,
    SLOW_STEPS,
    SURELY_LATE_SHARE,
    fewest_looks,
    still_seconds,
)
from holdfast.observe.histograms import without_classic
from holdfast.observe.promql import any_edge, any_of, duration, named
from holdfast_engine.engine_info import INFO_LABELS

SERVICE = "namespace, holdfast_service"
GROUP = f"{SERVICE}, holdfast_accelerator"
ENGINE = "namespace, pod, instance"
OURS = 'holdfast_service!=""'

SUCCESS = "request_success_total"
REJECTIONS = "admission_rejections_total"
TTFT = "time_to_first_token_seconds"
TPOT = "request_time_per_output_token_seconds"
TPOT_BEFORE_0_11 = "time_per_output_token_seconds"
TYPICAL = "typical"
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
)
IN_FLIGHT = ("num_requests_running", "num_requests_waiting")
QUEUE_FLOW = "queue_flow"
WAITING_BY_REASON = "num_requests_waiting_by_reason"

ARRIVED, GOOD, BAD = "requests_arrived_total", "requests_good_total", "requests_bad_total"
JUDGED = (ARRIVED, BAD, GOOD, "requests_withdrawn_total", "good_tokens_total")
"""What the plugin counts (holdfast: in place of vllm:)."""
ERROR, REJECTED = "error", "rejected"

HELD, HELD_BUCKET = "holdfast_activator_requests_total", "holdfast_activator_wait_seconds_bucket"
"""What an activator counts, by outcome."""
_GAP = "10m"  # a counter that was not scraped for longer starts anew: its whole past count is no burst

WAITING_LATE = "requests_waiting_late"
HUNG, FAILING, LATE, IN_TIME, SLOW = "hung", "failing", "late", "in_time", "slow"
PROGRESS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "holdfast:plugin_steps_total",
)
"""Metrics that move while an engine works. A prompt counts at its first token; before, its chunks fill the KV cache."""

CACHE_CONFIG = "cache_config_info"
CACHE_LABELS = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size", "gpu_memory_utilization", "cache_dtype")
"""vLLM's info metric of its KV cache, and the labels that are read; its value is always 1."""
ENGINE_INFO = "engine_info"
"""The plugin's info metric of how vLLM was started (holdfast: in place of vllm:)."""
ACCEPTED, DRAFTS = "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"
"""Draft tokens that were accepted, and how often a sequence had a draft: only with speculative decoding."""

BEGUN, MOST_BEGUN, COVERED, CLIENT_TIMES = "begun", "most_begun", "covered", "client_times"
BEGUN_BY_POD = "begun_by_pod"  # a native histogram for each replica, in place of the two numbers
E2E_BUCKETS = "e2e_buckets"  # asked only of services with an e2e objective
FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `name` is how results, logs and metrics call it."""

    name: str
    promql: str


@dataclass(frozen=True, slots=True)
class QueryWindow:
    """The interval that counts are taken over, and the scrape interval behind it, in seconds."""

    interval_seconds: float
    scrape_seconds: float

    @property
    def birth_grace_seconds(self) -> float:
        """How long after its birth an engine may be scraped first: discovery and one lost scrape."""
        return 2 * self.scrape_seconds + 5.0

    @property
    def newborn_seconds(self) -> float:
        """Age up to which an engine without a sample an interval ago is new, rather than unscraped."""
        return self.interval_seconds + self.birth_grace_seconds

    @property
    def look_seconds(self) -> float:
        """Interval over which the busiest replica is determined."""
        return self.interval_seconds + LEAST_LOOK_SECONDS

    @property
    def still_seconds(self) -> float:
        """How long an engine that holds requests must make no progress to count as stalled."""
        return still_seconds(self.interval_seconds)

    @property
    def stale_seconds(self) -> float:
        return 3 * self.scrape_seconds


def window(tick_seconds: float, scrape_seconds: float) -> QueryWindow:
    """Return the shortest whole number of scrapes that holds three, and one more than a tick."""
    scrapes = max(3, -(-tick_seconds // scrape_seconds) + 1)
    return QueryWindow(scrapes * scrape_seconds, scrape_seconds)


@dataclass(frozen=True, slots=True)
class Edges:
    """The bucket edges to query, in seconds: edges equal to, or next below, some service's objective.

    `late_ttft` and `late_tpot` are edges of vLLM's own grid equal to, or next above, an objective: a request beyond
    such an edge is late.
    """

    ttft: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()
    e2e: tuple[float, ...] = ()
    late_ttft: tuple[float, ...] = ()
    late_tpot: tuple[float, ...] = ()

    def by_family(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        families = ((TTFT, self.ttft), (TPOT, self.tpot), (TPOT_BEFORE_0_11, self.tpot), (E2E, self.e2e))
        return tuple((family, seconds) for family, seconds in families if seconds)

    def beyond(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """Return the edges beyond which requests are late, by family."""
        return (TTFT, self.late_ttft), (TPOT, self.late_tpot), (TPOT_BEFORE_0_11, self.late_tpot)


@dataclass(frozen=True, slots=True)
class EdgeTier:
    """The edges that the objectives of some services need, by the services' names."""

    edges: Edges
    names: tuple[str, ...]


def fast_queries(span: QueryWindow, edges: Edges, tiers: Sequence[EdgeTier] = ()) -> tuple[Query, ...]:
    """Return what every tick asks by subject: `combined_queries` makes one or two queries of it.

    `tiers`, if given, name all services to query: each is queried for its own edges only, because buckets cost the
    most.
    """
    return (
        Query("requests", f"{_counters(span, REQUESTS if edges.e2e else REQUESTS[:-1])} or {_begun(span)}"),
        Query("tokens", f"{_counters(span, TOKENS)} or {_typical(span)} or {_natives(span, edges)}"),
        Query("edges", _edges(span, edges, tiers)),
        Query("gauges", _gauges(span)),
        Query("engines", f"max by ({GROUP}, pod) (timestamp({_engine()}))"),
        Query("anomalies", _anomalies(span, edges)),
        Query("plugins", _plugins(span)),
    )


def pulse_query(span: QueryWindow) -> Query:
    """Return the query for all services when they take turns: requests started, and requests waiting."""
    begun = f"(sum by ({SERVICE}) (increase(vllm:{TTFT}_count{{{OURS}}}[{_interval(span)}])) > 0)"
    native = f"sum by ({SERVICE}) ({without_classic(TTFT, OURS, _interval(span))})"
    waiting = f"(sum by ({SERVICE}) (vllm:num_requests_waiting{{{OURS}}}) > 0)"
    terms = {begun: "started", native: "started", waiting: "waiting"}
    return Query("pulse", " or ".join(named(vector, "metric", name) for vector, name in terms.items()))


def newest_query() -> Query:
    """Return the query for the time of the newest sample of any engine, where others ask about an earlier time."""
    return Query("newest", f"max(timestamp({_engine()}))")


def trial_query(span: QueryWindow, edges: Edges, keys: Iterable[ServiceKey]) -> Query:
    """Return the extra query for services with a revision on trial: misses by revision."""
    interval, by = _interval(span), f"{GROUP}, holdfast_revision"
    counts = (REJECTIONS, f"{TTFT}_count", f"{TPOT}_count", f"{TPOT_BEFORE_0_11}_count")
    terms = [named(f"sum by ({by}) (increase(vllm:{name}{{{OURS}}}[{interval}]))", "metric", name) for name in counts]
    for family, seconds in edges.by_family():
        bucket = f'vllm:{family}_bucket{{{OURS}, le=~"{any_edge(seconds)}"}}'
        terms.append(named(f"sum by ({by}, le) (increase({bucket}[{interval}]))", "metric", f"{family}_bucket"))
        terms.append(_native(family, by, interval))
    return narrowed(Query("trials", " or ".join(terms)), keys)


def narrowed(query: Query, keys: Iterable[ServiceKey]) -> Query:
    """Return the same query for some services only; services of the same name in other namespaces are included."""
    these = any_of(key.label for key in keys)
    return Query(query.name, query.promql.replace(OURS, f'holdfast_service=~"{these}"'))


def slow_queries() -> tuple[Query, ...]:
    """Return the once-a-minute queries: latencies over 5 min, lengths over 10 min, engine steps over 3 min.

    facts: what engines say of themselves. ahead: the newest sample of the next five minutes; it exists only if
    Prometheus' clock is ahead of ours.
    """
    return (
        Query("ttft_buckets", _buckets("5m", TTFT)),
        Query("tpot_buckets", _buckets("5m", TPOT, TPOT_BEFORE_0_11)),
        Query("prompt_lengths", _buckets("10m", PROMPT_LENGTH)),
        Query("output_lengths", _buckets("10m", OUTPUT_LENGTH)),
        Query("steps", _steps("3m")),
        Query("ahead", f"max by ({SERVICE}) (timestamp({_engine()} offset -5m)) - time() > 0"),
        Query(E2E_BUCKETS, _buckets("5m", E2E)),
        Query(FACTS, _facts()),
    )


def history_query(step_seconds: float, edges: Edges) -> Query:
    """Return the range query for History: requests per step by outcome, by edge and by verdict."""
    step = duration(step_seconds)
    terms = [
        named(f"count(count_over_time(holdfast_leader{{}}[{step}]))", "metric", "remembered"),  # also at no replicas
        named(f"sum by ({SERVICE}, finished_reason) (increase(vllm:{SUCCESS}{{{OURS}}}[{step}]))", "metric", SUCCESS),
        named(f"sum by ({SERVICE}) (increase(vllm:{REJECTIONS}{{{OURS}}}[{step}]))", "metric", REJECTIONS),
        named(f"sum by ({SERVICE}) (increase(vllm:{TTFT}_count{{{OURS}}}[{step}]))", "metric", f"{TTFT}_count"),
    ]
    for gauge in IN_FLIGHT:
        terms.append(named(f"sum by ({SERVICE}) (avg_over_time(vllm:{gauge}{{{OURS}}}[{step}]))", "metric", gauge))
    for family, seconds in edges.by_family():
        bucket = f'vllm:{family}_bucket{{{OURS}, le=~"{any_edge(seconds)}"}}'
        terms.append(named(f"sum by ({SERVICE}, le) (increase({bucket}[{step}]))", "metric", f"{family}_bucket"))
        terms.append(_native(family, SERVICE, step))
    for metric in (ARRIVED, GOOD, BAD):
        terms.append(named(f"sum by ({SERVICE}) (increase(holdfast:{metric}{{{OURS}}}[{step}]))", "metric", metric))
    terms.append(_covered(SERVICE, step))
    for metric, labels in ((HELD_BUCKET, "outcome, le"), (HELD, "outcome")):
        terms.append(named(f"sum by ({SERVICE}, {labels}) ({_jumps(f'{metric}{{{OURS}}}', step)})", "metric", metric))
    return Query("history", " or ".join(terms))


def _jumps(counter: str, step: str) -> str:
    """Gain of a counter that jumps rarely: increase() misses a jump between two steps, and scales the rest."""
    last = f"last_over_time({counter}[{step}])"
    before = f"last_over_time({counter}[{_GAP}] offset {step}) or min_over_time({counter}[{step}])"
    return f"{last} - ({before}) >= 0 or {last}"


def running_by_pod_query(keys: Iterable[ServiceKey]) -> Query:
    """Return requests in flight per pod of the given services; a pod scraped twice counts once."""
    wanted = sorted(keys)
    namespaces = any_of(key.namespace for key in wanted)
    names = any_of(key.label for key in wanted)
    matchers = f'namespace=~"{namespaces}", holdfast_service=~"{names}"'
    in_flight = " + ".join(f"vllm:{gauge}{{{matchers}}}" for gauge in IN_FLIGHT)
    each = f"max by ({SERVICE}, pod, engine, model_name) ({in_flight})"
    return Query("running_by_pod", f"sum by ({SERVICE}, pod) ({each})")


def _counters(span: QueryWindow, metrics: Iterable[str]) -> str:
    interval = _interval(span)
    terms = (_summed(metric, f"increase(vllm:{metric}{{{OURS}}}[{interval}])", "finished_reason") for metric in metrics)
    return " or ".join(terms)


def _typical(span: QueryWindow) -> str:
    """Mean TPOT of the median engine."""
    by, interval = f"sum by ({GROUP}, pod)", _interval(span)
    terms = []
    for family in (TPOT, TPOT_BEFORE_0_11):
        seconds, count = (f"{by} (increase(vllm:{family}_{end}{{{OURS}}}[{interval}]))" for end in ("sum", "count"))
        vector = f"quantile by ({GROUP}) (0.5, {seconds} / ({count} > 0))"
        terms.append(named(vector, "metric", f"{family}_{TYPICAL}"))
    return " or ".join(terms)


def _begun(span: QueryWindow) -> str:
    """Load balance of replicas: requests started by all of them, and by the busiest one."""
    begun = f"increase(vllm:{TTFT}_count{{{OURS}}}[{duration(span.look_seconds)}])"
    most = named(f"(max by ({GROUP}) (sum by ({GROUP}, pod) ({begun})) != 0)", "metric", MOST_BEGUN)
    native = f"sum by ({GROUP}, pod) ({without_classic(TTFT, OURS, duration(span.look_seconds))})"
    return f"{_summed(BEGUN, begun)} or {most} or {named(native, 'metric', BEGUN_BY_POD)}"


def histograms(edges: Edges) -> tuple[str, ...]:
    """Return the families of histograms that are counted; end-to-end latencies only with an objective for them."""
    return (TTFT, TPOT, TPOT_BEFORE_0_11, PROMPT_LENGTH, OUTPUT_LENGTH, *((E2E,) if edges.e2e else ()))


def _natives(span: QueryWindow, edges: Edges) -> str:
    return " or ".join(_native(family, GROUP, _interval(span)) for family in histograms(edges))


def _native(family: str, by: str, interval: str) -> str:
    """Sum of native histograms; `!= 0` would drop them."""
    return named(f"sum by ({by}) ({without_classic(family, OURS, interval)})", "metric", family)


def _edges(span: QueryWindow, edges: Edges, tiers: Sequence[EdgeTier]) -> str:
    interval = _interval(span)
    groups = [(f'holdfast_service=~"{any_of(tier.names)}"', tier.edges) for tier in tiers] or [(OURS, edges)]
    terms = [
        _summed(
            f"{family}_bucket", f'increase(vllm:{family}_bucket{{{who}, le=~"{any_edge(seconds)}"}}[{interval}])', "le"
        )
        for who, needed in groups
        for family, seconds in needed.by_family()
    ]
    return " or ".join(terms)


def _gauges(span: QueryWindow) -> str:
    terms = [_summed(gauge, f"vllm:{gauge}{{{OURS}}}") for gauge in IN_FLIGHT]
    terms += [_summed(f"{gauge}_growth", f"delta(vllm:{gauge}{{{OURS}}}[{_interval(span)}])") for gauge in IN_FLIGHT]
    terms.append(_summed(QUEUE_FLOW, _queue_flow(_interval(span))))
    usage = f"avg by ({GROUP}) (vllm:kv_cache_usage_perc{{{OURS}}} or vllm:gpu_cache_usage_perc{{{OURS}}})"
    return " or ".join((*terms, named(usage, "metric", "kv_usage")))


def _queue_flow(interval: str) -> str:
    """Requests per second that leave the queue of an engine by Little's law: those that wait by the mean TTFT.

    Clients that leave a queue that is served in order waited no longer than those that are served meanwhile.
    """
    waiting = f"min_over_time(vllm:num_requests_waiting{{{OURS}}}[{interval}])"
    begun, seconds = (f"increase(vllm:{TTFT}_{part}{{{OURS}}}[{interval}])" for part in ("count", "sum"))
    return f"{waiting} * {begun} / ({seconds} > 0)"


def _anomalies(span: QueryWindow, edges: Edges) -> str:
    """Rows only for engines that need attention, with the reason in `metric`.

    copies: scraped more than once; the value is how often. newcomer: no sample an interval ago, so its counts are
    incomplete. gappy: too few samples inside the interval to count anything. unlabelled: engines without one of our
    labels. hung: engines that hold requests and make no progress. failing: number of requests that ended with an error
    in engines where most did. late, in_time: number of late or failed requests, and of good ones, in engines where a
    share is late. slow: requests begun by engines where most were beyond an edge, which needs no plugin.
    """
    by, interval = f"{GROUP}, pod, instance", _interval(span)
    copies = f"max by ({by}) (count by ({by}, engine, model_name) ({_engine()}) > 1)"
    newcomer = f"max by ({by}) ({_engine()} unless {_engine()} offset {interval})"
    gappy = f"max by ({by}) (count_over_time({_engine()}[{interval}]) < 2)"
    kinds = {"copies": copies, "newcomer": newcomer, "gappy": gappy, "unlabelled": _unlabelled()}
    kinds |= {HUNG: _hung(span), FAILING: _failing(span), **_late(span)}
    slow = (named(_slow(span, family, beyond), SLOW, family) for family, beyond in edges.beyond() if beyond)
    terms = [named(vector, "metric", name) for name, vector in kinds.items()]
    return " or ".join((*terms, *(named(vector, "metric", SLOW) for vector in slow)))


def _plugins(span: QueryWindow) -> str:
    """Counts of the plugin and their objectives, its waiting late requests, and the limits in force in each engine.

    mode: rows only for plugins that are not active; active plugins have a row for each limit.
    """
    interval = _interval(span)
    terms = [_summed(metric, f"increase(holdfast:{metric}{{{OURS}}}[{interval}])", "cause") for metric in JUDGED]
    objectives = f'holdfast:limits{{{OURS}, name=~"ttft_seconds|tpot_seconds|e2e_seconds"}}'
    terms.append(named(f'count_values by ({GROUP}, name) ("seconds", {objectives})', "metric", "objective"))
    terms += [_covered(GROUP, interval), named(client_times(GROUP, interval), "metric", CLIENT_TIMES)]
    terms += [_summed(WAITING_LATE, f'holdfast:requests_waiting{{{OURS}, lane="late"}}')]
    limits = f'holdfast:limits{{{OURS}, name=~"version|active_sequences|tokens_per_step"}}'
    terms.append(named(f"min by ({SERVICE}, pod, name) ({limits})", "metric", "limit"))
    modes = f'holdfast:plugin_info{{{OURS}, mode!="active"}}'
    terms.append(named(f"max by ({SERVICE}, pod, mode) ({modes})", "metric", "mode"))
    return " or ".join(terms)


def covered(by: str, interval: str) -> str:
    """Return rows if every sample of every engine in the interval shows an active plugin: its counts are complete."""
    at_work = f'sum by ({by}) (count_over_time(holdfast:plugin_info{{{OURS}, mode="active"}}[{interval}]))'
    return f"{at_work} == sum by ({by}) (count_over_time({_engine()}[{interval}]))"


def client_times(by: str, interval: str) -> str:
    """Return rows if every sample of every engine in the interval says that verdicts use the times of the clients.

    Plugins from before that gauge judge by the engine's times; so does an engine whose middleware is not loaded.
    """
    told = f"sum by ({by}) (sum_over_time(holdfast:client_times{{{OURS}}}[{interval}]))"
    return f"{told} == sum by ({by}) (count_over_time({_engine()}[{interval}]))"


def alike(info: str, *labels: str) -> str:
    """Return how many engines of an accelerator have the same labels in an info metric."""
    return f"count by ({', '.join((GROUP, *labels))}) ({info}{{{OURS}}})"


def _covered(by: str, interval: str) -> str:
    return named(covered(by, interval), "metric", COVERED)


def births(matchers: str, by: str) -> str:
    """Return when each engine began to count: its counters were created (after loading), else its process began."""
    created = f'max by ({by}) (vllm:request_success_created{{{matchers}, finished_reason="stop"}})'
    return f"({created} or max by ({by}) (process_start_time_seconds{{{matchers}}}))"


def _hung(span: QueryWindow) -> str:
    """Engines that held requests at every sample, while none of their counters moved.

    Deferred requests wait for something outside of the steps, such as a grammar that compiles for minutes: an engine
    that holds no others has nothing to do.
    """
    still = duration(span.still_seconds)
    least = fewest_looks(span.still_seconds, span.scrape_seconds)
    running, waiting = (f"min_over_time(vllm:{gauge}{{{OURS}}}[{still}])" for gauge in IN_FLIGHT)
    deferred = f'max_over_time(vllm:{WAITING_BY_REASON}{{{OURS}, reason="deferred"}}[{still}])'
    held = f"{running} + ({waiting} - ignoring (reason) {deferred} or {waiting})"
    looks = f"count_over_time(vllm:generation_tokens_total{{{OURS}}}[{still}]) >= {least}"
    moved = " or ".join(f"changes({metric}{{{OURS}}}[{still}]) > 0" for metric in PROGRESS)
    return f"max by ({GROUP}, pod, instance) ({held} > 0 and on ({ENGINE}) {looks} unless on ({ENGINE}) ({moved}))"


def _failing(span: QueryWindow) -> str:
    """Failed requests of engines that served fewer, with the plugin or without."""

    def ended(reasons: str) -> str:
        counter = f"vllm:{SUCCESS}{{{OURS}, finished_reason{reasons}}}"
        return f"sum by ({GROUP}, pod) (increase({counter}[{_interval(span)}]))"

    return f"""(({ended(f'="{ERROR}"')} >= {LEAST_LATE:g}) > {ended(f'!~"{ERROR}|abort"')})"""


def _late(span: QueryWindow) -> dict[str, str]:
    """Late or failed requests of engines with a share of them, and good ones: the sums show how their peers do.

    Costs the increase() of ten counters per engine with the plugin, and nothing for the remaining engines.
    """
    by, interval = f"sum by ({GROUP}, pod)", _interval(span)
    bad = f'({by} (increase(holdfast:{BAD}{{{OURS}, cause!="{REJECTED}"}}[{interval}])) >= {LEAST_LATE:g})'
    good = f"{by} (increase(holdfast:{GOOD}{{{OURS}}}[{interval}]))"
    most = 1.0 / LATE_SHARE - 1.0
    return {LATE: f"({most:g} * {bad} >= {good}) / {most:g}", IN_TIME: f"({good} <= {most:g} * {bad})"}


def _slow(span: QueryWindow, family: str, beyond: Sequence[float]) -> str:
    """Requests begun by engines where almost all of them were beyond an edge; costs two increase() per engine."""
    by, interval = f"{GROUP}, pod", _interval(span)
    begun = f"sum by ({by}) (increase(vllm:{family}_count{{{OURS}}}[{interval}])) >= {LEAST_LATE:g}"
    bucket = f'vllm:{family}_bucket{{{OURS}, le=~"{any_edge(beyond)}"}}'
    within = f"sum by ({by}, le) (increase({bucket}[{interval}]))"
    return f"(({begun}) > on ({by}) group_right () {1.0 / (1.0 - SURELY_LATE_SHARE):g} * {within})"


def _unlabelled() -> str:
    lacking = " or ".join(f'vllm:num_requests_running{{{label}=""}}' for label in GROUP.split(", "))
    return f"count by ({GROUP}) ({lacking})"


def _buckets(interval: str, *families: str) -> str:
    """Quantiles are computed here, because histogram_quantile would sum the buckets once per quantile."""
    terms = (
        f"sum by ({SERVICE}, le) (increase(vllm:{family}_bucket{{{OURS}}}[{interval}])) or "
        f"sum by ({SERVICE}) ({without_classic(family, OURS, interval)})"
        for family in families
    )
    return " or ".join(terms)


def _steps(interval: str) -> str:
    """Sums over the steps of engines of an accelerator, without those whose steps last much longer than most."""

    def gained(matchers: str = "") -> str:
        return f"increase(holdfast:step_sums_total{{{OURS}{matchers}}}[{interval}])"

    one, seconds = (f"""sum by ({GROUP}, pod) ({gained(f', term="{term}"')})""" for term in ("one", "seconds"))
    mean = f"({seconds} / ({one} > 0))"
    slow = f"{mean} > on ({GROUP}) group_left () {SLOW_STEPS:g} * quantile by ({GROUP}) (0.5, {mean})"
    return f"sum by ({GROUP}, term) ({gained()} unless on (namespace, pod) ({slow}))"


def _facts() -> str:
    """One row for all engines of an accelerator that say the same, and what became of their drafts over 5 min.

    Data-parallel engines of a pod stay apart: vLLM sums num_gpu_blocks over them.
    """
    caches = alike(f"vllm:{CACHE_CONFIG}", "engine", *CACHE_LABELS)
    infos = alike(f"holdfast:{ENGINE_INFO}", *INFO_LABELS)
    terms = [named(caches, "metric", CACHE_CONFIG), named(infos, "metric", ENGINE_INFO)]
    for counter in (ACCEPTED, DRAFTS):
        terms.append(named(f"sum by ({GROUP}) (increase(vllm:{counter}{{{OURS}}}[5m]))", "metric", counter))
    return " or ".join(terms)


def _engine() -> str:
    """One series per engine, in every vLLM version."""
    return f"vllm:num_requests_running{{{OURS}}}"


def _summed(metric: str, vector: str, *also_by: str) -> str:
    """Sum per service and accelerator. `!= 0` drops unchanged series and keeps NaN, which must be seen."""
    by = ", ".join((GROUP, *also_by))
    return named(f"(sum by ({by}) ({vector}) != 0)", "metric", metric)


def _interval(span: QueryWindow) -> str:
    return duration(span.interval_seconds)
