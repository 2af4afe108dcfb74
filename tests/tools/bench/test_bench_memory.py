"""The KV cache part by part beside what the engine tells."""

from __future__ import annotations

import math

import pytest

from holdfast.enginemodel.catalog import find_accelerator, find_model
from holdfast.tools.bench.figures import memory
from holdfast.tools.bench.figures.engine import Reported, read_sample, reported
from tests.shared_data import shared_data

USAGE = 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
CACHE = 'vllm:cache_config_info{block_size="16",gpu_memory_utilization="%s",num_gpu_blocks="%s"} 1.0\n'
INFO = 'holdfast:engine_info{engine="0",tensor_parallel="%s"} 1.0\n'
MODEL, H200 = find_model("Qwen/Qwen3-8B"), find_accelerator("h200")


def _of(text: str) -> Reported:
    sample = read_sample(USAGE + text)
    assert sample is not None
    found = reported([sample])
    assert found is not None
    return found


def test_the_parts_of_a_real_engine_stand_beside_its_own_tokens() -> None:
    engine = _of(CACHE % ("0.92", 802_880 // 16) + INFO % 1)
    told = memory.told(engine, MODEL, H200)
    assert told.startswith("0.92 x 139.8 GiB less 15.3 weights, ")
    assert " activations, 0.598 graphs = " in told
    assert told.endswith("% off the engine's own figure)")
    assert memory.parts(engine, MODEL, H200).kv_tokens == pytest.approx(802_880, rel=0.02)  # type: ignore[arg-type]


def test_gpus_that_share_the_layers_share_weights_and_cache() -> None:
    alone, both = (_of(CACHE % ("0.92", 1000) + INFO % gpus) for gpus in (1, 2))
    one, two = (memory.parts(engine, MODEL, H200) for engine in (alone, both))  # type: ignore[arg-type]
    assert (2 * two.weights_bytes, 2 * two.token_bytes) == (one.weights_bytes, one.token_bytes)


def test_how_many_gpus_share_the_layers_is_not_known_without_the_plugin_and_that_is_said() -> None:
    assert memory.told(_of(CACHE % ("0.92", 1000)), MODEL, H200).startswith(
        "on one GPU, which only the plugin would say"
    )


def test_nothing_is_said_where_stages_divide_the_layers() -> None:
    staged = INFO % 1 + 'holdfast:engine_info{engine="0",tensor_parallel="1",pipeline_parallel="2"} 1.0\n'
    assert memory.told(_of(CACHE % ("0.92", 1000) + staged), MODEL, H200) == ""


def test_tokens_of_several_engines_are_compared_one_by_one() -> None:
    line = CACHE % ("0.92", 50_180)
    assert memory.told(_of(line), MODEL, H200) == memory.told(_of(line + line), MODEL, H200)


def test_an_engine_that_was_told_the_bytes_of_its_cache_is_taken_at_its_word() -> None:
    engine = _of(
        'vllm:cache_config_info{kv_cache_memory_bytes="1073741824",num_gpu_blocks="455",block_size="16"} 1.0\n'
        + INFO % 1
    )
    assert memory.told(engine, MODEL, None) == (
        "1 GiB by --kv-cache-memory-bytes / 144 KiB a token = 7,282 tokens (+0.0 % off the engine's own figure)"
    )


def test_a_real_engine_on_cpus_was_told_the_bytes_of_its_cache() -> None:
    sample = read_sample(shared_data("vllm_metrics", "vllm-0.32.0-cpu.prom").read_text())
    assert sample is not None
    assert (sample.kv_bytes, sample.memory_share, sample.kv_tokens) == (2.0**30, 0.92, 2_097_152.0)


@pytest.mark.parametrize("share", ["None", "", "NaN", "-1", "0", "1e999", "x"])
def test_a_share_that_makes_no_sense_is_not_known(share: str) -> None:
    engine = _of(CACHE % (share, 1000))
    assert math.isnan(engine.memory_share)
    assert memory.told(engine, MODEL, H200) == ""


def test_without_engine_model_or_accelerator_there_are_no_parts() -> None:
    engine = _of(CACHE % ("0.92", 1000))
    lacking = ((None, MODEL, H200), (engine, None, H200), (engine, MODEL, None))
    assert [memory.told(*given) for given in lacking] == [""] * 3
