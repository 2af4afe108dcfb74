"""What steps compute and move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.enginemodel.catalog import (
    ACCELERATORS,
    MODELS,
    AcceleratorShape,
    ModelShape,
    find_accelerator,
    find_model,
)
from holdfast.enginemodel.prior import assumed_model
from holdfast.enginemodel.roofline import roofline_law, step_work

SMALL = ModelShape("small", 2, 64, heads=4, kv_heads=2, head_dim=16, parameters=1000.0, active_parameters=400.0)
KV_BYTES = 2 * 2 * 2 * 16 * 2

shapes = st.sampled_from([shape for _, shape in MODELS])
chunk_lists = st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 16_384)), max_size=3)


def test_decodes_read_the_weights_once_and_the_cache_of_each() -> None:
    work = step_work(SMALL, 1, (), decodes=3, decode_kv_tokens=50)
    assert work.flops == 2 * 400 * 3 + 4 * 2 * 4 * 16 * 50
    assert work.read_bytes == 1000 * 2 + 50 * KV_BYTES
    assert work.written_bytes == 3 * KV_BYTES


def test_a_chunk_attends_to_what_is_before_it_and_to_itself() -> None:
    work = step_work(SMALL, 1, [(10, 30)], decodes=0, decode_kv_tokens=0)
    assert work.flops == 2 * 400 * 10 + 4 * 2 * 4 * 16 * 10 * 40
    assert work.read_bytes == 1000 * 2 + 40 * KV_BYTES
    assert work.written_bytes == 10 * KV_BYTES


@pytest.mark.parametrize(("decodes", "read"), [(1, 400), (2, 800), (3, 1000), (1000, 1000)])
def test_a_mixture_of_experts_reads_no_expert_that_no_token_asks_for(decodes: int, read: int) -> None:
    assert step_work(SMALL, 1, (), decodes, 0).read_bytes == read * 2


def test_a_step_of_nothing_is_no_work() -> None:
    work = step_work(SMALL, 1, (), 0, 0)
    assert (work.flops, work.read_bytes, work.written_bytes) == (0.0, 0.0, 0.0)


def test_gpus_share_the_work_but_hold_at_least_one_head_of_the_cache_each() -> None:
    one, four = (step_work(SMALL, gpus, [(10, 0)], 5, 100) for gpus in (1, 4))
    assert four.flops == one.flops / 4
    assert four.written_bytes == one.written_bytes / 2
    assert four.read_bytes == 1000 * 2 / 4 + (one.read_bytes - 1000 * 2) / 2


@given(shapes, st.sampled_from([shape for _, shape in ACCELERATORS]), chunk_lists, st.integers(0, 256))
def test_no_step_of_the_roofline_does_more_than_the_data_sheet_allows(
    model: ModelShape, accelerator: AcceleratorShape, chunks: list[tuple[int, int]], decodes: int
) -> None:
    law = roofline_law(model, accelerator)
    work = step_work(model, 1, chunks, decodes, decodes * 1000)
    seconds = law.step_seconds(chunks, decodes, 1000.0)
    assert 0.0 <= work.flops <= 1.000001 * accelerator.peak_flops * seconds


@pytest.mark.parametrize(("chunks", "decodes", "compute_bound"), [([], 1, False), ([(4096, 0)], 0, True)])
def test_lone_decodes_are_bound_by_memory_and_prompts_by_arithmetic(
    chunks: list[tuple[int, int]], decodes: int, compute_bound: bool
) -> None:
    model, accelerator = find_model("Qwen/Qwen3-8B"), find_accelerator("h100")
    assert model is not None
    assert accelerator is not None
    work = step_work(model, 1, chunks, decodes, decodes * 500)
    ridge = accelerator.peak_flops / accelerator.bandwidth
    assert (work.flops / (work.read_bytes + work.written_bytes) > ridge) == compute_bound


def test_the_shape_of_an_unknown_model_follows_the_size_in_its_name() -> None:
    assert assumed_model("Qwen/Qwen3-8B") == find_model("Qwen/Qwen3-8B")
    assert assumed_model("acme/chat-3B").parameters == 3e9
    assert assumed_model("acme/chat").parameters == 8e9
