"""Shapes of known models and accelerators, and how the names people use lead to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a roofline needs to know of a model.

    `parameters` sets the weights' memory, `active_parameters` the work per token (fewer in a mixture of experts);
    `weight_bytes` per parameter, `kv_element_bytes` per key or value element. `table` names the shipped step table.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float
    active_parameters: float
    weight_bytes: float = 2.0
    kv_element_bytes: float = 2.0
    table: str | None = None

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache one token takes over all GPUs."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * self.kv_element_bytes


@dataclass(frozen=True, slots=True)
class AcceleratorShape:
    """One GPU: bytes of memory, bytes/s of memory and of the link between GPUs, dense 16-bit FLOP/s.

    `system` names the shipped step tables.
    """

    system: str
    memory_bytes: float
    bandwidth: float
    peak_flops: float
    link_bandwidth: float = 25e9  # PCIe as all-reduces see it


GIB = 2.0**30
NVLINK = 300e9

_LLAMA_8B = ModelShape("meta-llama/Llama-3.1-8B", 32, 4096, 32, 8, 128, 8.03e9, 8.03e9)
_LLAMA_70B = ModelShape("meta-llama/Llama-3.1-70B", 80, 8192, 64, 8, 128, 70.6e9, 70.6e9)
_QWEN_32B = ModelShape("Qwen/Qwen3-32B", 64, 5120, 64, 8, 128, 32.8e9, 32.8e9)

MODELS: tuple[tuple[str, ModelShape], ...] = (
    # A pattern searched in the lower-case name after the organisation; the first that matches wins. Models of the
    # same shape share a table: Llama 3, 3.1 and 3.3, base, instruct and distilled alike.
    (
        r"llama-3.*70b.*fp8",
        replace(_LLAMA_70B, weight_bytes=1.03, kv_element_bytes=1.0, table="nvidia/Llama-3.1-70B-Instruct-FP8"),
    ),
    (r"llama-3(\.[13])?-70b|distill-llama-70b", replace(_LLAMA_70B, table="meta-llama/Meta-Llama-3.1-70B")),
    (r"llama-3(\.1)?-8b|distill-llama-8b", replace(_LLAMA_8B, table="meta-llama/Meta-Llama-3.1-8B")),
    (
        r"qwen3-30b-a3b",
        ModelShape("Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 30.5e9, 3.3e9, table="Qwen/Qwen3-30B-A3B"),
    ),
    (r"qwen3-32b.*fp8", replace(_QWEN_32B, weight_bytes=1.05, table="Qwen/Qwen3-32B-FP8")),
    (r"qwen3-32b", replace(_QWEN_32B, table="Qwen/Qwen3-32B")),
    (r"qwen3-8b", ModelShape("Qwen/Qwen3-8B", 36, 4096, 32, 8, 128, 8.19e9, 8.19e9, table="Qwen/Qwen3-8B")),
    (
        r"gpt-oss-20b",
        ModelShape("openai/gpt-oss-20b", 24, 2880, 64, 8, 64, 20.9e9, 3.6e9, 0.57, table="openai/gpt-oss-20b"),
    ),
    (
        r"gpt-oss-120b",
        ModelShape("openai/gpt-oss-120b", 36, 2880, 64, 8, 64, 116.8e9, 5.1e9, 0.52, table="openai/gpt-oss-120b"),
    ),
    (r"llama-3\.2-1b", ModelShape("meta-llama/Llama-3.2-1B", 16, 2048, 32, 8, 64, 1.24e9, 1.24e9)),
    (r"llama-3\.2-3b", ModelShape("meta-llama/Llama-3.2-3B", 28, 3072, 24, 8, 128, 3.21e9, 3.21e9)),
    (r"mistral-7b", ModelShape("mistralai/Mistral-7B", 32, 4096, 32, 8, 128, 7.25e9, 7.25e9)),
    (r"mistral-small-.*24b", ModelShape("mistralai/Mistral-Small-24B", 40, 5120, 32, 8, 128, 23.6e9, 23.6e9)),
    (r"mixtral-8x7b", ModelShape("mistralai/Mixtral-8x7B", 32, 4096, 32, 8, 128, 46.7e9, 12.9e9)),
    (r"qwen2\.5-0\.5b", ModelShape("Qwen/Qwen2.5-0.5B", 24, 896, 14, 2, 64, 0.49e9, 0.49e9)),
    (r"qwen2\.5-(coder-)?3b", ModelShape("Qwen/Qwen2.5-3B", 36, 2048, 16, 2, 128, 3.09e9, 3.09e9)),
    (r"qwen2\.5-(coder-)?7b", ModelShape("Qwen/Qwen2.5-7B", 28, 3584, 28, 4, 128, 7.62e9, 7.62e9)),
    (r"qwen2\.5-(coder-)?32b", ModelShape("Qwen/Qwen2.5-32B", 64, 5120, 40, 8, 128, 32.8e9, 32.8e9)),
    (r"qwen2\.5-72b", ModelShape("Qwen/Qwen2.5-72B", 80, 8192, 64, 8, 128, 72.7e9, 72.7e9)),
    (r"qwen3-0\.6b", ModelShape("Qwen/Qwen3-0.6B", 28, 1024, 16, 8, 128, 0.6e9, 0.6e9)),
    (r"qwen3-4b", ModelShape("Qwen/Qwen3-4B", 36, 2560, 32, 8, 128, 4.02e9, 4.02e9)),
    (r"qwen3-14b", ModelShape("Qwen/Qwen3-14B", 40, 5120, 40, 8, 128, 14.8e9, 14.8e9)),
    (r"gemma-3-27b", ModelShape("google/gemma-3-27b", 62, 5376, 32, 16, 128, 27.4e9, 27.4e9)),
    (r"phi-4", ModelShape("microsoft/phi-4", 40, 5120, 40, 10, 128, 14.7e9, 14.7e9)),
)

ACCELERATORS: tuple[tuple[str, AcceleratorShape], ...] = (
    # A pattern searched in the lower-case product label or accelerator name; the first that matches wins. Memory as
    # the driver reports it, bandwidth and dense 16-bit peak from the vendors' data sheets.
    (r"gb300|b300", AcceleratorShape("b300", 268.6 * GIB, 8.0e12, 2.25e15, NVLINK)),
    (r"gb200|b200", AcceleratorShape("b200_sxm", 179.1 * GIB, 8.0e12, 2.25e15, NVLINK)),
    (r"gh200|h200", AcceleratorShape("h200_sxm", 140.4 * GIB, 4.8e12, 0.989e15, NVLINK)),
    (r"h100.*nvl", AcceleratorShape("h100_nvl", 93.6 * GIB, 3.9e12, 0.835e15, NVLINK)),
    (r"h100.*pcie", AcceleratorShape("h100_pcie", 79.6 * GIB, 2.0e12, 0.756e15)),
    (r"h100|h800", AcceleratorShape("h100_sxm", 79.6 * GIB, 3.35e12, 0.989e15, NVLINK)),
    (r"h20", AcceleratorShape("h20", 95.6 * GIB, 4.0e12, 0.148e15, NVLINK)),
    (r"a100.*40gb", AcceleratorShape("a100_40gb", 40.0 * GIB, 1.555e12, 0.312e15, NVLINK)),
    (r"a100|a800", AcceleratorShape("a100_sxm", 80.0 * GIB, 2.039e12, 0.312e15, NVLINK)),
    (r"rtx.?pro.?6000", AcceleratorShape("rtx_pro_6000_server", 95.6 * GIB, 1.6e12, 0.5e15)),
    (r"l40s", AcceleratorShape("l40s", 45.0 * GIB, 0.864e12, 0.362e15)),
    (r"l40", AcceleratorShape("l40", 45.0 * GIB, 0.864e12, 0.181e15)),
    (r"(^|[^a-z0-9])l4([^0-9a-z]|$)", AcceleratorShape("l4", 22.5 * GIB, 0.3e12, 0.121e15)),
    (r"a10g?([^0-9a-z]|$)", AcceleratorShape("a10g", 22.5 * GIB, 0.6e12, 0.07e15)),
    (r"5090", AcceleratorShape("rtx5090", 31.8 * GIB, 1.792e12, 0.2095e15)),
    (r"4090", AcceleratorShape("rtx4090", 24.0 * GIB, 1.008e12, 0.165e15)),
    (r"(^|[^a-z0-9])t4([^0-9a-z]|$)", AcceleratorShape("t4", 15.0 * GIB, 0.32e12, 0.065e15)),
    (r"v100", AcceleratorShape("v100", 32.0 * GIB, 0.9e12, 0.125e15, NVLINK)),
    (r"mi325", AcceleratorShape("mi325x", 256.0 * GIB, 6.0e12, 1.307e15, NVLINK)),
    (r"mi300", AcceleratorShape("mi300x", 192.0 * GIB, 5.3e12, 1.307e15, NVLINK)),
)

GENERIC_ACCELERATOR = AcceleratorShape("generic", 22.5 * GIB, 0.6e12, 0.1e15)
"""A small data-centre GPU: what an unknown one is taken for, so that a guess errs to the safe side."""

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "amd.com/gpu.product-name",
)
"""Node labels that name the GPU, the most exact first."""

_BILLIONS = re.compile(r"(?:^|[^0-9a-z.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?:[^a-z0-9]|$)")
_MOST_BILLIONS = 100_000.0  # far above any model: a longer number in a name is no size
_ACTIVE_BILLIONS = re.compile(r"[^0-9a-z]a(\d+(?:\.\d+)?)b(?:[^a-z0-9]|$)")


def find_model(uri: str, quantization: str | None = None) -> ModelShape | None:
    """The known model that a Hugging Face id, path or pvc:// uri names, or None."""
    name = _model_name(uri, quantization)
    return next((shape for pattern, shape in MODELS if re.search(pattern, name)), None)


def guess_model(uri: str, quantization: str | None = None) -> ModelShape | None:
    """A dense or mixture model with the billions of parameters its name states (`8B`, `8x7B`, `30B-A3B`), or None."""
    name = _model_name(uri, quantization)
    stated = _BILLIONS.search(name)
    billions = float(stated[2]) * float(stated[1] or 1) if stated else 0.0
    if not 0.0 < billions <= _MOST_BILLIONS:
        return None
    active = _ACTIVE_BILLIONS.search(name)
    active_billions = float(active[1]) if active and 0.0 < float(active[1]) <= billions else billions
    return generic_model(billions * 1e9, active_billions * 1e9, _weight_bytes(name))


def generic_model(parameters: float, active_parameters: float, weight_bytes: float = 2.0) -> ModelShape:
    """A transformer of usual proportions (grouped queries, 8 KV heads of 128) with that many parameters."""
    layers = max(8, round(32.0 * (parameters / 8e9) ** 0.43))
    hidden = max(512, round((parameters / (12.0 * layers)) ** 0.5 / 128) * 128)
    heads = max(8, hidden // 128)
    return ModelShape(
        f"generic-{parameters / 1e9:g}B", layers, hidden, heads, 8, 128, parameters, active_parameters, weight_bytes
    )


def find_accelerator(name: str, node_selector: Mapping[str, str] | None = None) -> AcceleratorShape | None:
    """The known accelerator that the node labels name, else the one its own name suggests, or None."""
    labels = node_selector or {}
    for text in [labels[label] for label in PRODUCT_LABELS if label in labels] + [name]:
        for pattern, shape in ACCELERATORS:
            if re.search(pattern, text.lower()):
                return shape
    return None


def _model_name(uri: str, quantization: str | None) -> str:
    """Last part of the uri in lower case, with the quantization added so that patterns see it."""
    name = uri.rstrip("/").rsplit("/", 1)[-1].lower()
    return f"{name}-{quantization.lower()}" if quantization and quantization.lower() not in name else name


def _weight_bytes(name: str) -> float:
    if re.search(r"awq|gptq|int4|w4a16|fp4|mxfp4|bnb-4bit", name):
        return 0.6
    return 1.05 if re.search(r"fp8|int8|w8a8|w8a16", name) else 2.0
