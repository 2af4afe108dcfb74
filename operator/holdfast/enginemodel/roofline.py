"""What a model must move and compute: a step law for those without a table, and the work of a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.enginemodel.catalog import AcceleratorShape, ModelShape
from holdfast.enginemodel.steplaw import Chunk, StepLaw

BANDWIDTH_EFFICIENCY = 0.85
COMPUTE_EFFICIENCY = 0.80
ATTENTION_EFFICIENCY = 0.50
"""Shares of the data sheet that engines reach: near the medians of the shipped tables."""

REDUCTIONS_PER_LAYER = 2
REDUCTION_SECONDS = 12e-6
"""All-reduces of tensor parallelism, and how long a small one takes."""


def roofline_law(model: ModelShape, accelerator: AcceleratorShape, tensor_parallel: int = 1) -> StepLaw:
    """The law of `tensor_parallel` such GPUs: weights and KV by bandwidth, tokens and attention by FLOPs.

    A decoding sequence adds its own FLOPs only: the weights it needs are read once per step (c0). Reading weights and
    computing tokens add up, as they nearly did on a real GPU: no step hides one behind the other (design note 0023).
    Between GPUs every token's hidden state travels twice per layer over the link.
    """
    gpus = max(1, tensor_parallel)
    bandwidth = accelerator.bandwidth * BANDWIDTH_EFFICIENCY * gpus
    peak = accelerator.peak_flops * gpus
    reductions = REDUCTIONS_PER_LAYER * model.layers if gpus > 1 else 0
    exchanged_bytes = reductions * model.hidden * 2.0 * 2.0 * (gpus - 1) / gpus
    token = 2.0 * model.active_parameters / (peak * COMPUTE_EFFICIENCY) + exchanged_bytes / accelerator.link_bandwidth
    weights = model.parameters * model.weight_bytes / bandwidth
    return StepLaw(
        c0=weights + reductions * REDUCTION_SECONDS,
        c1=token,
        c2=token,
        c3=gpus * model.kv_bytes_per_gpu(gpus) / bandwidth,
        c4=4.0 * model.layers * model.heads * model.head_dim / (peak * ATTENTION_EFFICIENCY),
    )


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one GPU computes and moves in a step: floating point operations, bytes from and to its memory."""

    flops: float
    read_bytes: float
    written_bytes: float


def step_work(
    model: ModelShape, tensor_parallel: int, chunks: Iterable[Chunk], decodes: int, decode_kv_tokens: int
) -> StepWork:
    """The work of a step on each of `tensor_parallel` GPUs, whose decodes attend to so many KV tokens in all.

    Source: vLLM's estimate (v1/metrics/perf.py), to first order. As there, a chunk attends to all tokens up to its end;
    left out are activations on their way through memory, and that only last tokens reach the output head. A mixture of
    experts reads at most what each token is multiplied with, as if no two tokens shared an expert.
    """
    tokens, context, pairs = decodes, decode_kv_tokens, decode_kv_tokens
    for chunk, prefix in chunks:
        tokens += chunk
        context += prefix + chunk
        pairs += chunk * (prefix + chunk)
    gpus = max(1, tensor_parallel)
    flops = 2.0 * model.active_parameters * tokens + 4.0 * model.layers * model.heads * model.head_dim * pairs
    read = min(model.parameters, model.active_parameters * tokens)
    weights = read * model.weight_bytes / gpus
    kv_bytes = model.kv_bytes_per_gpu(gpus)
    return StepWork(flops / gpus, weights + context * kv_bytes, tokens * kv_bytes)
