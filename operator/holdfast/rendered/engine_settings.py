"""What the vLLM arguments of a spec say about memory and formats, before any engine runs."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.engine_flags import flag_value
from holdfast.api.llmservice import Accelerator, LLMServiceSpec


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Share of the GPU memory that vLLM takes, formats of the KV cache and of the weights; None where none is given."""

    memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None


def engine_settings(spec: LLMServiceSpec, accelerator: Accelerator) -> EngineSettings:
    """The settings of engines on one accelerator: its own arguments come after those of the engine and win."""
    own = [*spec.engine.args, *accelerator.args]
    return EngineSettings(
        _share(flag_value(own, "--gpu-memory-utilization")),
        flag_value(own, "--kv-cache-dtype"),
        flag_value(own, "--quantization", "-q"),
    )


def _share(text: str | None) -> float | None:
    """A share above 0, at most 1; None for what vLLM refuses."""
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None
