"""How the names people use lead to the shapes of known models and accelerators."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.engine import EngineFacts
from holdfast.enginemodel.acceleratornames import IDENTIFYING_LABELS, find_accelerator
from holdfast.enginemodel.acceleratorrows import ACCELERATORS, GENERIC_ACCELERATOR, PRODUCT_LABELS
from holdfast.enginemodel.modelnames import (
    AS_PUBLISHED,
    UNQUANTIZED,
    Quantization,
    known_row,
    model_name,
    quantization_of,
    stated_billions,
)
from holdfast.enginemodel.modelrows import MODELS, QUANTIZED_TABLES
from holdfast.enginemodel.shapes import GIB, AcceleratorShape, ModelShape

__all__ = [
    "ACCELERATORS",
    "GENERIC_ACCELERATOR",
    "GIB",
    "IDENTIFYING_LABELS",
    "MODELS",
    "PRODUCT_LABELS",
    "AcceleratorShape",
    "ModelShape",
    "declared_accelerator",
    "find_accelerator",
    "find_model",
    "generic_model",
    "guess_model",
]

DECLARED_SYSTEM = "declared"
REPORTED = "as reported"


def declared_accelerator(memory_gib: float, bandwidth_gb_per_second: float, teraflops: float) -> AcceleratorShape:
    """An accelerator by the figures of its data sheet; its GPUs are taken to talk over PCIe."""
    return AcceleratorShape(DECLARED_SYSTEM, memory_gib * GIB, bandwidth_gb_per_second * 1e9, teraflops * 1e12)


SAME_MODEL = 0.2
"""Relative difference of parameters up to which engines report the model of a row; encoders of images are left out."""

NOTHING_REPORTED = EngineFacts()
UNKNOWN_BITS = 8.0
"""Taken for weights that are quantized somehow: between the usual 4 and 16, so off by a factor of two at most."""


def find_model(
    uri: str,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    facts: EngineFacts = NOTHING_REPORTED,
) -> ModelShape | None:
    """The known model that a Hugging Face id, path, pvc:// or oci:// uri names, or that engines report, or None.

    None also where the weights are quantized to an unknown number of bits: neither their size nor their step times are
    known then.
    """
    name = model_name(uri)
    row = _running(known_row(name), facts)
    shape = row and _quantized(row, _weights(name, quantization, facts))
    if shape is None:
        return None
    kv_element_bytes = _kv_element_bytes(facts.kv_dtype, kv_cache_dtype) or _published_kv_bytes(uri, shape)
    shape = replace(shape, kv_element_bytes=kv_element_bytes)
    # A table holds for the format of weights and cache that it was made with.
    made_with = (shape.name, shape.weights, shape.kv_element_bytes)
    return shape if shape == row else replace(shape, table=QUANTIZED_TABLES.get(made_with))


def guess_model(
    uri: str,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    facts: EngineFacts = NOTHING_REPORTED,
) -> ModelShape | None:
    """A dense or mixture model with the billions of parameters its name states (`8B`, `8x7B`, `30B-A3B`), or None."""
    name = model_name(uri)
    stated = stated_billions(name)
    if stated is None:
        return None
    bits = (_weights(name, quantization, facts) or UNQUANTIZED).bits or UNKNOWN_BITS
    shape = generic_model(stated[0] * 1e9, stated[1] * 1e9, bits / 8.0)
    kv_element_bytes = _kv_element_bytes(facts.kv_dtype, kv_cache_dtype) or shape.kv_element_bytes
    return replace(shape, kv_element_bytes=kv_element_bytes)


def generic_model(parameters: float, active_parameters: float, weight_bytes: float = 2.0) -> ModelShape:
    """A transformer of usual proportions (grouped queries, 8 KV heads of 128) with that many parameters."""
    layers = max(8, round(32.0 * (parameters / 8e9) ** 0.43))
    hidden = max(512, round((parameters / (12.0 * layers)) ** 0.5 / 128) * 128)
    heads = max(8, hidden // 128)
    return ModelShape(
        f"generic-{parameters / 1e9:g}B", layers, hidden, heads, 8, 128, parameters, active_parameters, weight_bytes
    )


def _running(row: ModelShape | None, facts: EngineFacts) -> ModelShape | None:
    """The row, unless engines report a model that is none or another one; then a row of that model."""
    model = facts.model
    if model is None or (
        row is not None
        and (row.layers, row.hidden) == (model.layers, model.hidden)
        and abs(row.parameters - model.parameters) <= SAME_MODEL * row.parameters
    ):
        return row
    return ModelShape(
        REPORTED,
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        float(model.parameters),
        float(model.active_parameters),
        embedding_parameters=float(model.embedding_parameters),
        kv_latent=model.kv_latent,
        kv_layers=model.kv_layers,
    )


def _weights(name: str, quantization: str | None, facts: EngineFacts) -> Quantization | None:
    """The format of the weights. The number of bits that the checkpoint states overrules the usual one."""
    found = quantization_of(name, quantization, facts.quantization, facts.dtype)
    stated = facts.model.weight_bits if facts.model else 0.0
    return found if found in (None, UNQUANTIZED) or not stated else replace(found, bits=stated)


def _quantized(row: ModelShape, quantization: Quantization | None) -> ModelShape | None:
    """The row with its weights in that format; None where nobody says how many bits they have."""
    if quantization is None or quantization.name == row.weights:
        return row
    if quantization.bits is None:
        return row if quantization is AS_PUBLISHED and row.weights != UNQUANTIZED.name else None
    kept = 0.0 if quantization.with_embeddings else row.embedding_parameters
    weights = (row.parameters - kept) * quantization.bits / 8.0 + kept * 2.0
    return replace(row, weights=quantization.name, weight_bytes=weights / row.parameters)


def _published_kv_bytes(uri: str, shape: ModelShape) -> float:
    """Bytes per element of the cache by default: NVIDIA's quantized checkpoints ask vLLM for an FP8 cache.

    Those of models with latent attention do not (kv_cache_quant_algo in their hf_quant_config.json).
    """
    by_nvidia = uri.lower().startswith("nvidia/") and shape.weights in ("fp8", "nvfp4")
    return 1.0 if by_nvidia and not shape.kv_latent else shape.kv_element_bytes


def _kv_element_bytes(*dtypes: str | None) -> float | None:
    """Bytes per element by the first of vLLM's --kv-cache-dtype that tells; None for auto and what is not known."""
    for said in ((dtype or "").lower() for dtype in dtypes):
        if said.startswith(("fp8", "int8")):
            return 1.0
        if said.startswith(("fp4", "nvfp4", "int4")):
            return 0.5625
        if said in ("bfloat16", "float16", "half"):
            return 2.0
    return None
