"""Rows of the fast and slow queries -> Traffic per service: pure, and the judge of how far to believe them."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic, busiest_share
from holdfast.observe import foreign, plugins, queries
from holdfast.observe.foreign import Strangers
from holdfast.observe.plugins import PluginCounts
from holdfast.observe.queries import Window
from holdfast.observe.samples import Answer, Sample, usable
from holdfast.observe.slow import SlowSignals, service_key

GROWTH = tuple(f"{gauge}_growth" for gauge in queries.IN_FLIGHT)
_GROUP_LABELS = ("namespace", "holdfast_service", "holdfast_accelerator")
FINISHED_REASONS = {"error": "failed", "abort": "aborted"}


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One service to be observed: its objectives, and the replicas whose engines should report.

    `on_trial`: one revision of it is compared with the others.
    """

    key: ServiceKey
    slo: Slo
    replicas: tuple[Replica, ...] = ()
    on_trial: bool = False


def unreachable(detail: str) -> Traffic:
    """Nothing could be read this tick."""
    return Traffic(SignalState.UNREACHABLE, detail)


LEAST_SKEW_SECONDS = 10.0
"""Below it a scrape may have come between the time of a question and its answer."""

MOST_NEWCOMERS = 200
"""Engines that one query asks about: it names each a hundred times, and Prometheus takes no query above 10 MB."""


def newcomers(anomalies: Answer) -> tuple[set[str], set[str]]:
    """Return namespaces and pods of the engines of which more must be read, because they have no past.

    Those beyond `MOST_NEWCOMERS` count in part until they have a past, an interval later.
    """
    rows = {
        (sample.label("namespace"), sample.label("pod"))
        for sample in anomalies.samples
        if sample.label("metric") == "newcomer"
    }
    asked = sorted(rows)[:MOST_NEWCOMERS]
    return {namespace for namespace, _ in asked}, {pod for _, pod in asked}


def assemble(
    requests: Sequence[TrafficRequest],
    answers: Mapping[str, Answer],
    slow: SlowSignals,
    span: Window,
    now: float,
    strangers: Strangers | None = None,
) -> dict[ServiceKey, Traffic]:
    """Return Traffic for every request; `answers` holds all fast queries by name, and `newcomers` where asked.

    `strangers` remembers from look to look which engines are no pods of this cluster; without it none is told.
    """
    table = _Table(answers, span, now, strangers or Strangers(span.scrape_seconds))
    seen = {request.key: _with_slow(table.traffic(request), slow, request.key) for request in requests}
    return {key: _in_time(traffic, slow.ahead_seconds.get(key, 0.0), span) for key, traffic in seen.items()}


def _in_time(traffic: Traffic, ahead_seconds: float, span: Window) -> Traffic:
    """Samples from the future are seen too late, those of new engines not at all: before any other finding."""
    if ahead_seconds <= max(span.scrape_seconds, LEAST_SKEW_SECONDS):
        return traffic
    detail = (
        f"Prometheus writes samples about {ahead_seconds:.0f} s in the future: its clock is ahead of the operator's; "
        "set the nodes of both by NTP"
    )
    return dataclasses.replace(traffic, state=SignalState.SKEWED, detail=detail)


def _with_slow(traffic: Traffic, slow: SlowSignals, key: ServiceKey) -> Traffic:
    return dataclasses.replace(
        traffic,
        ttft=slow.ttft.get(key, traffic.ttft),
        tpot=slow.tpot.get(key, traffic.tpot),
        prompt_lengths=slow.prompt_lengths.get(key, traffic.prompt_lengths),
        output_lengths=slow.output_lengths.get(key, traffic.output_lengths),
        steps=slow.steps.get(key, traffic.steps),
    )


@dataclass(slots=True)
class _Values:
    """Everything seen of one service on one accelerator."""

    counts: dict[str, float] = field(default_factory=dict)
    within: dict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    sampled_at: dict[str, float] = field(default_factory=dict)  # pod -> newest sample
    copies: dict[str, float] = field(default_factory=dict)  # pod -> how often it is scraped, where more than once
    incomplete: set[str] = field(default_factory=set)  # pods whose counts are known in part
    hung: set[str] = field(default_factory=set)  # pods that hold requests and stand still
    unusable: set[str] = field(default_factory=set)
    plugins: PluginCounts = field(default_factory=PluginCounts)

    def add(self, name: str, value: float, may_be_negative: bool = False) -> None:
        """Add to a count; a value or a sum that makes no sense is remembered by name and not counted."""
        total = self.counts.get(name, 0.0) + value
        if math.isfinite(total) and (may_be_negative or value >= 0.0):
            self.counts[name] = total
        else:
            self.unusable.add(name)

    def add_within(self, family: str, edge_text: str, count: float) -> None:
        """Add to the observations at or below an edge."""
        edge = _number(edge_text)
        total = self.within[family].get(edge, 0.0) + count
        if math.isnan(edge) or not math.isfinite(total):
            self.unusable.add(f"{family}_bucket")
        else:
            self.within[family][edge] = total

    def get(self, *names: str) -> float:
        """Value of the first of these names that is there: metrics were renamed over vLLM versions."""
        return next((self.counts[name] for name in names if name in self.counts), 0.0)

    def mean_copies(self) -> float:
        """How often an engine is counted on average."""
        surplus = sum(max(0.0, copies - 1.0) for copies in self.copies.values() if math.isfinite(copies))
        return 1.0 + surplus / max(1, len(self.sampled_at))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the checks judge, per service."""

    cells: Mapping[str, _Values]
    expected: Mapping[str, tuple[str, ...]]  # accelerator -> pods that should report by now
    foreign: tuple[str, ...]  # pods that report and are none of this cluster
    starting: bool
    unlabelled: str
    warnings: tuple[str, ...]
    span: Window
    now: float

    def newest(self) -> float | None:
        return max((at for values in self.cells.values() for at in values.sampled_at.values()), default=None)

    def reporting(self, accelerator: str) -> tuple[str, ...]:
        values = self.cells.get(accelerator)
        fresh_since = self.now - self.span.stale_seconds
        return tuple(pod for pod, at in values.sampled_at.items() if at >= fresh_since) if values else ()


class _Table:
    """All answers of one tick, sorted by service and accelerator once."""

    def __init__(self, answers: Mapping[str, Answer], span: Window, now: float, strangers: Strangers) -> None:
        self._strangers = strangers
        self._span = span
        self._now = now
        self._cells: dict[ServiceKey, dict[str, _Values]] = defaultdict(lambda: defaultdict(_Values))
        self._by_group: dict[tuple[str | None, ...], _Values] = {}  # the same, found with one look: rows are many
        self._unlabelled: list[Mapping[str, str]] = []
        self._engines = plugins.engine_states(answers["plugins"].samples)
        self._warnings = tuple(text for answer in answers.values() for text in answer.warnings)
        self._read(answers)

    def traffic(self, request: TrafficRequest) -> Traffic:
        cells = self._cells.get(request.key, {})
        facts = self._facts(request, cells)
        state, detail = next(filter(None, (check(facts) for check in CHECKS)), (SignalState.FRESH, ""))
        newest = facts.newest()
        return Traffic(
            state=state,
            detail=detail,
            interval_seconds=self._span.interval_seconds,
            sample_age_seconds=None if newest is None else max(0.0, self._now - newest),
            by_accelerator=tuple(
                (name, _accelerator_traffic(cells[name], request.slo, facts.reporting(name)))
                for name in sorted(cells)
                if name  # what carries no accelerator's name cannot be sized by
            ),
            plugins=self._engines.get(request.key, ()),
            hung=tuple(sorted(pod for values in cells.values() for pod in values.hung)),
        )

    def _facts(self, request: TrafficRequest, cells: Mapping[str, _Values]) -> _Facts:
        settled = self._now - self._span.birth_grace_seconds
        pods = [replica.name for replica in request.replicas]
        sampled_at = {pod: at for values in cells.values() for pod, at in values.sampled_at.items()}
        ready = [replica for replica in request.replicas if replica.phase is ReplicaPhase.READY]
        expected: dict[str, tuple[str, ...]] = {}
        for replica in ready:
            if replica.ready_at is not None and replica.ready_at <= settled:
                expected[replica.accelerator] = (*expected.get(replica.accelerator, ()), replica.name)
        return _Facts(
            cells,
            expected,
            self._strangers.found(request.key, pods, sampled_at, self._now),
            not ready,
            _unlabelled_detail(request.key, self._unlabelled),
            self._warnings,
            self._span,
            self._now,
        )

    def _read(self, answers: Mapping[str, Answer]) -> None:
        for name in ("requests", "tokens", "edges", "gauges"):
            for sample in answers[name].samples:
                self._read_gained(sample)
        for sample in answers["engines"].samples:
            if usable(sample.value):
                self._cell(sample).sampled_at[sample.label("pod")] = sample.value
        for sample in answers["plugins"].samples:
            self._read_plugin(sample)
        for sample in answers["anomalies"].samples:
            self._read_anomaly(sample)
        for sample in answers["newcomers"].samples if "newcomers" in answers else ():
            self._read_newcomer(sample)

    def _read_gained(self, sample: Sample, may_be_negative: bool = False) -> None:
        metric, edge = sample.label("metric"), sample.label("le")
        if plugins.counted(metric):
            self._cell(sample).plugins.add(sample, may_be_negative)
        elif edge:
            self._cell(sample).add_within(metric.removesuffix("_bucket"), edge, sample.value)
        elif metric == queries.SUCCESS:
            outcome = FINISHED_REASONS.get(sample.label("finished_reason"), "finished")
            self._cell(sample).add(outcome, sample.value, may_be_negative)
        else:
            self._cell(sample).add(metric, sample.value, may_be_negative or metric in GROWTH)

    def _read_plugin(self, sample: Sample) -> None:
        metric = sample.label("metric")
        if metric == queries.COVERED:
            self._cell(sample).plugins.covered = usable(sample.value)
        elif metric == "objective":
            self._cell(sample).plugins.objectives.add((sample.label("name"), _number(sample.label("seconds"))))
        elif plugins.counted(metric) or (metric == queries.WAITING_LATE and usable(sample.value)):
            self._read_gained(sample)

    def _read_anomaly(self, sample: Sample) -> None:
        if sample.label("metric") == "unlabelled":
            self._unlabelled.append(sample.labels)
        elif sample.label("metric") == "copies":
            self._cell(sample).copies[sample.label("pod")] = sample.value
        elif sample.label("metric") == queries.HUNG:
            if usable(sample.value) and sample.label("pod"):
                self._cell(sample).hung.add(sample.label("pod"))
        else:
            self._cell(sample).incomplete.add(sample.label("pod"))

    def _read_newcomer(self, sample: Sample) -> None:
        if sample.label("metric") != "born":
            self._read_gained(sample, may_be_negative=True)
        elif sample.value > self._now - self._span.newborn_seconds:
            self._cell(sample).incomplete.discard(sample.label("pod"))

    def _cell(self, sample: Sample) -> _Values:
        group = tuple(map(sample.labels.get, _GROUP_LABELS))
        values = self._by_group.get(group)
        if values is None:
            values = self._cells[service_key(sample)][sample.label("holdfast_accelerator")]
            self._by_group[group] = values
        return values


def _accelerator_traffic(values: _Values, slo: Slo, reporting: Sequence[str]) -> AcceleratorTraffic:
    copies, engines = values.mean_copies(), len(reporting)
    working = len(set(reporting) - values.hung)

    def count(*names: str) -> float:
        return max(0.0, values.get(*names)) / copies

    e2e_count = count(f"{queries.E2E}_count")
    return AcceleratorTraffic(
        finished=count("finished"),
        failed=count("failed"),
        aborted=count("aborted"),
        rejected=count(queries.REJECTIONS),
        prompt_tokens=count("prompt_tokens_total"),
        cached_prompt_tokens=count(*queries.CACHED_TOKENS),
        output_tokens=count("generation_tokens_total"),
        length_samples=count(f"{queries.PROMPT_LENGTH}_count"),
        prompt_length_sum=count(f"{queries.PROMPT_LENGTH}_sum"),
        output_length_sum=count(f"{queries.OUTPUT_LENGTH}_sum"),
        preemptions=count("num_preemptions_total"),
        ttft_count=count(f"{queries.TTFT}_count"),
        ttft_within=_within(values, slo.ttft_seconds, queries.TTFT) / copies,
        tpot_count=count(f"{queries.TPOT}_count", f"{queries.TPOT_BEFORE_0_11}_count"),
        tpot_within=_within(values, slo.tpot_seconds, queries.TPOT, queries.TPOT_BEFORE_0_11) / copies,
        tpot_sum_seconds=count(f"{queries.TPOT}_sum", f"{queries.TPOT_BEFORE_0_11}_sum"),
        e2e_count=e2e_count,
        e2e_within=e2e_count if slo.e2e_seconds is None else _within(values, slo.e2e_seconds, queries.E2E) / copies,
        running=count("num_requests_running"),
        waiting=count("num_requests_waiting"),
        waiting_late=min(count("num_requests_waiting"), count(queries.WAITING_LATE)),
        in_flight_growth=sum(map(values.get, GROWTH)) / copies,
        kv_usage=max(0.0, values.get("kv_usage")),
        engines=engines,
        busiest=busiest_share(values.get(queries.BEGUN), values.get(queries.MOST_BEGUN), working),
        exact=values.plugins.exact(slo, engines, copies),
    )


def _within(values: _Values, objective_seconds: float, *families: str) -> float:
    """Return a lower bound of the observations within the objective.

    Each edge at or below it is one; pods of an older revision may lack the exact edge, so the largest is taken.
    """
    family = next((name for name in families if f"{name}_count" in values.counts), families[0])
    limit = objective_seconds * (1.0 + 1e-9)
    return max((0.0, *(count for edge, count in values.within.get(family, {}).items() if edge <= limit)))


def _unlabelled_detail(key: ServiceKey, groups: Iterable[Mapping[str, str]]) -> str:
    """Name the label that engines of this namespace (or of no namespace) lack."""
    for labels in groups:
        if labels.get("namespace", "") not in ("", key.namespace):
            continue
        if labels.get("holdfast_service", "") not in ("", key.name):
            continue
        lacking = [name for name in ("namespace", "holdfast_service", "holdfast_accelerator") if not labels.get(name)]
        return f"engines report vllm:num_requests_running without the label {' and '.join(lacking)}: relabel them"
    return ""


def _some(pods: Sequence[str]) -> str:
    return ", ".join(pods[:3]) + (", ..." if len(pods) > 3 else "")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


Judgement = tuple[SignalState, str] | None


def _some_series(facts: _Facts) -> Judgement:
    if facts.newest() is not None:
        return None
    if facts.unlabelled:
        return SignalState.ABSENT, facts.unlabelled
    if facts.starting:
        return SignalState.ABSENT, "no replica is ready yet"
    return SignalState.ABSENT, "Prometheus has no vllm:num_requests_running for this service: is it scraped?"


def _numbers_make_sense(facts: _Facts) -> Judgement:
    unusable = sorted({name for values in facts.cells.values() for name in values.unusable})
    return (SignalState.INVALID, f"NaN, infinite or negative: {', '.join(unusable)}") if unusable else None


def _recent(facts: _Facts) -> Judgement:
    newest = facts.newest()
    if newest is None or facts.now - newest <= facts.span.stale_seconds:
        return None
    age, period = facts.now - newest, facts.span.scrape_seconds
    return SignalState.STALE, f"the newest sample is {age:.0f} s old, scrapes come every {period:g} s"


def _labelled(facts: _Facts) -> Judgement:
    if "" in facts.cells:
        return SignalState.PARTIAL, "some engines lack the label holdfast_accelerator: relabel them"
    if any("" in values.sampled_at for values in facts.cells.values()):
        return SignalState.PARTIAL, "some engines lack the label pod: relabel them"
    return None


def _every_engine(facts: _Facts) -> Judgement:
    missing = sorted(pod for name, pods in facts.expected.items() for pod in pods if pod not in facts.reporting(name))
    if not missing:
        return None
    expected = sum(map(len, facts.expected.values()))
    return SignalState.PARTIAL, f"{len(missing)} of {expected} ready replicas do not report: {_some(missing)}"


def _once_each(facts: _Facts) -> Judgement:
    if not any(values.copies for values in facts.cells.values()):
        return None
    return SignalState.DUPLICATE, "engines are scraped more than once: counts are divided by the number of copies"


def _only_ours(facts: _Facts) -> Judgement:
    return (SignalState.FOREIGN, foreign.told(facts.foreign)) if facts.foreign else None


def _whole_counts(facts: _Facts) -> Judgement:
    pods = sorted(pod for values in facts.cells.values() for pod in values.incomplete)
    if not pods:
        return None
    return SignalState.PARTIAL, f"too few samples in this interval to count all of: {_some(pods)}"


def _complete_answers(facts: _Facts) -> Judgement:
    return (SignalState.PARTIAL, f"Prometheus warns: {facts.warnings[0][:200]}") if facts.warnings else None


CHECKS: tuple[Callable[[_Facts], Judgement], ...] = (
    _some_series,
    _numbers_make_sense,
    _recent,
    _once_each,
    _labelled,
    _every_engine,
    _only_ours,
    _whole_counts,
    _complete_answers,
)
