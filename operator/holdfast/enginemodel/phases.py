"""Where each phase of an engine stands under its GPU's roofline: prompts (prefill) and answers (decode).

Each phase is looked at as a step of its own, as if the other one did not share it: a mean prompt, at most as much of it
as a step computes, and a step of the mean number of decoding sequences. Seconds are those of a step law: the one that
the plugin fits to the engine's steps, else the data sheet's, made as slow as all of these steps (`measured_law`); of an
engine that does not run yet, the prior's. So no counter of vLLM's own is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from holdfast.domain.engine import StepSums
from holdfast.enginemodel.catalog import AcceleratorShape, ModelShape
from holdfast.enginemodel.roofline import step_work
from holdfast.enginemodel.steplaw import StepLaw


@dataclass(frozen=True, slots=True)
class GpuWork:
    """What one GPU did: floating point operations, bytes to and from memory, in so many seconds."""

    flops: float
    memory_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte of memory traffic; NaN where nothing was counted."""
        return self.flops / self.memory_bytes if self.memory_bytes > 0.0 else math.nan

    def of_stage(self, stages: int) -> GpuWork:
        """The share of one of so many pipeline stages, where the seconds are between results: one stage's."""
        return replace(self, flops=self.flops / stages, memory_bytes=self.memory_bytes / stages)


@dataclass(frozen=True, slots=True)
class Roofs:
    """How far a GPU's work is from each of its roofs, as shares of the data sheet's; 1 is at the roof.

    `compute_bound`: the intensity lies beyond the ridge, peak FLOP/s over bandwidth.
    Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
    """

    compute_bound: bool
    flops_share: float
    bandwidth_share: float


@dataclass(frozen=True, slots=True)
class StepMix:
    """Mean prompt, most tokens of a step, and what a step decodes: sequences, and KV tokens of each."""

    prompt_tokens: float
    tokens_per_step: float
    decodes: float
    kv_tokens_each: float

    @classmethod
    def of(cls, sums: StepSums, prompt_tokens: float, tokens_per_step: float) -> StepMix:
        """The mean step of the engines that counted these sums."""
        decodes = sums.decodes / sums.steps if sums.steps > 0.0 else math.nan
        return cls(prompt_tokens, tokens_per_step, decodes, sums.kv_tokens / max(sums.decodes, 1.0))


@dataclass(frozen=True, slots=True)
class Phases:
    """One step of each phase; None where its tokens or its seconds are not known."""

    prefill: GpuWork | None
    decode: GpuWork | None

    def by_name(self) -> dict[str, GpuWork | None]:
        """Both, in the order in which a request has them."""
        return {"prefill": self.prefill, "decode": self.decode}

    def of_stage(self, stages: int) -> Phases:
        """What a GPU of one of so many pipeline stages does of each phase."""
        return Phases(self.prefill and self.prefill.of_stage(stages), self.decode and self.decode.of_stage(stages))


def roofs(work: GpuWork, accelerator: AcceleratorShape) -> Roofs | None:
    """The position of this work on this GPU; None above a roof: then work or seconds are not this GPU's."""
    found = Roofs(
        compute_bound=work.intensity >= accelerator.peak_flops / accelerator.bandwidth,
        flops_share=work.flops / work.seconds / accelerator.peak_flops,
        bandwidth_share=work.memory_bytes / work.seconds / accelerator.bandwidth,
    )
    return found if max(found.flops_share, found.bandwidth_share) <= 1.0 else None


def measured_law(law: StepLaw, sums: StepSums) -> StepLaw | None:
    """The law by which these steps take as long in all as they took; None where that is no time."""
    expected = law.sums_seconds(sums)
    if not (0.0 < expected < math.inf and 0.0 < sums.seconds < math.inf):
        return None
    return law.scaled(sums.seconds / expected)


def phases(model: ModelShape, law: StepLaw, gpus: int, mix: StepMix) -> Phases:
    """The work of a step of each phase on each of `gpus` GPUs (tensor parallel), and how long the law says it takes."""
    prompt, budget, decodes = map(_whole, (mix.prompt_tokens, mix.tokens_per_step, mix.decodes))
    return Phases(
        prefill=_step(model, law, gpus, [(min(prompt, budget or prompt), 0)], 0, 0.0) if prompt else None,
        decode=_step(model, law, gpus, [], decodes, mix.kv_tokens_each) if decodes else None,
    )


def _step(
    model: ModelShape, law: StepLaw, gpus: int, chunks: list[tuple[int, int]], decodes: int, kv_tokens_each: float
) -> GpuWork | None:
    seconds = law.step_seconds(chunks, decodes, kv_tokens_each)
    if not (0.0 < seconds < math.inf and 0.0 <= kv_tokens_each < math.inf):
        return None
    work = step_work(model, gpus, chunks, decodes, round(decodes * kv_tokens_each))
    return GpuWork(work.flops, work.read_bytes + work.written_bytes, seconds)


def _whole(count: float) -> int:
    """At least one of what there is; none of what is not known."""
    return max(1, round(count)) if 0.0 < count < math.inf else 0
