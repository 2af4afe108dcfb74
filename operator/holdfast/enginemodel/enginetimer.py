"""What one engine step takes: the GPU's time and the host's, of which the longer one counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from holdfast.enginemodel.host import ASYNCHRONOUS, NO_HOST, Host
from holdfast.enginemodel.steplaw import Chunk, PartedTimer, StepTimer


@dataclass(frozen=True, slots=True)
class EngineTimer:
    """Step times of an engine: `gpu` says how long the GPU computes, `host` what its host needs for a step."""

    gpu: StepTimer
    host: Host

    def step_seconds(self, chunks: Sequence[Chunk], decodes: int, mean_kv: float) -> float:
        """Seconds that a step costs among its like: of the GPU's and the host's, the longer.

        An engine that schedules ahead hides the shorter one behind the longer; one that does not schedules before,
        and takes results after, whatever takes longer.
        """
        seconds = self.gpu.step_seconds(chunks, decodes, mean_kv)
        host, tokens = self.host, decodes + sum(chunk for chunk, _ in chunks)
        busy = host.busy_seconds(tokens, bool(chunks), decodes + len(chunks))
        if host.depth >= ASYNCHRONOUS:
            return max(seconds, busy)
        launch = host.launch(tokens, bool(chunks))
        return busy - launch + max(host.lead_seconds + seconds, launch + host.tail_seconds)

    def with_host(self, host: Host) -> EngineTimer:
        """The same GPU behind another host."""
        return replace(self, host=host)

    def parted(self, fixed: float, prompt: float) -> EngineTimer:
        """With so many times the seconds of every step, and of prompt tokens; what decodes add stays."""
        return EngineTimer(cast(PartedTimer, self.gpu).parted(fixed, prompt), self.host.slower(fixed))


def gpu_of(timer: StepTimer) -> StepTimer:
    """The GPU's part of a timer, all of it where it knows no host."""
    return timer.gpu if isinstance(timer, EngineTimer) else timer


def host_of(timer: StepTimer) -> Host:
    """The host of a timer: one that costs nothing where it knows none."""
    return timer.host if isinstance(timer, EngineTimer) else NO_HOST
