"""Two Prometheus replicas behind one Service: each request is answered by one of them, and they scrape apart.

No request of the model is late. So none may be late in what is read, whichever replica answers which query.
"""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.cluster import Replica, ReplicaPhase
from holdfast.domain.signals import AcceleratorTraffic
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.combined_queries import SAMPLED_AT
from holdfast.observe.series.queries import E2E, IN_FLIGHT, SUCCESS, TPOT, TTFT, Query
from holdfast.observe.series.samples import QueryResult, Sample, Series
from holdfast.observe.signals.poll_scheduler import MOST_ENGINES, MOST_PRESSING
from holdfast.observe.signals.prometheus import PrometheusSource
from tests.observe.observe_builders import CHAT, LONG_AGO, NOW, SLO, WINDOW, ready, request, sample

SCRAPE, LOOKBACK = 15.0, 300.0
TIMED = replace(SLO, e2e_seconds=20.0)
EDGES = {TTFT: "0.5", TPOT: "0.03", E2E: "20.0"}
TICKS = 8
RUNNING, GROWTH = IN_FLIGHT[0], f"{IN_FLIGHT[0]}_growth"

Figures = dict[tuple[str, str], float]
"""Sums over engines, by metric and upper edge."""


@dataclass(frozen=True)
class Engine:
    """Times at which requests arrived, gave their first token and ended: each of them in order."""

    pod: str
    born_at: float
    arrivals: Sequence[float]
    starts: Sequence[float]
    ends: Sequence[float]

    def counters(self) -> Iterator[tuple[tuple[str, str], Sequence[float]]]:
        """The times that each counter counts; all observations are below the edge of the objective."""
        yield (SUCCESS, ""), self.ends
        for family, times in ((TTFT, self.starts), (TPOT, self.ends), (E2E, self.ends)):
            yield (f"{family}_count", ""), times
            yield (f"{family}_bucket", EDGES[family]), times

    def in_flight(self, at: float) -> float:
        return float(bisect_right(self.arrivals, at) - bisect_right(self.ends, at))


@dataclass(frozen=True)
class Scraper:
    """One Prometheus replica: its phase, and the scrapes that it lost. `whole`: counts as VictoriaMetrics does."""

    phase: float
    lost: frozenset[int]
    whole: bool

    def scrapes(self, engine: Engine, at: float, since: float) -> list[float]:
        """Times of its samples in (since, at]."""
        first, last = (math.floor((time - NOW - self.phase) / SCRAPE) for time in (max(since, engine.born_at), at))
        return [NOW + self.phase + SCRAPE * each for each in range(first + 1, last + 1) if each not in self.lost]

    def gained(self, engine: Engine, value: Callable[[float], float], at: float) -> float:
        """What increase() or delta() says; 0 where it says nothing."""
        begin = at - WINDOW.interval_seconds
        inside = self.scrapes(engine, at, begin)
        before = self.scrapes(engine, begin, begin - LOOKBACK)[-1:] if self.whole else []
        times = [*before, *inside]
        if not inside or len(times) < 2:
            return 0.0
        gain, span = value(times[-1]) - value(times[0]), times[-1] - times[0]
        return gain if self.whole else gain * (1.0 + _beyond(times, begin, at) / span)

    def newest(self, engine: Engine, at: float) -> float | None:
        return next(iter(self.scrapes(engine, at, at - LOOKBACK)[-1:]), None)

    def figures(self, engines: Sequence[Engine], at: float) -> Figures:
        """What the fast queries return."""
        found: Figures = {}
        for engine in engines:
            for name, times in engine.counters():
                found[name] = found.get(name, 0.0) + self.gained(engine, _counting(times), at)
            growth, newest = self.gained(engine, engine.in_flight, at), self.newest(engine, at)
            running = 0.0 if newest is None else engine.in_flight(newest)
            for name, value in ((RUNNING, running), (GROWTH, growth)):
                found[name, ""] = found.get((name, ""), 0.0) + value
        return found

    def is_new(self, engine: Engine, at: float) -> bool:
        then = at - WINDOW.interval_seconds
        return self.newest(engine, at) is not None and self.newest(engine, then) is None

    def missed(self, engine: Engine, at: float) -> Figures:
        """What the query about newcomers returns."""
        newest, age = self.newest(engine, at), at - engine.born_at
        if newest is None or age >= WINDOW.newborn_seconds:
            return {}
        inside = WINDOW.interval_seconds / max(age, WINDOW.interval_seconds)
        counters = [(name, _counting(times)) for name, times in engine.counters()]
        counters.append(((GROWTH, ""), engine.in_flight))
        return {name: value(newest) * inside - self.gained(engine, value, at) for name, value in counters}


def _counting(times: Sequence[float]) -> Callable[[float], float]:
    return lambda at: float(bisect_right(times, at))


def _beyond(times: Sequence[float], begin: float, end: float) -> float:
    """Seconds outside of the samples for which Prometheus extrapolates."""
    step = (times[-1] - times[0]) / (len(times) - 1)
    return sum(gap if gap < 1.1 * step else step / 2 for gap in (times[0] - begin, end - times[-1]))


class Service:
    """Behind one address: which replica answers depends on the time and the query, and on chance alone."""

    def __init__(self, scrapers: Sequence[Scraper], engines: Sequence[Engine], seed: int) -> None:
        self._scrapers, self._engines, self._seed = scrapers, engines, seed
        self.shown: set[tuple[float, ...]] = set()

    def instant(self, query: Query, at: float) -> QueryResult:
        scraper = random.Random(f"{self._seed} {at} {query.name}").choice(self._scrapers)
        if query.name == "newcomers":
            return QueryResult(tuple(self._missed(scraper, query.promql, at)))
        self.shown |= {_compared(each.figures(self._engines, at)) for each in self._scrapers}
        return QueryResult((*self._counts(scraper, query.promql, at), *self._found(scraper, query.promql, at)))

    def _counts(self, scraper: Scraper, promql: str, at: float) -> Iterator[Sample]:
        figures = scraper.figures(self._engines, at)
        started = {("started", ""): figures[f"{TTFT}_count", ""]}  # of the pulse
        for (metric, edge), value in (figures | started).items():
            if f'"metric", "{metric}", "", "")' in promql and value != 0.0:
                yield _row(metric, edge, value)

    def _found(self, scraper: Scraper, promql: str, at: float) -> Iterator[Sample]:
        for engine in self._engines:
            newest = scraper.newest(engine, at)
            if "pod) (timestamp(" in promql and newest is not None:
                yield sample(newest, metric=SAMPLED_AT, pod=engine.pod)
            if '"newcomer"' in promql and scraper.is_new(engine, at):
                yield sample(1.0, metric="newcomer", pod=engine.pod, instance=engine.pod)

    def _missed(self, scraper: Scraper, promql: str, at: float) -> Iterator[Sample]:
        asked = [engine for engine in self._engines if engine.pod in promql]
        for engine in asked:
            if scraper.newest(engine, at) is not None:
                yield sample(engine.born_at, metric="born", pod=engine.pod, instance=engine.pod)
        rows = [scraper.missed(engine, at) for engine in asked]
        for metric, edge in sorted({name for each in rows for name in each}):
            yield _row(metric, edge, sum(each.get((metric, edge), 0.0) for each in rows))

    def range(self, *_: object) -> tuple[Series, ...]:
        raise AssertionError("no history is asked for here")

    def close(self) -> None: ...


def _row(metric: str, edge: str, value: float) -> Sample:
    outcome = {"finished_reason": "stop"} if metric == SUCCESS else {}
    return sample(value, metric=metric, **outcome, **({"le": edge} if edge else {}))


def _compared(figures: Figures) -> tuple[float, ...]:
    counts = [figures[name, ""] for name in (SUCCESS, f"{TTFT}_count", f"{TPOT}_count", f"{E2E}_count", RUNNING)]
    return (*counts, figures[GROWTH, ""])


def _read(seen: AcceleratorTraffic) -> tuple[float, ...]:
    counts = (seen.finished, seen.ttft_count, seen.tpot_count, seen.e2e_count, seen.running)
    return (*counts, seen.in_flight_growth)


async def ticks(service: Service, replicas: Sequence[Replica]) -> list[AcceleratorTraffic]:
    """What is seen of the service at each tick."""
    source = PrometheusSource(PrometheusAddress("http://prometheus"), client=service)
    found = []
    for tick in range(TICKS):
        traffic = (await source.observe([request(*replicas, slo=TIMED)], NOW + 5.0 * tick))[CHAT]
        found += [counts for _, counts in traffic.by_accelerator]
        source.catch_up()
        await source.settle()
    await source.close()
    return found


def engine(pod: str, rate: float, born_at: float, chance: random.Random) -> Engine:
    """An engine at Poisson load, which answers each request within the objectives."""
    time, requests = max(born_at, NOW - 450.0), []
    while (time := time + chance.expovariate(rate)) < NOW + 5.0 * TICKS:
        start = time + chance.uniform(0.05, 0.45)
        requests.append((time, start, start + chance.uniform(0.5, 15.0)))
    arrivals, starts, ends = (sorted(times) for times in (zip(*requests, strict=True) if requests else ((), (), ())))
    return Engine(pod, born_at, arrivals, starts, ends)


SCRAPERS = st.builds(
    Scraper,
    phase=st.floats(0.0, SCRAPE, exclude_max=True),
    lost=st.frozensets(st.integers(-8, TICKS // 3), max_size=4),
    whole=st.booleans(),
)
PAIRS = st.tuples(SCRAPERS, SCRAPERS).map(lambda pair: (pair[0], replace(pair[1], whole=pair[0].whole)))
RATES = st.lists(st.floats(0.2, 10.0), min_size=1, max_size=2)
SEEDS = st.integers(0, 2**32)
STARTING = {"few services": 0, "many services": 2 * MOST_PRESSING + 1, "services in turn": 2 * MOST_ENGINES + 1}


def starting(engines: int) -> list[Replica]:
    return [Replica(f"new-{number}", "h100", ReplicaPhase.STARTING, NOW) for number in range(engines)]


@pytest.mark.parametrize("kind", STARTING)
@settings(max_examples=25)
@given(scrapers=PAIRS, rates=RATES, seed=SEEDS)
def test_what_is_compared_is_what_one_replica_has_counted(
    kind: str, scrapers: tuple[Scraper, ...], rates: list[float], seed: int
) -> None:
    chance = random.Random(seed)
    engines = [engine(f"chat-{number}", rate, LONG_AGO, chance) for number, rate in enumerate(rates)]
    service = Service(scrapers, engines, seed)
    found = asyncio.run(ticks(service, [*(ready(each.pod) for each in engines), *starting(STARTING[kind])]))
    assert found
    for counts in found:
        assert _late(counts) == (0.0, 0.0, 0.0)
        assert _read(counts) in service.shown


@settings(max_examples=25)
@given(scrapers=PAIRS, rates=RATES, seed=SEEDS, ages=st.lists(st.floats(0.0, 120.0), min_size=2, max_size=2))
def test_no_request_of_an_engine_is_late_that_one_replica_found_sooner(
    scrapers: tuple[Scraper, ...], rates: list[float], seed: int, ages: list[float]
) -> None:
    chance = random.Random(seed)
    old = [engine(f"chat-{number}", rate, LONG_AGO, chance) for number, rate in enumerate(rates)]
    new = [engine(f"young-{number}", 4.0, NOW + 30.0 - age, chance) for number, age in enumerate(ages)]
    found = asyncio.run(ticks(Service(scrapers, [*old, *new], seed), [ready(each.pod) for each in old]))
    assert all(_late(counts) == (0.0, 0.0, 0.0) for counts in found)


def _late(seen: AcceleratorTraffic) -> tuple[float, float, float]:
    ttft, tpot = seen.ttft_count - seen.ttft_within, seen.tpot_count - seen.tpot_within
    return ttft, tpot, seen.e2e_count - seen.e2e_within
