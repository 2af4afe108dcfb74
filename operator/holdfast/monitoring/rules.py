"""Recording rules: per service what was judged, how late, how full and how dear, each a ratio or quantile of sums.

Requests are judged by the engines' own counters where every engine of a service has the plugin at work, else by the
bounds that vLLM's histograms allow: the definitions of `observe.series.queries` and `policy.estimate.slo_budget`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.domain.burn_rate import FAST, REACHABLE, SHORTER, SLOW, BurnWindow
from holdfast.domain.service import PREFILL
from holdfast.monitoring import series
from holdfast.monitoring.series import by, duration, of, told
from holdfast.observe.series import queries
from holdfast.observe.series.histograms import without_classic
from holdfast.observe.series.promql import EngineSelector
from holdfast.observe.series.queries import E2E, GROUP, SERVICE, TPOT, TPOT_BEFORE_0_11, TTFT
from holdfast.observe.signals.traffic import FINISHED_REASONS
from holdfast.policy.settings import PolicySettings
from holdfast_engine.stats.engine_info import INFO_LABELS

ITL = "inter_token_latency_seconds"
LATENCIES = {"ttft": (TTFT,), "tpot": (TPOT, TPOT_BEFORE_0_11), "itl": (ITL,), "e2e": (E2E,)}
_NO_POOL = f'holdfast_service!~".+[.]{PREFILL}"'
OBJECTIVES = ("ttft", "tpot", "e2e")

LEAST_RANGE_SECONDS = 120.0
"""Rates are taken over this, or over four scrapes where those take longer."""

INTERVAL_SECONDS = 30.0
LEAST_FAST_SECONDS = 300.0
"""Replicas come within minutes: somebody is called where that did not help."""

OBJECTIVE_KEPT = "15m"
"""How long objectives and the pods of targets outlive an operator that is gone, so that alerts do too."""

SUDDEN_SHARE = 0.02
"""Whose loss within `LEAST_FAST_SECONDS` calls somebody: the share of the budget at which the SRE workbook pages."""

STEEP = BurnWindow(SUDDEN_SHARE, 720.0)
"""The same within a 720th of the window, which is an hour of thirty days: the workbook's 14.4 times."""

STARTS, DECLARED_SECONDS = 2, PolicySettings().starting_seconds
"""How many times its usual time a start may take, as a rollout's deadline has it; what it may where none was seen."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A series worked out ahead; `labels` are added to it."""

    record: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """The share of bad requests is above a limit (the label `burn` of `series.BURN_LIMIT`) over both spans."""

    limit: str
    long_seconds: float

    @property
    def short_seconds(self) -> float:
        """The second span, so that an alert ends when the burning does."""
        return max(round(self.long_seconds / SHORTER), LEAST_RANGE_SECONDS)


@dataclass(frozen=True, slots=True)
class Tier:
    """Services whose `slo.window` is above `over_seconds` and at most `upto_seconds`: PromQL's ranges are constants."""

    name: str
    over_seconds: float
    upto_seconds: float

    def long_seconds(self, window: BurnWindow) -> float:
        """Return the part of the window that an alert looks at, in whole seconds."""
        return max(self.upto_seconds / window.divisor, LEAST_FAST_SECONDS * FAST.divisor / window.divisor)

    def looks(self, burn: str) -> tuple[Look, ...]:
        """Return what each alert looks at, the shortest first: the longer, the lower is the limit."""
        if burn == "slow":
            return (Look("slow", self.long_seconds(SLOW)),)
        fast, steep = self.long_seconds(FAST), self.upto_seconds / STEEP.divisor
        sudden = (Look("sudden", LEAST_FAST_SECONDS),) if fast > LEAST_FAST_SECONDS else ()
        between = (Look("steep", steep),) if steep > LEAST_FAST_SECONDS else ()
        return (*sudden, *between, Look("fast", fast))


TIERS = (
    Tier("1h", 0.0, 3600.0),
    Tier("6h", 3600.0, 6 * 3600.0),
    Tier("1d", 6 * 3600.0, 86400.0),
    Tier("7d", 86400.0, 7 * 86400.0),
    Tier("30d", 7 * 86400.0, 30 * 86400.0),
)
BURNS = (("steep", STEEP), ("fast", FAST), ("slow", SLOW))


def recordings(scrape_seconds: float = 15.0) -> tuple[Recording, ...]:
    """Return all recordings, each after those it is made of."""
    span = duration(max(LEAST_RANGE_SECONDS, 4 * scrape_seconds))
    engines = _WithTargets()
    of_engines = (*_latencies(engines, span), *_verdicts(engines, span), *_engines(engines, span))
    return (*_operator(span), *_told(), _target_pods(), *of_engines, *_costs(), *_burns())


def _target_pods() -> Recording:
    """The pods of targets under the labels of engines; one row per pod, so that no rule fails where two claim it."""
    pods = told("holdfast_service_target_pod", "holdfast_accelerator", "engine_pod", kept=OBJECTIVE_KEPT)
    named = f'label_replace({pods}, "pod", "$1", "engine_pod", "(.+)")'
    return Recording(series.TARGET_POD, f"topk by (namespace, pod) (1, {named})")


class _WithTargets(EngineSelector):
    """Our engines, and those of targets: their series of vLLM have only namespace and pod, the operator knows whose."""

    def read(self, metric: str, *more: str, **how: str) -> str:
        ours = super().read(metric, *more, **how)
        if not metric.startswith("vllm:"):
            return ours
        theirs = EngineSelector('holdfast_service="", holdfast_accelerator=""').read(metric, *more, **how)
        labels = "holdfast_service, holdfast_accelerator"
        return f"({ours} or {theirs} * on (namespace, pod) group_left ({labels}) {of(series.TARGET_POD)})"


def _operator(span: str) -> Iterator[Recording]:
    """What the operator tells of itself: dashboards read it from here, as these rules alone know who it is."""
    yield Recording(series.LEADERS, f"sum by (namespace) ({of('holdfast_leader')})")
    ticks = f"rate({of('holdfast_tick_seconds_bucket')}[{span}])"
    yield Recording(series.TICK_BUCKETS, f"sum by (namespace, le) ({ticks})")
    for name, metric, labels in (
        (series.CHANGES, "holdfast_decisions_total", "action, reason"),
        (series.ERRORS, "holdfast_errors_total", "phase"),
    ):
        yield Recording(name, f"sum by (namespace, {labels}) (increase({of(metric)}[15m]))")
    nodes = f"max by (namespace, product, resource, state) ({of('holdfast_node_gpus')})"
    yield Recording(series.NODE_GPUS, nodes)


def _told() -> Iterator[Recording]:
    """What the operator exports, under the labels of the engines."""
    kept = ((series.OBJECTIVE, "holdfast_slo_objective_ratio"), (series.WINDOW, "holdfast_slo_window_seconds"))
    for name, metric in kept:
        yield Recording(name, told(metric, kept=OBJECTIVE_KEPT))
    by_class = told("holdfast_slo_class_objective_ratio", "class", kept=OBJECTIVE_KEPT)
    yield Recording(series.CLASS_OBJECTIVE, f"{by_class} or on ({SERVICE}) {of(series.OBJECTIVE)}")
    for name, metric, *labels in (
        (series.BOUND, "holdfast_slo_bound_seconds", "latency"),
        (series.EDGE, "holdfast_slo_edge", "latency", "le"),
        (series.ATTAINMENT, "holdfast_slo_attainment_ratio"),
        (series.BUDGET_LEFT, "holdfast_slo_budget_remaining_ratio"),
        (series.CONDITION, "holdfast_service_condition", "type", "status", "reason"),
        (series.REPLICAS, "holdfast_service_replicas", "holdfast_accelerator", "state"),
        (series.REPLICAS_LIMIT, "holdfast_service_replicas_limit", "limit"),
        (series.FORECAST, "holdfast_service_forecast_rps"),
        (series.CAPACITY, "holdfast_service_capacity_rps", "holdfast_accelerator", "bound_by"),
        (series.GPU_PEAK, "holdfast_service_gpu_peak", "holdfast_accelerator", "of"),
        (series.ROOF, "holdfast_service_roof_ratio", "holdfast_accelerator", "phase", "of"),
        (series.COST, "holdfast_service_cost_dollars_per_hour"),
        (series.COST_LIMIT, "holdfast_service_cost_limit_dollars_per_hour"),
        (series.COLD_START, "holdfast_service_cold_start_seconds"),
        (series.STARTUP_TIMEOUT, "holdfast_service_startup_timeout_seconds"),
        (series.HOLDING, "holdfast_service_holding"),
        (series.WAITS_SINCE, "holdfast_service_replica_waits_since_timestamp_seconds", "holdfast_accelerator", "state"),
        (series.LAST_CHANGE, "holdfast_service_last_change_timestamp_seconds", "action", "reason"),
    ):
        yield Recording(name, told(metric, *labels))
    left = told("holdfast_slo_class_budget_remaining_ratio", "class")
    yield Recording(series.CLASS_BUDGET_LEFT, f"{left} or on ({SERVICE}) {of(series.BUDGET_LEFT)}")
    size = told("holdfast_service_gpus_per_replica", "holdfast_accelerator")
    on = f"on ({by('holdfast_accelerator')})"
    yield Recording(series.GPUS, f"{of(series.REPLICAS)} * {on} group_left () {size}")
    yield from _starts()


def _starts() -> Iterator[Recording]:
    """How long a start may take, and until when one is waited for while the activator holds what comes.

    A replica that fails is waited for no longer: time alone does not help it.
    """
    unknown = f"{of(series.STARTUP_TIMEOUT)} or {of(series.OBJECTIVE)} * 0 + {DECLARED_SECONDS:.0f}"
    yield Recording(series.START_LIMIT, f"{of(series.COLD_START)} * {STARTS} or {unknown}")
    oldest = f"min by ({SERVICE}) ({of(series.WAITS_SINCE, state='~starting|unschedulable')})"
    until = f"{oldest} + {PolicySettings().provisioning_seconds:.0f} + on ({SERVICE}) {of(series.START_LIMIT)}"
    held = f"and on ({SERVICE}) ({of(series.HOLDING)} > 0)"
    failing = f"unless on ({SERVICE}) {of(series.WAITS_SINCE, state='failing')}"
    yield Recording(series.WAKING_UNTIL, f"({until}) > time() {held} {failing}")


def _latencies(engines: EngineSelector, span: str) -> Iterator[Recording]:
    """Buckets or native histograms summed over engines, and quantiles of these sums."""
    for latency, families in LATENCIES.items():
        rates = (engines.read(f"vllm:{family}_bucket", over="rate", span=span) for family in families)
        expr = " or ".join(f"sum by ({by('le')}) ({each})" for each in rates)
        yield Recording(series.BUCKETS, expr, (("latency", latency),))
        native = " or ".join(f"sum by ({SERVICE}) ({without_classic(engines, each, span)})" for each in families)
        yield Recording(series.NATIVE, native, (("latency", latency),))
    for quantile, name in series.QUANTILES:
        of_each = (f"histogram_quantile({quantile}, {of(vector)})" for vector in (series.BUCKETS, series.NATIVE))
        yield Recording(name, " or ".join(of_each))


def _verdicts(engines: EngineSelector, span: str) -> Iterator[Recording]:
    """Good and bad of all that was judged; without exact counts, each miss takes away one that finished."""
    ended, rejected = f"vllm:{queries.SUCCESS}", _rate(engines, f"vllm:{queries.REJECTIONS}", span, _NO_POOL)
    unfinished = "|".join(sorted(FINISHED_REASONS))
    failed = next(reason for reason, outcome in FINISHED_REASONS.items() if outcome == "failed")
    none = f"{of(series.FINISHED)} * 0"
    yield Recording(series.FINISHED, _rate(engines, ended, span, _NO_POOL, f'finished_reason!~"{unfinished}"'))
    errors = _rate(engines, ended, span, _NO_POOL, f'finished_reason="{failed}"')
    yield Recording(series.FAILED, f"{errors} or {none}")
    yield Recording(series.REJECTED, f"{rejected} or {none}")
    for latency in OBJECTIVES:
        yield Recording(series.LATE, _late(latency), (("latency", latency),))
    yield Recording(series.JUDGED_EXACTLY, queries.covered(engines, SERVICE, span))
    good, bad = (_of_pools(engines, name, span) for name in (queries.GOOD, queries.BAD))
    exactly = f"and on ({SERVICE}) {of(series.JUDGED_EXACTLY)}"
    finished, lost = of(series.FINISHED), f"{of(series.FAILED)} + {of(series.REJECTED)}"
    late_known = " and ".join(f"on ({SERVICE}) {of(series.LATE, latency=each)}" for each in ("ttft", "tpot"))
    bounded = f"{finished} + {lost} and {late_known}"
    yield Recording(series.JUDGED, f"({good} + {bad} {exactly}) or ({bounded})")
    late = f"{finished} - clamp_min({finished} - sum by ({SERVICE}) ({of(series.LATE)}), 0)"
    yield Recording(series.BAD, f"({bad} {exactly}) or ({late} + {lost})")
    yield Recording(series.GOOD, f"{of(series.JUDGED)} - {of(series.BAD)}")
    yield from _classes(engines, span, exactly)
    yield Recording(series.BAD_BY_CAUSE, _by_cause(engines, span, exactly))
    yield Recording(
        series.ARRIVED,
        f"(({_arrived(engines, span)}) {exactly}) or ({_rate(engines, ended, span, _NO_POOL)} + {of(series.REJECTED)})",
    )


def _arrived(engines: EngineSelector, span: str) -> str:
    """What was handed over arrived at the engine that goes on with it; only engines of pairs count that."""
    arrived, handed_over = (_of_pools(engines, name, span) for name in (queries.ARRIVED, queries.HANDED_OVER))
    return f"clamp_min({arrived} - {handed_over}, 0) or {arrived}"


def _classes(engines: EngineSelector, span: str, exactly: str) -> Iterator[Recording]:
    """The same by class, as engines count them; all requests are one class where engines do not judge all of them."""
    good, bad = (_of_pools(engines, name, span, "class") for name in (queries.GOOD, queries.BAD))
    yield Recording(series.CLASS_JUDGED, f"({good} + {bad} {exactly}) or on ({SERVICE}) {of(series.JUDGED)}")
    yield Recording(series.CLASS_BAD, f"({bad} {exactly}) or on ({SERVICE}) {of(series.BAD)}")


def _late(latency: str) -> str:
    """Those outside one objective: all, less those within the largest edge that is no larger than it."""
    total = f"sum by ({SERVICE}) ({of(series.BUCKETS, latency=latency, le='+Inf')})"
    within = f"{of(series.BUCKETS, latency=latency)} * on ({by('le')}) {of(series.EDGE, latency=latency)}"
    return f"clamp_min({total} - max by ({SERVICE}) ({within}), 0)"


def _by_cause(engines: EngineSelector, span: str, exactly: str) -> str:
    exact = f"{_of_pools(engines, queries.BAD, span, 'cause')} {exactly}"
    late = f'label_replace({of(series.LATE)}, "cause", "$1", "latency", "(.+)")'
    lost = (("error", series.FAILED), ("rejected", series.REJECTED))
    others = (f'label_replace({of(name)}, "cause", "{cause}", "", "")' for cause, name in lost)
    return f"({exact}) or on ({SERVICE}) sum by ({by('cause')}) ({' or '.join((late, *others))})"


def _engines(engines: EngineSelector, span: str) -> Iterator[Recording]:
    for kind in ("prompt", "generation"):
        yield Recording(series.TOKENS, _rate(engines, f"vllm:{kind}_tokens_total", span), (("kind", kind),))
    yield Recording(series.PREEMPTIONS, _rate(engines, "vllm:num_preemptions_total", span))
    yield Recording(series.ACCEPTED_DRAFTS, _accepted_drafts(engines, span))
    for gauge in queries.IN_FLIGHT:
        state = gauge.rpartition("_")[2]
        yield Recording(series.IN_FLIGHT, f"sum by ({SERVICE}) ({engines.read(f'vllm:{gauge}')})", (("state", state),))
    usage = f"({queries.kv_usage(engines)})"
    yield Recording(series.KV_MEAN, f"avg by ({SERVICE}) {usage}")
    yield Recording(series.KV_MOST, f"max by ({SERVICE}) {usage}")
    limits = engines.read("holdfast:limits", 'name=~"active_sequences|tokens_per_step"')
    started = told("holdfast_service_batching_limit", "holdfast_accelerator", "name")
    lowest = (f"min by ({by('name')}) ({vector})" for vector in (limits, started))
    yield Recording(series.ENGINE_LIMIT, f" or on ({by('name')}) ".join(lowest))
    off = engines.read("holdfast:plugin_info", 'mode="off"')
    yield Recording(series.PLUGINS_OFF, f"count by ({SERVICE}) ({off})")
    yield Recording(series.BY_CACHE, queries.alike(engines, f"vllm:{queries.CACHE_CONFIG}", *queries.CACHE_LABELS))
    yield Recording(series.BY_START, queries.alike(engines, f"holdfast:{queries.ENGINE_INFO}", *INFO_LABELS))
    yield from _rooflines(engines, span)


def _accepted_drafts(engines: EngineSelector, span: str) -> str:
    """Accepted draft tokens per draft: a ratio of sums, so that idle engines do not count as much as busy ones."""
    counters = (queries.ACCEPTED, queries.DRAFTS)
    rates = (engines.read(f"vllm:{name}", over="rate", span=span) for name in counters)
    accepted, drafts = (f"sum by ({GROUP}) ({rate})" for rate in rates)
    return f"{accepted} / ({drafts} > 0)"


def _rooflines(engines: EngineSelector, span: str) -> Iterator[Recording]:
    """How much of a GPU's arithmetic and of its memory's bandwidth is used, where vLLM estimates it."""
    counters = {"flops": ("flops",), "bytes": ("read_bytes", "write_bytes")}
    for what, names in counters.items():
        counted = (engines.read(f"vllm:estimated_{name}_per_gpu_total", over="rate", span=span) for name in names)
        rates = (f"avg by ({GROUP}) ({rate})" for rate in counted)
        peak = f"max by ({GROUP}) ({of(series.GPU_PEAK, of=what)})"
        yield Recording(series.GPU_USE, f"(({' + '.join(rates)}) > 0) / on ({GROUP}) {peak}", (("of", what),))


def _costs() -> Iterator[Recording]:
    per_second = f"{of(series.COST)} / 3600"
    tokens = f"(sum by ({SERVICE}) ({of(series.TOKENS)}) > 0)"
    yield Recording(series.COST_OF_TOKENS, f"{per_second} / {tokens} * 1e6")
    yield Recording(series.COST_OF_GOOD, f"{per_second} / ({of(series.GOOD)} > 0) * 1e3")


def _burns() -> Iterator[Recording]:
    """The share of bad requests of a class at which each alert fires, and the requests of each tier of windows."""
    may, fastest = f"(1 - {of(series.CLASS_OBJECTIVE)})", FAST.budget_share * FAST.divisor
    rates = [(burn, f"{window.budget_share * window.divisor:g} * {may}") for burn, window in BURNS]
    sudden = f"clamp_min({of(series.WINDOW)} * {SUDDEN_SHARE:g} / {LEAST_FAST_SECONDS:.0f}, {fastest:g})"
    for burn, budget in (("sudden", f"{may} * on ({SERVICE}) group_left () {sudden}"), *rates):
        yield Recording(series.BURN_LIMIT, f"clamp_max({budget}, {REACHABLE:g})", (("burn", burn),))
    for name, requests in ((series.TIERED_JUDGED, series.CLASS_JUDGED), (series.TIERED_BAD, series.CLASS_BAD)):
        for tier in TIERS:
            inside = f"{of(series.WINDOW)} > {tier.over_seconds:.0f} <= {tier.upto_seconds:.0f}"
            yield Recording(name, f"{of(requests)} and on ({SERVICE}) ({inside})", (("tier", tier.name),))


def _rate(engines: EngineSelector, counter: str, span: str, *more: str) -> str:
    return f"sum by ({SERVICE}) ({engines.read(counter, *more, over='rate', span=span)})"


def _of_pools(engines: EngineSelector, counter: str, span: str, *labels: str) -> str:
    """The rate of one of the plugin's counters; that of a prefill pool is its service's.

    The label `pool` keeps any two rows apart while one is renamed: twice the same labels would fail the rule for all.
    """
    rows = f"sum by ({by(*labels)}) ({engines.read(f'holdfast:{counter}', over='rate', span=span)})"
    for label, value in (("pool", "$2"), ("holdfast_service", "$1")):
        rows = f'label_replace({rows}, "{label}", "{value}", "holdfast_service", "(.+)[.]({PREFILL})")'
    return f"sum by ({by(*labels)}) ({rows})"
