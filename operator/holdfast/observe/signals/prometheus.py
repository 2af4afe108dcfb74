"""The port to metrics, and its adapter for every store with Prometheus' HTTP API."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from holdfast.domain import lateness
from holdfast.domain.lateness import Lateness
from holdfast.domain.service import ServiceKey, Slo
from holdfast.domain.signals import HeldSample, History, RateSample, RevisionTraffic, Traffic
from holdfast.observe.series import combined_queries, histogram_edges, queries
from holdfast.observe.series.client import PrometheusAddress, PrometheusClient
from holdfast.observe.series.needed_series import SERIES
from holdfast.observe.series.newcomers import newcomer_query
from holdfast.observe.series.queries import Edges, Query
from holdfast.observe.series.samples import QueryError, QueryResult, Series, service_key, usable
from holdfast.observe.signals import history, poll_scheduler, slow_queries, traffic
from holdfast.observe.signals.foreign_engines import ForeignEngineTracker
from holdfast.observe.signals.history import HistoryLevel
from holdfast.observe.signals.poll_scheduler import PollScheduler, Pulse
from holdfast.observe.signals.traffic import TrafficRequest
from holdfast.observe.signals.trials import read_trials

_LOG = logging.getLogger(__name__)
_SLOW_PERIOD_SECONDS = 60.0
_SLOW_TRUST_SECONDS = 300.0
_HISTORY_TIMEOUT_SECONDS = 30.0
_THREADS = 12  # all queries of the first tick: two fast, slow.AT_ONCE others, one of the history
MOST_QUERIES = 12
"""Of one tick, whatever the number of services."""
_MOST_IN_TURN = len(combined_queries.IN_TWO) + 3  # and those about newcomers, trials and stored series
_MOST_SLOW_IN_TURN = 2  # so that a turn is over before the next tick; five in four ticks would do

T = TypeVar("T")


class MetricsSource(Protocol):
    """Source of Traffic. Missing data is a state in the answer: only `history` raises because of it."""

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        """Return one Traffic per request, all evaluated at `now` (seconds since the epoch)."""
        ...

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        """Return the history of each service's SLO window.

        Raises QueryError if Prometheus does not answer.
        """
        ...

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        """Return requests in flight by pod name; unknown pods are omitted."""
        ...

    def catch_up(self) -> None:
        """Start the queries that the last tick did not wait for: the next tick is some seconds away."""
        ...


class MetricsClient(Protocol):
    """Sends one query and returns the typed answer; raises QueryError. Threads share it."""

    def instant(self, query: Query, at: float) -> QueryResult: ...

    def range(
        self, query: Query, start: float, end: float, step_seconds: float, timeout_seconds: float
    ) -> tuple[Series, ...]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _PolledTick:
    """The services that one tick had to query, and those it waited for."""

    requests: Sequence[TrafficRequest]
    pressing: Sequence[TrafficRequest]
    pulses: Mapping[ServiceKey, Pulse]
    now: float


class PrometheusSource:
    """Sends a constant number of queries per tick, whatever the number of services.

    Many services take turns between the ticks (`observe.signals.poll_scheduler`): meanwhile their last answer stays
    valid. Slow queries run in the background and no tick waits for them; their answers are valid for five minutes.
    """

    def __init__(
        self,
        address: PrometheusAddress,
        tick_seconds: float = 5.0,
        scrape_seconds: float = 15.0,
        client: MetricsClient | None = None,
    ) -> None:
        self.window = queries.window(tick_seconds, scrape_seconds)
        self._client = client or PrometheusClient(address)
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="prometheus")
        self._deadline_seconds = address.timeout_seconds + 1.0
        self._slow_queries = {query.name: query for query in slow_queries.ALL}
        self._slow = slow_queries.SlowCache(tuple(self._slow_queries), _SLOW_PERIOD_SECONDS, _SLOW_TRUST_SECONDS)
        self._rota = PollScheduler(int(scrape_seconds // tick_seconds), self.window.stale_seconds)
        self._strangers = ForeignEngineTracker(scrape_seconds)
        self._lateness = Lateness()
        self._known: dict[ServiceKey, Traffic] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._catching_up: asyncio.Task[None] | None = None
        self._polled: _PolledTick | None = None  # of the last tick, if services take turns
        self._asked = 0  # queries that this tick waited for
        self._asked_facts = False

    async def observe(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        """Ask about the newest time whose samples have all arrived: a moment ago, if samples are steadily late."""
        if not requests:
            self._polled = None
            return {}
        found = await self._observe_at(requests, now - self._lateness.seconds)
        newest = await self._newest(now) if self._lateness.seconds else _newest(found, now)
        self._lateness = lateness.watch(self._lateness, newest, now, self.window.scrape_seconds)
        return found

    async def _newest(self, now: float) -> float | None:
        """When the newest sample of any engine was taken; None where that is unknown."""
        query = queries.newest_query()
        try:
            samples = (await self._ask_all([query], now))[query.name].samples
        except QueryError:
            return None
        return max((sample.value for sample in samples if usable(sample.value)), default=None)

    async def _observe_at(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, Traffic]:
        self._polled = None
        self._asked, in_turn = 0, self._rota.turns(requests) > 1
        try:
            pulses = await self._pulses(now) if in_turn else {}
            asked = self._rota.pressing(requests, pulses, now) if in_turn else requests
            fresh = await self._observe_pressing(asked, len(asked) < len(requests), now) if asked else {}
        except QueryError as error:
            return {request.key: traffic.unreachable(str(error)) for request in requests}
        finally:
            if not in_turn:
                self._start_slow_queries(requests, now)  # in the background, after the tick's own queries
        self._rota.answered(asked, pulses, requests, now)
        self._strangers.forget_all_but({request.key for request in requests})
        self._known = {request.key: fresh.get(request.key) or self._known[request.key] for request in requests}
        if in_turn:
            self._polled = _PolledTick(requests, asked, pulses, now)
        return self._known

    def catch_up(self) -> None:
        polled, self._polled = self._polled, None
        if polled is None or (self._catching_up and not self._catching_up.done()):
            return
        self._catching_up = self._start(self._take_turns(polled, self._asked))

    async def _take_turns(self, polled: _PolledTick, asked: int) -> None:
        """Query the due services one query at a time, then run slow queries; a tick may begin meanwhile."""
        due = self._rota.due(polled.requests, polled.pressing) if _are_few(polled.pressing) else []
        remaining = min(_MOST_SLOW_IN_TURN, MOST_QUERIES - asked - _MOST_IN_TURN)
        slow_turns = self._slow_turns(polled.requests, polled.now, remaining)
        seen: Mapping[ServiceKey, Traffic] = {}
        try:
            if due:
                seen = await self._observe(due, True, polled.now, self._ask_in_turn, combined_queries.IN_TWO)
                self._rota.answered(self._not_newer(due, polled.now), polled.pulses, polled.requests, polled.now)
        except QueryError as error:
            _LOG.warning("Prometheus queries of %d services failed: %s", len(due), error)
            seen = {request.key: traffic.unreachable(str(error)) for request in due}
        wanted = {request.key for request in self._not_newer(due, polled.now)}
        self._known = self._known | {key: found for key, found in seen.items() if key in wanted}
        for name, keys, some in slow_turns:
            await self._ask_slow(name, keys, some, polled.now)

    async def _pulses(self, now: float) -> dict[ServiceKey, Pulse]:
        query = queries.pulse_query(self.window)
        return poll_scheduler.read_pulses((await self._ask_all([query], now))[query.name].samples)

    async def _observe_pressing(
        self, asked: Sequence[TrafficRequest], some: bool, now: float
    ) -> dict[ServiceKey, Traffic]:
        """Send all queries at once; combine them into one if there are few services."""
        together = combined_queries.ALL_IN_ONE if _are_few(asked) else combined_queries.IN_TWO
        return await self._observe(asked, some, now, self._ask_all, together)

    async def _observe(
        self,
        asked: Sequence[TrafficRequest],
        some: bool,
        now: float,
        ask: Callable[[Sequence[Query], float], Awaitable[dict[str, QueryResult]]],
        together: Sequence[Sequence[str]],
    ) -> dict[ServiceKey, Traffic]:
        """Query these services, or all of them; `together` names the queries to combine into one."""
        wanted, keys = _edges_of(asked), [request.key for request in asked]
        tiers = histogram_edges.tiers((request.key.label, request.slo) for request in asked) if some else ()
        fast = queries.fast_queries(self.window, wanted, tiers)
        if some:
            pools = [key for request in asked for key in request.keys]
            fast = tuple(queries.narrowed(query, pools) for query in fast)
        answers = await ask(combined_queries.bundled(fast, together), now)
        answers = await self._in_thread(functools.partial(combined_queries.unbundled, answers))
        trials = {request.key: request.slo for request in asked if request.on_trial}
        compared = await self._compare(trials, wanted, now) if trials else {}
        namespaces, pods = traffic.newcomers(answers["anomalies"])
        if pods:
            query = newcomer_query(self.window, wanted, namespaces, pods)
            answers |= await ask([query], now)
        if not self._asked_facts:  # once after a start: what was learned before it is relative to these facts
            self._asked_facts, self._asked = True, self._asked + 1
            await self._ask_slow(queries.FACTS, [], False, now)
        await self._ask_series(keys, answers, now)
        signals = self._slow.signals(now)
        read = functools.partial(traffic.assemble, asked, answers, signals, self.window, now, self._strangers)
        seen = await self._in_thread(read)  # ten thousand rows: parsing must not block the event loop
        seen |= {key: dataclasses.replace(seen[key], revisions=found) for key, found in compared.items()}
        late = self._lateness.seconds
        return {key: _later(found, late) for key, found in seen.items()} if late else seen

    async def _ask_series(self, keys: Sequence[ServiceKey], answers: Mapping[str, QueryResult], now: float) -> None:
        """Ask which series are stored of new services: their first requests are judged too."""
        reporting = {service_key(sample) for sample in answers["engines"].samples}
        if unknown := self._slow.without(SERIES, reporting.intersection(keys), now):
            self._asked += 1
            await self._ask_slow(SERIES, unknown, True, now)

    async def _compare(
        self, trials: Mapping[ServiceKey, Slo], wanted: Edges, now: float
    ) -> dict[ServiceKey, tuple[RevisionTraffic, ...]]:
        query = queries.trial_query(self.window, wanted, trials)
        return read_trials((await self._ask_all([query], now))[query.name].samples, trials)

    async def history(self, requests: Sequence[TrafficRequest], now: float) -> Mapping[ServiceKey, History]:
        longest = max((request.slo.window_seconds for request in requests), default=0.0)
        parts: list[Mapping[ServiceKey, tuple[RateSample, ...]]] = []
        held: list[Mapping[ServiceKey, tuple[HeldSample, ...]]] = []
        since, whole = math.inf, True
        for level in history.levels(longest, self.window.scrape_seconds):
            try:
                rates, waits, oldest = await self._read_level(level, requests, now)
            except QueryError as error:  # older levels cost more: they would fail too
                if not parts:
                    raise
                _LOG.warning("reading the history before the last %.0f s failed: %s", level.newest_age_seconds, error)
                whole = False
                break
            parts.append(rates)
            held.append(waits)
            since = min(since, oldest)
        return history.joined(parts, held, (request.key for request in requests), since, whole)

    async def running_by_pod(self, keys: Iterable[ServiceKey], now: float) -> Mapping[ServiceKey, Mapping[str, float]]:
        query = queries.running_by_pod_query(keys)
        try:
            answer = (await self._ask_all([query], now))[query.name]
        except QueryError as error:
            _LOG.warning("finding the least loaded replicas failed: %s", error)
            return {}
        running: dict[ServiceKey, dict[str, float]] = defaultdict(dict)
        for sample in answer.samples:
            key, pod = service_key(sample), sample.label("pod")
            if usable(sample.value):
                running[key][pod] = sample.value
        return running

    async def settle(self) -> None:
        """Wait for the background queries under way."""
        await asyncio.gather(*self._background)

    async def close(self) -> None:
        """Send no more queries; those under way end by their own timeout."""
        for task in self._background:
            task.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _ask_all(self, asked: Sequence[Query], now: float) -> dict[str, QueryResult]:
        """Send all at once; the first failure ends the wait, because part of the signals would mislead."""
        self._asked += len(asked)
        calls = (self._in_thread(functools.partial(self._client.instant, query, now)) for query in asked)
        try:
            async with asyncio.timeout(self._deadline_seconds):
                answers = await asyncio.gather(*calls)
        except TimeoutError as error:
            raise QueryError(f"Prometheus did not answer all queries within {self._deadline_seconds:g} s") from error
        return {query.name: answer for query, answer in zip(asked, answers, strict=True)}

    async def _ask_in_turn(self, asked: Sequence[Query], now: float) -> dict[str, QueryResult]:
        """Send one query at a time: each one uses a core of Prometheus, which other clients need too."""
        answers: dict[str, QueryResult] = {}
        for query in asked:
            answers |= await self._ask_all([query], now)
        return answers

    async def _read_level(
        self, level: HistoryLevel, requests: Sequence[TrafficRequest], now: float
    ) -> tuple[dict[ServiceKey, tuple[RateSample, ...]], dict[ServiceKey, tuple[HeldSample, ...]], float]:
        query = queries.history_query(level.step_seconds, _edges_of(requests))
        query = queries.narrowed(query, [request.key for request in requests])
        start, end = level.bounds(now)
        ask = functools.partial(self._client.range, query, start, end, level.step_seconds, _HISTORY_TIMEOUT_SECONDS)
        rows = await self._in_thread(ask)
        rates = await self._in_thread(functools.partial(history.read, rows, level, requests))
        waits = await self._in_thread(functools.partial(history.read_held, rows, requests))
        return rates, waits, history.oldest(rows, level)

    def _start_slow_queries(self, requests: Sequence[TrafficRequest], now: float) -> None:
        # One may follow: running_by_pod.
        for name, keys, some in self._slow_turns(requests, now, MOST_QUERIES - self._asked - 1):
            self._start(self._ask_slow(name, keys, some, now))

    def _slow_turns(
        self, requests: Sequence[TrafficRequest], now: float, most: int
    ) -> list[tuple[str, Sequence[ServiceKey], bool]]:
        """Return the due slow queries by name, the services to query, and whether these are only a part."""
        ordered, parts = sorted(requests, key=lambda request: request.key), self._rota.turns(requests)
        turns = ((name, ordered[part]) for name, part in self._slow.due(now, parts, most))
        concerned = ((name, _concerned(name, part)) for name, part in turns)
        return [(name, keys, len(keys) < len(ordered)) for name, keys in concerned if keys]

    async def _ask_slow(self, name: str, keys: Sequence[ServiceKey], some: bool, now: float) -> None:
        query, asked = self._slow_queries[name], frozenset(keys)
        try:
            narrowed = queries.narrowed(query, keys) if some else query
            answer = await self._in_thread(functools.partial(self._client.instant, narrowed, now))
            others: Callable[[ServiceKey], bool] | None = (lambda key: key not in asked) if some else None
            await self._in_thread(functools.partial(self._slow.store, name, answer.samples, now, others))
        except QueryError as error:
            _LOG.warning("a slow query failed, its last answer is used for %.0f s: %s", _SLOW_TRUST_SECONDS, error)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _not_newer(self, requests: Iterable[TrafficRequest], at: float) -> list[TrafficRequest]:
        return [request for request in requests if not self._rota.is_newer(request.key, at)]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _are_few(requests: Sequence[TrafficRequest]) -> bool:
    return max(len(requests), poll_scheduler.engines(requests)) <= 2 * poll_scheduler.MOST_PRESSING


def _newest(found: Mapping[ServiceKey, Traffic], now: float) -> float | None:
    """When the newest of these samples was taken, where they were asked for at this time."""
    ages = [each.sample_age_seconds for each in found.values() if each.sample_age_seconds is not None]
    return now - min(ages) if ages else None


def _later(found: Traffic, late: float) -> Traffic:
    age = found.sample_age_seconds
    return dataclasses.replace(found, late_seconds=late, sample_age_seconds=None if age is None else age + late)


def _concerned(name: str, requests: Iterable[TrafficRequest]) -> list[ServiceKey]:
    """Services that a slow query covers: some are read only for services with what they are about."""
    if name == queries.E2E_BUCKETS:
        return [request.key for request in requests if request.slo.e2e_seconds is not None]
    return [request.key for request in requests]


def _edges_of(requests: Sequence[TrafficRequest]) -> Edges:
    return histogram_edges.around(request.slo for request in requests)
