"""PromQL as data: a constant number of grouped queries for all services.

Counts are `sum by (...) (increase(...))` over three scrapes: resets are handled, a lost scrape costs nothing, a long
gap or a life-long counter seen for the first time is never booked as one burst, and stores that shard queries can.
What increase() misses is what a new engine counted before its first scrape: such engines appear in `anomalies`, and
`newcomers.newcomer_query` then reads what is missing.

Histograms may be stored as classic or as native ones: see `observe.series.histograms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.domain.service import ServiceKey
from holdfast.domain.signals import (
    CONCURRENCY_QUANTILES,
    LATE_SHARE,
    LEAST_LATE,
    LEAST_LOOK_SECONDS,
    SLOW_STEPS,
    SURELY_LATE_SHARE,
    fewest_looks,
    still_seconds,
)
from holdfast.observe.series.histograms import without_classic
from holdfast.observe.series.promql import OUR_ENGINES, EngineSelector, any_edge, any_of, duration, named
from holdfast_engine.stats.engine_info import INFO_LABELS

SERVICE = "namespace, holdfast_service"
GROUP = f"{SERVICE}, holdfast_accelerator"
ENGINE = "namespace, pod, instance"
ENGINE_SERIES = "vllm:num_requests_running"
"""One series per engine, in every vLLM version."""

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
HANDED_OVER = "requests_handed_over_total"
"""What a prefill engine leaves to the replica that goes on with a request."""
JUDGED = (ARRIVED, BAD, GOOD, "requests_withdrawn_total", "good_tokens_total", HANDED_OVER)
"""What the plugin counts (holdfast: in place of vllm:)."""
BY_CLASS = frozenset({GOOD, BAD})
"""What is read by class as well: without classes these are no more rows."""
ERROR, REJECTED, KILLED = "error", "rejected", "killed"

HELD, HELD_BUCKET = "holdfast_activator_requests_total", "holdfast_activator_wait_seconds_bucket"
"""What an activator counts, by outcome."""
_GAP = "10m"  # a counter that was not scraped for longer starts anew: its whole past count is no burst

WAITING_LATE = "requests_waiting_late"
BATCH_NOW, BATCH_SUMS = "batch_requests", "batch_sums_total"
"""Batch requests in the engines (holdfast:), and sums over them: no demand, but in all of vLLM's own numbers."""
BATCH_ARRIVED, BATCH_ENDED, BATCH_UNFINISHED = (
    "batch_requests_arrived_total",
    "batch_requests_ended_total",
    "unfinished",
)
"""Batch requests by class (holdfast:), and how many of them came and have not ended yet: they wait or run."""
BATCH = (BATCH_NOW, BATCH_SUMS, BATCH_UNFINISHED, BATCH_ENDED)
"""The rows about batch requests."""
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
LAG = "front_end_lag_estimate_seconds"
"""From a token leaving the engine to its bytes being written (holdfast:), where API servers report it."""

ACCEPTED, DRAFTS = "spec_decode_num_accepted_tokens_total", "spec_decode_num_drafts_total"
"""Draft tokens that were accepted, and how often a sequence had a draft: only with speculative decoding."""

BEGUN, MOST_BEGUN, COVERED, CLIENT_TIMES = "begun", "most_begun", "covered", "client_times"
BEGUN_BY_POD = "begun_by_pod"  # a native histogram for each replica, in place of the two numbers
E2E_BUCKETS = "e2e_buckets"  # asked only of services with an e2e objective
FACTS = "facts"
CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression about some engines; `name` is how results, logs and metrics call it."""

    name: str
    write: Callable[[EngineSelector], str]
    engines: EngineSelector = OUR_ENGINES

    @property
    def promql(self) -> str:
        return self.write(self.engines)


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
    requests, interval = REQUESTS if edges.e2e else REQUESTS[:-1], _interval(span)
    return (
        Query("requests", lambda engines: f"{_counters(engines, interval, requests)} or {_begun(engines, span)}"),
        Query("tokens", lambda engines: _tokens(engines, interval, edges)),
        Query("edges", lambda engines: _edges(engines, interval, edges, tiers)),
        Query("gauges", lambda engines: _gauges(engines, interval)),
        Query("engines", lambda engines: f"max by ({GROUP}, pod) ({engines.read(ENGINE_SERIES, over='timestamp')})"),
        Query("anomalies", lambda engines: _anomalies(engines, span, edges)),
        Query("plugins", lambda engines: _plugins(engines, interval)),
    )


def pulse_query(span: QueryWindow) -> Query:
    """Return the query for all services when they take turns: requests started, and requests waiting."""

    def written(engines: EngineSelector) -> str:
        begun = f"(sum by ({SERVICE}) ({engines.increase(f'vllm:{TTFT}_count', _interval(span))}) > 0)"
        native = f"sum by ({SERVICE}) ({without_classic(engines, TTFT, _interval(span))})"
        waiting = f"(sum by ({SERVICE}) ({engines.read('vllm:num_requests_waiting')}) > 0)"
        terms = {begun: "started", native: "started", waiting: "waiting"}
        return " or ".join(named(vector, "metric", name) for vector, name in terms.items())

    return Query("pulse", written)


def newest_query() -> Query:
    """Return the query for the time of the newest sample of any engine, where others ask about an earlier time."""
    return Query("newest", lambda engines: f"max({engines.read(ENGINE_SERIES, over='timestamp')})")


def trial_query(span: QueryWindow, edges: Edges, keys: Iterable[ServiceKey]) -> Query:
    """Return the extra query for services with a revision on trial: misses by revision."""
    interval, by = _interval(span), f"{GROUP}, holdfast_revision"
    counts = (REJECTIONS, f"{TTFT}_count", f"{TPOT}_count", f"{TPOT_BEFORE_0_11}_count")

    def written(engines: EngineSelector) -> str:
        terms = [_gained(engines, name, by, interval) for name in counts]
        for family, seconds in edges.by_family():
            terms.append(_gained(engines, f"{family}_bucket", f"{by}, le", interval, within(seconds)))
            terms.append(_native(engines, family, by, interval))
        return " or ".join(terms)

    return narrowed(Query("trials", written), keys)


def narrowed(query: Query, keys: Iterable[ServiceKey]) -> Query:
    """Return the same query for some services only; services of the same name in other namespaces are included."""
    return replace(query, engines=query.engines.of(key.label for key in keys))


def slow_queries() -> tuple[Query, ...]:
    """Return the once-a-minute queries: latencies over 5 min, lengths and concurrency over 10 min, steps over 3.

    facts: what engines say of themselves. ahead: the newest sample of the next five minutes; it exists only if
    Prometheus' clock is ahead of ours.
    """
    return (
        Query("ttft_buckets", _buckets("5m", TTFT)),
        Query("tpot_buckets", _buckets("5m", TPOT, TPOT_BEFORE_0_11)),
        Query("prompt_lengths", _buckets("10m", PROMPT_LENGTH)),
        Query("output_lengths", _buckets("10m", OUTPUT_LENGTH)),
        Query("steps", lambda engines: _steps(engines, "3m")),
        Query("ahead", _ahead),
        Query(E2E_BUCKETS, _buckets("5m", E2E)),
        Query(FACTS, _facts),
        Query(CONCURRENCY, _concurrency),
    )


def _concurrency(engines: EngineSelector) -> str:
    """Requests that engines hold at once, in quantiles over time: 40 looks, whatever the interval of scrapes."""
    held = " + ".join(f"sum by ({SERVICE}) ({engines.read(f'vllm:{gauge}')})" for gauge in IN_FLIGHT)
    found = {name: f"quantile_over_time({share:g}, ({held})[10m:15s])" for name, share in CONCURRENCY_QUANTILES.items()}
    return " or ".join(named(vector, "metric", name) for name, vector in found.items())


def _ahead(engines: EngineSelector) -> str:
    return f"max by ({SERVICE}) ({engines.read(ENGINE_SERIES, over='timestamp', offset='-5m')}) - time() > 0"


def history_query(step_seconds: float, edges: Edges) -> Query:
    """Return the range query for History: requests per step by outcome, by edge and by verdict."""
    step = duration(step_seconds)
    leader = f"count(count_over_time(holdfast_leader{{}}[{step}]))"

    def written(engines: EngineSelector) -> str:
        terms = [
            named(leader, "metric", "remembered"),  # also at no replicas
            _gained(engines, SUCCESS, f"{SERVICE}, finished_reason", step),
            _gained(engines, REJECTIONS, SERVICE, step),
            _gained(engines, f"{TTFT}_count", SERVICE, step),
        ]
        for gauge in IN_FLIGHT:
            mean = engines.read(f"vllm:{gauge}", over="avg_over_time", span=step)
            terms.append(named(f"sum by ({SERVICE}) ({mean})", "metric", gauge))
        for family, seconds in edges.by_family():
            terms.append(_gained(engines, f"{family}_bucket", f"{SERVICE}, le", step, within(seconds)))
            terms.append(_native(engines, family, SERVICE, step))
        terms.append(_gained(engines, ARRIVED, SERVICE, step, of="holdfast"))
        terms += [_gained(engines, metric, f"{SERVICE}, class", step, of="holdfast") for metric in (GOOD, BAD)]
        terms.append(named(covered(engines, SERVICE, step), "metric", COVERED))
        for metric, labels in ((HELD_BUCKET, "outcome, le"), (HELD, "outcome")):
            terms.append(named(f"sum by ({SERVICE}, {labels}) ({_jumps(engines, metric, step)})", "metric", metric))
        return " or ".join(terms)

    return Query("history", written)


def _jumps(engines: EngineSelector, counter: str, step: str) -> str:
    """Gain of a counter that jumps rarely: increase() misses a jump between two steps, and scales the rest."""
    last = engines.read(counter, over="last_over_time", span=step)
    before = engines.read(counter, over="last_over_time", span=_GAP, offset=step)
    return f"{last} - ({before} or {engines.read(counter, over='min_over_time', span=step)}) >= 0 or {last}"


def running_by_pod_query(keys: Iterable[ServiceKey]) -> Query:
    """Return requests in flight per pod of the given services; a pod scraped twice counts once."""
    wanted = sorted(keys)
    inside = f'namespace=~"{any_of(key.namespace for key in wanted)}"'

    def written(engines: EngineSelector) -> str:
        in_flight = " + ".join(engines.read(f"vllm:{gauge}", inside) for gauge in IN_FLIGHT)
        return f"sum by ({SERVICE}, pod) (max by ({SERVICE}, pod, engine, model_name) ({in_flight}))"

    return narrowed(Query("running_by_pod", written), wanted)


def _counters(engines: EngineSelector, interval: str, metrics: Iterable[str]) -> str:
    terms = (_summed(metric, engines.increase(f"vllm:{metric}", interval), "finished_reason") for metric in metrics)
    return " or ".join(terms)


def _tokens(engines: EngineSelector, interval: str, edges: Edges) -> str:
    natives = (_native(engines, family, GROUP, interval) for family in histograms(edges))
    return " or ".join((_counters(engines, interval, TOKENS), _typical(engines, interval), *natives))


def _typical(engines: EngineSelector, interval: str) -> str:
    """Mean TPOT of the median engine."""
    by, terms = f"sum by ({GROUP}, pod)", []
    for family in (TPOT, TPOT_BEFORE_0_11):
        seconds, count = (engines.increase(f"vllm:{family}_{end}", interval) for end in ("sum", "count"))
        vector = f"quantile by ({GROUP}) (0.5, {by} ({seconds}) / ({by} ({count}) > 0))"
        terms.append(named(vector, "metric", f"{family}_{TYPICAL}"))
    return " or ".join(terms)


def _begun(engines: EngineSelector, span: QueryWindow) -> str:
    """Load balance of replicas: requests started by all of them, and by the busiest one."""
    begun = engines.increase(f"vllm:{TTFT}_count", duration(span.look_seconds))
    most = named(f"(max by ({GROUP}) (sum by ({GROUP}, pod) ({begun})) != 0)", "metric", MOST_BEGUN)
    native = f"sum by ({GROUP}, pod) ({without_classic(engines, TTFT, duration(span.look_seconds))})"
    return f"{_summed(BEGUN, begun)} or {most} or {named(native, 'metric', BEGUN_BY_POD)}"


def histograms(edges: Edges) -> tuple[str, ...]:
    """Return the families of histograms that are counted; end-to-end latencies only with an objective for them."""
    return (TTFT, TPOT, TPOT_BEFORE_0_11, PROMPT_LENGTH, OUTPUT_LENGTH, *((E2E,) if edges.e2e else ()))


def _gained(engines: EngineSelector, metric: str, by: str, interval: str, *more: str, of: str = "vllm") -> str:
    return named(f"sum by ({by}) ({engines.increase(f'{of}:{metric}', interval, *more)})", "metric", metric)


def _native(engines: EngineSelector, family: str, by: str, interval: str) -> str:
    """Sum of native histograms; `!= 0` would drop them."""
    return named(f"sum by ({by}) ({without_classic(engines, family, interval)})", "metric", family)


def _edges(engines: EngineSelector, interval: str, edges: Edges, tiers: Sequence[EdgeTier]) -> str:
    groups = [(engines.of(tier.names), tier.edges) for tier in tiers] or [(engines, edges)]
    terms = [
        _summed(f"{family}_bucket", who.increase(f"vllm:{family}_bucket", interval, within(seconds)), "le")
        for who, needed in groups
        for family, seconds in needed.by_family()
    ]
    return " or ".join(terms)


def within(edges_seconds: Sequence[float]) -> str:
    """Return the matcher of the buckets with these edges."""
    return f'le=~"{any_edge(edges_seconds)}"'


def _gauges(engines: EngineSelector, interval: str) -> str:
    now = {gauge: engines.read(f"vllm:{gauge}") for gauge in IN_FLIGHT}
    terms = [_summed(gauge, vector) for gauge, vector in now.items()]
    for gauge in IN_FLIGHT:
        terms.append(_summed(f"{gauge}_growth", engines.read(f"vllm:{gauge}", over="delta", span=interval)))
    terms.append(_summed(QUEUE_FLOW, _queue_flow(engines, interval)))
    return " or ".join((*terms, named(f"avg by ({GROUP}) ({kv_usage(engines)})", "metric", "kv_usage")))


def kv_usage(engines: EngineSelector) -> str:
    """Return the KV cache in use, 0..1, under either of its names."""
    return " or ".join(engines.read(f"vllm:{name}_cache_usage_perc") for name in ("kv", "gpu"))


def _queue_flow(engines: EngineSelector, interval: str) -> str:
    """Requests per second that leave the queue of an engine by Little's law: waiting requests / mean TTFT.

    A client that leaves a queue that is served in order has waited no longer than a client that is served meanwhile.
    """
    waiting = engines.read("vllm:num_requests_waiting", over="min_over_time", span=interval)
    begun, seconds = (engines.increase(f"vllm:{TTFT}_{part}", interval) for part in ("count", "sum"))
    return f"{waiting} * {begun} / ({seconds} > 0)"


def _anomalies(engines: EngineSelector, span: QueryWindow, edges: Edges) -> str:
    """Rows only for engines that need attention, with the reason in `metric`.

    copies: scraped more than once; the value is how often. newcomer: no sample an interval ago, so its counts are
    incomplete. gappy: too few samples inside the interval to count anything. unlabelled: engines without one of our
    labels. hung: engines that hold requests and make no progress. failing: number of requests that ended with an error
    in engines where most did. late, in_time: number of late or failed requests, and of good ones, in engines where a
    share is late. slow: requests begun by engines where most were beyond an edge, which needs no plugin.
    """
    by, interval, now = f"{GROUP}, pod, instance", _interval(span), engines.read(ENGINE_SERIES)
    copies = f"max by ({by}) (count by ({by}, engine, model_name) ({now}) > 1)"
    newcomer = f"max by ({by}) ({now} unless {engines.read(ENGINE_SERIES, offset=interval)})"
    gappy = f"max by ({by}) ({_samples(engines, interval)} < 2)"
    kinds = {"copies": copies, "newcomer": newcomer, "gappy": gappy, "unlabelled": _unlabelled()}
    kinds |= {HUNG: _hung(engines, span), FAILING: _failing(engines, interval), **_late(engines, interval)}
    found = ((family, _slow(engines, interval, family, beyond)) for family, beyond in edges.beyond() if beyond)
    terms = [named(vector, "metric", name) for name, vector in kinds.items()]
    return " or ".join((*terms, *(named(named(vector, SLOW, family), "metric", SLOW) for family, vector in found)))


def _plugins(engines: EngineSelector, interval: str) -> str:
    """Counts of the plugin and their objectives, its late and batch requests, and the limits in force in each engine.

    mode: rows only for plugins that are not active; active plugins have a row for each limit.
    """
    terms = [
        _summed(metric, engines.increase(f"holdfast:{metric}", interval), "cause", *("class",) * (metric in BY_CLASS))
        for metric in JUDGED
    ]
    objectives = engines.read("holdfast:limits", 'name=~"ttft_seconds|tpot_seconds|e2e_seconds"')
    terms.append(named(f'count_values by ({GROUP}, name) ("seconds", {objectives})', "metric", "objective"))
    terms.append(named(covered(engines, GROUP, interval), "metric", COVERED))
    terms.append(named(client_times(engines, GROUP, interval), "metric", CLIENT_TIMES))
    terms.append(_summed(WAITING_LATE, engines.read("holdfast:requests_waiting", 'lane="late"')))
    terms.append(_summed(BATCH_NOW, engines.read(f"holdfast:{BATCH_NOW}"), "state"))
    terms.append(_summed(BATCH_SUMS, engines.increase(f"holdfast:{BATCH_SUMS}", interval), "term"))
    terms.append(_summed(BATCH_ENDED, engines.increase(f"holdfast:{BATCH_ENDED}", interval, 'outcome="done"'), "class"))
    counts = (engines.read(f"holdfast:{metric}") for metric in (BATCH_ARRIVED, BATCH_ENDED))
    in_engines = " - ".join(f"sum by ({GROUP}, class) ({count})" for count in counts)
    terms.append(named(f"({in_engines})", "metric", BATCH_UNFINISHED))  # 0 is a number, and no row is none
    limits = engines.read("holdfast:limits", 'name=~"version|active_sequences|tokens_per_step"')
    terms.append(named(f"min by ({SERVICE}, pod, name) ({limits})", "metric", "limit"))
    modes = engines.read("holdfast:plugin_info", 'mode!="active"')
    terms.append(named(f"max by ({SERVICE}, pod, mode) ({modes})", "metric", "mode"))
    return " or ".join(terms)


def covered(engines: EngineSelector, by: str, interval: str) -> str:
    """Return rows if every sample of every engine in the interval shows an active plugin: its counts are complete."""
    at_work = engines.read("holdfast:plugin_info", 'mode="active"', over="count_over_time", span=interval)
    return f"sum by ({by}) ({at_work}) == sum by ({by}) ({_samples(engines, interval)})"


def client_times(engines: EngineSelector, by: str, interval: str) -> str:
    """Return rows if every sample of every engine in the interval says that verdicts use the times of the clients.

    Plugins from before that gauge judge by the engine's times; so does an engine whose middleware is not loaded.
    """
    told = engines.read("holdfast:client_times", over="sum_over_time", span=interval)
    return f"sum by ({by}) ({told}) == sum by ({by}) ({_samples(engines, interval)})"


def alike(engines: EngineSelector, info: str, *labels: str) -> str:
    """Return how many engines of an accelerator have the same labels in an info metric."""
    return f"count by ({', '.join((GROUP, *labels))}) ({engines.read(info)})"


def births(engines: EngineSelector, by: str) -> str:
    """Return when each engine began to count: its counters were created (after loading), else its process began."""
    created = engines.read("vllm:request_success_created", 'finished_reason="stop"')
    return f"(max by ({by}) ({created}) or max by ({by}) ({engines.read('process_start_time_seconds')}))"


def _hung(engines: EngineSelector, span: QueryWindow) -> str:
    """Engines that held requests at every sample, while none of their counters moved.

    Deferred requests wait for something outside of the steps, such as a grammar that compiles for minutes: an engine
    that holds no others has nothing to do.
    """
    still, least = duration(span.still_seconds), fewest_looks(span.still_seconds, span.scrape_seconds)
    running, waiting = (engines.read(f"vllm:{gauge}", over="min_over_time", span=still) for gauge in IN_FLIGHT)
    deferred = engines.read(f"vllm:{WAITING_BY_REASON}", 'reason="deferred"', over="max_over_time", span=still)
    held = f"{running} + ({waiting} - ignoring (reason) {deferred} or {waiting})"
    looks = f"{engines.read('vllm:generation_tokens_total', over='count_over_time', span=still)} >= {least}"
    moved = " or ".join(f"{engines.read(metric, over='changes', span=still)} > 0" for metric in PROGRESS)
    return f"max by ({GROUP}, pod, instance) ({held} > 0 and on ({ENGINE}) {looks} unless on ({ENGINE}) ({moved}))"


def _failing(engines: EngineSelector, interval: str) -> str:
    """Failed requests of engines that served fewer, with the plugin or without."""
    reasons = f'finished_reason="{ERROR}"', f'finished_reason!~"{ERROR}|abort"'
    failed, served = (engines.increase(f"vllm:{SUCCESS}", interval, reason) for reason in reasons)
    by = f"sum by ({GROUP}, pod)"
    return f"(({by} ({failed}) >= {LEAST_LATE:g}) > {by} ({served}))"


def _late(engines: EngineSelector, interval: str) -> dict[str, str]:
    """Late or failed requests of engines with a share of them, and good ones: the sums show how their peers do.

    Costs the increase() of ten counters per engine with the plugin, and nothing for the remaining engines.
    """
    by, most = f"sum by ({GROUP}, pod)", 1.0 / LATE_SHARE - 1.0
    failed = engines.increase(f"holdfast:{BAD}", interval, f'cause!~"{REJECTED}|{KILLED}"')
    bad, good = f"({by} ({failed}) >= {LEAST_LATE:g})", f"{by} ({engines.increase(f'holdfast:{GOOD}', interval)})"
    return {LATE: f"({most:g} * {bad} >= {good}) / {most:g}", IN_TIME: f"({good} <= {most:g} * {bad})"}


def _slow(engines: EngineSelector, interval: str, family: str, beyond: Sequence[float]) -> str:
    """Requests begun by engines where almost all of them were beyond an edge; costs two increase() per engine."""
    by, begun = f"{GROUP}, pod", engines.increase(f"vllm:{family}_count", interval)
    inside = f"sum by ({by}, le) ({engines.increase(f'vllm:{family}_bucket', interval, within(beyond))})"
    late = f"sum by ({by}) ({begun}) >= {LEAST_LATE:g}"
    return f"(({late}) > on ({by}) group_right () {1.0 / (1.0 - SURELY_LATE_SHARE):g} * {inside})"


def _unlabelled() -> str:
    lacking = " or ".join(f'{ENGINE_SERIES}{{{label}=""}}' for label in GROUP.split(", "))
    return f"count by ({GROUP}) ({lacking})"


def _buckets(interval: str, *families: str) -> Callable[[EngineSelector], str]:
    """Quantiles are computed here, because histogram_quantile would sum the buckets once per quantile."""
    return lambda engines: " or ".join(
        f"sum by ({SERVICE}, le) ({engines.increase(f'vllm:{family}_bucket', interval)}) or "
        f"sum by ({SERVICE}) ({without_classic(engines, family, interval)})"
        for family in families
    )


def _steps(engines: EngineSelector, interval: str) -> str:
    """Sums over the steps of engines of an accelerator, without those whose steps last much longer than most."""
    steps = "holdfast:step_sums_total"
    one, seconds = (engines.increase(steps, interval, f'term="{term}"') for term in ("one", "seconds"))
    mean = f"(sum by ({GROUP}, pod) ({seconds}) / (sum by ({GROUP}, pod) ({one}) > 0))"
    slow = f"{mean} > on ({GROUP}) group_left () {SLOW_STEPS:g} * quantile by ({GROUP}) (0.5, {mean})"
    return f"sum by ({GROUP}, term) ({engines.increase(steps, interval)} unless on (namespace, pod) ({slow}))"


def _facts(engines: EngineSelector) -> str:
    """One row for all engines of an accelerator that say the same, what became of their drafts over 5 min, and the lag.

    Data-parallel engines of a pod stay apart: vLLM sums num_gpu_blocks over them.
    """
    caches = alike(engines, f"vllm:{CACHE_CONFIG}", "engine", *CACHE_LABELS)
    infos = alike(engines, f"holdfast:{ENGINE_INFO}", *INFO_LABELS)
    terms = [named(caches, "metric", CACHE_CONFIG), named(infos, "metric", ENGINE_INFO)]
    terms += [_gained(engines, counter, GROUP, "5m") for counter in (ACCEPTED, DRAFTS)]
    reported = f"{engines.read(f'holdfast:{LAG}')} and {engines.read('holdfast:client_times')} == 1"
    terms.append(named(f"max by ({GROUP}) ({reported})", "metric", LAG))
    return " or ".join(terms)


def _samples(engines: EngineSelector, interval: str) -> str:
    return engines.read(ENGINE_SERIES, over="count_over_time", span=interval)


def _summed(metric: str, vector: str, *also_by: str) -> str:
    """Sum per service and accelerator. `!= 0` drops unchanged series and keeps NaN, which must be seen."""
    by = ", ".join((GROUP, *also_by))
    return named(f"(sum by ({by}) ({vector}) != 0)", "metric", metric)


def _interval(span: QueryWindow) -> str:
    return duration(span.interval_seconds)
