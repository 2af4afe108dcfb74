"""What a policy is shown of a service: the counters of its engines as Prometheus has them, and nothing else.

All engines are scraped at the same moments. Counts are gained over three scrapes as by PromQL's increase(), with what
an engine had counted before its first scrape added, as holdfast.observe asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.domain.cluster import ReplicaPhase
from holdfast.domain.engine import EngineState, ExactCounts, PluginMode, StepSums
from holdfast.domain.signals import (
    LATE_PER_GOOD,
    LEAST_LOOK_SECONDS,
    AcceleratorTraffic,
    LengthHistogram,
    SignalState,
    Traffic,
    busiest_share,
    fewest_looks,
    lags,
    still_seconds,
)
from holdfast.domain.snapshot import Timing
from holdfast.simulator.twin.books import COUNTS, EXACT, STEPS, Records, hangs
from holdfast.simulator.twin.cluster import Pod, Service
from holdfast.simulator.twin.sight import EngineGauges, gauges
from holdfast.simulator.twin.timers import Floats, Integers

GAUGES = ("running", "waiting", "waiting_late")
COLUMNS = (*COUNTS, *EXACT, *STEPS, *GAUGES)
SCRAPES = 3
LENGTHS_SECONDS = 600.0
SUMMED_SECONDS = 180.0
SLOW_PERIOD_SECONDS = 60.0
"""What the operator asks once a minute: lengths, and sums over steps."""

LENGTH_EDGES = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""vLLM's edges of prompt and answer lengths, up to a context of half a million tokens."""

_BEGUN, _REJECTED = COLUMNS.index("ttft_count"), COLUMNS.index("rejected")
_PROGRESS = [COLUMNS.index(name) for name in ("output_tokens", "prompt_tokens")]
_GOOD = COLUMNS.index("judged_good")
_LATE = [COLUMNS.index(f"judged_bad_{cause}") for cause in ("ttft", "tpot", "e2e")]
_STEPS = slice(COLUMNS.index(STEPS[0]), COLUMNS.index(GAUGES[0]))
_IN_FLIGHT = slice(COLUMNS.index(GAUGES[0]), len(COLUMNS))


@dataclass(slots=True)
class Series:
    """Samples of one engine, oldest first: when, the columns, and the share of its KV cache in use."""

    accelerator: str
    born_at: float
    times: deque[float] = field(default_factory=deque)
    rows: deque[Floats] = field(default_factory=deque)
    usage: deque[float] = field(default_factory=deque)
    gauges: EngineGauges | None = None
    hangs: bool = False

    def scrape(self, at: float, state: Records) -> None:
        """Take a sample; of an engine that hangs only the API server's own count goes on."""
        hung_before, self.hangs = self.hangs, hangs(state, at)
        self.times.append(at)
        if hung_before and self.hangs:
            self.rows.append(self.rows[-1].copy())
            self.rows[-1][_REJECTED] = float(state["rejected"][0])
            self.usage.append(self.usage[-1])
            return
        self.rows.append(np.array([float(state[name][0]) for name in COLUMNS]))
        self.usage.append(1.0 - float(state["free_blocks"][0]) / float(state["blocks"][0]))
        self.gauges = gauges(state)

    def looks_hung(self, since: float, least: int) -> bool:
        """It held requests at every look since then, of which there are enough, and nothing moved in it."""
        looks = [(row, usage) for at, row, usage in zip(self.times, self.rows, self.usage, strict=True) if at > since]
        if len(looks) < least or not all(row[_IN_FLIGHT].any() for row, _ in looks):
            return False
        return len({(*row[_PROGRESS].tolist(), usage) for row, usage in looks}) == 1

    def forget(self, before: float) -> None:
        """Drop samples that no query reaches, all but the newest of them: it tells that the engine has a past."""
        while len(self.times) > 1 and self.times[1] <= before:
            self.times.popleft()
            self.rows.popleft()
            self.usage.popleft()

    def gained(self, start: float, end: float) -> Floats:
        """What it gained in (start, end]; all it ever counted where it has no sample from before."""
        inside = [place for place, at in enumerate(self.times) if start < at <= end]
        if not inside:
            return np.zeros(len(COLUMNS))
        first, last = inside[0], inside[-1]
        if first == 0:
            return self.rows[last] * min(1.0, (end - start) / max(end - self.born_at, 1e-9))
        if first == last:
            return np.zeros(len(COLUMNS))
        return _extrapolated(
            self.times[first], self.times[last], len(inside), self.rows[first], self.rows[last], start, end
        )


def _extrapolated(
    first: float, last: float, samples: int, before: Floats, after: Floats, start: float, end: float
) -> Floats:
    """Prometheus's increase(): what lies between the samples, stretched to the interval they were looked for in."""
    between = last - first
    spacing = between / (samples - 1)
    head, tail = (gap if gap < 1.1 * spacing else 0.5 * spacing for gap in (first - start, end - last))
    grown = after - before
    heads = np.full(len(COLUMNS), head)
    counted = grown > 0.0
    counted[_IN_FLIGHT] = False
    heads[counted] = np.minimum(head, between * before[counted] / grown[counted])
    return np.asarray(grown * (between + heads + tail) / between)


class View:
    """Scrapes one service and answers as holdfast.observe would; `blind` while Prometheus is gone."""

    def __init__(self, service: Service, timing: Timing) -> None:
        self._service = service
        self._timing = timing
        self._series: dict[Pod, Series] = {}
        self._finished: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._lengths = (LengthHistogram(), LengthHistogram())
        self._steps: tuple[tuple[str, StepSums], ...] = ()
        self._slow_due = 0.0
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
        for pod in self._service.pods:
            if pod.engine is not None:
                series = self._series.setdefault(pod, Series(pod.accelerator, pod.ready_at or 0.0))
                series.scrape(now, self._service.fleet.state(pod.engine))
        self.scraped_at = now
        self._finished.append((now, len(self._service.fleet.finished)))
        reach = max(SUMMED_SECONDS, self.interval_seconds + LEAST_LOOK_SECONDS)
        oldest = now - reach - self._timing.scrape_seconds
        for pod, series in list(self._series.items()):
            series.forget(oldest)
            if series.times[-1] <= oldest:
                del self._series[pod]

    def traffic(self, now: float) -> Traffic:
        """All that is known of the service at this time."""
        if self.blind:
            return Traffic(SignalState.UNREACHABLE, "Prometheus does not answer")
        state, detail = self._state(now)
        if now >= self._slow_due:
            self._slow_due = now + SLOW_PERIOD_SECONDS
            self._lengths, self._steps = self._read_lengths(now), self._read_steps(now)
        hung, start = self._hung(now), now - self.interval_seconds
        gained = {pod: series.gained(start, now) for pod, series in self._series.items()}
        return Traffic(
            state=state,
            detail=detail,
            interval_seconds=self.interval_seconds,
            sample_age_seconds=None if self.scraped_at is None else now - self.scraped_at,
            by_accelerator=self._by_accelerator(now, gained, hung),
            prompt_lengths=self._lengths[0],
            output_lengths=self._lengths[1],
            steps=self._steps,
            plugins=self._plugins(),
            hung=hung,
            lagging=self._lagging(gained),
        )

    def engines(self, now: float) -> tuple[EngineGauges, ...] | None:
        """The gauges of every engine that is still read; None while nothing is."""
        if self.blind or self.scraped_at is None:
            return None
        fresh_since = self._fresh_since(now)
        alive = [each for each in self._series.items() if each[0].leaving_at is None and each[0].gone_at is None]
        return tuple(
            replace(series.gauges, name=pod.name)
            for pod, series in alive
            if series.gauges is not None and series.times[-1] >= fresh_since
        )

    def _hung(self, now: float) -> tuple[str, ...]:
        still = still_seconds(self.interval_seconds)
        least = fewest_looks(still, self._timing.scrape_seconds)
        return tuple(sorted(pod.name for pod, series in self._series.items() if series.looks_hung(now - still, least)))

    def _lagging(self, gained: Mapping[Pod, Floats]) -> tuple[str, ...]:
        """Pods that make next to nothing in time while those of the same accelerator do, as their plugins judge it."""
        if not self._service.fleet.plugin:
            return ()
        judged: dict[str, dict[str, tuple[float, float]]] = {}
        for pod, counts in gained.items():
            judged.setdefault(pod.accelerator, {})[pod.name] = float(counts[_LATE].sum()), float(counts[_GOOD])
        return tuple(sorted(name for peers in judged.values() for name in _late_alone(peers)))

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
            return SignalState.PARTIAL, f"{len(silent)} of {len(settled)} ready replicas do not report"
        return SignalState.FRESH, ""

    def _by_accelerator(
        self, now: float, gained: Mapping[Pod, Floats], hung: Sequence[str]
    ) -> tuple[tuple[str, AcceleratorTraffic], ...]:
        looked_since, fresh_since = now - self.interval_seconds - LEAST_LOOK_SECONDS, self._fresh_since(now)
        plugin = self._service.fleet.plugin
        sums: dict[str, Floats] = {}
        gauges: dict[str, list[Floats]] = {}
        usage: dict[str, list[float]] = {}
        begun: dict[str, list[float]] = {}
        working: dict[str, int] = {}
        for pod, series in self._series.items():
            name = series.accelerator
            sums[name] = sums.get(name, 0.0) + gained[pod]
            begun.setdefault(name, []).append(float(series.gained(looked_since, now)[_BEGUN]))
            if series.times[-1] >= fresh_since and pod.gone_at is None:
                gauges.setdefault(name, []).append(series.rows[-1][_IN_FLIGHT])
                working[name] = working.get(name, 0) + (pod.name not in hung)
                usage.setdefault(name, []).append(series.usage[-1])
        return tuple(
            (
                name,
                _traffic(
                    sums[name], gauges.get(name, []), usage.get(name, []), begun[name], working.get(name, 0), plugin
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
        lately = fleet.requests[fleet.finished[self._finished[0][1] : self._finished[-1][1]]]
        return _histogram(lately["prompt"]), _histogram(lately["output"])

    def _read_steps(self, now: float) -> tuple[tuple[str, StepSums], ...]:
        if not self._service.fleet.plugin:
            return ()
        sums: dict[str, Floats] = {}
        for series in self._series.values():
            gained = series.gained(now - SUMMED_SECONDS, now)[_STEPS]
            sums[series.accelerator] = sums.get(series.accelerator, 0.0) + gained
        return tuple((name, StepSums(*gained.tolist())) for name, gained in sorted(sums.items()))


def _late_alone(peers: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Of all engines of an accelerator, with what was late and what was in time, those that lag."""
    late_of_all, good_of_all = map(sum, zip(*peers.values(), strict=True))
    for name, (late, good) in peers.items():
        if late > LATE_PER_GOOD * good and lags(late, late_of_all, good_of_all, len(peers)):
            yield name


def _traffic(
    gained: Floats,
    gauges: Sequence[Floats],
    usage: Sequence[float],
    begun: Sequence[float],
    working: int,
    plugin: bool,
) -> AcceleratorTraffic:
    count = dict(zip(COLUMNS, gained.tolist(), strict=True))
    running, waiting, late = np.sum(gauges, axis=0).tolist() if gauges else (0.0, 0.0, 0.0)
    return AcceleratorTraffic(
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
        tpot_sum_seconds=count["tpot_sum"],
        e2e_count=count["e2e_count"],
        e2e_within=count["e2e_within"],
        running=running,
        waiting=waiting,
        waiting_late=late,
        in_flight_growth=count["running"] + count["waiting"],
        kv_usage=sum(usage) / len(usage) if usage else 0.0,
        engines=len(gauges),
        busiest=busiest_share(sum(begun), max(begun, default=0.0), working),
        exact=_exact(count, len(gauges)) if plugin and gauges else None,
    )


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
