"""What a policy is shown of a service: the counters of its engines as Prometheus has them, and nothing else.

All engines are scraped at the same moments. Counts are gained over three scrapes as by PromQL's increase(), with what
an engine had counted before its first scrape added, as holdfast.observe asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.api.quantities import counted, some_of
from holdfast.domain import lateness
from holdfast.domain.batch import BatchCounts, without_batch
from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.engine import EngineFacts, EngineState, ExactCounts, PluginMode, StepSums
from holdfast.domain.lateness import Lateness
from holdfast.domain.signals import (
    LEAST_LOOK_SECONDS,
    NO_BATCH,
    SLOW_STEPS,
    SURELY_LATE_SHARE,
    AcceleratorTraffic,
    BatchClassTraffic,
    BatchTraffic,
    ClassTraffic,
    LengthHistogram,
    SignalState,
    Traffic,
    busiest_share,
    fewest_looks,
    lags,
    late_and_good,
    still_seconds,
)
from holdfast.domain.snapshot import Timing
from holdfast.enginemodel.mix import LENGTH_EDGES
from holdfast.enginemodel.scheduler import BLOCK_TOKENS
from holdfast.twin.arrays.fleet import CLASS_COLUMNS
from holdfast.twin.arrays.state_arrays import BATCH_SUMS, EXACT, STEPS, Records, hang
from holdfast.twin.arrays.timers import Floats, Integers
from holdfast.twin.pods.cluster import Service, SimulatedPod
from holdfast.twin.pods.peer_metrics import EngineGauges, gauges
from holdfast.twin.pods.series import COLUMNS, GAUGES, IN_FLIGHT, EngineSeries, gained, rows_of, usage_of

SCRAPES = 3
LEAST_SAMPLES = 2
LENGTHS_SECONDS = 600.0
SUMMED_SECONDS = 180.0
SLOW_PERIOD_SECONDS = 60.0
"""What the operator asks once a minute: lengths, sums over steps, and facts of engines."""

_BEGUN = slice(COLUMNS.index("ttft_count"), COLUMNS.index("ttft_count") + 1)
_WAITING, _TTFTS, _TTFT_SECONDS = map(COLUMNS.index, ("waiting", "ttft_count", "ttft_sum"))
_TPOTS, _TPOT_SECONDS = map(COLUMNS.index, ("tpot_count", "tpot_sum"))
_GOOD = COLUMNS.index("judged_good")
_LATE = [COLUMNS.index(f"judged_bad_{cause}") for cause in ("ttft", "tpot", "e2e")]
_COUNTED, _WITHIN = ([COLUMNS.index(f"{kind}_{end}") for kind in ("ttft", "tpot")] for end in ("count", "within"))
_BATCH_TERMS = [COLUMNS.index(name) for name in BATCH_SUMS if name != "batch_started"]
_DONE, _UNFINISHED = map(CLASS_COLUMNS.index, ("good", "unfinished"))
_STEPS = slice(COLUMNS.index(STEPS[0]), COLUMNS.index(STEPS[-1]) + 1)


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples of all engines of a service, taken `at` a second, and how many requests had finished by then."""

    at: float
    pods: Sequence[SimulatedPod]
    records: Records
    verdicts: Floats
    hangs: Sequence[bool]
    finished: int


class SimulatedObserver:
    """Scrapes one service and answers as holdfast.observe would; `blind` while Prometheus is gone.

    Lengths are counted in `histograms` where anybody looks at them. Samples arrive `delay_seconds` after they were
    taken, and keep the time at which they were.
    """

    def __init__(self, service: Service, timing: Timing, histograms: bool = True, delay_seconds: float = 0.0) -> None:
        self._service = service
        self._timing = timing
        self._histograms = histograms
        self._series: dict[SimulatedPod, EngineSeries] = {}
        self._delay_seconds = delay_seconds
        self._on_the_way: deque[Scrape] = deque()
        self._finished: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._lengths = (LengthHistogram(), LengthHistogram())
        self._steps: tuple[tuple[str, StepSums], ...] = ()
        self._facts: tuple[tuple[str, EngineFacts], ...] = ()
        self._slow_due = 0.0
        self._batch_names = {each.name for each in service.spec.batch}
        self._lateness = Lateness()
        self.scraped_at: float | None = None
        self.blind = False

    @property
    def interval_seconds(self) -> float:
        """What counts are taken over."""
        scrapes = max(SCRAPES, -(-self._timing.tick_seconds // self._timing.scrape_seconds) + 1)
        return scrapes * self._timing.scrape_seconds

    def scrape(self, now: float) -> None:
        """Read every engine's /metrics."""
        if self.blind:
            return
        serving = {pod: pod.engine for pod in self._service.pods if pod.engine is not None}
        fleet, engines = self._service.fleet, list(serving.values())
        records, verdicts = fleet.states(engines), fleet.verdicts(engines)
        count = len(self._service.fleet.finished)
        self._on_the_way.append(Scrape(now, list(serving), records, verdicts, hang(records, now), count))
        self._arrive(now)

    def _arrive(self, now: float) -> None:
        """Take in the samples that have arrived by now."""
        while self._on_the_way and self._on_the_way[0].at + self._delay_seconds <= now:
            self._take(self._on_the_way.popleft())

    def _take(self, scrape: Scrape) -> None:
        at, records = scrape.at, scrape.records
        rows = rows_of(records, scrape.verdicts)
        samples = zip(scrape.pods, records, rows, usage_of(records).tolist(), scrape.hangs, strict=True)
        for pod, *sample in samples:
            self._series.setdefault(pod, EngineSeries(pod.accelerator, pod.ready_at or 0.0)).scrape(at, *sample)
        self.scraped_at = at
        self._lateness = lateness.watch(self._lateness, at, at + self._delay_seconds, self._timing.scrape_seconds)
        self._finished.append((at, scrape.finished))
        reach = max(SUMMED_SECONDS, self.interval_seconds + LEAST_LOOK_SECONDS)
        oldest = at - reach - self._timing.scrape_seconds
        for pod, series in list(self._series.items()):
            series.forget(oldest)
            if series.times[-1] <= oldest:
                del self._series[pod]

    def traffic(self, now: float) -> Traffic:
        """All that is known of the service at this time."""
        if self.blind:
            return Traffic(SignalState.UNREACHABLE, "Prometheus does not answer")
        self._arrive(now)
        late = self._lateness.seconds
        now -= late
        state, detail = self._state(now)
        if now >= self._slow_due:
            self._slow_due = now + SLOW_PERIOD_SECONDS
            self._steps, self._facts = self._read_steps(now), self._read_facts(now)
            if self._histograms:
                self._lengths = self._read_lengths(now)
        hung, start = self._hung(now), now - self.interval_seconds
        counts, by_class = gained(list(self._series.values()), start, now), self._by_class(start, now)
        by_accelerator, declared = self._by_accelerator(now, counts, hung), self._service.spec.slo.classes
        return Traffic(
            state=state,
            detail=detail,
            interval_seconds=self.interval_seconds,
            sample_age_seconds=None if self.scraped_at is None else now + late - self.scraped_at,
            late_seconds=late,
            by_accelerator=by_accelerator,
            prompt_lengths=self._lengths[0],
            output_lengths=self._lengths[1],
            steps=self._steps,
            classes=tuple(ClassTraffic(each.name, *by_class[each.name][:2]) for each in declared if by_class),
            batch=self._batch(by_class, counts, now),
            plugins=self._plugins(),
            hung=hung,
            lagging=self._lagging(counts, by_accelerator),
            facts=self._facts,
        )

    def engines(self, now: float) -> tuple[EngineGauges, ...] | None:
        """The gauges of every engine that is still read; None while nothing is."""
        if not self.blind:
            self._arrive(now)
        if self.blind or self.scraped_at is None:
            return None
        fresh_since = self._fresh_since(now)
        alive = [each for each in self._series.items() if each[0].leaving_at is None and each[0].gone_at is None]
        return tuple(
            gauges(series.record, pod.name)
            for pod, series in alive
            if series.record is not None and series.times[-1] >= fresh_since
        )

    def _by_class(self, start: float, now: float) -> dict[str, list[float]]:
        """What engines counted of each declared class: CLASS_COLUMNS."""
        names = self._service.fleet.class_names
        columns = slice(len(COLUMNS), len(COLUMNS) + len(CLASS_COLUMNS) * len(names))
        known = list(self._series.values())
        found = gained(known, start, now, columns).sum(axis=0).reshape(-1, len(CLASS_COLUMNS))
        return dict(zip(names, found.tolist(), strict=True))

    def _batch(self, by_class: Mapping[str, Sequence[float]], counts: Floats, now: float) -> BatchTraffic:
        """Batch requests in all engines, as holdfast.observe adds them up."""
        fresh_since, size, names = self._fresh_since(now), len(CLASS_COLUMNS), list(by_class)
        alive = [each for pod, each in self._series.items() if each.times[-1] >= fresh_since and pod.gone_at is None]
        if not alive:
            return NO_BATCH
        newest = np.sum([each.rows[-1][len(COLUMNS) :] for each in alive], axis=0).reshape(-1, size)[:, _UNFINISHED]
        unfinished, batch = dict(zip(names, newest.tolist(), strict=True)), sorted(self._batch_names & {*names})
        classes = [BatchClassTraffic(name, unfinished[name], by_class[name][_DONE]) for name in batch]
        return BatchTraffic(tuple(classes), *counts.sum(axis=0)[_BATCH_TERMS].tolist()) if classes else NO_BATCH

    def _hung(self, now: float) -> tuple[str, ...]:
        still = still_seconds(self.interval_seconds)
        least = fewest_looks(still, self._timing.scrape_seconds)
        return tuple(sorted(pod.name for pod, series in self._series.items() if series.looks_hung(now - still, least)))

    def _lagging(self, counts: Floats, by_accelerator: Sequence[tuple[str, AcceleratorTraffic]]) -> tuple[str, ...]:
        """Pods that are late while those of the same accelerator are in time."""
        peers: dict[str, list[tuple[str, Floats]]] = {}
        for pod, count in zip(self._series, counts, strict=True):
            peers.setdefault(pod.accelerator, []).append((pod.name, count))
        seen = dict(by_accelerator)
        if self._service.fleet.plugin:
            found = (name for these in peers.values() for name in _late_alone(these))
        else:
            found = (pod for name, these in peers.items() for pod in _begin_late(these, seen[name]))
        return tuple(sorted(found))

    def _fresh_since(self, now: float) -> float:
        return now - SCRAPES * self._timing.scrape_seconds

    def _state(self, now: float) -> tuple[SignalState, str]:
        timing, fresh_since = self._timing, self._fresh_since(now)
        newest = max((series.times[-1] for series in self._series.values()), default=None)
        if newest is None:
            return SignalState.ABSENT, "no replica is ready yet"
        if newest < fresh_since:
            return SignalState.STALE, f"the newest sample is {now - newest:.0f} s old"
        ready = [pod for pod in self._service.pods if pod.phase(now) is ReplicaPhase.READY]
        settled = [pod for pod in ready if (pod.ready_at or 0.0) <= now - 2 * timing.scrape_seconds - 5.0]
        silent = [pod for pod in settled if pod not in self._series or self._series[pod].times[-1] < fresh_since]
        if silent:
            told = counted(len(silent), "ready replica", "does not report", "do not report", of=len(settled))
            return SignalState.PARTIAL, told
        gappy = [pod.name for pod, series in self._series.items() if pod.gone_at is None and self._gappy(series, now)]
        if gappy:
            told = f"too few samples in this interval to count all requests of: {some_of(sorted(gappy))}"
            return SignalState.PARTIAL, told
        return SignalState.FRESH, ""

    def _gappy(self, series: EngineSeries, now: float) -> bool:
        """Whether an engine that is not new has too few samples to count anything, as holdfast.observe judges it."""
        start = now - self.interval_seconds
        return series.times[0] <= start and sum(at > start for at in series.times) < LEAST_SAMPLES

    def _by_accelerator(
        self, now: float, counts: Floats, hung: Sequence[str]
    ) -> tuple[tuple[str, AcceleratorTraffic], ...]:
        looked_since, fresh_since = now - self.interval_seconds - LEAST_LOOK_SECONDS, self._fresh_since(now)
        plugin = self._service.fleet.plugin
        sums: dict[str, Floats] = {}
        gauges: dict[str, list[Floats]] = {}
        usage: dict[str, list[float]] = {}
        begun: dict[str, list[float]] = {}
        working: dict[str, int] = {}
        flows: dict[str, float] = {}
        tpots: dict[str, list[float]] = {}
        looked = gained(list(self._series.values()), looked_since, now, _BEGUN)[:, 0].tolist()
        for (pod, series), count, answers in zip(self._series.items(), counts, looked, strict=True):
            name = series.accelerator
            sums[name] = sums.get(name, 0.0) + count
            begun.setdefault(name, []).append(answers)
            if count[_TPOTS] > 0.0:
                tpots.setdefault(name, []).append(float(count[_TPOT_SECONDS] / count[_TPOTS]))
            flows[name] = flows.get(name, 0.0) + _queue_flow(series, count, now - self.interval_seconds)
            if series.times[-1] >= fresh_since and pod.gone_at is None:
                gauges.setdefault(name, []).append(series.rows[-1][IN_FLIGHT])
                working[name] = working.get(name, 0) + (pod.name not in hung)
                usage.setdefault(name, []).append(series.usage[-1])
        return tuple(
            (
                name,
                _traffic(
                    sums[name],
                    gauges.get(name, []),
                    usage.get(name, []),
                    begun[name],
                    working.get(name, 0),
                    plugin,
                    flows[name] * self.interval_seconds,
                    float(np.median(tpots[name])) if name in tpots else 0.0,
                ),
            )
            for name in sorted(sums)
        )

    def _plugins(self) -> tuple[EngineState, ...]:
        if not self._service.fleet.plugin:
            return ()
        alive = [pod.name for pod, series in self._series.items() if pod.gone_at is None]
        return tuple(EngineState(name, PluginMode.ACTIVE, 1) for name in alive)

    def _read_lengths(self, now: float) -> tuple[LengthHistogram, LengthHistogram]:
        while len(self._finished) > 1 and self._finished[1][0] <= now - LENGTHS_SECONDS:
            self._finished.popleft()
        fleet = self._service.fleet
        lately = fleet.finished[self._finished[0][1] : self._finished[-1][1]]
        return _histogram(fleet.requests["prompt"][lately]), _histogram(fleet.requests["output"][lately])

    def _read_steps(self, now: float) -> tuple[tuple[str, StepSums], ...]:
        if not self._service.fleet.plugin:
            return ()
        own: dict[str, list[Floats]] = {}
        known = list(self._series.values())
        for series, count in zip(known, gained(known, now - SUMMED_SECONDS, now, _STEPS), strict=True):
            own.setdefault(series.accelerator, []).append(count)
        return tuple((name, StepSums(*_usual(counts).tolist())) for name, counts in sorted(own.items()))

    def _read_facts(self, now: float) -> tuple[tuple[str, EngineFacts], ...]:
        """What engines that are still scraped say of themselves: the KV cache that they really have."""
        blocks: dict[str, int] = {}
        for pod, series in self._series.items():
            if series.record is not None and pod.gone_at is None and series.times[-1] >= self._fresh_since(now):
                own = int(series.record["blocks"])
                blocks[series.accelerator] = min(own, blocks.get(series.accelerator, own))
        return tuple((name, _facts(count)) for name, count in sorted(blocks.items()))


def _facts(blocks: int) -> EngineFacts:
    return EngineFacts(kv_tokens=float(blocks * BLOCK_TOKENS), block_tokens=float(BLOCK_TOKENS))


def _usual(counts: Sequence[Floats]) -> Floats:
    """Sums over engines without those whose steps last much longer than most, as holdfast.observe asks for them."""
    working = [count for count in counts if count[0] > 0.0]
    means = [count[-1] / count[0] for count in working]
    kept = [count for count, mean in zip(working, means, strict=True) if mean <= SLOW_STEPS * np.median(means)]
    return np.asarray(np.sum(kept or counts, axis=0))


def _queue_flow(series: EngineSeries, count: Floats, since: float) -> float:
    """Requests per second that leave an engine's queue by Little's law, as holdfast.observe asks for it."""
    waiting = series.rows[-1][_WAITING]
    if not waiting or not count[_TTFT_SECONDS]:
        return 0.0
    looks = zip(series.times, series.rows, strict=True)
    least = min((row[_WAITING] for at, row in looks if at > since), default=0.0)
    return float(least * count[_TTFTS] / count[_TTFT_SECONDS])


def _late_alone(peers: Sequence[tuple[str, Floats]]) -> Iterator[str]:
    """Name the stragglers among the engines of one accelerator, as their plugins judge requests."""
    judged = [(name, float(count[_LATE].sum()), float(count[_GOOD])) for name, count in peers]
    late_of_all, good_of_all = sum(late for _, late, _ in judged), sum(good for *_, good in judged)
    for name, late, good in judged:
        if lags(late, good, late_of_all, good_of_all, len(peers)):
            yield name


def _begin_late(peers: Sequence[tuple[str, Floats]], of_all: AcceleratorTraffic) -> Iterator[str]:
    """Name the stragglers by vLLM's own histograms, which count each objective by itself."""
    late_of_all, good_of_all = late_and_good(of_all)
    for name, count in peers:
        begun, in_time = count[_COUNTED], count[_WITHIN]
        surely = begun[begun - in_time > SURELY_LATE_SHARE * begun]
        if any(lags(float(each), 0.0, late_of_all, good_of_all, len(peers)) for each in surely):
            yield name


def _traffic(
    counts: Floats,
    gauges: Sequence[Floats],
    usage: Sequence[float],
    begun: Sequence[float],
    working: int,
    plugin: bool,
    queue_flow: float,
    tpot_typical_seconds: float,
) -> AcceleratorTraffic:
    count = dict(zip(COLUMNS, counts.tolist(), strict=True))
    running, waiting, late, *batch = np.sum(gauges, axis=0).tolist() if gauges else [0.0] * len(GAUGES)
    seen = AcceleratorTraffic(
        finished=count["finished"],
        rejected=count["rejected"],
        prompt_tokens=count["prompt_tokens"],
        cached_prompt_tokens=count["cached_tokens"],
        output_tokens=count["output_tokens"],
        length_samples=count["finished"],
        prompt_length_sum=count["prompt_sum"],
        output_length_sum=count["output_sum"],
        preemptions=count["preemptions"],
        ttft_count=count["ttft_count"],
        ttft_within=count["ttft_within"],
        tpot_count=count["tpot_count"],
        tpot_within=count["tpot_within"],
        tpot_typical_seconds=tpot_typical_seconds,
        e2e_count=count["e2e_count"],
        e2e_within=count["e2e_within"],
        running=running,
        waiting=waiting,
        waiting_late=late,
        queue_flow=queue_flow,
        in_flight_growth=count["running"] + count["waiting"],
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        engines=len(gauges),
        busiest=busiest_share(sum(begun), max(begun, default=0.0), working),
        exact=_exact(count, len(gauges)) if plugin and gauges else None,
    )
    sums = {name.removeprefix("batch_"): count[name] for name in BATCH_SUMS}
    return without_batch(seen, BatchCounts(*batch, **sums))


def _exact(count: Mapping[str, float], engines: int) -> ExactCounts:
    """What the plugins judged, and what was refused at the door."""
    judged = {name.removeprefix("judged_"): count[name] for name in EXACT}
    judged["arrived"] += count["rejected"]
    return ExactCounts(**judged, bad_rejected=count["rejected"], engines=engines)


def _histogram(lengths: Integers) -> LengthHistogram:
    if not len(lengths):
        return LengthHistogram()
    edges = (*LENGTH_EDGES, float("inf"))
    return LengthHistogram(edges, tuple(np.searchsorted(np.sort(lengths), edges, side="right").astype(float).tolist()))
