"""The figures of a model, derived from its config.json: against the parameters that authors publish, and our rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.engine import EngineFacts
from holdfast.enginemodel.catalog import find_model
from holdfast.enginemodel.modelnames import known_row, model_name
from holdfast.enginemodel.prior import LEAST_KV_TOKENS, PriorSource, engine_prior
from holdfast_engine.law.model_figures import ModelFigures, model_figures


def config(
    layers: int, hidden: int, width: int, heads: tuple[int, int], vocabulary: int, **more: Any
) -> dict[str, Any]:
    """A config.json: layers, hidden size, intermediate size, heads and KV heads, vocabulary."""
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    sizes = dict(zip(names, (layers, hidden, width, *heads), strict=True))
    return {**sizes, "vocab_size": vocabulary, "tie_word_embeddings": False, **more}


def latent(rank: int | None) -> dict[str, Any]:
    named = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
    return {**named, "q_lora_rank": rank}


def experts(count: int, used: int, width: int, **more: Any) -> dict[str, Any]:
    return {"num_experts_per_tok": used, "moe_intermediate_size": width, "num_experts": count, **more}


def routed(count: int, used: int, width: int, shared: int, dense: int) -> dict[str, Any]:
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
    }


def kinds(layers: int, every: int) -> list[str]:
    """Types of layers of which each n-th keeps all tokens."""
    return ["full_attention" if (layer + 1) % every == 0 else "sliding_attention" for layer in range(layers)]


GEMMA = {"model_type": "gemma3_text", "tie_word_embeddings": True, "sliding_window": 1024}
GPT_OSS = {"head_dim": 64, "sliding_window": 128, "experts_per_token": 4}
LLAMA_4 = {"model_type": "llama4_text", "head_dim": 128, "intermediate_size_mlp": 16_384, "num_experts_per_tok": 1}
V2_LITE = {**latent(None), **routed(64, 6, 1408, 2, 1)}

CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B": config(32, 4096, 14_336, (32, 8), 128_256),
    "meta-llama/Llama-3.1-70B": config(80, 8192, 28_672, (64, 8), 128_256),
    "meta-llama/Llama-4-Scout-17B-16E": config(48, 5120, 8192, (40, 8), 202_048, **LLAMA_4, num_local_experts=16),
    "meta-llama/Llama-4-Maverick-17B-128E": config(
        48, 5120, 8192, (40, 8), 202_048, **LLAMA_4, num_local_experts=128, interleave_moe_layer_step=2
    ),
    "Qwen/Qwen2.5-7B": config(28, 3584, 18_944, (28, 4), 152_064, use_sliding_window=False, sliding_window=131_072),
    "Qwen/Qwen3-8B": config(36, 4096, 12_288, (32, 8), 151_936, head_dim=128),
    "Qwen/Qwen3-32B": config(64, 5120, 25_600, (64, 8), 151_936, head_dim=128),
    "Qwen/Qwen3-30B-A3B": config(48, 2048, 6144, (32, 4), 151_936, head_dim=128, **experts(128, 8, 768)),
    "Qwen/Qwen3-235B-A22B": config(94, 4096, 12_288, (64, 4), 151_936, head_dim=128, **experts(128, 8, 1536)),
    "deepseek-ai/DeepSeek-V3": config(
        61, 7168, 18_432, (128, 128), 129_280, **latent(1536), **routed(256, 8, 2048, 1, 3)
    ),
    "deepseek-ai/DeepSeek-V2-Lite": config(27, 2048, 10_944, (16, 16), 102_400, **V2_LITE),
    "zai-org/GLM-4.5-Air": config(46, 4096, 10_944, (96, 8), 151_552, head_dim=128, **routed(128, 8, 1408, 1, 1)),
    "google/gemma-3-12b": config(48, 3840, 15_360, (16, 8), 262_208, head_dim=256, layer_types=kinds(48, 6), **GEMMA),
    "google/gemma-3-27b": config(62, 5376, 21_504, (32, 16), 262_208, head_dim=128, sliding_window_pattern=6, **GEMMA),
    "google/gemma-2-9b": config(
        42, 3584, 14_336, (16, 8), 256_000, head_dim=256, tie_word_embeddings=True, sliding_window=4096
    ),
    "microsoft/phi-4": config(40, 5120, 17_920, (40, 10), 100_352),
    "microsoft/Phi-4-mini": config(32, 3072, 8192, (24, 8), 200_064, tie_word_embeddings=True, sliding_window=262_144),
    "microsoft/Phi-3.5-MoE": config(32, 4096, 6400, (32, 8), 32_064, num_local_experts=16, num_experts_per_tok=2),
    "mistralai/Mistral-7B": config(32, 4096, 14_336, (32, 8), 32_768, sliding_window=None),
    "mistralai/Mistral-Small-24B": config(40, 5120, 32_768, (32, 8), 131_072, head_dim=128),
    "mistralai/Mixtral-8x7B": config(32, 4096, 14_336, (32, 8), 32_000, num_local_experts=8, num_experts_per_tok=2),
    "openai/gpt-oss-20b": config(
        24, 2880, 2880, (64, 8), 201_088, num_local_experts=32, layer_types=kinds(24, 2), **GPT_OSS
    ),
    "openai/gpt-oss-120b": config(
        36, 2880, 2880, (64, 8), 201_088, num_local_experts=128, layer_types=kinds(36, 2), **GPT_OSS
    ),
}

PHI_4 = model_figures(CONFIGS["microsoft/phi-4"])
PRIVATE = "pvc://models/assistant"


@pytest.mark.parametrize("uri", CONFIGS)
def test_the_figures_of_a_configuration_are_those_of_the_shipped_row(uri: str) -> None:
    figures, row = model_figures(CONFIGS[uri]), known_row(model_name(uri))
    assert row is not None
    sizes = (figures.layers, figures.hidden, figures.heads, figures.kv_heads, figures.head_dim, figures.kv_latent)
    assert sizes == (row.layers, row.hidden, row.heads, row.kv_heads, row.head_dim, row.kv_latent)
    # Rows count the encoder of images of Gemma 3 and Llama 4, and round.
    assert figures.parameters == pytest.approx(row.parameters, rel=0.04)
    assert figures.active_parameters == pytest.approx(row.active_parameters, rel=0.08)
    assert figures.embedding_parameters == pytest.approx(row.embedding_parameters)
    assert figures.kv_layers == pytest.approx(row.layers if row.kv_layers is None else row.kv_layers, abs=0.01)


@pytest.mark.parametrize(
    ("uri", "parameters"),
    [
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("microsoft/phi-4", 14_659_507_200),
        ("mistralai/Mixtral-8x7B", 46_702_792_704),
        ("openai/gpt-oss-120b", 116_829_156_672),
    ],
)
def test_parameters_are_those_of_the_published_weights(uri: str, parameters: int) -> None:
    assert model_figures(CONFIGS[uri]).parameters == pytest.approx(parameters, rel=0.0005)


def test_the_text_part_of_a_model_with_images_counts() -> None:
    whole = {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}}
    nested = {**whole, "text_config": CONFIGS["google/gemma-3-12b"]}
    assert model_figures(nested) == model_figures(CONFIGS["google/gemma-3-12b"])


def test_layers_with_linear_attention_cache_nothing() -> None:
    mixed = {**CONFIGS["Qwen/Qwen3-8B"], "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 12}
    assert model_figures(mixed).kv_layers == 12.0
    kimi = {**CONFIGS["Qwen/Qwen3-8B"], "linear_attn_config": {"full_attn_layers": [4, 8, 12]}}
    assert model_figures(kimi).kv_layers == 3.0
    mamba = {**CONFIGS["Qwen/Qwen3-8B"], "layer_types": ["mamba"] * 36}
    assert model_figures(mamba).kv_layers == 1.0, "a state takes some memory too"


@pytest.mark.parametrize(
    ("stated", "bits"),
    [
        (None, 0.0),
        ({"quant_method": "fp8"}, 0.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4.25),
        ({"quant_method": "gptq", "bits": 8}, 8.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.25),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 8}}}, "quant_method": "compressed-tensors"}, 8.0),
        ({"config_groups": {"group_0": {"weights": None}}}, 0.0),
    ],
)
def test_bits_of_the_weights_are_those_that_the_checkpoint_states(stated: Any, bits: float) -> None:
    assert model_figures({**CONFIGS["microsoft/phi-4"], "quantization_config": stated}).weight_bits == bits


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"])
def test_a_configuration_without_a_size_has_no_figures(missing: str) -> None:
    with pytest.raises(KeyError):
        model_figures({name: size for name, size in CONFIGS["Qwen/Qwen3-8B"].items() if name != missing})


@pytest.mark.parametrize("uri", CONFIGS)
def test_figures_survive_the_way_through_a_label(uri: str) -> None:
    figures = model_figures(CONFIGS[uri])
    assert ModelFigures.read(str(figures)) == figures
    assert len(str(figures)) < 400


@pytest.mark.parametrize(
    ("part", "nonsense"),
    [
        ("layers=40", "layers=0"),
        ("layers=40", "layers=-1"),
        ("layers=40", "layers=1e5"),
        ("layers=40", "layers=" + "9" * 18),
        ("layers=40 ", ""),
        ("layers=40", "layers=40 more=1"),
        ("head_dim=128", "head_dim=0.5"),
        ("kv_layers=40", "kv_layers=41"),
        ("kv_layers=40", "kv_layers=0"),
        (" parameters=14659092480", " parameters=1"),
        ("active_parameters=14659092480", "active_parameters=99659092480"),
        ("weight_bits=0", "weight_bits=64"),
        ("weight_bits=0", "weight_bits=nan"),
    ],
)
def test_figures_that_make_no_sense_are_none(part: str, nonsense: str) -> None:
    assert part in str(PHI_4)
    assert ModelFigures.read(str(PHI_4).replace(part, nonsense)) is None


@given(st.text() | st.from_regex(r"(layers=\d+ )?(hidden=\S+ )?\w+=[0-9.]+", fullmatch=True))
def test_no_text_makes_figures_by_chance(text: str) -> None:
    assert ModelFigures.read(text) is None


@pytest.mark.parametrize("uri", [PRIVATE, "acme/Qwen3-8B-pruned-4B", "acme/next-model-7B"])
def test_an_unknown_model_is_known_once_an_engine_reports_its_configuration(uri: str) -> None:
    assert engine_prior(uri, "h100").source is PriorSource.UNKNOWN
    prior = engine_prior(uri, "h100", facts=EngineFacts(model=PHI_4))
    assert (prior.source, prior.unknown_model) == (PriorSource.ROOFLINE, False)
    shipped = engine_prior("microsoft/phi-4", "h100")
    assert prior.law.c0 == pytest.approx(shipped.law.c0, rel=0.01)
    assert prior.kv_tokens == pytest.approx(shipped.kv_tokens, rel=0.02)
    assert engine_prior(uri, "no-such-gpu", facts=EngineFacts(model=PHI_4)).source is PriorSource.UNKNOWN


def test_a_name_that_is_wrong_about_the_model_is_overruled_and_a_right_one_keeps_its_table() -> None:
    right = EngineFacts(model=model_figures(CONFIGS["Qwen/Qwen3-8B"]))
    assert engine_prior("Qwen/Qwen3-8B", "h100", facts=right) == engine_prior("Qwen/Qwen3-8B", "h100")
    wrong = engine_prior("Qwen/Qwen3-8B", "h100", facts=EngineFacts(model=PHI_4))
    assert wrong.source is PriorSource.ROOFLINE
    assert wrong.law == engine_prior(PRIVATE, "h100", facts=EngineFacts(model=PHI_4)).law


def test_the_bits_that_the_checkpoint_states_make_quantized_weights_known() -> None:
    stated = replace(PHI_4, weight_bits=8.0)
    facts = EngineFacts(model=stated, quantization="compressed-tensors")
    shape = find_model(PRIVATE, facts=facts)
    assert shape is not None
    assert shape.parameters * shape.weight_bytes == pytest.approx(1.07 * PHI_4.parameters, rel=0.01)
    assert find_model(PRIVATE, facts=replace(facts, model=PHI_4)) is None, "of how many bits, nobody says"
    eight = find_model("acme/phi-4", facts=EngineFacts(model=stated, quantization="gptq_marlin"))
    assert eight is not None
    assert eight.weight_bytes == pytest.approx(1.07, rel=0.01)


def test_weights_that_do_not_fit_leave_no_cache_but_that_of_a_guess_stays() -> None:
    huge = EngineFacts(model=model_figures(CONFIGS["deepseek-ai/DeepSeek-V3"]))
    assert engine_prior(PRIVATE, "l4", facts=huge).kv_tokens == 0
    assert engine_prior(PRIVATE, "l4").kv_tokens >= LEAST_KV_TOKENS
