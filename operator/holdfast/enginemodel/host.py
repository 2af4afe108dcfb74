"""The host side of an engine: how long its one thread is busy with a step, and what its API server adds.

vLLM's engine core schedules a step, launches it and takes results in one thread; with asynchronous scheduling it does
so for the next step while the GPU still computes the one before (`EngineCore.step_with_batch_queue`). What launching
costs depends on how the step is launched: from one CUDA graph, from a graph per layer, or kernel by kernel.

The numbers are of one host (vLLM 0.32 with Qwen3-8B's 36 layers on an H200, `benchmarks/twin_h200.py`). Others are
faster or slower as a whole: that is one factor (`Host.slower`). Engines on several GPUs launch in worker processes, all
at once: the same numbers hold for them.
"""

from __future__ import annotations

import enum
import math
from dataclasses import astuple, dataclass, replace

from holdfast_engine.law.captured_graphs import CapturedGraphs

SYNCHRONOUS, ASYNCHRONOUS = 1, 2
"""Steps that vLLM has in flight at most, without and with asynchronous scheduling (the size of its batch queue)."""

CAPTURE_EDGE = 512
"""vLLM's largest CUDA graph in tokens by default; `capture_edge` has the whole rule."""

WHOLE_GRAPH_SECONDS = 1.2e-3
LAYER_GRAPH_SECONDS = 0.30e-3
LAYER_KERNELS_SECONDS = 0.80e-3
"""To launch a whole graph, and each layer by a graph or kernel by kernel: what steps take in effect, 15 to 20 % more
than the median launch, for launches vary and only the long ones show."""

SCHEDULE_SECONDS = 0.20e-3
UPDATE_SECONDS = 0.12e-3
SEQUENCE_SECONDS = 10e-6
LEAD_SECONDS = 0.5e-3
TAIL_SECONDS = 0.3e-3


class GraphMode(enum.StrEnum):
    """vLLM's `cudagraph_mode`: what is captured for steps of decodes alone, and for steps with prompt tokens."""

    NONE = "NONE"  # also --enforce-eager
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


class Launch(enum.IntEnum):
    """How a step is launched."""

    WHOLE_GRAPH = 0
    LAYER_GRAPHS = 1
    KERNELS = 2


_LAUNCHES: dict[GraphMode, tuple[Launch, Launch]] = {
    GraphMode.NONE: (Launch.KERNELS, Launch.KERNELS),
    GraphMode.PIECEWISE: (Launch.LAYER_GRAPHS, Launch.LAYER_GRAPHS),
    GraphMode.FULL: (Launch.WHOLE_GRAPH, Launch.WHOLE_GRAPH),
    GraphMode.FULL_DECODE_ONLY: (Launch.WHOLE_GRAPH, Launch.KERNELS),
    GraphMode.FULL_AND_PIECEWISE: (Launch.WHOLE_GRAPH, Launch.LAYER_GRAPHS),
}
"""Up to the edge: steps of decodes alone, and steps with prompt tokens. Source: vLLM's page "CUDA Graphs"."""


def capture_edge(max_num_seqs: int, max_num_batched_tokens: int, largest: int = CAPTURE_EDGE) -> int:
    """The largest step in tokens that vLLM captures by default (`max_cudagraph_capture_size`, config/vllm.py).

    `largest` is twice the usual one on Blackwell.
    """
    return min(2 * max_num_seqs, largest, max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Graphs:
    """Which CUDA graphs an engine has: the mode, and the largest captured step in tokens.

    An `edge` of None is not known: then no step is known to lie beyond it, and launches count for the least they take.
    """

    mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    edge: int | None = CAPTURE_EDGE

    def launch(self, tokens: int, prompts: bool) -> Launch:
        """How a step of so many tokens, with or without prompt tokens among them, is launched."""
        if self.edge is not None and tokens > self.edge:
            return Launch.KERNELS
        return _LAUNCHES[self.mode][prompts]

    @property
    def captured(self) -> CapturedGraphs:
        """The same as the plugin knows it."""
        edge, (decodes, mixed) = math.inf if self.edge is None else float(self.edge), _LAUNCHES[self.mode]
        return CapturedGraphs(edge, decodes is Launch.WHOLE_GRAPH, mixed is Launch.WHOLE_GRAPH)


USUAL_GRAPHS = Graphs()


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What the API server needs, in seconds: one thread reads requests and writes tokens, first come, first served.

    It reads a request in `request_seconds` and `prompt_seconds` per prompt token, and the engine has it
    `transit_seconds` later. It turns a request away in `door_seconds`. It writes each token of a step in
    `token_seconds`, and the client has it `reply_seconds` later. All zeros is a client at the engine itself, which sees
    what vLLM's own metrics count.
    """

    request_seconds: float = 0.0
    prompt_seconds: float = 0.0
    token_seconds: float = 0.0
    transit_seconds: float = 0.0
    reply_seconds: float = 0.0
    door_seconds: float = 0.0

    def slower(self, factor: float) -> FrontEnd:
        """One that needs so many times as long for everything."""
        return FrontEnd(*(factor * seconds for seconds in astuple(self)))


NO_FRONT_END = FrontEnd()

USUAL_FRONT_END = FrontEnd(1.8e-3, 0.5e-6, 70e-6, 1.1e-3, 1.2e-3)
"""One API server of vLLM 0.32 with streaming clients on the same host: processor seconds that the process used per
token and per request, and what a lone request waits beyond them. Source: `benchmarks/twin_h200.py`."""

BUSY_FRONT_END = FrontEnd(6.3e-3, 0.5e-6, 79e-6, 1.1e-3, 1.2e-3, 2.3e-3)
"""The host of an H100, with a connection per request: `python benchmarks/h100_cells.py` fits the three costs."""


@dataclass(frozen=True, slots=True)
class Host:
    """What one engine's host needs for a step, in seconds, and how many steps it has in flight.

    A step is scheduled in `schedule_seconds` and its results are taken in `update_seconds`, both with
    `sequence_seconds` more per sequence in it; launching takes `launch_seconds[Launch]`. The GPU begins `lead_seconds`
    after its launch began, and ends no earlier than `tail_seconds` after it ended. All zeros is a host that costs
    nothing: then a step takes what its GPU takes.
    """

    depth: int = SYNCHRONOUS
    graphs: Graphs = USUAL_GRAPHS
    launch_seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    schedule_seconds: float = 0.0
    update_seconds: float = 0.0
    sequence_seconds: float = 0.0
    lead_seconds: float = 0.0
    tail_seconds: float = 0.0
    front_end: FrontEnd = NO_FRONT_END

    def launch(self, tokens: int, prompts: bool) -> float:
        """Seconds to launch a step of so many tokens, with or without prompt tokens among them."""
        return self.launch_seconds[self.graphs.launch(tokens, prompts)]

    def busy_seconds(self, tokens: int, prompts: bool, sequences: int) -> float:
        """Seconds of the engine's thread for a step: to schedule it, to launch it, to take its results."""
        fixed = self.schedule_seconds + self.update_seconds + 2.0 * self.sequence_seconds * sequences
        return fixed + self.launch(tokens, prompts)

    def slower(self, factor: float) -> Host:
        """A host that needs so many times as long for everything."""
        whole, graphs, kernels = self.launch_seconds
        return replace(
            self,
            launch_seconds=(factor * whole, factor * graphs, factor * kernels),
            schedule_seconds=factor * self.schedule_seconds,
            update_seconds=factor * self.update_seconds,
            sequence_seconds=factor * self.sequence_seconds,
            lead_seconds=factor * self.lead_seconds,
            tail_seconds=factor * self.tail_seconds,
            front_end=self.front_end.slower(factor),
        )


NO_HOST = Host()
"""A host that costs nothing, one step at a time."""


def usual_host(layers: int, graphs: Graphs = USUAL_GRAPHS, depth: int = ASYNCHRONOUS) -> Host:
    """A host like the measured one, for a model of so many layers, without a front end."""
    return Host(
        depth=depth,
        graphs=graphs,
        launch_seconds=(WHOLE_GRAPH_SECONDS, LAYER_GRAPH_SECONDS * layers, LAYER_KERNELS_SECONDS * layers),
        schedule_seconds=SCHEDULE_SECONDS,
        update_seconds=UPDATE_SECONDS,
        sequence_seconds=SEQUENCE_SECONDS,
        lead_seconds=LEAD_SECONDS,
        tail_seconds=TAIL_SECONDS,
    )


def done_at(launch_at: float, launched_at: float, gpu_at: float, gpu_seconds: float, lead: float, tail: float) -> float:
    """When the GPU is done with a step: it begins once its launch has and the step before it is done."""
    return max(max(gpu_at, launch_at + lead) + gpu_seconds, launched_at + tail)
