"""How many tokens of KV cache the memory of a GPU has room for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kv_memory import ERROR_BAR, Report, reports, without
from holdfast.domain.engine import EngineFacts
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import GIB, find_model
from holdfast.enginemodel.memory import EngineMemory, adapter_bytes, captured_sizes
from holdfast.enginemodel.prior import LEAST_KV_TOKENS, engine_prior
from tests.shared_data import shared_data

PRESENT = [each for each in reports() if each.known != "old"]
MEMORY = EngineMemory(80.0 * GIB, 0.92, 16e9, 131_072.0, 32, 4096, 128_256)


ALL = reports()


@pytest.mark.parametrize("left_out", ALL, ids=lambda each: each.name)
def test_each_report_is_predicted_by_the_fit_to_the_others(left_out: Report) -> None:
    assert abs(left_out.error(without(left_out, ALL))) <= ERROR_BAR


@pytest.mark.parametrize("report", PRESENT, ids=lambda each: each.name)
def test_the_prior_of_names_holds_what_such_an_engine_reported(report: Report) -> None:
    prior = engine_prior(report.model, report.gpu, memory_utilization=report.share)
    assert prior.kv_tokens == pytest.approx(report.kv_tokens, rel=ERROR_BAR)


def test_a_small_share_of_a_consumer_gpu_holds_tens_of_thousands_of_tokens() -> None:
    prior = engine_prior("Qwen/Qwen2.5-3B-Instruct", "rtx-5090", memory_utilization=0.3)
    assert 50_000 <= prior.kv_tokens <= 80_000


def test_the_rows_are_what_the_data_say() -> None:
    data = shared_data()
    meta = json.loads((data / "vllm_groundtruth" / "RTX4090_Llama-3.1-8B" / "meta.json").read_text())
    log = (data / "vllm_gpu_h200" / "engine_log_lines.txt").read_text()
    known = {each.gpu: each.kv_tokens for each in PRESENT if each.known == "project"}
    assert known == {"rtx-4090": meta["kv_cache"]["num_kv_tokens"], "h200": 802_880}
    assert f"GPU KV cache size: {known['h200']:,} tokens" in log


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 65_536), st.integers(0, 1024))
def test_more_sequences_or_graphs_never_leave_more_room(fewer: int, more: int, tokens: int, edge: int) -> None:
    fewer, more = sorted((fewer, more))
    small, large = MEMORY.parts(fewer, tokens, edge), MEMORY.parts(more, tokens, edge)
    assert large.kv_tokens <= small.kv_tokens <= MEMORY.parts(fewer, tokens, 0).kv_tokens
    used = small.weights_bytes + small.activation_bytes + small.graph_bytes + small.kv_bytes
    assert used == pytest.approx(small.usable_bytes)


# Of Qwen3-8B: hidden size, queries, keys or values, inner size of the MLP, layers, vocabulary.
HIDDEN, QUERIES, KEYS, INNER, LAYERS, WORDS = 4096, 4096, 1024, 12_288, 36, 151_936


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_adapters_take_a_row_and_a_column_of_each_projection_and_of_the_embeddings_for_each_rank(gpus: int) -> None:
    model = find_model("Qwen/Qwen3-8B")
    assert model is not None
    numbers = 7 * HIDDEN + (2 * QUERIES + 2 * KEYS + 3 * INNER) / gpus
    expected = 32 * (LAYERS * numbers + 2 * (WORDS + HIDDEN)) * 2.0
    assert adapter_bytes(model, gpus, 32) == pytest.approx(expected, rel=0.01)
    assert adapter_bytes(model, gpus, 0) == 0.0


def test_room_for_adapters_is_taken_from_the_cache_unless_engines_report_theirs() -> None:
    plain, with_adapters = (engine_prior("Qwen/Qwen3-8B", "h100", adapter_ranks=ranks) for ranks in (0, 8 * 64))
    taken = (plain.kv_tokens - with_adapters.kv_tokens) * plain.memory.token_bytes
    layer = 7 * HIDDEN + 2 * QUERIES + 2 * KEYS + 3 * INNER
    assert taken == pytest.approx(512 * 2.0 * (LAYERS * layer + 2 * (WORDS + HIDDEN)), rel=0.01)
    told = engine_prior("Qwen/Qwen3-8B", "h100", adapter_ranks=512, facts=EngineFacts(kv_tokens=123_456.0))
    assert told.kv_tokens == 123_456
    assert engine_prior("Qwen/Qwen3-8B", "h100", adapter_ranks=512 * 64).kv_tokens == 0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
def test_weights_that_do_not_fit_leave_no_cache(share: float) -> None:
    parts = EngineMemory(80.0 * GIB, share, 16e9, 131_072.0, 32, 4096, 128_256).parts(256, 2048, 512)
    assert (parts.kv_bytes, parts.kv_tokens) == (0.0, 0)


@pytest.mark.parametrize(("edge", "sizes"), [(0, 0), (1, 1), (4, 3), (8, 4), (256, 35), (512, 51), (1024, 83)])
def test_as_many_step_sizes_are_captured_as_vllm_lists(edge: int, sizes: int) -> None:
    assert captured_sizes(edge) == sizes


def test_what_engines_report_is_not_computed_again_for_other_limits() -> None:
    few = BatchLimits(16, 2048)
    told = engine_prior("Qwen/Qwen3-8B", "h100", facts=EngineFacts(kv_tokens=400_000.0))
    assert told.kv_tokens_with(few) == told.kv_tokens == 400_000
    assert engine_prior("Qwen/Qwen3-8B", "h100").kv_tokens_with(few) > engine_prior("Qwen/Qwen3-8B", "h100").kv_tokens


def test_a_guess_holds_a_few_requests_with_any_limits() -> None:
    guess = engine_prior("/models/private", "l4")
    assert guess.kv_tokens_with(BatchLimits(1024, 16_384)) >= LEAST_KV_TOKENS
