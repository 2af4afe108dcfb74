"""What an engine says of itself in the labels of `holdfast:engine_info`."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast_engine import VERSION
from holdfast_engine.law.captured_graphs import captured_graphs
from holdfast_engine.law.model_figures import model_figures

logger = logging.getLogger("vllm.holdfast")


@dataclass(frozen=True, slots=True)
class Identity:
    """The labels that tell one engine from another, what `engine_info` read of it, and of its KV cache."""

    model_name: str
    version: str
    vllm_version: str
    facts: Mapping[str, str] = field(default_factory=dict)
    cache: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        """Read what `to_json` has written."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """All of it as one line."""
        return json.dumps(asdict(self))


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


def front_end(servers: int) -> str:
    """What serves requests, in how many processes; vLLM keeps its Rust front end in no configuration."""
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "").strip("0"):
        return "Rust"
    return "Python" if servers == 1 else f"Python, {servers} processes"


_FACTS: Mapping[str, Callable[[Any], object]] = {
    "max_model_len": lambda config: config.model_config.max_model_len,
    "dtype": lambda config: str(config.model_config.dtype).removeprefix("torch."),
    "quantization": lambda config: config.model_config.quantization or "none",
    "tensor_parallel": lambda config: config.parallel_config.tensor_parallel_size,
    "pipeline_parallel": lambda config: config.parallel_config.pipeline_parallel_size,
    "graph_edge": _graph_edge,
    "speculative_tokens": _speculative_tokens,
    "model_shape": _model_shape,
    "front_end": lambda config: front_end(config.parallel_config._api_process_count),
}
INFO_LABELS = tuple(_FACTS)
CACHE_LABELS = ("num_gpu_blocks", "block_size", "gpu_memory_utilization", "cache_dtype")


def engine_info(config: Any) -> dict[str, str]:
    """The labels and their values, read from vLLM's VllmConfig; empty where this vLLM does not say.

    A version that keeps a fact elsewhere makes it unknown, and nothing more: engines start without it.
    """
    return {label: _said(label, fact, config) for label, fact in _FACTS.items()}


def identity_of(config: Any, vllm_version: str) -> Identity:
    """What the engine with this VllmConfig is."""
    name = config.model_config.served_model_name
    return Identity(name, VERSION, vllm_version, engine_info(config), _cache(config.cache_config))


def _cache(config: Any) -> dict[str, str]:
    """The labels of vLLM's info metric of its KV cache, which its Rust front end does not show."""
    return {name: str(found) for name in CACHE_LABELS if (found := getattr(config, name, None)) is not None}


def _said(label: str, fact: Callable[[Any], object], config: Any) -> str:
    try:
        found = fact(config)
    except Exception as error:
        logger.error("holdfast: no %s in engine_info: %s", label, error)
        return ""
    return "" if found is None else str(found)
