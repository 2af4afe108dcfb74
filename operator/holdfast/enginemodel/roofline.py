"""A step law from what a model must move and compute, for models and accelerators without a table."""

from __future__ import annotations

from holdfast.enginemodel.catalog import AcceleratorShape, ModelShape
from holdfast.enginemodel.steplaw import StepLaw

BANDWIDTH_EFFICIENCY = 0.85
COMPUTE_EFFICIENCY = 0.80
ATTENTION_EFFICIENCY = 0.50
STEP_OVERHEAD_SECONDS = 0.002
"""Shares of the data sheet that engines reach, and host time per step: near the medians of the shipped tables."""

REDUCTIONS_PER_LAYER = 2
REDUCTION_SECONDS = 12e-6
"""All-reduces of tensor parallelism, and how long a small one takes."""


def roofline_law(model: ModelShape, accelerator: AcceleratorShape, tensor_parallel: int = 1) -> StepLaw:
    """The law of `tensor_parallel` such GPUs: weights and KV by bandwidth, tokens and attention by FLOPs.

    A decoding sequence adds its own FLOPs only: the weights it needs are read once per step (c0). Between GPUs every
    token's hidden state travels twice per layer over the link.
    """
    gpus = max(1, tensor_parallel)
    bandwidth = accelerator.bandwidth * BANDWIDTH_EFFICIENCY * gpus
    peak = accelerator.peak_flops * gpus
    reductions = REDUCTIONS_PER_LAYER * model.layers if gpus > 1 else 0
    exchanged_bytes = reductions * model.hidden * 2.0 * 2.0 * (gpus - 1) / gpus
    token = 2.0 * model.active_parameters / (peak * COMPUTE_EFFICIENCY) + exchanged_bytes / accelerator.link_bandwidth
    weights = model.parameters * model.weight_bytes / bandwidth
    return StepLaw(
        c0=weights + STEP_OVERHEAD_SECONDS + reductions * REDUCTION_SECONDS,
        c1=token,
        c2=token,
        c3=model.kv_bytes_per_token / bandwidth,
        c4=4.0 * model.layers * model.heads * model.head_dim / (peak * ATTENTION_EFFICIENCY),
    )
