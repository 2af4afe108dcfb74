"""What one engine step takes: the longer one of the GPU's time and the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from holdfast.enginemodel.host import ASYNCHRONOUS, NO_HOST, Host, capture_edge
from holdfast.enginemodel.steplaw import Chunk, PartedTimer, StepTimer


@dataclass(frozen=True, slots=True)
class EngineTimer:
    """Step times of an engine: `gpu` says how long the GPU computes, `host` what its host needs for a step."""

    gpu: StepTimer
    host: Host

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds that a step adds: of the GPU's and the host's, the longer.

        An engine that schedules ahead hides the shorter one behind the longer, and launches a prompt while the GPU
        still computes the decodes before it. One that does not schedules before, and takes results after, whatever
        takes longer.
        """
        seconds = self.gpu.step_seconds(chunks, decodes, mean_kv)
        host, tokens = self.host, decodes + sum(chunk for chunk, _ in chunks)
        busy = host.busy_seconds(tokens, bool(chunks), decodes + len(chunks))
        if host.depth >= ASYNCHRONOUS:
            return max(seconds, busy - self._idle_host(decodes, mean_kv) if chunks and decodes else busy)
        launch = host.launch(tokens, bool(chunks))
        return busy - launch + max(host.lead_seconds + seconds, launch + host.tail_seconds)

    def _idle_host(self, decodes: int, mean_kv: float) -> float:
        """Seconds that the host waits for a step of these decodes alone: so much earlier it launches the next one."""
        busy = self.host.busy_seconds(decodes, False, decodes)
        return max(0.0, self.gpu.step_seconds((), decodes, mean_kv) - busy)

    def with_host(self, host: Host) -> EngineTimer:
        """The same GPU behind another host."""
        return replace(self, host=host)

    def parted(self, fixed: float, prompt: float) -> EngineTimer:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        return EngineTimer(cast(PartedTimer, self.gpu).parted(fixed, prompt), self.host.slower(fixed))


@dataclass(frozen=True, slots=True)
class SharedTimer:
    """So many engines that take a step together, each with its share: it takes as long as the longest one."""

    timer: StepTimer
    engines: int

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        dealt = {
            (tuple(chunks[place :: self.engines]), (decodes + self.engines - 1 - place) // self.engines)
            for place in range(self.engines)
        }
        return max(self.timer.step_seconds(own, count, mean_kv) for own, count in dealt)

    def parted(self, fixed: float, prompt: float) -> SharedTimer:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        return SharedTimer(cast(PartedTimer, self.timer).parted(fixed, prompt), self.engines)


@dataclass(frozen=True, slots=True)
class SlowedTimer:
    """An engine whose every step takes `factor` times as long."""

    timer: StepTimer
    factor: float

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds of a step with these prompt chunks and `decodes` sequences of `mean_kv` KV tokens on average."""
        return self.factor * self.timer.step_seconds(chunks, decodes, mean_kv)


def slowed(timer: StepTimer, factor: float) -> StepTimer:
    """The timer of an engine whose every step, host included, takes `factor` times as long."""
    if isinstance(timer, EngineTimer):
        return EngineTimer(SlowedTimer(timer.gpu, factor), timer.host.slower(factor))
    return SlowedTimer(timer, factor)


def within(timer: StepTimer, max_num_seqs: int, max_num_batched_tokens: int) -> StepTimer:
    """The timer of an engine with these limits: vLLM captures no larger CUDA graphs than they need."""
    if not isinstance(timer, EngineTimer) or timer.host.graphs.edge is None:
        return timer
    graphs = timer.host.graphs
    edge = capture_edge(max_num_seqs, max_num_batched_tokens, timer.host.graphs.edge)
    return timer.with_host(replace(timer.host, graphs=replace(graphs, edge=edge)))


def gpu_of(timer: StepTimer) -> StepTimer:
    """The GPU's part of a timer, all of it where it knows no host."""
    return timer.gpu if isinstance(timer, EngineTimer) else timer


def host_of(timer: StepTimer) -> Host:
    """The host of a timer: one that costs nothing where it knows none."""
    return timer.host if isinstance(timer, EngineTimer) else NO_HOST
