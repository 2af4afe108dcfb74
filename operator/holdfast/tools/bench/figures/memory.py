"""The KV cache part by part, by formula, next to the engine's own figure."""

from __future__ import annotations

import math

from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import AcceleratorShape, ModelShape
from holdfast.enginemodel.host import capture_edge
from holdfast.enginemodel.memory import DRIVER_BYTES, MemoryParts, engine_memory
from holdfast.enginemodel.prior import default_max_num_batched_tokens, default_max_num_seqs, largest_graph_tokens
from holdfast.enginemodel.shapes import GIB
from holdfast.tools.bench.figures.engine import Reported


def parts(engine: Reported, model: ModelShape, accelerator: AcceleratorShape) -> MemoryParts:
    """The parts with the share that the engine reports, and vLLM's default limits, which no metric of vLLM reports."""
    memory = engine_memory(model, accelerator, (max(1, engine.tensor_gpus), 1), engine.memory_share)
    limits = BatchLimits(default_max_num_seqs(accelerator), default_max_num_batched_tokens(accelerator))
    edge = capture_edge(limits.max_num_seqs, limits.max_num_batched_tokens, largest_graph_tokens(accelerator))
    return memory.parts(limits.max_num_seqs, limits.max_num_batched_tokens, edge)


def told(engine: Reported | None, model: ModelShape | None, accelerator: AcceleratorShape | None) -> str:
    """The parts in words; nothing where engine, model or accelerator are not known, or stages divide the layers."""
    if engine is None or model is None or engine.stages > 1:
        return ""
    words = _words(engine, model, accelerator)
    return words if engine.tensor_gpus or not words else f"on one GPU, which only the plugin would say: {words}"


def _words(engine: Reported, model: ModelShape, accelerator: AcceleratorShape | None) -> str:
    if math.isfinite(engine.kv_bytes):
        each = model.kv_bytes_per_gpu(max(1, engine.tensor_gpus))
        share = f"{engine.kv_bytes / GIB:.4g} GiB by --kv-cache-memory-bytes / {each / 2**10:g} KiB a token"
        return f"{share} = {_against(engine.kv_bytes / each, engine)}"
    if accelerator is None or math.isnan(engine.memory_share):
        return ""
    found = parts(engine, model, accelerator)
    seen = (accelerator.memory_bytes - DRIVER_BYTES) / GIB
    lost = ", ".join(
        f"{size / GIB:.3g} {name}"
        for size, name in (
            (found.weights_bytes, "weights"),
            (found.activation_bytes, "activations"),
            (found.graph_bytes, "graphs"),
        )
    )
    left = f"{engine.memory_share:g} x {seen:.4g} GiB less {lost} = {found.kv_bytes / GIB:.4g} GiB"
    return f"{left}; / {found.token_bytes / 2**10:g} KiB a token = {_against(found.kv_tokens, engine)}"


def _against(tokens: float, engine: Reported) -> str:
    said = engine.kv_capacity_tokens / engine.engines
    if not said > 0.0:
        return f"{tokens:,.0f} tokens"
    return f"{tokens:,.0f} tokens ({100 * (tokens / said - 1.0):+.1f} % off the engine's own figure)"
