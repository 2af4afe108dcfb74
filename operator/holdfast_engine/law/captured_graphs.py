"""The CUDA graphs that an engine has captured: they decide how long launching a step takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

# vLLM's largest CUDA graph by default, in tokens (`max_cudagraph_capture_size`, config/vllm.py of 0.32).
USUAL_EDGE_TOKENS = 512.0


@dataclass(frozen=True, slots=True)
class CapturedGraphs:
    """Steps of up to `edge_tokens` tokens were captured, infinite where that is unknown.

    Whether one graph holds a whole step of decodes alone, and one with prompt tokens: launching it takes no time then.
    """

    edge_tokens: float = math.inf
    whole_decodes: bool = True
    whole_mixed: bool = False

    @property
    def assumed_edge_tokens(self) -> float:
        """Launches count as long beyond this size: vLLM's default where it is unknown.

        With one kind for both, a long launch passes for waiting for the GPU, and prompts seem to cost nothing.
        """
        return USUAL_EDGE_TOKENS if math.isinf(self.edge_tokens) else self.edge_tokens

    def replays(self, kind: int) -> bool:
        """Whether one graph holds a step of this kind (see steptimes)."""
        return (self.whole_decodes, self.whole_mixed, False)[kind]


UNKNOWN_GRAPHS = CapturedGraphs()


def captured_graphs(compilation: Any) -> CapturedGraphs:
    """What vLLM's CompilationConfig says; where it says nothing, no step is known to lie beyond the largest graph.

    Source: vLLM's page "CUDA Graphs".
    """
    mode, edge = getattr(compilation, "cudagraph_mode", None), getattr(compilation, "max_cudagraph_capture_size", None)
    edge_tokens = math.inf if edge is None else float(edge)
    if mode is None:
        return replace(UNKNOWN_GRAPHS, edge_tokens=edge_tokens)
    decodes, mixed = mode.decode_mode().name, mode.mixed_mode().name
    if decodes == mixed == "NONE":
        return CapturedGraphs(0.0, whole_decodes=False)
    return CapturedGraphs(edge_tokens, decodes == "FULL", mixed == "FULL")
