"""Where a load stands under an accelerator's roofline: bound by its FLOP/s, or by its memory bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.enginemodel.catalog import AcceleratorShape


@dataclass(frozen=True, slots=True)
class GpuWork:
    """What one GPU did while it was looked at: floating point operations, bytes to and from memory, in so many seconds.

    Source: the counters of vLLM's `--enable-mfu-metrics` (v1/metrics/perf.py), which estimate both from what each step
    computed.
    """

    flops: float
    memory_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte of memory traffic; NaN where nothing was counted."""
        return self.flops / self.memory_bytes if self.memory_bytes > 0.0 else math.nan


def is_compute_bound(work: GpuWork, accelerator: AcceleratorShape) -> bool:
    """Whether its intensity lies beyond the ridge, peak FLOP/s over bandwidth.

    Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
    """
    return work.intensity >= accelerator.peak_flops / accelerator.bandwidth


def told(work: GpuWork | None, accelerator: AcceleratorShape | None) -> str:
    """The position in words; nothing where the engine does not count its work."""
    if work is None or not math.isfinite(work.intensity):
        return ""
    place = f"{work.intensity:.3g} FLOP a byte of memory traffic"
    if accelerator is None:
        return f"{place} (--accelerator tells what binds it)"
    bound = "compute" if is_compute_bound(work, accelerator) else "memory"
    ridge = accelerator.peak_flops / accelerator.bandwidth
    peak = work.flops / work.seconds / accelerator.peak_flops
    bandwidth = work.memory_bytes / work.seconds / accelerator.bandwidth
    return (
        f"{bound}-bound on {accelerator.system}: {place}, its ridge is at {ridge:.3g}; "
        f"{100 * peak:.3g} % of its FLOP/s, {100 * bandwidth:.3g} % of its bandwidth"
    )
