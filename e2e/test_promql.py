"""The queries of observe/, asked of a real Prometheus whose TSDB holds exactly the samples that a test names.

Blocks are written by `promtool tsdb create-blocks-from openmetrics`, then read at chosen evaluation times: nothing is
waited for. Needs `prometheus` and `promtool` on PATH.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.tsdb import (
    CHAT,
    LONG_AGO,
    NOW,
    SCRAPE,
    SLO,
    Engine,
    Reader,
    Tsdb,
    constant,
    ready,
    scrapes,
    steady,
)
from holdfast.domain.signals import AcceleratorTraffic, SignalState, Traffic
from holdfast.observe.signals.traffic import TrafficRequest

pytestmark = pytest.mark.cluster


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def on_h100(traffic: Traffic) -> AcceleratorTraffic:
    return dict(traffic.by_accelerator)["h100"]


async def test_a_steady_engine_shows_what_it_finished_in_the_interval(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb).scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert traffic.interval_seconds == 45.0
    assert on_h100(traffic).finished == 90.0
    assert on_h100(traffic).engines == 1
    assert 0.0 <= (traffic.sample_age_seconds or math.inf) < SCRAPE


async def test_the_busiest_engine_is_told_from_the_mean_one(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, rate in (("chat-0", 3.0), ("chat-1", 1.0), ("chat-2", 1.0), ("chat-3", 1.0)):
        Engine(tsdb, pod).scraped(scrapes(NOW - 900, NOW), time_to_first_token_seconds_count=steady(rate))
    traffic = await reader.observe(tsdb, ready("chat-0"), ready("chat-1"), ready("chat-2"), ready("chat-3"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).busiest == pytest.approx(2.0)


async def test_what_leaves_a_queue_is_told_by_the_wait_in_each_engine(reader: Reader) -> None:
    """60 wait for 20 s each at the first engine: 3 leave in a second, of which 2 are served. The other has no queue."""
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for pod, waiting, wait in (("chat-0", 60.0, 20.0), ("chat-1", 0.0, 0.5)):
        sums = {"time_to_first_token_seconds_count": steady(2.0), "time_to_first_token_seconds_sum": steady(2.0 * wait)}
        Engine(tsdb, pod).scraped(times, waiting=constant(waiting), **sums)
    seen = on_h100(await reader.observe(tsdb, ready("chat-0"), ready("chat-1")))
    assert seen.queue_flow == pytest.approx(3.0 * 45.0, rel=0.01)
    assert (seen.waiting, seen.ttft_count) == (60.0, 180.0)


async def test_a_queue_that_was_empty_at_one_scrape_does_not_stand(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    sums = {"time_to_first_token_seconds_count": steady(2.0), "time_to_first_token_seconds_sum": steady(40.0)}
    Engine(tsdb).scraped(times, waiting=lambda at: 0.0 if at == times[-2] else 60.0, **sums)
    assert on_h100(await reader.observe(tsdb, ready("chat-0"))).queue_flow == 0.0


async def test_ticks_add_up_to_what_happened_however_uneven_it_was(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    bursts = {30: 90, 34: 300, 35: 7, 39: 41}  # scrape -> requests that finished just before it
    counts = {at: 1000 + sum(count for index, count in bursts.items() if index <= i) for i, at in enumerate(times)}
    Engine(tsdb).scraped(times, request_success_total=counts.__getitem__)
    total = 0.0
    for tick in range(150):  # from before the first burst until after the last one has left the interval
        traffic = await reader.observe(tsdb, now=NOW - 750.0 + 5.0 * tick)
        total += on_h100(traffic).finished * 5.0 / traffic.interval_seconds
    assert total == pytest.approx(sum(bursts.values()), rel=0.01)


async def test_a_new_engine_counts_whole(reader: Reader) -> None:
    tsdb, born = Tsdb(), NOW - 25.0
    Engine(tsdb, born_at=born).scraped(
        scrapes(NOW - 14, NOW), request_success_total=lambda _: 17.0, running=lambda _: 4.0
    )
    traffic = await reader.observe(tsdb, ready("chat-0", at=born))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).finished == 17.0
    assert on_h100(traffic).in_flight_growth == 4.0


async def test_a_new_engine_beside_an_old_one_counts_whole(reader: Reader) -> None:
    tsdb, born = Tsdb(), NOW - 40.0
    Engine(tsdb, "chat-0").scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    new = Engine(tsdb, "chat-1", born_at=born)
    times = scrapes(NOW - 30, NOW)
    new.scraped(times, request_success_total=steady(1.0, since=born), running=lambda _: 4.0)
    new.add("time_to_first_token_seconds_bucket", times, steady(0.9, since=born), le="0.5")
    seen = on_h100(await reader.observe(tsdb, ready("chat-0"), ready("chat-1", at=born)))
    assert seen.finished == pytest.approx(90.0 + math.floor(times[-1] - born))
    assert seen.ttft_within == pytest.approx(math.floor(0.9 * (times[-1] - born)))
    assert (seen.in_flight_growth, seen.engines) == (4.0, 2)


async def test_of_an_engine_scraped_late_the_part_of_its_life_inside_the_interval_counts(reader: Reader) -> None:
    tsdb, born = Tsdb(), NOW - 75.0
    Engine(tsdb, born_at=born).scraped(scrapes(NOW - 14, NOW), request_success_total=lambda _: 75.0)
    traffic = await reader.observe(tsdb, ready("chat-0", at=born))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).finished == pytest.approx(45.0)


async def test_a_life_long_counter_that_prometheus_sees_for_the_first_time_is_no_burst(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb).scraped(scrapes(NOW - 30, NOW), request_success_total=steady(1.0), running=lambda _: 9.0)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.PARTIAL
    assert traffic.detail == "too few samples in this interval to count all requests of: chat-0"
    assert 15.0 <= on_h100(traffic).finished <= 45.0
    assert on_h100(traffic).in_flight_growth == 0.0


async def test_an_engine_that_hides_its_birth_is_never_taken_for_new(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb, born_at=None).scraped(scrapes(NOW - 14, NOW), request_success_total=steady(1.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert (traffic.state, on_h100(traffic).finished) == (SignalState.PARTIAL, 0.0)


async def test_process_start_time_stands_in_for_the_birth(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb, born_at=None).scraped(scrapes(NOW - 14, NOW), request_success_total=lambda _: 17.0)
    labels = {"namespace": "prod", "holdfast_service": "chat", "holdfast_accelerator": "h100"}
    labels |= {"pod": "chat-0", "instance": "chat-0:8000"}
    tsdb.add("process_start_time_seconds", labels, [(at, NOW - 20.0) for at in scrapes(NOW - 14, NOW)])
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert (traffic.state, on_h100(traffic).finished) == (SignalState.FRESH, 17.0)


async def test_what_happened_in_a_gap_is_no_burst(reader: Reader) -> None:
    tsdb = Tsdb()
    times = [*scrapes(NOW - 900, NOW - 250), *scrapes(NOW - 30, NOW)]
    Engine(tsdb).scraped(times, request_success_total=steady(1.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert 15.0 <= on_h100(traffic).finished <= 45.0


async def test_one_lost_scrape_changes_nothing(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    Engine(tsdb).scraped([*times[:-2], times[-1]], request_success_total=steady(1.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert on_h100(traffic).finished == pytest.approx(45.0)


async def test_a_counter_reset_is_not_negative_and_counts_what_came_since(reader: Reader) -> None:
    tsdb, restarted = Tsdb(), NOW - 20.0
    times = scrapes(NOW - 900, NOW)
    before, after = [at for at in times if at < restarted], [at for at in times if at >= restarted]
    Engine(tsdb).scraped(before, request_success_total=steady(1.0))
    Engine(tsdb, born_at=restarted).scraped(after, request_success_total=steady(1.0, since=restarted))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert after[-1] - restarted <= on_h100(traffic).finished <= 45.0


async def test_the_last_requests_of_an_engine_that_ended_are_counted(reader: Reader) -> None:
    tsdb, gone = Tsdb(), scrapes(NOW - 900, NOW - 12)
    Engine(tsdb, "chat-0").scraped(scrapes(NOW - 900, NOW), request_success_total=steady(1.0))
    Engine(tsdb, "chat-1").scraped(
        gone, request_success_total=steady(1.0), running=lambda at: 2.0 if at == gone[-1] else 5.0
    )
    seen = on_h100(await reader.observe(tsdb, ready("chat-0")))
    assert 45.0 + 15.0 <= seen.finished <= 45.0 + 45.0
    assert -9.0 <= seen.in_flight_growth <= -3.0  # not -5: what it took to its end had not left it


async def test_an_engine_that_ended_before_the_interval_leaves_no_trace(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb, "chat-0").scraped(scrapes(NOW - 900, NOW), request_success_total=steady(1.0))
    Engine(tsdb, "chat-1").scraped(scrapes(NOW - 900, NOW - 60), request_success_total=steady(1.0))
    seen = on_h100(await reader.observe(tsdb, ready("chat-0")))
    assert (seen.finished, seen.in_flight_growth, seen.engines) == (45.0, 0.0, 1)


async def test_every_signal_of_vllm_0_32_finds_its_place(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(
        times,
        running=lambda at: 7.0 if at > NOW - 20 else 3.0,
        waiting=lambda _: 2.0,
        kv_cache_usage_perc=lambda _: 0.25,
        prompt_tokens_total=steady(100.0),
        prefix_cache_hits_total=steady(40.0),
        generation_tokens_total=steady(50.0),
        num_preemptions_total=steady(0.2),
        request_prompt_tokens_sum=steady(90.0),
        request_prompt_tokens_count=steady(1.0),
        request_generation_tokens_sum=steady(45.0),
        time_to_first_token_seconds_count=steady(1.0),
        request_time_per_output_token_seconds_count=steady(1.0),
        request_time_per_output_token_seconds_sum=lambda at: 0.02 * (at - LONG_AGO),
        e2e_request_latency_seconds_count=steady(1.0),
    )
    engine.add("e2e_request_latency_seconds_bucket", times, steady(0.8), le="10.0")
    for reason, rate in {"stop": 1.0, "length": 2.0, "repetition": 0.1, "error": 0.3, "abort": 0.2}.items():
        engine.add("request_success_total", times, steady(rate), finished_reason=reason)
    for reason, rate in {"max_num_queued_reqs": 1.0, "max_num_queued_tokens": 3.0}.items():
        engine.add("admission_rejections_total", times, steady(rate), reason=reason, engine="")
    slo = dataclasses.replace(SLO, e2e_seconds=10.0)
    seen = on_h100(await reader.observe(tsdb, ready("chat-0"), slo=slo))
    assert (seen.finished, seen.failed, seen.aborted, seen.rejected) == (139.5, 13.5, 9.0, 180.0)
    assert (seen.prompt_tokens, seen.cached_prompt_tokens, seen.output_tokens) == (4500.0, 1800.0, 2250.0)
    assert (seen.length_samples, seen.prompt_length_sum, seen.output_length_sum) == (45.0, 4050.0, 2025.0)
    assert (seen.preemptions, seen.ttft_count, seen.tpot_count) == (9.0, 45.0, 45.0)
    assert (seen.e2e_count, seen.e2e_within) == (45.0, 36.0)
    assert seen.tpot_typical_seconds == pytest.approx(0.02)
    assert (seen.running, seen.waiting, seen.in_flight_growth, seen.kv_usage) == (7.0, 2.0, 6.0, 0.25)


async def test_older_names_are_understood(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(
        times,
        gpu_cache_usage_perc=lambda _: 0.5,
        gpu_prefix_cache_hits_total=steady(40.0),
        time_per_output_token_seconds_count=steady(20.0),
        time_per_output_token_seconds_sum=lambda at: 0.4 * (at - LONG_AGO),
    )
    engine.add("time_per_output_token_seconds_bucket", times, steady(10.0), le="0.03")
    seen = on_h100(await reader.observe(tsdb, ready("chat-0")))
    assert (seen.kv_usage, seen.cached_prompt_tokens) == (0.5, 1800.0)
    assert (seen.tpot_count, seen.tpot_within) == (900.0, 450.0)


@pytest.mark.parametrize("spelling", ["1", "1.0"])
async def test_an_edge_is_found_however_it_is_spelt(reader: Reader, spelling: str) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(times, time_to_first_token_seconds_count=steady(10.0))
    engine.add("time_to_first_token_seconds_bucket", times, steady(9.0), le=spelling)
    slo = dataclasses.replace(SLO, ttft_seconds=1.0)
    seen = on_h100(await reader.observe(tsdb, ready("chat-0"), slo=slo))
    assert (seen.ttft_count, seen.ttft_within) == (450.0, 405.0)


async def test_without_an_edge_on_the_objective_the_nearest_below_bounds_it(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(times, time_to_first_token_seconds_count=steady(10.0))
    for edge, rate in {"0.1": 2.0, "0.25": 5.0, "0.5": 9.0}.items():
        engine.add("time_to_first_token_seconds_bucket", times, steady(rate), le=edge)
    slo = dataclasses.replace(SLO, ttft_seconds=0.45)
    assert on_h100(await reader.observe(tsdb, ready("chat-0"), slo=slo)).ttft_within == 225.0


async def test_accelerators_and_revisions_of_a_service_are_told_apart_and_summed(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for pod, accelerator, rate in (("a", "h100", 1.0), ("b", "h100", 2.0), ("c", "l40s", 4.0)):
        Engine(tsdb, pod, holdfast_accelerator=accelerator).scraped(times, request_success_total=steady(rate))
    Engine(tsdb, "other", holdfast_service="other").scraped(times, request_success_total=steady(99.0))
    Engine(tsdb, "twin", namespace="test").scraped(times, request_success_total=steady(99.0))
    traffic = await reader.observe(tsdb, ready("a"), ready("b"), ready("c", "l40s"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert {name: (seen.finished, seen.engines) for name, seen in traffic.by_accelerator} == {
        "h100": (135.0, 2),
        "l40s": (180.0, 1),
    }


async def test_data_parallel_engines_of_one_pod_are_no_duplicates(reader: Reader) -> None:
    """Case C27."""
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for number in ("0", "1"):
        engine = Engine(tsdb, engine=number)
        engine.scraped(
            times,
            request_success_total=steady(1.0),
            time_to_first_token_seconds_count=steady(1.0),
            running=lambda _: 3.0,
            waiting=lambda _: 1.0,
        )
        engine.add("time_to_first_token_seconds_bucket", times, steady(0.8), le="0.5")
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    seen = on_h100(traffic)
    assert (seen.finished, seen.engines, seen.running, seen.waiting) == (90.0, 1, 6.0, 2.0)
    assert (seen.ttft_count, seen.ttft_within) == (90.0, 72.0)
    assert await reader.open(tsdb).running_by_pod([CHAT], NOW) == {CHAT: {"chat-0": 8.0}}


async def test_the_name_that_a_model_is_served_under_plays_no_part(reader: Reader) -> None:
    """Case C30: engines of a service are found by the labels of their pods, whatever their metrics call the model."""
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for pod, model in (("chat-0", "Qwen/Qwen3-8B"), ("chat-1", "chat-served"), ("other-0", "chat-served")):
        service = "other" if pod == "other-0" else "chat"
        engine = Engine(tsdb, pod, model_name=model, holdfast_service=service)
        engine.scraped(times, request_success_total=steady(1.0), running=lambda _: 2.0)
        adapters = {"running_lora_adapters": "sql,legal", "waiting_lora_adapters": "", "max_lora": "2"}
        engine.add("lora_requests_info", times, constant(NOW), **adapters)
    traffic = await reader.observe(tsdb, ready("chat-0"), ready("chat-1"))
    assert traffic.state is SignalState.FRESH, traffic.detail
    assert (on_h100(traffic).finished, on_h100(traffic).engines, on_h100(traffic).running) == (90.0, 2, 4.0)
    assert await reader.open(tsdb).running_by_pod([CHAT], NOW) == {CHAT: {"chat-0": 2.0, "chat-1": 2.0}}


async def test_an_engine_whose_requests_last_longer_than_the_interval_lacks_no_series(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    still = {"request_success_total": constant(5.0), "time_to_first_token_seconds_count": constant(6.0)}
    Engine(tsdb).scraped(times, generation_tokens_total=steady(30.0), **still)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail


async def test_engines_scraped_twice_are_named_and_do_not_double_the_load(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for job in ("pods", "podmonitor"):
        Engine(tsdb, job=job).scraped(times, request_success_total=steady(2.0), running=lambda _: 3.0)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.DUPLICATE
    assert (on_h100(traffic).finished, on_h100(traffic).running) == (90.0, 3.0)


async def test_a_ready_replica_that_does_not_report_makes_the_picture_partial(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb).scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    traffic = await reader.observe(tsdb, ready("chat-0"), ready("chat-1"))
    assert (traffic.state, traffic.detail) == (SignalState.PARTIAL, "1 of 2 ready replicas reports no metrics: chat-1")
    assert on_h100(traffic).finished == 90.0


async def test_samples_older_than_three_scrapes_are_stale(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb).scraped(scrapes(NOW - 900, NOW - 60), request_success_total=steady(2.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.STALE
    assert traffic.sample_age_seconds == pytest.approx(60.0, abs=SCRAPE)


async def test_no_series_is_absent(reader: Reader) -> None:
    tsdb = Tsdb()
    Engine(tsdb, "x", namespace="elsewhere").scraped(scrapes(NOW - 900, NOW))
    assert (await reader.observe(tsdb, ready("chat-0"))).state is SignalState.ABSENT


@pytest.mark.parametrize("label", ["holdfast_service", "holdfast_accelerator", "namespace", "pod"])
async def test_the_label_that_engines_lack_is_named(reader: Reader, label: str) -> None:
    tsdb = Tsdb()
    Engine(tsdb, **{label: ""}).scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert not traffic.fresh
    assert f"label {label}" in traffic.detail


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("back", [1, 3], ids=["newest", "oldest"])
async def test_nan_and_infinity_at_either_end_of_the_interval_are_named(
    reader: Reader, nonsense: float, back: int
) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    at_fault = times[-back]
    Engine(tsdb).scraped(
        times, request_success_total=lambda at: nonsense if at == at_fault else math.floor(at - LONG_AGO)
    )
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert (traffic.state, on_h100(traffic).finished) == (SignalState.INVALID, 0.0)
    assert "finished" in traffic.detail


async def test_a_gauge_that_is_no_number_is_named(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    Engine(tsdb).scraped(times, kv_cache_usage_perc=lambda _: math.nan, waiting=lambda _: -1.0)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.INVALID
    assert traffic.detail == "NaN, infinite or negative: kv_usage, num_requests_waiting"


async def test_quantiles_and_lengths_arrive_with_the_first_ticks(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(times)
    for edge, rate in {"0.1": 5.0, "0.5": 9.0, "1.0": 10.0, "+Inf": 10.0}.items():
        engine.add("time_to_first_token_seconds_bucket", times, steady(rate), le=edge)
    for edge, rate in {"0.01": 0.0, "0.02": 10.0, "+Inf": 10.0}.items():
        engine.add("request_time_per_output_token_seconds_bucket", times, steady(rate), le=edge)
    for edge, rate in {"100": 0.0, "200": 4.0, "500": 5.0, "+Inf": 5.0}.items():
        engine.add("request_prompt_tokens_bucket", times, steady(rate), le=edge)
    traffic = await reader.observe(tsdb, ready("chat-0"), settle=True)
    assert traffic.ttft.p50_seconds == pytest.approx(0.1, rel=0.01)
    assert traffic.ttft.p95_seconds == pytest.approx(0.75, rel=0.01)
    assert traffic.tpot.p50_seconds == pytest.approx(0.015, rel=0.01)
    assert traffic.prompt_lengths.edges_tokens == (100.0, 200.0, 500.0, math.inf)
    shares = [count / traffic.prompt_lengths.cumulative[-1] for count in traffic.prompt_lengths.cumulative]
    assert shares == pytest.approx([0.0, 0.8, 1.0, 1.0], abs=0.01)
    assert traffic.output_lengths.edges_tokens == ()


async def test_quantiles_of_a_service_without_requests_are_unknown(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    engine = Engine(tsdb)
    engine.scraped(times)
    for edge in ("0.1", "0.5", "+Inf"):
        engine.add("time_to_first_token_seconds_bucket", times, lambda _: 0.0, le=edge)
    traffic = await reader.observe(tsdb, ready("chat-0"), settle=True)
    assert traffic.fresh
    assert traffic.ttft.p95_seconds is None


async def test_running_by_pod_counts_what_is_in_flight_once(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 900, NOW)
    for job in ("pods", "podmonitor"):
        Engine(tsdb, "busy", job=job).scraped(times, running=lambda _: 3.0, waiting=lambda _: 2.0)
    Engine(tsdb, "idle").scraped(times)
    Engine(tsdb, "other", holdfast_service="chat2").scraped(times, running=lambda _: 9.0)
    running = await reader.open(tsdb).running_by_pod([CHAT], NOW)
    assert running == {CHAT: {"busy": 5.0, "idle": 0.0}}


async def test_history_reads_the_window_back_oldest_first_and_closer_where_it_is_recent(reader: Reader) -> None:
    tsdb, times = Tsdb(), scrapes(NOW - 5 * 3600.0, NOW)
    engine = Engine(tsdb, born_at=NOW - 6 * 3600.0)
    engine.scraped(times, request_success_total=steady(2.0))
    engine.add("request_success_total", times, steady(0.1), finished_reason="abort")
    engine.add("admission_rejections_total", times, steady(0.5))
    engine.add("time_to_first_token_seconds_bucket", times, steady(1.9), le="0.5")
    engine.add("request_time_per_output_token_seconds_bucket", times, steady(1.8), le="0.03")
    slo = dataclasses.replace(SLO, window_seconds=4 * 3600.0)
    history = (await reader.open(tsdb).history([TrafficRequest(CHAT, slo)], NOW))[CHAT].samples
    assert [sample.at for sample in history] == sorted(sample.at for sample in history)
    assert sum(sample.interval_seconds for sample in history) == pytest.approx(4 * 3600.0)
    steps = [sample.interval_seconds for sample in history]
    assert steps == 12 * [900.0] + 45 * [60.0] + 30 * [30.0]
    for sample in history:
        assert sample.arrivals / sample.interval_seconds == pytest.approx(2.6, rel=0.05)
        assert sample.good / sample.interval_seconds == pytest.approx(1.7, rel=0.05)
        assert sample.bad / sample.interval_seconds == pytest.approx(0.8, rel=0.1)


async def test_history_reads_back_what_activators_counted_over_their_restarts(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, first, last in (("old", NOW - 3000.0, NOW - 1500.0), ("new", NOW - 1500.0, NOW)):
        times = scrapes(first, last)
        labels = {"namespace": "prod", "holdfast_service": "chat", "pod": f"chat-activator-{pod}"}
        woken = times[0] + 600.0
        for outcome, many in (("forwarded", 10.0), ("gone", 2.0)):
            for le, count in (("0.5", 0.0), ("60.0", many), ("+Inf", many)):
                points = [(at, count if at >= woken else 0.0) for at in times]
                bucket = labels | {"outcome": outcome, "le": le}
                tsdb.add("holdfast_activator_wait_seconds_bucket", bucket, points)
        away = [(at, 3.0 if at >= woken else 0.0) for at in times]
        tsdb.add("holdfast_activator_requests_total", labels | {"outcome": "turned_away"}, away)
    history = (await reader.open(tsdb).history([TrafficRequest(CHAT, SLO)], NOW))[CHAT]
    assert history.samples == ()
    assert history.held is not None
    assert sum(held.late for held in history.held) == 20.0
    assert sum(held.lost for held in history.held) == 10.0
    assert sum(held.late > 0.0 for held in history.held) == 2


async def test_a_new_engine_whose_series_differ_by_a_label_of_ours_silences_nobody(reader: Reader) -> None:
    tsdb, lately = Tsdb(), scrapes(NOW - 25, NOW)
    Engine(tsdb).scraped(scrapes(NOW - 900, NOW), request_success_total=steady(2.0))
    odd = Engine(tsdb, "odd-0", born_at=NOW - 30.0, namespace="theirs", holdfast_service="odd")
    odd.scraped(lately)
    for name in ("a", "b"):
        odd.add("prompt_tokens_total", lately, constant(5.0), metric=name)
    traffic = await reader.observe(tsdb, ready("chat-0"))
    assert traffic.state is SignalState.FRESH, traffic.detail
