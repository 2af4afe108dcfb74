"""What a roofline needs to know of a model and of an accelerator."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2.0**30
USUAL_VOCABULARY = 151_936
"""Words that most models of recent years know, about: Qwen's; Llama 3 has 128,256."""

PCIE = 25e9
"""Bytes/s between GPUs without a link of their own, as all-reduces see it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a roofline needs to know of a model.

    `parameters` sets the weights' memory, `active_parameters` the work per token (fewer in a mixture of experts);
    `weight_bytes` per parameter in the format `weights`, `kv_element_bytes` per key or value element.
    `embedding_parameters` keep 16 bits when the others are quantized. `kv_latent` is the number of elements that
    multi-head latent attention (MLA) caches per token and layer instead of keys and values; 0 for other models.
    `kv_layers` is how many layers' worth of cache a token takes where some keep less than all tokens (sliding windows,
    linear attention); None for all layers. `table` names the shipped step table. Each sequence of a step has a logit
    for each word of the `vocabulary`.
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
    weights: str = "bf16"
    embedding_parameters: float = 0.0
    kv_latent: int = 0
    kv_layers: float | None = None
    vocabulary: int = USUAL_VOCABULARY

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache that one token takes over all GPUs, without copies of the same content."""
        elements = self.kv_latent or 2 * self.kv_heads * self.head_dim
        layers = self.layers if self.kv_layers is None else self.kv_layers
        return layers * elements * self.kv_element_bytes

    def kv_bytes_per_gpu(self, gpus: int) -> float:
        """Bytes of KV cache that one token takes on each of so many GPUs (tensor parallel).

        GPUs share the heads of keys and values, at least one head each. A latent has no heads: each GPU has all of it.
        """
        return self.kv_bytes_per_token / (1 if self.kv_latent else max(1, min(gpus, self.kv_heads)))


@dataclass(frozen=True, slots=True)
class AcceleratorShape:
    """One GPU: bytes of memory, bytes/s of memory and of the link between GPUs, dense 16-bit FLOP/s.

    `system` names the shipped step tables.
    """

    system: str
    memory_bytes: float
    bandwidth: float
    peak_flops: float
    link_bandwidth: float = PCIE
