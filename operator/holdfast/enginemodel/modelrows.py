"""Shapes of popular models, from their config.json and the parameter counts that their authors publish."""

from __future__ import annotations

from dataclasses import replace

from holdfast.enginemodel.shapes import ModelShape

USUAL_CONTEXT = 4096.0
"""Tokens of a sequence for which the cache of sliding windows is counted."""


def _model(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    billions: float | tuple[float, float],
    vocabulary: int,
    *,
    tied: bool = False,
    table: str | None = None,
) -> ModelShape:
    """A row: heads, KV heads and head size; parameters, or all and active ones; tied embeddings count once."""
    counts = billions if isinstance(billions, tuple) else (billions, billions)
    parameters, active = (float(round(each * 1e9)) for each in counts)
    embeddings = float(hidden * vocabulary * (1 if tied else 2))
    return ModelShape(
        name,
        layers,
        hidden,
        *heads,
        parameters,
        active,
        table=table,
        embedding_parameters=embeddings,
        vocabulary=vocabulary,
    )


def _latent(shape: ModelShape) -> ModelShape:
    """With DeepSeek's latent attention: 512 elements and a rotary key of 64 per token and layer."""
    return replace(shape, kv_latent=576)


def _stored(shape: ModelShape, weights: str, weight_bytes: float) -> ModelShape:
    """With weights that are published in another format than bf16."""
    return replace(shape, weights=weights, weight_bytes=weight_bytes)


def _windows(shape: ModelShape, full: int, window: int) -> ModelShape:
    """With so many layers that keep all tokens; the other layers keep those in a sliding window."""
    return replace(shape, kv_layers=full + (shape.layers - full) * min(1.0, window / USUAL_CONTEXT))


# MLA computes prompts with 192 elements of queries and keys and 128 of values: 160 on average.
_DEEPSEEK_V3 = _latent(_model("deepseek-ai/DeepSeek-V3", 61, 7168, (128, 128, 160), (671.0, 37.0), 129_280))
_DEEPSEEK_V2 = _latent(_model("deepseek-ai/DeepSeek-V2", 60, 5120, (128, 128, 160), (236.0, 21.0), 102_400))
_V2_LITE = _latent(_model("deepseek-ai/DeepSeek-V2-Lite", 27, 2048, (16, 16, 160), (15.7, 2.4), 102_400))
_KIMI_K2 = _latent(_model("moonshotai/Kimi-K2", 61, 7168, (64, 64, 160), (1026.0, 32.0), 163_840))
_KIMI_LINEAR = replace(
    _latent(_model("moonshotai/Kimi-Linear-48B-A3B", 27, 2304, (32, 32, 160), (49.1, 3.0), 163_840)), kv_layers=7.0
)
_MOONLIGHT = _latent(_model("moonshotai/Moonlight-16B-A3B", 27, 2048, (16, 16, 160), (16.0, 2.8), 163_840))
_GLM_FLASH = _latent(_model("zai-org/GLM-4.7-Flash", 47, 2048, (20, 20, 256), (31.2, 3.0), 154_880))
_GLM_5 = _latent(_model("zai-org/GLM-5", 78, 6144, (64, 64, 256), (744.0, 40.0), 154_880))
_GLM_AIR = _model("zai-org/GLM-4.5-Air", 46, 4096, (96, 8, 128), (106.0, 12.0), 151_552)
_LLAMA_8B = _model("meta-llama/Llama-3.1-8B", 32, 4096, (32, 8, 128), 8.03, 128_256)
_LLAMA_70B = _model("meta-llama/Llama-3.1-70B", 80, 8192, (64, 8, 128), 70.6, 128_256)
_QWEN_8B = _model("Qwen/Qwen3-8B", 36, 4096, (32, 8, 128), 8.19, 151_936)
_QWEN_32B = _model("Qwen/Qwen3-32B", 64, 5120, (64, 8, 128), 32.8, 151_936)
_QWEN_30B_A3B = _model("Qwen/Qwen3-30B-A3B", 48, 2048, (32, 4, 128), (30.5, 3.3), 151_936)
_QWEN_235B_A22B = _model("Qwen/Qwen3-235B-A22B", 94, 4096, (64, 4, 128), (235.1, 22.2), 151_936)
_QWEN_NEXT = replace(_model("Qwen/Qwen3-Next-80B-A3B", 48, 2048, (16, 2, 256), (79.7, 3.9), 151_936), kv_layers=12.0)
_QWEN_35_397B = replace(
    _model("Qwen/Qwen3.5-397B-A17B", 60, 4096, (32, 2, 256), (397.0, 17.0), 248_320), kv_layers=15.0
)
_GPT_OSS_20B = _windows(
    _model("openai/gpt-oss-20b", 24, 2880, (64, 8, 64), (20.9, 3.6), 201_088, table="openai/gpt-oss-20b"), 12, 128
)
_GPT_OSS_120B = _windows(
    _model("openai/gpt-oss-120b", 36, 2880, (64, 8, 64), (116.8, 5.1), 201_088, table="openai/gpt-oss-120b"), 18, 128
)
_MISTRAL_24B = _model("mistralai/Mistral-Small-24B", 40, 5120, (32, 8, 128), 23.6, 131_072)

MODELS: tuple[tuple[str, ModelShape], ...] = (
    # Family and size, as a pattern that the lower-case name must have as whole words; the first that matches wins. A
    # dot also matches the dash of names that may have no dot. Models of the same shape share a row: base, instruct and
    # distilled alike.
    (r"deepseek-v3(\.[12])?(-exp)?", _stored(_DEEPSEEK_V3, "fp8", 1.0)),
    (r"deepseek-r1(-zero)?", replace(_stored(_DEEPSEEK_V3, "fp8", 1.0), name="deepseek-ai/DeepSeek-R1")),
    (r"deepseek-(coder-)?v2-lite", _V2_LITE),
    (r"deepseek-(coder-)?v2(\.5)?", _DEEPSEEK_V2),
    (r"kimi-k2(-thinking|\.[56])", replace(_stored(_KIMI_K2, "int4", 0.58), name="moonshotai/Kimi-K2.5")),
    (r"kimi-k2", _stored(_KIMI_K2, "fp8", 1.0)),
    (r"kimi-linear-48b-a3b", _KIMI_LINEAR),
    (r"moonlight-16b-a3b|kimi-vl-a3b", _MOONLIGHT),
    (r"glm-4\.7-flash", _GLM_FLASH),
    (r"glm-4\.5-air|glm-4\.[56]v", _GLM_AIR),
    (r"glm-4\.[567]", _model("zai-org/GLM-4.5", 92, 5120, (96, 8, 128), (355.0, 32.0), 151_552)),
    (r"glm-5", _GLM_5),
    (r"glm-(4|z1)-9b", _model("zai-org/GLM-4-9B", 40, 4096, (32, 2, 128), 9.4, 151_552)),
    (r"glm-(4|z1)-32b", _model("zai-org/GLM-4-32B", 61, 6144, (48, 2, 128), 32.6, 151_552)),
    (r"qwen3-0\.6b", _model("Qwen/Qwen3-0.6B", 28, 1024, (16, 8, 128), 0.6, 151_936, tied=True)),
    (r"qwen3-1\.7b", _model("Qwen/Qwen3-1.7B", 28, 2048, (16, 8, 128), 1.72, 151_936, tied=True)),
    (r"qwen3-4b", _model("Qwen/Qwen3-4B", 36, 2560, (32, 8, 128), 4.02, 151_936, tied=True)),
    (r"qwen3-8b", replace(_QWEN_8B, table="Qwen/Qwen3-8B")),
    (r"qwen3-14b", _model("Qwen/Qwen3-14B", 40, 5120, (40, 8, 128), 14.8, 151_936)),
    (r"qwen3-32b", replace(_QWEN_32B, table="Qwen/Qwen3-32B")),
    (r"qwen3-(coder-)?30b-a3b", replace(_QWEN_30B_A3B, table="Qwen/Qwen3-30B-A3B")),
    (r"qwen3-235b-a22b", _QWEN_235B_A22B),
    (r"qwen3-coder-480b-a35b", _model("Qwen/Qwen3-Coder-480B-A35B", 62, 6144, (96, 8, 128), (480.2, 35.5), 151_936)),
    (r"qwen3-next-80b-a3b|qwen3-coder-next", _QWEN_NEXT),
    (r"qwen3\.5-397b-a17b", _QWEN_35_397B),
    (r"qwen3-vl-8b", replace(_QWEN_8B, name="Qwen/Qwen3-VL-8B", parameters=8.77e9)),
    (r"qwen3-vl-32b", replace(_QWEN_32B, name="Qwen/Qwen3-VL-32B", parameters=33.4e9)),
    (r"qwen3-vl-30b-a3b", replace(_QWEN_30B_A3B, name="Qwen/Qwen3-VL-30B-A3B", parameters=31.1e9)),
    (r"qwen3-vl-235b-a22b", replace(_QWEN_235B_A22B, name="Qwen/Qwen3-VL-235B-A22B", parameters=235.7e9)),
    (r"qwen2\.5-(coder-)?0\.5b", _model("Qwen/Qwen2.5-0.5B", 24, 896, (14, 2, 64), 0.49, 151_936, tied=True)),
    (
        r"(qwen2\.5-(coder-|math-)?|deepseek-r1-distill-qwen-)1\.5b",
        _model("Qwen/Qwen2.5-1.5B", 28, 1536, (12, 2, 128), 1.54, 151_936, tied=True),
    ),
    (r"qwen2\.5-(coder-)?3b", _model("Qwen/Qwen2.5-3B", 36, 2048, (16, 2, 128), 3.09, 151_936, tied=True)),
    (
        r"(qwen2\.5-(coder-|math-)?|deepseek-r1-distill-qwen-)7b",
        _model("Qwen/Qwen2.5-7B", 28, 3584, (28, 4, 128), 7.62, 152_064),
    ),
    (
        r"(qwen2\.5-(coder-)?|deepseek-r1-distill-qwen-)14b",
        _model("Qwen/Qwen2.5-14B", 48, 5120, (40, 8, 128), 14.8, 152_064),
    ),
    (
        r"(qwen2\.5-(coder-)?|deepseek-r1-distill-qwen-|qwq-)32b",
        _model("Qwen/Qwen2.5-32B", 64, 5120, (40, 8, 128), 32.8, 152_064),
    ),
    (r"qwen2\.5-(math-)?72b", _model("Qwen/Qwen2.5-72B", 80, 8192, (64, 8, 128), 72.7, 152_064)),
    (
        r"llama-?3(\.[13])?-(nemotron-)?70b|distill-llama-70b",
        replace(_LLAMA_70B, table="meta-llama/Meta-Llama-3.1-70B"),
    ),
    (r"llama-?3(\.1)?-8b|distill-llama-8b", replace(_LLAMA_8B, table="meta-llama/Meta-Llama-3.1-8B")),
    (r"llama-?3\.1-405b", _model("meta-llama/Llama-3.1-405B", 126, 16_384, (128, 8, 128), 405.9, 128_256)),
    (r"llama-?3\.2-1b", _model("meta-llama/Llama-3.2-1B", 16, 2048, (32, 8, 64), 1.24, 128_256, tied=True)),
    (r"llama-?3\.2-3b", _model("meta-llama/Llama-3.2-3B", 28, 3072, (24, 8, 128), 3.21, 128_256, tied=True)),
    (r"llama-?4-scout", _model("meta-llama/Llama-4-Scout-17B-16E", 48, 5120, (40, 8, 128), (108.6, 17.2), 202_048)),
    (
        r"llama-?4-maverick",
        _model("meta-llama/Llama-4-Maverick-17B-128E", 48, 5120, (40, 8, 128), (401.6, 17.2), 202_048),
    ),
    (r"llama-?2-7b", _model("meta-llama/Llama-2-7b", 32, 4096, (32, 32, 128), 6.74, 32_000)),
    (r"llama-?2-13b", _model("meta-llama/Llama-2-13b", 40, 5120, (40, 40, 128), 13.0, 32_000)),
    (r"llama-?2-70b", _model("meta-llama/Llama-2-70b", 80, 8192, (64, 8, 128), 69.0, 32_000)),
    (r"gemma-?3-1b", _windows(_model("google/gemma-3-1b", 26, 1152, (4, 1, 256), 1.0, 262_144, tied=True), 4, 512)),
    (r"gemma-?3-4b", _windows(_model("google/gemma-3-4b", 34, 2560, (8, 4, 256), 4.3, 262_208, tied=True), 5, 1024)),
    (
        r"gemma-?3-12b",
        _windows(_model("google/gemma-3-12b", 48, 3840, (16, 8, 256), 12.2, 262_208, tied=True), 8, 1024),
    ),
    (
        r"gemma-?3-27b",
        _windows(_model("google/gemma-3-27b", 62, 5376, (32, 16, 128), 27.4, 262_208, tied=True), 10, 1024),
    ),
    (r"gemma-?2-2b", _model("google/gemma-2-2b", 26, 2304, (8, 4, 256), 2.61, 256_000, tied=True)),
    (r"gemma-?2-9b", _model("google/gemma-2-9b", 42, 3584, (16, 8, 256), 9.24, 256_000, tied=True)),
    (r"gemma-?2-27b", _model("google/gemma-2-27b", 46, 4608, (32, 16, 128), 27.2, 256_000, tied=True)),
    (r"phi-?4-mini", _model("microsoft/Phi-4-mini", 32, 3072, (24, 8, 128), 3.84, 200_064, tied=True)),
    (r"phi-?4", _model("microsoft/phi-4", 40, 5120, (40, 10, 128), 14.7, 100_352)),
    (r"phi-?3(\.5)?-mini", _model("microsoft/Phi-3.5-mini", 32, 3072, (32, 32, 96), 3.82, 32_064)),
    (r"phi-?3-medium", _model("microsoft/Phi-3-medium", 40, 5120, (40, 10, 128), 14.0, 32_064)),
    (r"phi-?3\.5-moe", _model("microsoft/Phi-3.5-MoE", 32, 4096, (32, 8, 128), (41.9, 6.6), 32_064)),
    (r"mistral-7b", _model("mistralai/Mistral-7B", 32, 4096, (32, 8, 128), 7.25, 32_768)),
    (r"mistral-nemo", _model("mistralai/Mistral-Nemo", 40, 5120, (32, 8, 128), 12.2, 131_072)),
    (r"ministral-8b", _model("mistralai/Ministral-8B", 36, 4096, (32, 8, 128), 8.02, 131_072)),
    (r"mistral-small-(3(\.[12])?-)?24b|(devstral|magistral)-small-25[0-9]{2}", _MISTRAL_24B),
    (
        r"codestral-22b|mistral-small-instruct-2409",
        _model("mistralai/Codestral-22B", 56, 6144, (48, 8, 128), 22.2, 32_768),
    ),
    (
        r"mistral-large-instruct-24(07|11)",
        _model("mistralai/Mistral-Large-Instruct-2411", 88, 12_288, (96, 8, 128), 122.6, 32_768),
    ),
    (r"mixtral-8x7b", _model("mistralai/Mixtral-8x7B", 32, 4096, (32, 8, 128), (46.7, 12.9), 32_000)),
    (r"mixtral-8x22b", _model("mistralai/Mixtral-8x22B", 56, 6144, (48, 8, 128), (140.6, 39.1), 32_768)),
    (r"gpt-oss-(safeguard-)?20b", _stored(_GPT_OSS_20B, "mxfp4", 0.57)),
    (r"gpt-oss-(safeguard-)?120b", _stored(_GPT_OSS_120B, "mxfp4", 0.52)),
    (
        r"minimax-m2(\.[157])?",
        _stored(_model("MiniMaxAI/MiniMax-M2", 62, 3072, (48, 8, 128), (229.0, 10.0), 200_064), "fp8", 1.0),
    ),
)

QUANTIZED_TABLES = {
    ("meta-llama/Llama-3.1-70B", "fp8", 1.0): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("Qwen/Qwen3-32B", "fp8", 2.0): "Qwen/Qwen3-32B-FP8",
}
"""Shipped step tables of quantized models, by row, format of the weights, and bytes per element of the KV cache."""
