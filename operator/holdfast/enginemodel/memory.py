"""How many tokens of KV cache the memory of a GPU has room for, part by part.

vLLM takes its share of the memory that CUDA sees. The weights, the peak of a profiled step and the CUDA graphs come off
it; the rest is the cache (`Worker.determine_available_memory`, v1/worker/gpu_worker.py). `benchmarks/kv_memory.py`
compares the sum with what engines reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.enginemodel.shapes import GIB, AcceleratorShape, ModelShape
from holdfast.enginemodel.steptable import StepTable

DRIVER_BYTES = 0.56 * GIB
"""What the driver keeps of the memory that it reports: 0.46 to 0.75 GiB on eight kinds of GPU."""

WORKSPACE_BYTES = 0.74 * GIB
LOGIT_BYTES = 12.1
"""What a profiled step allocates in any case, and for each sequence and word of the vocabulary (logits, their copies
for sampling). Fitted to engines of vLLM 0.19 to 0.32 by `benchmarks/kv_memory.py`."""

TOKEN_ACTIVATIONS = 16.0
"""Elements that are alive for a prompt token in a layer, in hidden sizes: of the two projections of a gated MLP (7) and
their product (3.5), of the attention (1.5), and residuals (4)."""

GRAPH_BYTES = 0.35e6
"""Of a captured step size and a layer: 0.63 GiB for 51 sizes and 36 layers, as an engine on an H200 reported."""

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The memory of one GPU in bytes, and the bytes of it that a token of KV cache takes."""

    usable_bytes: float
    weights_bytes: float
    activation_bytes: float
    graph_bytes: float
    token_bytes: float

    @property
    def kv_bytes(self) -> float:
        """Bytes of the KV cache; 0 where weights, activations and graphs do not fit."""
        return max(0.0, self.usable_bytes - self.weights_bytes - self.activation_bytes - self.graph_bytes)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache."""
        return int(self.kv_bytes / self.token_bytes)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What decides the parts: bytes of the GPU, the share of it, its part of the weights, and the model's shape.

    `gpus` share the model's layers tensor parallel; `layers` are those of one pipeline stage.
    """

    gpu_bytes: float
    share: float
    weights_bytes: float
    token_bytes: float
    layers: float
    hidden: int
    vocabulary: int
    gpus: int = 1

    def parts(self, max_num_seqs: int, max_num_batched_tokens: int, graph_edge_tokens: int) -> MemoryParts:
        """The parts with these limits, and with CUDA graphs of up to so many tokens (0: without)."""
        prompts = max_num_batched_tokens * TOKEN_ACTIVATIONS * self.hidden * ACTIVATION_BYTES / self.gpus
        sampling = max_num_seqs * self.vocabulary * LOGIT_BYTES
        return MemoryParts(
            usable_bytes=self.share * (self.gpu_bytes - DRIVER_BYTES),
            weights_bytes=self.weights_bytes,
            activation_bytes=WORKSPACE_BYTES + max(prompts, sampling),
            graph_bytes=GRAPH_BYTES * self.layers * captured_sizes(graph_edge_tokens),
            token_bytes=self.token_bytes,
        )

    def more_tokens(self, more_share: float) -> float:
        """Tokens that so much more of the GPU gives; fewer where it is negative."""
        return more_share * (self.gpu_bytes - DRIVER_BYTES) / self.token_bytes


def engine_memory(
    model: ModelShape,
    accelerator: AcceleratorShape,
    ways: tuple[int, int],
    share: float,
    table: StepTable | None = None,
    adapter_ranks: int = 0,
) -> EngineMemory:
    """The memory of one GPU of an engine; a step table knows the bytes of weights and cache that it was made with.

    `ways` are the GPUs of a stage, and the stages: each has its share of the weights, and of each token's cache. The
    tokens are divided among as many micro-batches, so that they are as many as one stage with all layers would hold.
    Room for LoRA adapters of `adapter_ranks` in all counts as weights.
    """
    gpus, stages = ways
    weights = table.weights_bytes if table else model.parameters * model.weight_bytes / gpus
    return EngineMemory(
        gpu_bytes=accelerator.memory_bytes,
        share=share,
        weights_bytes=(weights + adapter_bytes(model, gpus, adapter_ranks)) / stages,
        # The table of Qwen3-32B-FP8 was made with an FP8 cache, which the checkpoint does not ask for.
        token_bytes=max(table.kv_bytes_per_token if table else 0.0, model.kv_bytes_per_gpu(gpus)),
        layers=model.layers / stages,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        gpus=gpus,
    )


def adapter_bytes(model: ModelShape, gpus: int, ranks: int) -> float:
    """Bytes on each of so many GPUs (tensor parallel) of the room that vLLM sets aside for LoRA adapters at its start.

    A rank is a row and a column of each of the seven projections of a layer. GPUs share the side of a projection that
    they compute in parts, and each has the other side (vllm/lora/layers). Each GPU has the whole rows and columns of
    the embedding and the logits; models without `embedding_modules` in vLLM take less. An MoE counts as one MLP of all
    its experts: vLLM takes more. The KV cache that an engine reports overrules the estimate.
    """
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    layer = (model.parameters - (model.embedding_parameters or model.vocabulary * model.hidden)) / model.layers
    inner = max(0.0, layer - 2 * model.hidden * (queries + keys)) / model.hidden  # of the three projections of an MLP
    numbers = 7 * model.hidden + (2 * queries + 2 * keys + inner) / gpus
    words = 2 * (model.vocabulary + model.hidden)
    return ranks * (model.layers * numbers + words) * ACTIVATION_BYTES


def captured_sizes(edge_tokens: int) -> int:
    """How many step sizes vLLM captures by default: 1, 2, 4, every 8th up to 256, then every 16th (config/vllm.py)."""
    small = sum(size <= edge_tokens for size in (1, 2, 4))
    return small + min(edge_tokens, 256) // 8 + max(0, edge_tokens - 256) // 16
