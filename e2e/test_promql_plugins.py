"""What the queries make of the plugin's counters, asked of a real Prometheus: see test_promql."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from e2e.tsdb import CHAT, LONG_AGO, NOW, SLO, Engine, Reader, Tsdb, constant, ready, scrapes, steady
from holdfast.domain.engine import EngineState, ExactCounts, PluginMode, StepSums
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.observe.signals.traffic import TrafficRequest

pytestmark = pytest.mark.cluster

TIMES = scrapes(NOW - 900, NOW)
RECENT = [at for at in TIMES if at > NOW - 45]


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def on_h100(traffic: Traffic) -> AcceleratorTraffic:
    return dict(traffic.by_accelerator)["h100"]


RATES = {
    "requests_arrived_total": 20.0,
    "requests_good_total": 14.0,
    "requests_withdrawn_total": 1.0,
    "good_tokens_total": 1400.0,
    "bad_ttft": 2.0,
    "bad_tpot": 1.0,
    "bad_e2e": 0.4,
    "bad_rejected": 1.0,
    "bad_error": 0.4,
    "bad_killed": 0.2,
}
"""Twenty requests per second, every fourth of them bad."""


def counters(since: float = LONG_AGO) -> dict[str, Callable[[float], float]]:
    return {name: steady(rate, since) for name, rate in RATES.items()}


GAINED = ExactCounts(900.0, 630.0, 90.0, 45.0, 18.0, 45.0, 18.0, 45.0, 63_000.0, engines=1, bad_killed=9.0)
"""Of one engine in an interval of 45 s."""


def engine(tsdb: Tsdb, pod: str = "chat-0", **labels: str) -> Engine:
    found = Engine(tsdb, pod, LONG_AGO, **labels)
    found.scraped(TIMES, request_success_total=steady(18.0))
    return found


async def test_every_count_of_the_plugin_finds_its_place(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb).plugin(TIMES, **counters())
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).exact == GAINED


async def test_batch_work_is_read_by_class_and_its_absence_is_no_zero(reader: Reader) -> None:
    """Two requests a second come and are done; 150 more wait or run, and ten were withdrawn."""
    tsdb, served = Tsdb(), steady(2.0)
    found = engine(tsdb)
    found.plugin(TIMES, **counters())
    for name, more in (("night", 160.0), ("rest", 10.0)):
        found.add(
            "batch_requests_arrived_total",
            TIMES,
            lambda at, more=more: served(at) + more,
            of="holdfast",
            **{"class": name},
        )
        for outcome, count in (("done", served), ("withdrawn", constant(10.0))):
            labels = {"class": name, "outcome": outcome}
            found.add("batch_requests_ended_total", TIMES, count, of="holdfast", **labels)
    traffic = await reader.observe(tsdb, ready("chat-0"), settle=True)
    assert [(each.name, each.unfinished) for each in traffic.batch.classes] == [("night", 150.0), ("rest", 0.0)]
    assert [each.done for each in traffic.batch.classes] == [pytest.approx(90.0, rel=0.05)] * 2
    assert on_h100(traffic).exact == GAINED


async def test_counts_of_classes_add_up_and_each_declared_class_is_read(reader: Reader) -> None:
    tsdb, shares = Tsdb(), {"": 0.5, "premium": 0.25, "bulk": 0.25}
    found = engine(tsdb)
    found.plugin(TIMES)
    for name, share in shares.items():
        for counter, rate in RATES.items():
            counted, _, cause = counter.partition("bad_")
            labels = {"class": name, "cause": cause}
            metric = "requests_bad_total" if cause else counted
            found.add(metric, TIMES, steady(rate * share), of="holdfast", **labels)
    slo = dataclasses.replace(SLO, classes=(dataclasses.replace(SLO, name="premium"),))
    traffic = await reader.observe(tsdb, ready("chat-0"), slo=slo, settle=True)
    exact = on_h100(traffic).exact
    assert exact is not None
    # Counters are whole numbers: of a quarter of a small rate an interval has up to one more or less.
    assert dataclasses.astuple(exact) == pytest.approx(dataclasses.astuple(GAINED), abs=3.0)
    (premium,) = traffic.classes
    assert premium.good / (premium.good + premium.bad) == pytest.approx(14.0 / 19.0, rel=0.2)


@pytest.mark.parametrize("edited", [{"ttft_seconds": 0.4}, {"tpot_seconds": 0.04}, {"e2e_seconds": 30.0}])
async def test_verdicts_by_objectives_of_before_an_edit_are_left_aside(
    reader: Reader, edited: dict[str, float]
) -> None:
    tsdb = Tsdb()
    engine(tsdb).plugin(TIMES, **counters())
    slo = dataclasses.replace(SLO, **edited)
    traffic = await reader.observe(tsdb, ready("chat-0"), slo=slo)
    assert traffic.fresh, traffic.detail
    assert on_h100(traffic).exact is None


async def test_engines_and_accelerators_are_added_up_apart(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, accelerator in (("a", "h100"), ("b", "h100"), ("c", "l40s")):
        engine(tsdb, pod, holdfast_accelerator=accelerator).plugin(TIMES, **counters())
    seen = dict((await reader.observe(tsdb, ready("a"), ready("b"), ready("c", "l40s"))).by_accelerator)
    exact = seen["h100"].exact
    assert exact is not None
    assert (exact.arrived, exact.bad, exact.engines) == (1800.0, 450.0, 2)
    assert seen["l40s"].exact == GAINED


async def test_one_engine_that_judges_by_its_own_times_shows(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0").plugin(TIMES, **counters())
    other = engine(tsdb, "chat-1")
    other.plugin(TIMES[:-1], **counters())
    other.plugin(TIMES[-1:], client_times=False, **counters())
    exact = on_h100(await reader.observe(tsdb, ready("chat-0"), ready("chat-1"))).exact
    assert exact is not None
    assert (exact.arrived, exact.engines, exact.engine_timed) == (1800.0, 2, 2)


async def test_an_engine_without_the_plugin_leaves_the_bounds_in_force(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0").plugin(TIMES, **counters())
    engine(tsdb, "chat-1")
    traffic = await reader.observe(tsdb, ready("chat-0"), ready("chat-1"))
    assert traffic.fresh, traffic.detail
    assert (on_h100(traffic).exact, on_h100(traffic).finished) == (None, 1620.0)


@pytest.mark.parametrize("mode", ["off", "waiting"])
async def test_a_plugin_that_was_not_at_work_for_one_scrape_leaves_the_bounds_in_force(
    reader: Reader, mode: str
) -> None:
    tsdb = Tsdb()
    plain = engine(tsdb)
    plain.plugin(TIMES[:-1], **counters())
    plain.plugin(TIMES[-1:], mode, **counters())
    assert on_h100(await reader.observe(tsdb, ready("chat-0"))).exact is None


async def test_an_engine_that_ended_without_the_plugin_is_not_left_out(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "new").plugin(TIMES, **counters())
    Engine(tsdb, "old").scraped(scrapes(NOW - 900, NOW - 20), request_success_total=steady(18.0))
    assert on_h100(await reader.observe(tsdb, ready("new"))).exact is None


async def test_an_engine_that_ended_before_the_interval_does_not_matter(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "new").plugin(TIMES, **counters())
    Engine(tsdb, "old").scraped(scrapes(NOW - 900, NOW - 60), request_success_total=steady(18.0))
    assert on_h100(await reader.observe(tsdb, ready("new"))).exact == GAINED


async def test_a_new_engine_counts_whole(reader: Reader) -> None:
    tsdb, born = Tsdb(), NOW - 25.0
    times = scrapes(NOW - 14, NOW)
    new = Engine(tsdb, born_at=born)
    new.scraped(times, request_success_total=lambda _: 17.0)
    new.plugin(times, requests_arrived_total=lambda _: 21.0, requests_good_total=lambda _: 17.0, bad_ttft=lambda _: 4.0)
    traffic = await reader.observe(tsdb, ready("chat-0", at=born))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).exact == ExactCounts(arrived=21.0, good=17.0, bad_ttft=4.0, engines=1)


async def test_an_engine_that_was_started_anew_is_never_negative(reader: Reader) -> None:
    tsdb, restarted = Tsdb(), NOW - 20.0
    before, after = [at for at in TIMES if at < restarted], [at for at in TIMES if at >= restarted]
    old, new = Engine(tsdb), Engine(tsdb, born_at=restarted)
    old.scraped(before, request_success_total=steady(18.0))
    new.scraped(after, request_success_total=steady(18.0, since=restarted))
    old.plugin(before, **counters())
    new.plugin(after, **counters(since=restarted))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    exact = on_h100(traffic).exact
    assert traffic.fresh, traffic.detail
    assert exact is not None
    assert 20.0 * (after[-1] - restarted) - 1.0 <= exact.arrived <= 900.0
    assert exact.good + exact.bad + exact.withdrawn == pytest.approx(exact.arrived, abs=5.0)


async def test_engines_scraped_twice_count_once(reader: Reader) -> None:
    tsdb = Tsdb()
    for job in ("pods", "podmonitor"):
        engine(tsdb, job=job).plugin(TIMES, **counters())
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.DUPLICATE
    assert on_h100(traffic).exact == GAINED


async def test_each_engine_says_what_is_in_force(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod in ("a", "b", "c", "d"):
        engine(tsdb, pod)
    working, waiting, off = (Engine(tsdb, pod) for pod in ("a", "b", "c"))
    working.plugin(TIMES, **counters())
    working.limits(TIMES[:-4], version=6.0, active_sequences=96.0, tokens_per_step=4096.0)
    working.limits(TIMES[-4:], version=7.0, active_sequences=24.0, tokens_per_step=512.0)
    working.add("requests_waiting", TIMES, lambda _: 9.0, of="holdfast", lane="late")
    waiting.plugin(TIMES, "waiting")
    waiting.limits(TIMES, active_sequences=256.0, tokens_per_step=8192.0)
    off.plugin(TIMES, "off")
    traffic = await reader.observe(tsdb, *map(ready, "abcd"))
    assert traffic.plugins == (
        EngineState("a", PluginMode.ACTIVE, 7, 24.0, 512.0),
        EngineState("b", PluginMode.WAITING, None, 256.0, 8192.0),
        EngineState("c", PluginMode.OFF),
    )
    assert on_h100(traffic).waiting_late == 0.0  # nobody waits, says vLLM


async def test_late_requests_are_told_from_the_others_that_wait(reader: Reader) -> None:
    tsdb = Tsdb()
    one = Engine(tsdb)
    one.scraped(TIMES, waiting=lambda _: 12.0)
    for lane, count in (("front", 1.0), ("fresh", 2.0), ("late", 9.0)):
        one.add("requests_waiting", TIMES, constant(count), of="holdfast", lane=lane)
    seen = on_h100(await reader.observe(tsdb, ready("chat-0")))
    assert (seen.waiting, seen.waiting_late) == (12.0, 9.0)


async def test_sums_over_steps_arrive_with_the_next_ticks(reader: Reader) -> None:
    tsdb = Tsdb()
    one = engine(tsdb)
    sums = {"one": 100.0, "prefill": 2.0, "decodes": 24.0, "kv": 10.0, "pairs": 3.0, "seconds": 0.9}  # per second
    for name, rate in sums.items():
        one.add("step_sums_total", TIMES, steady(rate), of="holdfast", term=name)
    source = reader.open(tsdb)
    request = TrafficRequest(CHAT, SLO, (ready("chat-0"),))
    for _ in range(2):
        await source.observe([request], NOW)
        await source.settle()
    ((accelerator, steps),) = (await source.observe([request], NOW))[CHAT].steps
    assert accelerator == "h100"
    assert dataclasses.astuple(steps) == pytest.approx(
        dataclasses.astuple(StepSums(18_000.0, 360e3, 432e3, 180e6, 540e6, 162.0)), rel=0.01
    )


async def test_history_holds_verdicts_where_the_plugin_was_at_work_and_bounds_before(reader: Reader) -> None:
    tsdb, times, turned_on = Tsdb(), scrapes(NOW - 2 * 3600.0, NOW), NOW - 1800.0
    one = Engine(tsdb, born_at=NOW - 3 * 3600.0)
    one.scraped(times, request_success_total=steady(18.0))
    one.add("time_to_first_token_seconds_bucket", times, steady(17.0), le="0.5")
    one.add("request_time_per_output_token_seconds_bucket", times, steady(17.0), le="0.03")
    since = [at for at in times if at >= turned_on]
    one.plugin([at for at in times if at < turned_on], "waiting")
    one.plugin(since, **counters(since=turned_on))
    slo = dataclasses.replace(SLO, window_seconds=3600.0)
    samples = (await reader.open(tsdb).history([TrafficRequest(CHAT, slo)], NOW))[CHAT].samples
    assert len(samples) == 30 + 45, "every 30 s of the last quarter of an hour, every minute before"
    for sample in samples:
        exact = sample.at - sample.interval_seconds > turned_on
        expected = (20.0, 14.0, 5.0) if exact else (18.0, 16.0, 2.0)
        if exact or sample.at < turned_on:
            rates = [count / sample.interval_seconds for count in (sample.arrivals, sample.good, sample.bad)]
            assert rates == pytest.approx(expected, rel=0.1)
