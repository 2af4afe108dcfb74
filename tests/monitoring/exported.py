"""Which metrics there are, from those who export them; and which ones an expression names."""

from __future__ import annotations

import re
import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from holdfast.activator.counts import RequestCounts
from holdfast.emulator.families import FAMILIES, MetricType
from holdfast.monitoring.rules import recordings
from holdfast.observe.series.queries import ACCEPTED, DRAFTS, TPOT_BEFORE_0_11
from holdfast.runtime.telemetry import Telemetry
from holdfast_engine.stats.engine_info import Identity
from holdfast_engine.stats.metrics import EngineCollector
from holdfast_engine.stats.stats_fields import FIELDS
from holdfast_engine.stats.statsfile import StatsWriter

# Names of releases before the recorded one, which the operator's queries know too.
OF_OLDER_VLLM = {
    "vllm:gpu_cache_usage_perc",
    *(f"vllm:{TPOT_BEFORE_0_11}{part}" for part in ("", "_bucket", "_count")),
}
# What vLLM exports only with speculative decoding; see vllm/v1/spec_decode/metrics.py.
OF_SPECULATION = {f"vllm:{ACCEPTED}", f"vllm:{DRAFTS}"}
OF_PROMETHEUS = {"ALERTS"}
_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_NO_METRICS = {
    *("sum", "avg", "min", "max", "count", "by", "on", "group_left", "and", "or", "unless", "offset", "rate"),
    *("histogram_quantile", "label_replace", "clamp_min", "clamp_max", "absent", "vector", "topk", "last_over_time"),
    *("round", "time", "increase", "sum_over_time", "avg_over_time", "count_over_time"),
}


def names_in(promql: str) -> tuple[set[str], set[str]]:
    """Return what the selectors of an expression name, and all words that are neither that nor PromQL's own."""
    bare = re.sub(r'"(\\.|[^"\\])*"', '""', promql)
    selected = set(re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{", bare))
    rest = re.sub(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{[^}]*\}", "", bare)
    rest = re.sub(r"\[[^\]]*\]|offset \w+|\b(by|on|group_left) \([^)]*\)|[0-9.]+(e[0-9]+)?", "", rest)
    return selected, set(_WORDS.findall(rest)) - _NO_METRICS


def exported(folder: Path) -> set[str]:
    """Return every sample name that vLLM, the plugin, the operator, an activator or a recording rule brings about."""
    vllm = {name for family in FAMILIES for name in _samples(family.name, family.type.value)}
    vllm |= {family.name for family in FAMILIES}  # as native histograms are called
    recorded = {recording.record for recording in recordings()}
    holdfast = _of_registry(_plugin(folder)) | _of_registry(Telemetry().registry)
    return vllm | OF_SPECULATION | holdfast | _of_registry(RequestCounts(time.monotonic).registry) | recorded


def of_operator() -> set[str]:
    """Return every sample name that the operator exports of itself and of services."""
    return {name for name in _of_registry(Telemetry().registry) if name.startswith("holdfast_")}


def _plugin(folder: Path) -> CollectorRegistry:
    path, registry = folder / "engine-0.stats", CollectorRegistry()
    StatsWriter(path, len(FIELDS)).write([1.0] * len(FIELDS))
    registry.register(EngineCollector(Identity("m", "0.1.0", "0.32.0"), {0: path}))
    return registry


def _of_registry(registry: CollectorRegistry) -> set[str]:
    return {name for metric in registry.collect() for name in _samples(metric.name, metric.type)}


def _samples(name: str, kind: str) -> set[str]:
    if kind == MetricType.COUNTER.value:
        return {f"{name}_total"}
    return {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
