"""The CUDA graphs that an engine has captured: they decide how long launching a step takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class CapturedGraphs:
    """Steps of up to `edge_tokens` tokens were captured, infinite where that is unknown.

    Whether one graph holds a whole step of decodes alone, and one with prompt tokens: launching it takes no time then.
    """

    edge_tokens: float = math.inf
    whole_decodes: bool = True
    whole_mixed: bool = False

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
