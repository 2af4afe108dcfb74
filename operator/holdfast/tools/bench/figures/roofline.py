"""Where a load stands under an accelerator's roofline, in words."""

from __future__ import annotations

import math

from holdfast.enginemodel.catalog import AcceleratorShape
from holdfast.enginemodel.phases import GpuWork, roofs


def told(work: GpuWork | None, accelerator: AcceleratorShape | None) -> str:
    """The position in words; nothing where the work is not known, or above a roof."""
    if work is None or not math.isfinite(work.intensity):
        return ""
    place = f"{work.intensity:.3g} FLOP a byte of memory traffic"
    if accelerator is None:
        return f"{place} (--accelerator tells what binds it)"
    found = roofs(work, accelerator)
    if found is None:
        return ""
    bound = "compute" if found.compute_bound else "memory"
    ridge = accelerator.peak_flops / accelerator.bandwidth
    return (
        f"{bound}-bound on {accelerator.system}: {place}, its ridge is at {ridge:.3g}; "
        f"{100 * found.flops_share:.3g} % of its FLOP/s, {100 * found.bandwidth_share:.3g} % of its bandwidth"
    )
