"""Which engines a real Prometheus takes for lagging, and what they do not change, from exactly known samples.

Needs what test_promql.py needs.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.tsdb import LONG_AGO, NOW, Engine, Reader, Tsdb, ready, scrapes, steady
from holdfast.domain.signals import SignalState, Traffic
from holdfast.observe.series.queries import TPOT, TTFT
from holdfast_engine.law.leastsquares import TERMS

pytestmark = pytest.mark.cluster

TIMES = scrapes(NOW - 900, NOW)
PEERS = ("chat-1", "chat-2", "chat-3")


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def engine(tsdb: Tsdb, pod: str, late: float = 0.0, good: float = 4.0, cause: str = "ttft", **labels: str) -> None:
    """An engine whose plugin judges so many requests a second."""
    written = Engine(tsdb, pod, **labels)
    written.scraped(TIMES)
    counts = {f"bad_{each}": steady(0.0) for each in ("ttft", "tpot", "e2e", "error", "rejected")}
    counts |= {f"bad_{cause}": steady(late), "requests_good_total": steady(good)}
    written.plugin(TIMES, "active", requests_arrived_total=steady(late + good), **counts)


def peers(tsdb: Tsdb, *pods: str) -> None:
    """Engines without a late request."""
    for pod in pods or PEERS:
        engine(tsdb, pod)


async def seen(reader: Reader, tsdb: Tsdb, now: float = NOW) -> Traffic:
    return await reader.observe(tsdb, *map(ready, ("chat-0", *PEERS)), now=now)


@pytest.mark.parametrize(("late", "good", "cause"), [(3.0, 0.5, "ttft"), (0.5, 3.0, "tpot"), (3.0, 0.0, "ttft")])
async def test_who_is_late_alone_lags(reader: Reader, late: float, good: float, cause: str) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", late, good, cause=cause)
    peers(tsdb)
    traffic = await seen(reader, tsdb)
    assert (traffic.state, traffic.lagging) == (SignalState.FRESH, ("chat-0",))
    assert traffic.by_accelerator[0][1].exact is not None


@pytest.mark.parametrize(
    ("late", "good", "cause"),
    [
        (0.3, 3.0, "ttft"),  # less than a tenth is late
        (0.1, 0.0, "ttft"),  # too few to tell
        (3.0, 0.0, "rejected"),
        (3.0, 0.0, "killed"),  # of the engine before it
        (12.0, 0.0, "ttft"),  # has more than its share
    ],
)
async def test_who_is_not_late_with_a_tenth_of_its_share_does_not_lag(
    reader: Reader, late: float, good: float, cause: str
) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", late, good, cause)
    peers(tsdb)
    assert (await seen(reader, tsdb)).lagging == ()


def fails(tsdb: Tsdb, pod: str, errors: float, served: float = 0.0, plugin: bool = False) -> None:
    """An engine that ends so many requests a second with an error, as vLLM counts them and as the plugin does."""
    written = Engine(tsdb, pod)
    written.scraped(TIMES)
    for reason, rate in (("error", errors), ("stop", served), ("length", 0.0), ("abort", 9.0)):
        written.add("request_success_total", TIMES, steady(rate), finished_reason=reason)
    if plugin:
        counts = {"bad_ttft": steady(0.0), "bad_error": steady(errors), "requests_good_total": steady(served)}
        written.plugin(TIMES, "active", requests_arrived_total=steady(errors + served), **counts)


@pytest.mark.parametrize("plugin", [False, True])
async def test_who_ends_most_requests_with_errors_fails_with_the_plugin_or_without(
    reader: Reader, plugin: bool
) -> None:
    tsdb = Tsdb()
    fails(tsdb, "chat-0", 20.0, 1.0, plugin)
    fails(tsdb, "chat-1", 3.0, 2.0, plugin)
    for pod in PEERS[1:]:
        fails(tsdb, pod, 0.01, 6.0, plugin)
    traffic = await seen(reader, tsdb)
    assert (traffic.state, traffic.failing, traffic.lagging) == (SignalState.FRESH, ("chat-0", "chat-1"), ())


@pytest.mark.parametrize(("errors", "served"), [(0.1, 0.0), (3.0, 4.0), (math.nan, 0.0)])
async def test_who_ends_few_requests_with_errors_does_not_fail(reader: Reader, errors: float, served: float) -> None:
    tsdb = Tsdb()
    fails(tsdb, "chat-0", 0.0)
    written = Engine(tsdb, "chat-9")
    written.scraped(TIMES)
    for reason, rate in (("error", errors), ("stop", served)):
        value = steady(rate) if math.isfinite(rate) else lambda _: math.nan
        written.add("request_success_total", TIMES, value, finished_reason=reason)
    assert (await seen(reader, tsdb)).failing == ()


async def test_errors_that_only_the_plugin_counts_are_no_lateness(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", 3.0, 0.0, "error")
    peers(tsdb)
    traffic = await seen(reader, tsdb)
    assert (traffic.failing, traffic.lagging) == (("chat-0",), ())


async def test_where_all_are_late_alike_nobody_lags(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod in ("chat-0", *PEERS):
        engine(tsdb, pod, 3.0, 0.5)
    assert (await seen(reader, tsdb)).lagging == ()


async def test_beside_one_engine_without_the_plugin_nobody_lags(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", 3.0, 0.0)
    peers(tsdb, *PEERS[:2])
    Engine(tsdb, PEERS[2]).scraped(TIMES)
    assert (await seen(reader, tsdb)).lagging == ()


async def test_a_counter_that_is_no_number_is_no_lag(reader: Reader) -> None:
    tsdb = Tsdb()
    written = Engine(tsdb, "chat-0")
    written.scraped(TIMES)
    written.plugin(TIMES, "active", requests_good_total=steady(0.0), bad_ttft=lambda _: math.nan)
    peers(tsdb)
    assert (await seen(reader, tsdb)).lagging == ()


async def test_a_lag_is_seen_within_a_counting_interval_and_other_hardware_is_not_compared(reader: Reader) -> None:
    tsdb, slow_from = Tsdb(), NOW - 120.0
    written = Engine(tsdb, "chat-0")
    written.scraped(TIMES)
    written.plugin(
        TIMES,
        "active",
        requests_good_total=lambda at: math.floor(4.0 * (min(at, slow_from) - LONG_AGO)),
        bad_tpot=lambda at: math.floor(4.0 * max(0.0, at - slow_from)),
    )
    peers(tsdb)
    engine(tsdb, "alone", 3.0, 0.0, holdfast_accelerator="l40s")
    named = {after: (await seen(reader, tsdb, slow_from + after)).lagging for after in (0, 15, 120)}
    assert named == {0: (), 15: ("chat-0",), 120: ("chat-0",)}


async def test_an_engine_that_is_scraped_twice_is_doubted(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", 3.0, 0.5)
    engine(tsdb, "chat-0", 3.0, 0.5, job="twice")
    peers(tsdb)
    assert (await seen(reader, tsdb)).state is SignalState.DUPLICATE


def stock(tsdb: Tsdb, pod: str, begun: float = 4.0, in_time: float = 4.0, family: str = TTFT, le: str = "0.5") -> None:
    """An engine without the plugin that begins so many requests a second, so many of them within an edge."""
    written = Engine(tsdb, pod)
    counts = {f"{each}_count": steady(begun) for each in (TTFT, TPOT)}
    written.scraped(TIMES, **counts)
    for each, edge in ((TTFT, "0.5"), (TPOT, "0.025"), (TPOT, "0.05")):
        written.add(f"{each}_bucket", TIMES, steady(in_time if (each, edge) == (family, le) else begun), le=edge)


@pytest.mark.parametrize(("family", "le"), [(TTFT, "0.5"), (TPOT, "0.05")])
async def test_without_the_plugin_who_is_late_alone_lags(reader: Reader, family: str, le: str) -> None:
    tsdb = Tsdb()
    stock(tsdb, "chat-0", 4.0, 0.7, family, le)
    for pod in PEERS:
        stock(tsdb, pod)
    traffic = await seen(reader, tsdb)
    assert (traffic.state, traffic.lagging) == (SignalState.FRESH, ("chat-0",))


@pytest.mark.parametrize(
    ("begun", "in_time", "by_peers"),
    [
        (4.0, 0.9, 4.0),  # makes a quarter of the rest in time
        (0.1, 0.0, 4.0),  # too few to tell
        (4.5, 0.0, 4.0),  # begins more than its peers
        (4.0, 0.0, 3.0),  # so are they
    ],
)
async def test_without_the_plugin_who_is_not_late_alone_with_its_share_does_not_lag(
    reader: Reader, begun: float, in_time: float, by_peers: float
) -> None:
    tsdb = Tsdb()
    stock(tsdb, "chat-0", begun, in_time)
    for pod in PEERS:
        stock(tsdb, pod, in_time=by_peers)
    assert (await seen(reader, tsdb)).lagging == ()


async def test_step_times_are_those_of_engines_that_are_as_fast_as_most(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, seconds in (("chat-0", 0.9), *((pod, 0.5) for pod in PEERS)):
        written = Engine(tsdb, pod)
        written.scraped(TIMES)
        for term in TERMS:
            rate = {"one": 20.0, "seconds": seconds}.get(term, 1.0)
            written.add("step_sums_total", TIMES, steady(rate), of="holdfast", term=term)
    traffic = await reader.observe(tsdb, *map(ready, ("chat-0", *PEERS)), settle=True)
    ((_, sums),) = traffic.steps
    assert (sums.steps, sums.seconds) == pytest.approx((3 * 20.0 * 180.0, 3 * 0.5 * 180.0), rel=0.05)


async def test_the_typical_tpot_is_that_of_the_median_engine(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, seconds in (("chat-0", 0.4), *((pod, 0.02) for pod in PEERS)):
        written, sum_rate = Engine(tsdb, pod), 2.0 * seconds
        written.scraped(TIMES, **{f"{TPOT}_count": steady(2.0)})
        written.add(f"{TPOT}_sum", TIMES, lambda at, rate=sum_rate: rate * (at - LONG_AGO))
    counts = (await seen(reader, tsdb)).by_accelerator[0][1]
    assert counts.tpot_typical_seconds == pytest.approx(0.02)
