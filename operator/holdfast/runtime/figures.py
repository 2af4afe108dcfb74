"""Metrics about each service: computed when Prometheus scrapes, never within a tick."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from holdfast.api.conditions import ConditionType
from holdfast.api.llmservice import NO_RESOURCE
from holdfast.control.status.report import conditions_told, cost_per_hour
from holdfast.domain.cluster import NodeOffer, ReplicaPhase
from holdfast.domain.decision import Decision
from holdfast.domain.service import AcceleratorOption, ServiceKey, Slo
from holdfast.domain.signals import Traffic
from holdfast.enginemodel.catalog import PRODUCT_LABELS, find_accelerator
from holdfast.observe.objects.cluster import ServiceParts
from holdfast.observe.series.histogram_edges import around
from holdfast.runtime.roofs import measured_roofs

_SAME_CHANGE_SECONDS = 15.0
_WAITING = frozenset({ReplicaPhase.STARTING, ReplicaPhase.UNSCHEDULABLE, ReplicaPhase.FAILING})
_STATUS = {True: "True", False: "False", None: "Unknown"}

Rows = Iterable[tuple[tuple[str, ...], float | None]]
"""Label values in addition to namespace and service, and the figure; None or NaN if there is none."""


class LastChange(NamedTuple):
    """The last change of a service: action, reason, and time in seconds since the epoch."""

    action: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Services with their newest decisions at one time; the invalid services with reasons; the nodes."""

    services: Mapping[ServiceKey, tuple[ServiceParts, Decision]] = field(default_factory=dict)
    invalid: Mapping[ServiceKey, str] = field(default_factory=dict)
    nodes: Sequence[NodeOffer] = ()
    at: float = 0.0
    traffic: Mapping[ServiceKey, Traffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """One gauge per service."""

    name: str
    about: str
    labels: tuple[str, ...]
    rows: Callable[[ServiceParts, Decision], Rows]


class ServiceGauges(Collector):
    """Gauges per service from the newest picture; scrapes and ticks may run on different threads."""

    def __init__(self) -> None:
        self.picture = Picture()
        self._changes: dict[ServiceKey, LastChange] = {}

    def show(self, picture: Picture) -> None:
        """Serve this picture from now on; changes of services that it no longer contains are dropped."""
        self.picture = picture
        for gone in self._changes.keys() - picture.services.keys() - picture.invalid.keys():
            del self._changes[gone]

    def note(self, key: ServiceKey, change: LastChange) -> None:
        """Remember the last change of a service; the same change decided again before it is seen is not new."""
        last = self._changes.get(key)
        if last is None or last[:2] != change[:2] or change.at - last.at > _SAME_CHANGE_SECONDS:
            self._changes[key] = change

    def describe(self) -> list[Metric]:
        """No samples before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, those without samples included."""
        picture = self.picture
        for figure in FIGURES:
            yield _family(figure, picture.services)
        yield _condition_family(picture)
        yield _roof_family(picture)
        yield self._last_changes()
        yield _node_gpus(picture.nodes)

    def _last_changes(self) -> Metric:
        labels = ("namespace", "service", "action", "reason")
        about = "Time of the last change of the service, in seconds since the epoch."
        family = GaugeMetricFamily("holdfast_service_last_change_timestamp_seconds", about, labels=labels)
        for key, change in tuple(self._changes.items()):
            family.add_metric((*key.labels, change.action, change.reason), change.at)
        return family


def _family(figure: Figure, services: Mapping[ServiceKey, tuple[ServiceParts, Decision]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(figure.name, figure.about, labels=("namespace", "service", *figure.labels))
    for key, (part, decision) in services.items():
        for labels, value in figure.rows(part, decision):
            if value is not None and math.isfinite(value):
                family.add_metric((*key.labels, *labels), value)
    return family


def _condition_family(picture: Picture) -> Metric:
    conditions = Figure(
        "holdfast_service_condition",
        ("Conditions: 1 for the current status and reason of each."),
        ("type", "status", "reason"),
        _conditions,
    )
    family = _family(conditions, picture.services)
    for key, reason in picture.invalid.items():
        family.add_metric((*key.labels, str(ConditionType.STALLED), _STATUS[True], reason), 1.0)
    return family


def _roof_family(picture: Picture) -> Metric:
    """Shares of the data sheet's FLOP/s and bandwidth at which each phase runs."""
    about = "Share of a GPU's arithmetic (flops) and memory bandwidth (bytes) in a step of each phase, as measured."
    labels = ("namespace", "service", "accelerator", "phase", "of")
    family = GaugeMetricFamily("holdfast_service_roof_ratio", about, labels=labels)
    for key, (part, decision) in picture.services.items():
        traffic = picture.traffic.get(key)
        if traffic is None or not traffic.fresh:
            continue
        for accelerator, phase, found in measured_roofs(part.spec, traffic, dict(decision.engines)):
            for of, share in (("flops", found.flops_share), ("bytes", found.bandwidth_share)):
                family.add_metric((*key.labels, accelerator, phase, of), share)
    return family


def _one(read: Callable[[ServiceParts, Decision], float | None]) -> Callable[[ServiceParts, Decision], Rows]:
    return lambda part, decision: (((), read(part, decision)),)


def _bounds(part: ServiceParts, _: Decision) -> Rows:
    slo = part.spec.slo
    return ((("ttft",), slo.ttft_seconds), (("tpot",), slo.tpot_seconds), (("e2e",), slo.e2e_seconds))


def _edges(part: ServiceParts, _: Decision) -> Rows:
    return ((labels, 1.0) for labels in _edge_labels(part.spec.slo))


@lru_cache(maxsize=8192)
def _edge_labels(slo: Slo) -> tuple[tuple[str, str], ...]:
    """Metric and `le` of the buckets at the objectives, formatted as vLLM's client does."""
    edges = around((slo,))
    families = (("ttft", edges.ttft), ("tpot", edges.tpot), ("e2e", edges.e2e))
    return tuple((name, _spelt(edge)) for name, seconds in families for edge in seconds)


def _spelt(edge: float) -> str:
    return str(floatToGoString(edge))  # type: ignore[no-untyped-call]


def _replicas(part: ServiceParts, decision: Decision) -> Rows:
    """Desired replicas per accelerator, and its replicas by phase; empty phases are omitted."""
    wanted = (((target.accelerator, "desired"), float(target.replicas)) for target in decision.verdict.targets)
    counted = Counter((replica.accelerator, replica.phase.value) for replica in part.replicas)
    return chain(wanted, ((labels, float(count)) for labels, count in counted.items()))


def _waits_since(part: ServiceParts, _: Decision) -> Rows:
    """Age of the oldest replica per accelerator and phase; a flip between two phases does not reset it."""
    oldest: dict[tuple[str, str], float] = {}
    for replica in part.replicas:
        if replica.phase in _WAITING:
            labels = (replica.accelerator, replica.phase.value)
            oldest[labels] = min(oldest.get(labels, math.inf), replica.unready_at or replica.created_at)
    return oldest.items()


def _gpus(part: ServiceParts, _: Decision) -> Rows:
    return (((option.name,), float(option.gpus_per_replica)) for option in part.spec.accelerators)


def _limits(part: ServiceParts, _: Decision) -> Rows:
    spec = part.spec
    return ((("min",), spec.min_replicas), (("max",), spec.max_replicas), (("pinned",), spec.pinned_replicas))


def _batching(part: ServiceParts, _: Decision) -> Rows:
    """Batching limits at engine start per accelerator; None for vLLM's own default."""
    declared, found = part.spec.batching, dict[tuple[str, str], float | None]()
    for placement in part.placements:
        name, kept = placement.accelerator, placement.batching
        found[name, "active_sequences"] = kept.max_num_seqs or declared.max_num_seqs
        found[name, "tokens_per_step"] = kept.max_num_batched_tokens or declared.max_num_batched_tokens
    return found.items()


def _capacity(_: ServiceParts, decision: Decision) -> Rows:
    view = decision.capacity
    return () if view is None else (((view.accelerator, view.bound_by), view.per_replica_rps),)


def _conditions(part: ServiceParts, decision: Decision) -> Rows:
    told = conditions_told(part, decision)
    return (((value.type, _STATUS[value.status], str(value.reason)), 1.0) for value in told)


def _peaks(part: ServiceParts, _: Decision) -> Rows:
    for option in part.spec.accelerators:
        peaks = _gpu_peaks(option)
        if peaks is not None:
            yield (option.name, "flops"), peaks[0]
            yield (option.name, "bytes"), peaks[1]


@lru_cache(maxsize=1024)
def _gpu_peaks(option: AcceleratorOption) -> tuple[float, float] | None:
    hardware = option.hardware
    if hardware is not None:
        return hardware.teraflops * 1e12, hardware.bandwidth_gb_per_second * 1e9
    shape = find_accelerator(option.name, dict(option.node_selector), option.resource)
    return None if shape is None else (shape.peak_flops, shape.bandwidth)


def _target_pods(part: ServiceParts, _: Decision) -> Rows:
    if part.adoption is not None:
        yield from (((each.accelerator, each.name), 1.0) for each in part.replicas)


def _with_classes(slo: Slo) -> tuple[Slo, ...]:
    return (slo, *slo.classes) if slo.classes else ()


FIGURES = (
    Figure(
        "holdfast_slo_attainment_ratio",
        "Share of the judged requests in the window that were good; absent while too few were judged.",
        (),
        _one(lambda _, decision: decision.slo.attainment),
    ),
    Figure("holdfast_slo_objective_ratio", "spec.slo.objective.", (), _one(lambda part, _: part.spec.slo.objective)),
    Figure("holdfast_slo_window_seconds", "spec.slo.window.", (), _one(lambda part, _: part.spec.slo.window_seconds)),
    Figure(
        "holdfast_slo_budget_remaining_ratio",
        "Remaining share of the error budget; below 0 the objective is missed.",
        (),
        _one(lambda _, decision: decision.slo.budget_remaining),
    ),
    Figure(
        "holdfast_slo_class_objective_ratio",
        "The objective of each class of a service with classes; its own where class is empty.",
        ("class",),
        lambda part, _: (((each.name,), each.objective) for each in _with_classes(part.spec.slo)),
    ),
    Figure(
        "holdfast_slo_class_budget_remaining_ratio",
        "Remaining share of the error budget of each class; below 0 its objective is missed.",
        ("class",),
        lambda _, decision: (((each.name,), each.budget_remaining) for each in decision.slo.classes),
    ),
    Figure("holdfast_slo_bound_seconds", "spec.slo.ttft, tpot and e2e.", ("latency",), _bounds),
    Figure(
        "holdfast_slo_edge",
        "Bucket edges of vLLM's histograms that bound the requests in time.",
        ("latency", "le"),
        _edges,
    ),
    Figure(
        "holdfast_service_replicas",
        "Replicas by accelerator and state: desired, and the phases ready, starting, unschedulable, failing, draining.",
        ("accelerator", "state"),
        _replicas,
    ),
    Figure(
        "holdfast_service_replica_waits_since_timestamp_seconds",
        "Since when the longest waiting replica is not Ready, by accelerator and state, in seconds since the epoch.",
        ("accelerator", "state"),
        _waits_since,
    ),
    Figure(
        "holdfast_service_cold_start_seconds",
        "90th percentile of cold starts, from scheduling to Ready, in seconds; absent before the first one.",
        (),
        _one(lambda _, decision: decision.cold_start_seconds),
    ),
    Figure(
        "holdfast_service_startup_timeout_seconds",
        "engine.startupTimeout; absent where --startup-timeout applies.",
        (),
        _one(lambda part, _: part.spec.startup_seconds),
    ),
    Figure(
        "holdfast_service_holding",
        "1 while the Service routes clients to the activator; absent unless scaling.min is 0.",
        (),
        _one(lambda part, decision: None if part.spec.min_replicas else float(decision.holding)),
    ),
    Figure("holdfast_service_replicas_limit", "scaling.min, scaling.max and spec.replicas.", ("limit",), _limits),
    Figure("holdfast_service_gpus_per_replica", "accelerators[].count.", ("accelerator",), _gpus),
    Figure(
        "holdfast_service_forecast_rps",
        "Requests per second that the size is chosen for.",
        (),
        _one(lambda _, decision: decision.explanation.forecast_rps),
    ),
    Figure(
        "holdfast_service_forecast_quantile_ratio",
        "Quantile of the forecast for the lead time, from 0 to 1; the error budget moves it.",
        (),
        _one(lambda _, decision: decision.explanation.quantile),
    ),
    Figure(
        "holdfast_service_lead_time_seconds",
        "Lead time in seconds: from a change of the load until a new replica serves it.",
        (),
        _one(lambda _, decision: decision.explanation.lead_time_seconds),
    ),
    Figure(
        "holdfast_service_backlog_requests",
        "Queued requests beyond what can start within slo.ttft.",
        (),
        _one(lambda _, decision: decision.explanation.backlog_requests),
    ),
    Figure(
        "holdfast_service_wanted_replicas",
        "Replicas for the load, before limits and guards.",
        (),
        _one(lambda _, decision: decision.explanation.wanted_replicas),
    ),
    Figure(
        "holdfast_service_batching_limit",
        "Limits of sequences and tokens per step that engines were started with; absent for vLLM's default.",
        ("accelerator", "name"),
        _batching,
    ),
    Figure(
        "holdfast_service_capacity_rps",
        "Requests per second that one replica carries within the objectives, and what limits it (bound_by).",
        ("accelerator", "bound_by"),
        _capacity,
    ),
    Figure(
        "holdfast_service_cost_dollars_per_hour",
        "Dollars per hour of all replicas that hold a GPU; absent if a price is unknown.",
        (),
        _one(lambda part, _: cost_per_hour(part)),
    ),
    Figure(
        "holdfast_service_cost_limit_dollars_per_hour",
        "spec.budget.maxCostPerHour.",
        (),
        _one(lambda part, _: part.spec.max_cost_per_hour),
    ),
    Figure(
        "holdfast_service_gpu_peak",
        "Data sheet of one GPU of a known accelerator: dense 16-bit FLOP/s, bytes/s of memory.",
        ("accelerator", "of"),
        _peaks,
    ),
    Figure(
        "holdfast_service_target_pod",
        "1 for each pod of the Deployment in spec.target: recording rules find the series of its engine by it.",
        ("accelerator", "engine_pod"),
        _target_pods,
    ),
)


def _node_gpus(nodes: Sequence[NodeOffer]) -> Metric:
    """GPUs that nodes have, by product; `used` counts replicas of LLMServices only; other users are unknown."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for node in nodes:
        labels, used = dict(node.labels), dict(node.used)
        product = next((labels[name] for name in PRODUCT_LABELS if name in labels), "")
        for resource, amount in node.allocatable:
            if resource == NO_RESOURCE:
                continue
            held = min(amount, used.get(resource, 0))
            counted[product, resource, "used"] += held
            counted[product, resource, "free"] += amount - held
    family = GaugeMetricFamily(
        "holdfast_node_gpus", "GPUs of all nodes, by product and state.", labels=("product", "resource", "state")
    )
    for found, count in counted.items():
        family.add_metric(found, float(count))
    return family
