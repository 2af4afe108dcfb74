"""Samples that are steadily late are read as of a time at which they were there; metrics that end are stale."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.lateness import LOOKS, MOST_SECONDS, Lateness, watch
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.series.client import PrometheusAddress
from holdfast.observe.series.combined_queries import SAMPLED_AT
from holdfast.observe.series.queries import SUCCESS, Query
from holdfast.observe.series.samples import QueryError, QueryResult, Series
from holdfast.observe.signals.prometheus import PrometheusSource
from tests.observe.observe_builders import CHAT, NOW, WINDOW, ready, request, sample

SCRAPE, TICK, RATE = WINDOW.scrape_seconds, 5.0, 2.0


class LateStore:
    """A store to which each sample of one engine comes `delay_seconds` after it was taken, until `ends_at`."""

    def __init__(self, delay_seconds: float, ends_at: float = math.inf) -> None:
        self.delay_seconds, self.ends_at, self.now = delay_seconds, ends_at, NOW
        self.asked: list[tuple[str, float]] = []
        self.refuses_newest = False

    def _times(self, at: float) -> list[float]:
        last = min(at, self.now - self.delay_seconds, self.ends_at)
        newest = math.floor((last - NOW) / SCRAPE)
        times = [NOW + SCRAPE * each for each in range(newest - 20, newest + 1)]
        return [each for each in times if each > at - 300.0]

    def instant(self, query: Query, at: float) -> QueryResult:
        self.asked.append((query.name, at))
        times = self._times(at)
        if query.name == "newest":
            if self.refuses_newest:
                raise QueryError("newest: Prometheus cannot be reached")
            return QueryResult((sample(times[-1]),) if times else ())
        inside = [each for each in times if each > at - WINDOW.interval_seconds]
        rows = []
        if '"metric", "sampled_at"' in query.promql and times:
            rows.append(sample(times[-1], metric=SAMPLED_AT, pod="chat-0"))
        if f'"metric", "{SUCCESS}"' in query.promql and len(inside) > 1:
            rows.append(sample(RATE * WINDOW.interval_seconds, metric=SUCCESS, finished_reason="stop"))
        if '"gappy"' in query.promql and len(inside) < 2:
            rows.append(sample(1.0, metric="gappy", pod="chat-0", instance="chat-0"))
        return QueryResult(tuple(rows))

    def range(self, *_: object) -> tuple[Series, ...]:
        raise AssertionError("no history is asked for here")

    def close(self) -> None: ...


async def looks(store: LateStore, seconds: float, source: PrometheusSource | None = None) -> list[Traffic]:
    """What is seen at each tick of so many seconds."""
    source = source or PrometheusSource(PrometheusAddress("http://prometheus"), client=store)
    found, until = [], store.now + seconds
    while store.now < until:
        found.append((await source.observe([request(ready("chat-0"))], store.now))[CHAT])
        await source.settle()
        store.now += TICK
    return found


@pytest.mark.parametrize("delay", [20.0, 30.0, 45.0, 60.0, 120.0, 200.0])
async def test_late_samples_are_fresh_once_their_lateness_is_known(delay: float) -> None:
    found = await looks(LateStore(delay), 300.0)
    for traffic in found[int((LOOKS + 1) * SCRAPE / TICK) :]:
        assert traffic.state is SignalState.FRESH, traffic.detail
        assert dict(traffic.by_accelerator)["h100"].finished == RATE * WINDOW.interval_seconds
        assert delay <= traffic.late_seconds < delay + SCRAPE
        assert traffic.sample_age_seconds is not None
        assert traffic.late_seconds <= traffic.sample_age_seconds < traffic.late_seconds + SCRAPE + TICK


@pytest.mark.parametrize("delay", [0.0, 4.0, 10.0])
async def test_samples_on_time_are_asked_for_as_of_now_and_nothing_more_is_asked(delay: float) -> None:
    store = LateStore(delay)
    found = await looks(store, 120.0)
    assert {traffic.late_seconds for traffic in found} == {0.0}
    assert "newest" not in [name for name, _ in store.asked]
    assert {traffic.state for traffic in found} == {SignalState.FRESH}


async def test_metrics_that_end_are_stale_and_not_late() -> None:
    prompt = await looks(LateStore(0.0, ends_at=NOW + 60.0), 280.0)
    assert prompt[-1].state is not SignalState.FRESH
    assert {traffic.late_seconds for traffic in prompt} == {0.0}
    late = await looks(LateStore(60.0, ends_at=NOW + 120.0), 420.0)
    assert late[-1].state is not SignalState.FRESH
    assert late[-1].late_seconds <= 60.0 + TICK


async def test_a_store_that_catches_up_is_asked_about_the_present_again() -> None:
    store = LateStore(60.0)
    source = PrometheusSource(PrometheusAddress("http://prometheus"), client=store)
    assert (await looks(store, 120.0, source))[-1].late_seconds >= 60.0
    store.delay_seconds = 0.0
    found = await looks(store, 120.0, source)
    assert found[-1].late_seconds == 0.0
    assert {traffic.state for traffic in found[1:]} == {SignalState.FRESH}


async def test_where_the_newest_sample_is_unknown_the_lateness_stays() -> None:
    store = LateStore(60.0)
    source = PrometheusSource(PrometheusAddress("http://prometheus"), client=store)
    known = (await looks(store, 120.0, source))[-1].late_seconds
    store.refuses_newest = True
    assert {traffic.late_seconds for traffic in await looks(store, 60.0, source)} == {known}


def test_a_single_late_sample_is_no_late_store() -> None:
    memory = Lateness()
    for number, age in enumerate((1.0, 2.0, 40.0, 1.0, 50.0, 3.0)):
        newest = NOW + SCRAPE * number
        memory = watch(memory, newest, newest + age, SCRAPE)
        assert memory.seconds == 0.0


@given(
    looks=st.lists(st.tuples(st.none() | st.floats(-1e9, 1e12), st.floats(0.0, 1e12)), max_size=30),
    scrape=st.floats(1.0, 300.0),
)
def test_lateness_is_never_negative_nor_beyond_what_a_store_looks_back(
    looks: list[tuple[float | None, float]], scrape: float
) -> None:
    memory = Lateness()
    for newest, now in looks:
        memory = watch(memory, newest, now, scrape)
        assert memory.seconds == 0.0 or scrape < memory.seconds <= MOST_SECONDS
