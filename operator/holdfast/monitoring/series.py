"""Names of the recorded series, and how selectors of them and of what the operator exports are written.

Every selector has braces, so that `observe.series.client.matching` can add the labels of one cluster to it. Label
values in expressions are constants of ours: what people name reaches PromQL as labels of series only.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.observe.series.queries import SERVICE

LEVEL = "holdfast_service"
"""Recorded series are by `namespace` and `holdfast_service`, as the operator's own queries are."""

# Verdicts and traffic, requests per second
ARRIVED = f"{LEVEL}:requests_arrived:rate"
FINISHED = f"{LEVEL}:requests_finished:rate"
FAILED = f"{LEVEL}:requests_failed:rate"
REJECTED = f"{LEVEL}:requests_rejected:rate"
LATE = f"{LEVEL}:requests_late:rate"
JUDGED_EXACTLY = f"{LEVEL}:judged_exactly:count"
JUDGED = f"{LEVEL}:requests_judged:rate"
BAD = f"{LEVEL}:requests_bad:rate"
GOOD = f"{LEVEL}:requests_good:rate"
CLASS_JUDGED = f"{LEVEL}:class_requests_judged:rate"
CLASS_BAD = f"{LEVEL}:class_requests_bad:rate"
BAD_BY_CAUSE = f"{LEVEL}:requests_bad_by_cause:rate"

# Latencies, seconds; the label `latency` is ttft, tpot, itl or e2e
BUCKETS = f"{LEVEL}:latency_seconds_bucket:rate"
NATIVE = f"{LEVEL}:latency_seconds:increase"
QUANTILES = ((0.5, f"{LEVEL}:latency_seconds:p50"), (0.95, f"{LEVEL}:latency_seconds:p95"),
             (0.99, f"{LEVEL}:latency_seconds:p99"))  # fmt: skip

# Engines
TOKENS = f"{LEVEL}:tokens:rate"
PREEMPTIONS = f"{LEVEL}:preemptions:rate"
ACCEPTED_DRAFTS = f"{LEVEL}:accepted_drafts:ratio"
BY_CACHE = f"{LEVEL}:engines_by_kv_cache:count"
BY_START = f"{LEVEL}:engines_by_start:count"
IN_FLIGHT = f"{LEVEL}:requests_in_flight:sum"
KV_MEAN = f"{LEVEL}:kv_cache_usage:avg"
KV_MOST = f"{LEVEL}:kv_cache_usage:max"
ENGINE_LIMIT = f"{LEVEL}:engine_limit:min"
GPU_USE = f"{LEVEL}:gpu_use:ratio"
ROOF = f"{LEVEL}:roof:ratio"
PLUGINS_OFF = f"{LEVEL}:plugins_off:count"

# What the operator tells
OBJECTIVE = f"{LEVEL}:slo_objective:ratio"
WINDOW = f"{LEVEL}:slo_window:seconds"
CLASS_OBJECTIVE = f"{LEVEL}:class_objective:ratio"
CLASS_BUDGET_LEFT = f"{LEVEL}:class_budget_remaining:ratio"
BOUND = f"{LEVEL}:slo_bound:seconds"
EDGE = f"{LEVEL}:slo_edge:info"
ATTAINMENT = f"{LEVEL}:slo_attainment:ratio"
BUDGET_LEFT = f"{LEVEL}:slo_budget_remaining:ratio"
CONDITION = f"{LEVEL}:condition:info"
REPLICAS = f"{LEVEL}:replicas:count"
GPUS = f"{LEVEL}:gpus:count"
REPLICAS_LIMIT = f"{LEVEL}:replicas_limit:count"
FORECAST = f"{LEVEL}:forecast:rps"
CAPACITY = f"{LEVEL}:capacity_per_replica:rps"
GPU_PEAK = f"{LEVEL}:gpu_peak:per_second"
COST = f"{LEVEL}:cost:dollars_per_hour"
COST_LIMIT = f"{LEVEL}:cost_limit:dollars_per_hour"
COST_OF_TOKENS = f"{LEVEL}:cost:dollars_per_million_tokens"
COST_OF_GOOD = f"{LEVEL}:cost:dollars_per_thousand_good_requests"
COLD_START = f"{LEVEL}:cold_start:seconds"
STARTUP_TIMEOUT = f"{LEVEL}:startup_timeout:seconds"
HOLDING = f"{LEVEL}:holding:bool"
WAITS_SINCE = f"{LEVEL}:replica_waits_since:timestamp_seconds"
START_LIMIT = f"{LEVEL}:start_limit:seconds"
WAKING_UNTIL = f"{LEVEL}:waking_until:timestamp_seconds"
LAST_CHANGE = f"{LEVEL}:last_change:timestamp_seconds"
TARGET_POD = f"{LEVEL}:target_pod:info"

# Burn
BURN_LIMIT = f"{LEVEL}:burn_limit:ratio"
TIERED_JUDGED = f"{LEVEL}:requests_judged:rate_by_tier"
TIERED_BAD = f"{LEVEL}:requests_bad:rate_by_tier"


# What the operator tells of itself, by the `namespace` that it runs in
OPERATOR = "holdfast_operator"
LEADERS = f"{OPERATOR}:leaders:sum"
TICK_BUCKETS = f"{OPERATOR}:tick_seconds_bucket:rate"
CHANGES = f"{OPERATOR}:changes:increase"
ERRORS = f"{OPERATOR}:errors:increase"
NODE_GPUS = f"{OPERATOR}:node_gpus:max"

_MADE_BY_RULES = (f"{LEVEL}:", f"{OPERATOR}:", "ALERTS")


def of(name: str, **labels: str) -> str:
    """Return the selector of a series with these labels; a value that begins with `~` is a regular expression.

    Whatever was scraped has the label `instance`, and what rules made has not: so no target can add to the latter.
    """
    if name.startswith(_MADE_BY_RULES):
        labels = {"instance": "", **labels}
    return f"{name}{{{', '.join(_matcher(label, value) for label, value in labels.items())}}}"


def _matcher(label: str, value: str) -> str:
    return f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"'


def told(metric: str, *labels: str, kept: str = "") -> str:
    """Return what the operator exports by service, under the labels that engines' series have; `kept` is a duration.

    Its own labels come as `exported_namespace` and the like where a scrape does not honour them. No two series may get
    the same labels by `label_replace`, which would fail the rule for all: so labels that it writes are removed before.
    """
    own = (label for label in labels if label != "holdfast_accelerator")
    read = ", ".join(("service", "exported_service", "accelerator", *own))
    exported, honoured = (
        f"max by ({label}, {read}) ({_lasting(of(metric, exported_namespace=value), kept)})"
        for label, value in (("exported_namespace", "~.+"), ("namespace", ""))
    )
    vector = f"{_copied(exported, 'namespace', 'exported_namespace')} or {honoured}"
    for label, source in (
        ("holdfast_service", "service"),
        ("holdfast_service", "exported_service"),
        ("holdfast_accelerator", "accelerator"),
    ):
        if label in by(*labels):
            vector = _copied(vector, label, source)
    return f"max by ({by(*labels)}) ({vector})"


def _lasting(selector: str, span: str) -> str:
    return f"last_over_time({selector}[{span}])" if span else selector


def _copied(vector: str, label: str, source: str) -> str:
    return f'label_replace({vector}, "{label}", "$1", "{source}", "(.+)")'


def by(*labels: str) -> str:
    """Return the labels of a service, and more."""
    return ", ".join((SERVICE, *labels))


def duration(seconds: float) -> str:
    """Return whole seconds as PromQL writes them, in the largest unit that holds them exactly."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def any_of(words: Sequence[str]) -> str:
    """Return a matcher's value for any of these words."""
    return "~" + "|".join(words)
