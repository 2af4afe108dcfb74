"""Rows of the fast and slow queries -> Traffic per service: pure."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.domain.batch import without_batch
from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import (
    AcceleratorTraffic,
    ClassTraffic,
    SignalState,
    Traffic,
    busiest_share,
    failing,
    lags,
    late_and_good,
)
from holdfast.observe.series import queries
from holdfast.observe.series.histograms import is_at_most
from holdfast.observe.series.needed_series import Stored
from holdfast.observe.series.queries import QueryWindow
from holdfast.observe.series.samples import QueryResult, Sample, service_key, usable
from holdfast.observe.signals import batch, plugins
from holdfast.observe.signals.counts import Counts, number
from holdfast.observe.signals.foreign_engines import ForeignEngineTracker
from holdfast.observe.signals.pools import ByAccelerator, with_ended
from holdfast.observe.signals.signal_quality import SignalFacts, judge, unlabelled_detail
from holdfast.observe.signals.slow_queries import SlowSignals

GROWTH = tuple(f"{gauge}_growth" for gauge in queries.IN_FLIGHT)
_GROUP_LABELS = ("namespace", "holdfast_service", "holdfast_accelerator")
FINISHED_REASONS = {"error": "failed", "abort": "aborted"}


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One service to be observed: its objectives, and the replicas whose engines should report.

    `target` names the Deployment that it sizes as it is, whose pods lack Holdfast's labels; `accelerator` is theirs.
    `on_trial`: one of its revisions is compared with the current one. `uid` tells it from others of the same name;
    `born_at` is its creation time (seconds since the epoch), None if unknown. `pools`: those of its pools that hand
    their requests over.
    """

    key: ServiceKey
    slo: Slo
    replicas: tuple[Replica, ...] = ()
    on_trial: bool = False
    uid: str = ""
    born_at: float | None = None
    target: str = ""
    accelerator: str = ""
    pools: tuple[ServiceKey, ...] = ()

    @property
    def keys(self) -> tuple[ServiceKey, ...]:
        """Its own, and those of its other pools."""
        return self.key, *self.pools


def unreachable(detail: str) -> Traffic:
    """Nothing could be read this tick."""
    return Traffic(SignalState.UNREACHABLE, detail)


LEAST_SKEW_SECONDS = 10.0
"""A smaller skew may come from a scrape between the query's evaluation time and its answer."""

MOST_NEWCOMERS = 200
"""Maximum engines per query: it names each one a hundred times, and Prometheus rejects queries above 10 MB."""


def newcomers(anomalies: QueryResult) -> tuple[set[str], set[str]]:
    """Return namespaces and pods of the engines without a past, for which more must be read.

    Engines beyond `MOST_NEWCOMERS` are counted in part until they have a past, one interval later.
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
    answers: Mapping[str, QueryResult],
    slow: SlowSignals,
    span: QueryWindow,
    now: float,
    strangers: ForeignEngineTracker | None = None,
) -> dict[ServiceKey, Traffic]:
    """Return Traffic for every request; `answers` holds all fast queries by name, and `newcomers` where asked.

    `strangers` remembers between ticks which engines are no pods of this cluster; without it none is reported.
    """
    table = _Table(answers, slow.series, span, now, strangers or ForeignEngineTracker(span.scrape_seconds))
    seen = {request.key: _with_slow(table.traffic(request), slow, request) for request in requests}
    return {key: _in_time(traffic, slow.ahead_seconds.get(key, 0.0), span) for key, traffic in seen.items()}


def _in_time(traffic: Traffic, ahead_seconds: float, span: QueryWindow) -> Traffic:
    """Clock skew overrides every other finding: samples from the future are read late, those of new engines never."""
    if ahead_seconds <= max(span.scrape_seconds, LEAST_SKEW_SECONDS):
        return traffic
    detail = (
        f"samples of Prometheus are about {ahead_seconds:.0f} s in the future: its clock is ahead of the operator's; "
        "synchronize the nodes of both by NTP"
    )
    return dataclasses.replace(traffic, state=SignalState.SKEWED, detail=detail)


def _with_slow(traffic: Traffic, slow: SlowSignals, request: TrafficRequest) -> Traffic:
    key = request.key
    return dataclasses.replace(
        traffic,
        ttft=slow.ttft.get(key, traffic.ttft),
        tpot=slow.tpot.get(key, traffic.tpot),
        e2e=slow.e2e.get(key, traffic.e2e),
        concurrency=slow.concurrency.get(key, traffic.concurrency),
        prompt_lengths=slow.prompt_lengths.get(key, traffic.prompt_lengths),
        output_lengths=slow.output_lengths.get(key, traffic.output_lengths),
        steps=slow.steps.get(key, traffic.steps),
        facts=slow.facts.get(key, traffic.facts),
    )


class _Table:
    """All answers of one tick, sorted by service and accelerator once."""

    def __init__(
        self,
        answers: Mapping[str, QueryResult],
        stored: Mapping[ServiceKey, Stored],
        span: QueryWindow,
        now: float,
        strangers: ForeignEngineTracker,
    ) -> None:
        self._stored = stored
        self._strangers = strangers
        self._span = span
        self._now = now
        self._cells: dict[ServiceKey, dict[str, Counts]] = defaultdict(lambda: defaultdict(Counts))
        self._by_group: dict[tuple[str | None, ...], Counts] = {}  # the same, with a single lookup per row
        self._unlabelled: list[Mapping[str, str]] = []
        self._engines = plugins.engine_states(answers["plugins"].samples)
        self._warnings = tuple(text for answer in answers.values() for text in answer.warnings)
        self._read(answers)

    def traffic(self, request: TrafficRequest) -> Traffic:
        cells = self._cells.get(request.key, {})
        facts = self._facts(request, cells)
        state, detail = judge(facts)
        newest, failing_pods = facts.newest(), _failing(cells, request.slo, facts)
        others = [values for key in request.pools for values in self._cells.get(key, {}).values()]
        ended = [values.plugins.exact(request.slo, 0, values.mean_copies()) for values in others]
        return Traffic(
            state=state,
            detail=detail,
            interval_seconds=self._span.interval_seconds,
            sample_age_seconds=None if newest is None else max(0.0, self._now - newest),
            by_accelerator=with_ended(
                self._by_accelerator(cells, request.slo, facts), [each for each in ended if each is not None]
            ),
            plugins=self._engines.get(request.key, ()),
            classes=_by_class((*cells.values(), *others), request.slo),
            batch=batch.batch_traffic(cells.values()),
            hung=tuple(sorted(pod for values in cells.values() for pod in values.hung)),
            failing=tuple(sorted(failing_pods)),
            lagging=tuple(sorted(set(_lagging(cells, request.slo, facts)) - failing_pods)),
        )

    def _by_accelerator(self, cells: Mapping[str, Counts], slo: Slo, facts: SignalFacts) -> ByAccelerator:
        seconds = self._span.interval_seconds
        return tuple(
            (name, _accelerator_traffic(cells[name], slo, facts.reporting(name), seconds))
            for name in sorted(cells)
            if name  # a row without an accelerator cannot be used for sizing
        )

    def _facts(self, request: TrafficRequest, cells: Mapping[str, Counts]) -> SignalFacts:
        settled = self._now - self._span.birth_grace_seconds
        pods = [replica.name for replica in request.replicas]
        sampled_at = {pod: at for values in cells.values() for pod, at in values.sampled_at.items()}
        ready = [replica for replica in request.replicas if replica.phase is ReplicaPhase.READY]
        expected: dict[str, tuple[str, ...]] = {}
        for replica in ready:
            if replica.ready_at is not None and replica.ready_at <= settled:
                expected[replica.accelerator] = (*expected.get(replica.accelerator, ()), replica.name)
        return SignalFacts(
            cells,
            self._stored.get(request.key, {}),
            request.slo,
            bool(cells) and all(values.plugins.judge(request.slo) for values in cells.values()),
            frozenset(pods),
            expected,
            self._strangers.found(request.key, pods, sampled_at, self._now),
            not ready,
            unlabelled_detail(request.key, self._unlabelled),
            self._warnings,
            self._span,
            self._now,
        )

    def _read(self, answers: Mapping[str, QueryResult]) -> None:
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
        if metric == queries.BEGUN_BY_POD:
            self._cell(sample).add_begun(sample.value)
        elif sample.histogram is not None:
            self._cell(sample).add_histogram(metric, sample.histogram)
        elif plugins.counted(metric):
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
        elif metric == queries.CLIENT_TIMES:
            self._cell(sample).plugins.client_times = usable(sample.value)
        elif metric == "objective":
            self._cell(sample).plugins.objectives.add((sample.label("name"), number(sample.label("seconds"))))
        elif metric in queries.BATCH:
            name = batch.name_of(sample)
            self._cell(sample).add(name, sample.value, may_be_negative=metric == queries.BATCH_UNFINISHED)
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
        elif sample.label("metric") in (queries.FAILING, queries.LATE, queries.IN_TIME):
            if usable(sample.value) and sample.label("pod"):
                rows = self._cell(sample)
                kinds = {queries.FAILING: rows.failing, queries.LATE: rows.late, queries.IN_TIME: rows.in_time}
                kinds[sample.label("metric")][sample.label("pod")] = sample.value
        elif sample.label("metric") == queries.SLOW:
            if usable(sample.value) and sample.label("pod"):
                edge = sample.label("pod"), sample.label(queries.SLOW), number(sample.label("le"))
                self._cell(sample).slow[edge] = sample.value
        else:
            self._cell(sample).incomplete.add(sample.label("pod"))

    def _read_newcomer(self, sample: Sample) -> None:
        if sample.label("metric") != "born":
            self._read_gained(sample, may_be_negative=True)
        elif sample.value > self._now - self._span.newborn_seconds:
            self._cell(sample).incomplete.discard(sample.label("pod"))

    def _cell(self, sample: Sample) -> Counts:
        group = tuple(map(sample.labels.get, _GROUP_LABELS))
        values = self._by_group.get(group)
        if values is None:
            values = self._cells[service_key(sample)][sample.label("holdfast_accelerator")]
            self._by_group[group] = values
        return values


def _by_class(cells: Iterable[Counts], slo: Slo) -> tuple[ClassTraffic, ...]:
    """Verdicts of each declared class, of the accelerators on which plugins judge all requests."""
    judged = [(values.plugins.by_class, values.mean_copies()) for values in cells if values.plugins.judge(slo)]

    def gained(metric: str, name: str) -> float:
        return math.fsum(max(0.0, counts.get((metric, name), 0.0)) / copies for counts, copies in judged)

    names = [each.name for each in slo.classes]
    return tuple(ClassTraffic(name, gained(queries.GOOD, name), gained(queries.BAD, name)) for name in names)


def _failing(cells: Mapping[str, Counts], slo: Slo, facts: SignalFacts) -> set[str]:
    """Pods that end most requests with an error while their peers do not, as vLLM counts or as the plugin judges."""
    found: set[str] = set()
    for name, values in cells.items():
        found |= failing(values.failing, values.get("failed"), values.get("finished"))
        exact = values.plugins.exact(slo, len(facts.reporting(name)), 1.0) if values.late else None
        if exact is not None and exact.bad_error > exact.late:
            found.update(_lagging({name: values}, slo, facts))
    return found


def _lagging(cells: Mapping[str, Counts], slo: Slo, facts: SignalFacts) -> Iterator[str]:
    """Stragglers: pods that are late while their peers are in time, by the plugins where all requests are judged."""
    for name, values in cells.items():
        engines = len(facts.reporting(name)) if values.late or values.slow else 0
        exact = values.plugins.exact(slo, engines, 1.0) if engines else None
        if exact is not None:
            bad = exact.late + exact.bad_error
            found = ((pod, late, values.in_time.get(pod, math.inf)) for pod, late in values.late.items())
            yield from (pod for pod, late, good in found if lags(late, good, bad, exact.good, engines))
        elif values.slow:
            yield from _begin_late(values, slo, _accelerator_traffic(values, slo, facts.reporting(name), 1.0))


def _begin_late(values: Counts, slo: Slo, seen: AcceleratorTraffic) -> Iterator[str]:
    """Stragglers by vLLM's own histograms, which count each objective by itself."""
    late, good = late_and_good(seen)
    for (pod, family, edge), begun in values.slow.items():
        objective = slo.ttft_seconds if family == queries.TTFT else slo.tpot_seconds
        if is_at_most(objective, edge) and lags(begun, 0.0, late, good, seen.engines):
            yield pod


def _accelerator_traffic(
    values: Counts, slo: Slo, reporting: Sequence[str], interval_seconds: float
) -> AcceleratorTraffic:
    copies, engines = values.mean_copies(), len(reporting)
    working = len(set(reporting) - values.hung)

    def count(*names: str) -> float:
        return max(0.0, values.get(*names)) / copies

    e2e_count = count(f"{queries.E2E}_count")
    seen = AcceleratorTraffic(
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
        ttft_within=values.within_objective(slo.ttft_seconds, queries.TTFT) / copies,
        tpot_count=count(f"{queries.TPOT}_count", f"{queries.TPOT_BEFORE_0_11}_count"),
        tpot_within=values.within_objective(slo.tpot_seconds, queries.TPOT, queries.TPOT_BEFORE_0_11) / copies,
        tpot_typical_seconds=values.typical_seconds(queries.TPOT, queries.TPOT_BEFORE_0_11),
        e2e_count=e2e_count,
        e2e_within=e2e_count
        if slo.e2e_seconds is None
        else values.within_objective(slo.e2e_seconds, queries.E2E) / copies,
        running=count("num_requests_running"),
        waiting=count("num_requests_waiting"),
        waiting_late=min(count("num_requests_waiting"), count(queries.WAITING_LATE)),
        queue_flow=count(queries.QUEUE_FLOW) * interval_seconds,
        in_flight_growth=sum(map(values.get, GROWTH)) / copies,
        kv_usage=max(0.0, values.get("kv_usage")),
        engines=engines,
        busiest=busiest_share(values.get(queries.BEGUN), values.get(queries.MOST_BEGUN), working),
        exact=values.plugins.exact(slo, engines, copies),
    )
    return without_batch(seen, batch.counts_of(values, copies))
