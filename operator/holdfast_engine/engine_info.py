"""What an engine says of itself in the labels of `holdfast:engine_info`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from holdfast_engine.captured_graphs import captured_graphs
from holdfast_engine.model_figures import model_figures

logger = logging.getLogger("vllm.holdfast")


def _graph_edge(config: Any) -> object:
    edge = captured_graphs(config.compilation_config).edge_tokens
    return int(edge) if math.isfinite(edge) else None


def _speculative_tokens(config: Any) -> object:
    speculation = config.speculative_config
    return 0 if speculation is None else speculation.num_speculative_tokens


def _model_shape(config: Any) -> object:
    text, whole = config.model_config.hf_text_config, config.model_config.hf_config
    quantized = getattr(whole, "quantization_config", None)
    said = quantized if isinstance(quantized, dict) else None
    return model_figures({**text.to_dict(), "quantization_config": said})


_FACTS: Mapping[str, Callable[[Any], object]] = {
    "max_model_len": lambda config: config.model_config.max_model_len,
    "dtype": lambda config: str(config.model_config.dtype).removeprefix("torch."),
    "quantization": lambda config: config.model_config.quantization or "none",
    "tensor_parallel": lambda config: config.parallel_config.tensor_parallel_size,
    "pipeline_parallel": lambda config: config.parallel_config.pipeline_parallel_size,
    "graph_edge": _graph_edge,
    "speculative_tokens": _speculative_tokens,
    "model_shape": _model_shape,
}
INFO_LABELS = tuple(_FACTS)


def engine_info(config: Any) -> dict[str, str]:
    """The labels and their values, read from vLLM's VllmConfig; empty where this vLLM does not say.

    A version that keeps a fact elsewhere makes it unknown, and nothing more: engines start without it.
    """
    return {label: _said(label, fact, config) for label, fact in _FACTS.items()}


def _said(label: str, fact: Callable[[Any], object], config: Any) -> str:
    try:
        found = fact(config)
    except Exception as error:
        logger.error("holdfast: no %s in engine_info: %s", label, error)
        return ""
    return "" if found is None else str(found)
