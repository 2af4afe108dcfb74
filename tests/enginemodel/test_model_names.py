"""What the names of models say about their shape and their weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import EngineFacts
from holdfast.enginemodel.catalog import GIB, MODELS, find_model, guess_model
from holdfast.enginemodel.modelnames import known_row, model_name
from holdfast.enginemodel.prior import MEMORY_UTILIZATION, PriorSource, engine_prior
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.shapes import AcceleratorShape, ModelShape
from holdfast.enginemodel.steptable import step_tables

GPU = AcceleratorShape("test", 80e9, 2e12, 1e15)


def known(uri: str, quantization: str | None = None, kv_cache_dtype: str | None = None) -> ModelShape:
    found = find_model(uri, quantization, kv_cache_dtype)
    assert found is not None
    return found


def test_every_row_is_found_by_its_own_name() -> None:
    assert [shape.name for _, shape in MODELS if known(shape.name).name != shape.name] == []


@pytest.mark.parametrize(
    ("uri", "row"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-ai/DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "meta-llama/Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-8B"),
        ("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", "deepseek-ai/DeepSeek-V2-Lite"),
        ("moonshotai/Kimi-K2-Instruct-0905", "moonshotai/Kimi-K2"),
        ("moonshotai/Kimi-VL-A3B-Thinking", "moonshotai/Moonlight-16B-A3B"),
        ("zai-org/GLM-4.6-FP8", "zai-org/GLM-4.5"),
        ("zai-org/GLM-4.5-Air", "zai-org/GLM-4.5-Air"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-30B-A3B"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Scout-17B-16E"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("google/gemma-3-12b-it", "google/gemma-3-12b"),
        ("microsoft/phi-4", "microsoft/phi-4"),
        ("microsoft/Phi-4-reasoning-plus", "microsoft/phi-4"),
        ("microsoft/Phi-4-mini-instruct", "microsoft/Phi-4-mini"),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistralai/Mistral-Small-24B"),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("pvc://models/llama-3-1-8b/v3", "meta-llama/Llama-3.1-8B"),
        ("/cache/hub/models--Qwen--Qwen3-14B/snapshots/40c069824f4251a91eefaf281ebe4c544efd3e18", "Qwen/Qwen3-14B"),
        ("oci://registry.example:5000/models/qwen3-8b:awq", "Qwen/Qwen3-8B"),
        ("oci://registry.example/qwen3-8b@sha256:3f4a", "Qwen/Qwen3-8B"),
    ],
)
def test_a_name_leads_to_the_row_of_its_family_and_size(uri: str, row: str) -> None:
    assert known(uri).name == row


@pytest.mark.parametrize(
    "uri",
    [
        "microsoft/Phi-4-multimodal-instruct",
        "microsoft/Phi-4-mini-flash-reasoning",
        "Qwen/Qwen3-Embedding-8B",
        "Qwen/Qwen3-8B-Reranker",
        "Qwen/Qwen3-80B",
        "nvidia/Llama-3.1-Minitron-4B-Width-Base",
        "acme/Llama-3.1-8B-pruned-4B",
        "acme/EAGLE3-Llama-3.1-8B",
        "acme/tiny-random-Llama-3-8B",
        "cerebras/Qwen3-Coder-REAP-25B-A3B",
        "zai-org/GLM-4.6V-Flash",
        "google/gemma-3n-E4B-it",
        "moonshotai/Kimi-K2.9",
        "mistralai/Mistral-Large-3-675B-Instruct-2512",
        "pvc://qwen3-8b/model",
        "pvc://models/tiny",
        "acme/notqwen3-8b",
        "",
    ],
)
def test_a_relative_of_another_shape_is_unknown(uri: str) -> None:
    assert find_model(uri) is None
    assert engine_prior(uri, "h100").source is PriorSource.UNKNOWN


@pytest.mark.parametrize(
    ("uri", "quantization", "gigabytes"),
    [
        ("Qwen/Qwen3-8B-AWQ", None, 6.1),
        ("Qwen/Qwen3-8B-FP8", None, 9.4),
        ("Qwen/Qwen3-8B", "fp8", 9.4),
        ("Qwen/Qwen3-8B", "bitsandbytes", 6.1),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", None, 5.0),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", None, 39.8),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16", "compressed-tensors", 39.8),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", None, 72.6),
        ("acme/Llama-3.3-70B-Instruct-GPTQ-Int8", "gptq", 72.6),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", None, 42.7),
        ("deepseek-ai/DeepSeek-V3", "fp8", 671.0),
        ("unsloth/DeepSeek-V3-bf16", None, 1342.0),
        ("moonshotai/Kimi-K2-Thinking", "compressed-tensors", 594.0),
        ("unsloth/gpt-oss-20b-BF16", None, 41.8),
    ],
)
def test_the_weights_have_the_size_of_the_checkpoint(uri: str, quantization: str | None, gigabytes: float) -> None:
    shape = known(uri, quantization)
    assert shape.parameters * shape.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.08)


REPORTED = ["awq_marlin", "fp8", "gptq_marlin", "compressed-tensors", "modelopt_fp4", "bitsandbytes", "gguf", "novel"]
"""Methods as vLLM names them in model_config.quantization."""


@pytest.mark.parametrize("reported", REPORTED)
@pytest.mark.parametrize("uri", ["Qwen/Qwen3-8B", "acme/Qwen3-8B-bf16"])
def test_the_table_of_16_bit_weights_is_never_used_for_an_engine_that_reports_quantized_ones(
    uri: str, reported: str
) -> None:
    prior = engine_prior(uri, "h100", facts=EngineFacts(quantization=reported))
    assert prior.table is None
    assert prior.law.c0 < 0.7 * engine_prior(uri, "h100").law.c0


@pytest.mark.parametrize("uri", ["Qwen/Qwen3-8B-AWQ", "acme/Qwen3-8B-quantized"])
def test_an_engine_that_reports_no_quantization_has_the_table_whatever_the_name(uri: str) -> None:
    assert engine_prior(uri, "h100", quantization="awq").source is not PriorSource.TABLE
    unquantized = engine_prior(uri, "h100", quantization="awq", facts=EngineFacts(quantization="none"))
    assert unquantized == engine_prior("Qwen/Qwen3-8B", "h100")
    assert unquantized.source is PriorSource.TABLE
    wide = find_model(uri, facts=EngineFacts(quantization="none", dtype="float32"))
    assert wide is not None
    assert (wide.weight_bytes, wide.table) == (4.0, None)


@pytest.mark.parametrize(
    ("uri", "quantization", "reported", "gigabytes"),
    [
        ("Qwen/Qwen3-8B", None, "awq_marlin", 6.1),
        ("Qwen/Qwen3-8B-FP8", "fp8", "awq", 6.1),
        ("Qwen/Qwen3-8B-AWQ", None, "fp8", 9.4),
        ("acme/Llama-3.3-70B-Instruct-GPTQ-Int8", None, "gptq_marlin", 72.6),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", None, "compressed-tensors", 72.6),
        ("deepseek-ai/DeepSeek-V3", None, "fp8", 671.0),
        ("deepseek-ai/DeepSeek-V3", None, "none", 1342.0),
        ("moonshotai/Kimi-K2-Thinking", None, "compressed-tensors", 594.0),
    ],
)
def test_what_the_engine_reports_about_its_weights_comes_before_name_and_spec(
    uri: str, quantization: str | None, reported: str, gigabytes: float
) -> None:
    shape = find_model(uri, quantization, facts=EngineFacts(quantization=reported))
    assert shape is not None
    assert shape.parameters * shape.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.08)


def test_the_cache_format_and_the_parallel_sizes_that_engines_report_come_first() -> None:
    halved = engine_prior("Qwen/Qwen3-8B", "h100", kv_cache_dtype="auto", facts=EngineFacts(kv_dtype="fp8_e4m3"))
    assert halved == engine_prior("Qwen/Qwen3-8B", "h100", kv_cache_dtype="fp8")
    assert engine_prior("Qwen/Qwen3-8B", "h100", facts=EngineFacts(kv_dtype="auto")) == engine_prior(
        "Qwen/Qwen3-8B", "h100"
    )
    four = engine_prior("Qwen/Qwen3-32B", "h100", None, 4)
    assert engine_prior("Qwen/Qwen3-32B", "h100", None, 1, facts=EngineFacts(parallel_gpus=4)) == four


@pytest.mark.parametrize("suffix", ["AWQ", "FP8", "GPTQ-Int4", "w8a8", "bnb-4bit", "NVFP4", "MXFP4", "Q5_K_M", "int4"])
def test_the_table_of_16_bit_weights_is_never_used_for_quantized_ones(suffix: str) -> None:
    prior = engine_prior(f"Qwen/Qwen3-8B-{suffix}", "h100")
    assert (prior.source, prior.table) == (PriorSource.ROOFLINE, None)
    assert engine_prior("Qwen/Qwen3-8B", "h100").source is PriorSource.TABLE


@pytest.mark.parametrize("method", ["awq", "gptq_marlin", "fp8", "bitsandbytes", "modelopt_fp4"])
def test_a_method_in_the_spec_quantizes_as_a_name_does(method: str) -> None:
    prior = engine_prior("Qwen/Qwen3-8B", "h100", None, 1, method)
    assert (prior.source, prior.table) == (PriorSource.ROOFLINE, None)


@pytest.mark.parametrize(
    ("uri", "method"),
    [
        ("Qwen/Qwen3-8B-GGUF", None),
        ("Qwen/Qwen3-8B", "compressed-tensors"),
        ("Qwen/Qwen3-8B", "new"),
        ("unsloth/DeepSeek-R1-GGUF", None),
        ("unsloth/DeepSeek-R1-GGUF:IQ1_S", "gguf"),
        ("acme/gpt-oss-20b-GGUF", "gguf"),
    ],
)
def test_weights_of_an_unknown_number_of_bits_are_unknown(uri: str, method: str | None) -> None:
    assert find_model(uri, method) is None
    assert engine_prior(uri, "h100", None, 1, method).unknown_model


def test_a_quantized_model_uses_the_table_of_its_own_format() -> None:
    assert known("Qwen/Qwen3-32B", "fp8").table == "Qwen/Qwen3-32B-FP8"
    assert known("nvidia/Llama-3.1-70B-Instruct-FP8").table == "nvidia/Llama-3.1-70B-Instruct-FP8"
    # This table was made with an FP8 cache, which vLLM has for another checkpoint only if it is asked for.
    assert known("RedHatAI/Llama-3.1-70B-Instruct-FP8-dynamic").table is None
    assert known("RedHatAI/Llama-3.1-70B-Instruct-FP8-dynamic", None, "fp8").table is not None


def test_checkpoints_of_nvidia_ask_for_an_fp8_cache_except_with_latent_attention() -> None:
    assert known("nvidia/Qwen3-32B-NVFP4").kv_element_bytes == 1.0
    assert known("nvidia/Qwen3-32B-NVFP4", None, "bfloat16").kv_element_bytes == 2.0
    assert known("nvidia/DeepSeek-V3-0324-NVFP4").kv_element_bytes == 2.0
    assert known("RedHatAI/Qwen3-32B-NVFP4").kv_element_bytes == 2.0


def test_an_fp8_cache_halves_its_bytes_and_gives_up_the_table_of_a_16_bit_one() -> None:
    usual, small = known("Qwen/Qwen3-8B"), known("Qwen/Qwen3-8B", None, "fp8_e4m3")
    assert small.kv_bytes_per_token == usual.kv_bytes_per_token / 2
    assert (known("Qwen/Qwen3-8B", None, "auto"), small.table) == (usual, None)


@pytest.mark.parametrize("name", sorted({table.model for table in step_tables().values()} - {"Qwen/Qwen3-32B-FP8"}))
def test_weights_and_cache_of_a_shape_are_those_of_its_table(name: str) -> None:
    shape, table = known(name), next(each for each in step_tables().values() if each.model == name)
    weights = table.weights_bytes * table.tensor_parallel
    cache = table.kv_bytes_per_token * table.tensor_parallel
    assert shape.parameters * shape.weight_bytes == pytest.approx(weights, rel=0.02)
    assert shape.kv_bytes_per_token == pytest.approx(cache, rel=0.1)


def test_a_table_made_with_a_smaller_cache_does_not_make_room_for_more_tokens() -> None:
    quantized, usual = engine_prior("Qwen/Qwen3-32B-FP8", "h200"), known("Qwen/Qwen3-32B")
    free = 140.4 * GIB * MEMORY_UTILIZATION - step_tables()["Qwen/Qwen3-32B-FP8", "h200_sxm", 1].weights_bytes
    assert quantized.kv_tokens <= free / usual.kv_bytes_per_token


def test_latent_attention_caches_576_elements_per_layer_on_every_gpu() -> None:
    for uri in ("deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"):
        shape = known(uri)
        assert shape.kv_bytes_per_token == 61 * 576 * 2
        assert [shape.kv_bytes_per_gpu(gpus) for gpus in (1, 8, 16)] == [61 * 576 * 2] * 3


def test_gpus_that_copy_the_cache_do_not_read_it_faster() -> None:
    latent, heads = known("deepseek-ai/DeepSeek-V3"), known("Qwen/Qwen3-30B-A3B")
    assert roofline_law(latent, GPU, 8).c3 == pytest.approx(roofline_law(latent, GPU, 1).c3)
    assert roofline_law(heads, GPU, 4).c3 == pytest.approx(roofline_law(heads, GPU, 1).c3 / 4)
    assert roofline_law(heads, GPU, 8).c3 == pytest.approx(roofline_law(heads, GPU, 4).c3)


def test_a_mixture_computes_its_active_parameters_only() -> None:
    shape = known("Qwen/Qwen3-235B-A22B")
    assert (shape.parameters, shape.active_parameters) == (235.1e9, 22.2e9)


def test_deepseek_fits_on_eight_h200_and_not_on_one() -> None:
    assert engine_prior("deepseek-ai/DeepSeek-V3", "h200", None, 1).kv_tokens == 0
    assert 600_000 < engine_prior("deepseek-ai/DeepSeek-V3", "h200", None, 8).kv_tokens < 800_000


def test_llama_70b_with_4_bit_weights_fits_on_one_h100() -> None:
    prior = engine_prior("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "h100")
    assert 80_000 < prior.kv_tokens < 120_000


def test_a_guess_by_size_counts_the_bits_of_the_weights() -> None:
    sizes = {}
    for uri in ("acme/Chat-13B", "acme/Chat-13B-AWQ", "acme/Chat-13B-GGUF"):
        shape = guess_model(uri)
        assert shape is not None
        sizes[uri] = shape.weight_bytes
    assert list(sizes.values()) == [2.0, pytest.approx(0.53, abs=0.01), 1.0]


@given(st.text(max_size=60))
def test_no_text_is_a_problem_and_none_matches_twice_as_another_model(text: str) -> None:
    name = model_name(text)
    row = known_row(name)
    assert row is None or find_model(f"{text}-embedding") is None
    guess_model(text)
