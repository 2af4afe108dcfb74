"""What engines say of themselves, asked of a real Prometheus: see test_promql."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.tsdb import CHAT, LONG_AGO, NOW, SLO, Engine, Reader, Tsdb, constant, ready, scrapes, steady
from holdfast.domain.engine import EngineFacts
from holdfast.domain.signals import Concurrency, Traffic
from holdfast.observe.signals.traffic import TrafficRequest

pytestmark = pytest.mark.cluster

TIMES = scrapes(NOW - 900, NOW)
GPU_CACHE = {"block_size": "16", "num_gpu_blocks": "1000", "gpu_memory_utilization": "0.92", "cache_dtype": "auto"}


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    await reader.close()


def engine(tsdb: Tsdb, pod: str, times: list[float] = TIMES, /, **labels: str) -> Engine:
    """An engine with the labels of a KV cache."""
    found = Engine(tsdb, pod, LONG_AGO, holdfast_accelerator=labels.pop("holdfast_accelerator", "h100"))
    found.scraped(times, request_success_total=steady(2.0))
    # Prometheus renames a label of the metric that the target has too.
    found.add("cache_config_info", times, constant(1.0), **GPU_CACHE | {"exported_pod": "x", "metric": "y"} | labels)
    return found


async def told(reader: Reader, tsdb: Tsdb) -> Traffic:
    """What is known after all slow queries had their turn."""
    source, request = reader.open(tsdb), TrafficRequest(CHAT, SLO, (ready("chat-0"),))
    for _ in range(3):
        await source.observe([request], NOW)
        await source.settle()
    return (await source.observe([request], NOW))[CHAT]


async def facts(reader: Reader, tsdb: Tsdb) -> dict[str, EngineFacts]:
    return dict((await told(reader, tsdb)).facts)


async def test_requests_at_once_are_those_of_all_engines_in_quantiles_of_the_last_ten_minutes(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, waiting in (("chat-0", 8.0), ("chat-1", 0.0)):
        queue = {"waiting": lambda at, most=waiting: most if at > NOW - 90 else 0.0}
        Engine(tsdb, pod, LONG_AGO).scraped(TIMES, request_success_total=steady(2.0), running=constant(3.0), **queue)
    assert (await told(reader, tsdb)).concurrency == Concurrency(6.0, 14.0, 14.0)


async def test_requests_at_once_are_unknown_where_no_engine_reports_any(reader: Reader) -> None:
    assert (await told(reader, Tsdb())).concurrency == Concurrency()


async def test_the_least_kv_cache_of_each_accelerator_counts(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0")
    engine(tsdb, "chat-1", num_gpu_blocks="900")
    engine(tsdb, "chat-2", num_gpu_blocks="None")
    engine(tsdb, "chat-3", num_gpu_blocks="5000", kv_cache_size_tokens="70000", holdfast_accelerator="l40s")
    assert await facts(reader, tsdb) == {
        "h100": EngineFacts(kv_tokens=14_400.0, block_tokens=16.0, memory_share=0.92, kv_dtype="auto"),
        "l40s": EngineFacts(kv_tokens=70_000.0, block_tokens=16.0, memory_share=0.92, kv_dtype="auto"),
    }


async def test_data_parallel_engines_of_a_pod_share_its_blocks(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod in ("chat-0", "chat-1"):
        for rank in ("0", "1"):
            engine(tsdb, pod, engine=rank)
    assert (await facts(reader, tsdb))["h100"].kv_tokens == 8_000.0


async def test_acceptance_is_that_of_all_drafts_of_an_accelerator(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, accepted, drafts in (("chat-0", 24.0, 10.0), ("chat-1", 0.0, 2.0)):
        one = engine(tsdb, pod)
        one.add("spec_decode_num_accepted_tokens_total", TIMES, steady(accepted))
        one.add("spec_decode_num_drafts_total", TIMES, steady(drafts))
    engine(tsdb, "chat-2", holdfast_accelerator="l40s")
    found = await facts(reader, tsdb)
    assert found["h100"].accepted_drafts == pytest.approx(2.0)
    assert found["l40s"].accepted_drafts is None


async def test_an_engine_that_is_gone_says_nothing_more(reader: Reader) -> None:
    tsdb = Tsdb()
    engine(tsdb, "chat-0")
    engine(tsdb, "chat-1", scrapes(NOW - 900, NOW - 400), num_gpu_blocks="10")
    assert (await facts(reader, tsdb))["h100"].kv_tokens == 16_000.0


async def test_the_plugin_tells_how_most_engines_were_started(reader: Reader) -> None:
    tsdb = Tsdb()
    for pod, length in (("chat-0", "4096"), ("chat-1", "8192"), ("chat-2", "8192")):
        labels = {"max_model_len": length, "dtype": "bfloat16", "tensor_parallel": "2", "pipeline_parallel": "1"}
        engine(tsdb, pod).add("engine_info", TIMES, constant(1.0), of="holdfast", quantization="fp8", **labels)
    found = (await facts(reader, tsdb))["h100"]
    assert (found.max_model_len, found.dtype, found.quantization, found.parallel_gpus, found.graph_edge_tokens) == (
        4096,
        "bfloat16",
        "fp8",
        2,
        None,
    )
    assert found.kv_tokens == 16_000.0
