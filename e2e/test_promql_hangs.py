"""Which engines a real Prometheus takes for hung, from exactly known samples. Needs what test_promql.py needs."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from e2e.tsdb import NOW, Engine, Reader, Tsdb, constant, ready, scrapes, steady
from holdfast.domain.signals import SignalState

pytestmark = pytest.mark.cluster

TIMES = scrapes(NOW - 900, NOW)
BUSY, STILL = constant(5.0), constant(1000.0)


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def engine(tsdb: Tsdb, pod: str, /, times: list[float] = TIMES, labels: dict[str, str] | None = None,
           **series: Callable[[float], float]) -> Engine:  # fmt: skip
    """An engine that holds requests and stands still, but for what the test says."""
    still = {"running": BUSY, "generation_tokens_total": STILL, "prompt_tokens_total": STILL}
    told = {**still, "kv_cache_usage_perc": constant(0.4), **series}
    written = Engine(tsdb, pod, **(labels or {}))
    written.scraped(times, **told)
    return written


async def hung(reader: Reader, tsdb: Tsdb, now: float = NOW) -> tuple[str, ...]:
    return (await reader.observe(tsdb, now=now)).hung


async def test_only_who_holds_requests_and_stands_still_hangs(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "hung-running")
    engine(tsdb, "hung-waiting", running=constant(0.0), waiting=BUSY)
    engine(tsdb, "hung-missed-a-scrape", times=TIMES[:-3] + TIMES[-2:])
    engine(tsdb, "idle", running=constant(0.0))
    engine(tsdb, "idle-in-between", running=lambda at: 0.0 if NOW - 50 < at < NOW - 30 else 5.0)
    engine(tsdb, "decodes", generation_tokens_total=steady(40.0))
    engine(tsdb, "one-token", generation_tokens_total=lambda at: 1000.0 + (at > NOW - 30))
    engine(tsdb, "long-prompt", kv_cache_usage_perc=lambda at: (at % 600) / 1000)
    engine(tsdb, "restarted", generation_tokens_total=lambda at: 1000.0 if at < NOW - 30 else 0.0)
    engine(tsdb, "young", times=scrapes(NOW - 44, NOW))
    engine(tsdb, "gone", times=scrapes(NOW - 900, NOW - 40))
    engine(tsdb, "nobody-knows", running=constant(math.nan), waiting=constant(math.nan))
    steps = engine(tsdb, "steps")
    steps.add("plugin_steps_total", TIMES, steady(30.0), of="holdfast")
    Engine(tsdb, "no-counters").scraped(TIMES, running=BUSY)
    assert await hung(reader, tsdb) == ("hung-missed-a-scrape", "hung-running", "hung-waiting")


@pytest.mark.parametrize(
    ("running", "waiting", "deferred", "hangs"),
    [(0.0, 1.0, 1.0, False), (0.0, 3.0, 3.0, False), (0.0, 3.0, 1.0, True), (4.0, 3.0, 3.0, True)],
)
async def test_who_holds_nothing_but_deferred_requests_does_not_hang(
    reader: Reader, running: float, waiting: float, deferred: float, hangs: bool
) -> None:
    tsdb = Tsdb()
    written = engine(tsdb, "chat-0", running=constant(running), waiting=constant(waiting))
    written.add("num_requests_waiting_by_reason", TIMES, constant(deferred), reason="deferred")
    written.add("num_requests_waiting_by_reason", TIMES, constant(waiting - deferred), reason="capacity")
    assert await hung(reader, tsdb) == (("chat-0",) if hangs else ())


async def test_a_counter_that_stays_no_number_is_no_progress(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0", kv_cache_usage_perc=constant(math.nan))
    assert await hung(reader, tsdb) == ("chat-0",)


async def test_a_hang_is_seen_within_two_minutes_of_the_last_token_and_ends_with_the_next(reader: Reader) -> None:
    tsdb, stops, goes_on = Tsdb(), NOW - 300.0, NOW - 100.0
    tokens = lambda at: 40.0 * (min(at, stops) - NOW + 900) + max(0.0, at - goes_on)  # noqa: E731
    engine(tsdb, "chat-0", generation_tokens_total=tokens)
    seen = {second: await hung(reader, tsdb, stops + second) for second in (30, 60, 95, 150, 195, 235)}
    assert [second for second, names in seen.items() if names] == [95, 150, 195]


async def test_an_engine_that_is_scraped_twice_hangs_once(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0")
    engine(tsdb, "chat-0", labels={"job": "twice"})
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert (traffic.state, traffic.hung) == (SignalState.DUPLICATE, ("chat-0",))


async def test_of_several_engines_in_a_pod_one_at_work_is_enough(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0")
    engine(tsdb, "chat-0", labels={"engine": "1"}, generation_tokens_total=steady(40.0))
    assert await hung(reader, tsdb) == ()
