"""How far priors about capacity are off: measured step tables beside what data sheets say.

    python docs/designs/scripts/refutable_belief.py

The ratio of capacities by measured step tables to those by data sheets (the roofline), for all shipped tables of known
models: 1,155 prompt and 211 output tokens on average, 99 % within TTFT 2 s and TPOT 100 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from holdfast.domain.service import Slo
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.catalog import ACCELERATORS, AcceleratorShape, ModelShape, find_model
from holdfast.enginemodel.enginetimer import EngineTimer
from holdfast.enginemodel.fit import fit_law
from holdfast.enginemodel.host import usual_host
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import (
    DEVIATION,
    IMPLAUSIBLE_FACTOR,
    PriorSource,
    default_max_num_batched_tokens,
    default_max_num_seqs,
)
from holdfast.enginemodel.roofline import roofline_law
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.enginemodel.steptable import StepTable, step_tables
from holdfast.enginemodel.working import working_point

MIX = LengthMix.from_means(1155, 211, prompt_cv=1.1, output_cv=0.8)
SLO = Slo(2.0, 0.1, 0.99, 3600.0)
KV_TOKENS = 100_000


def plausible_tables() -> Iterator[tuple[StepTable, StepLaw, ModelShape, AcceleratorShape]]:
    """The valid shipped tables of known models, each with the law of its data sheet."""
    for (name, system, gpus), table in step_tables().items():
        model = find_model(name)
        accelerator = next((shape for _, shape in ACCELERATORS if shape.system == system), None)
        if model is None or accelerator is None:
            continue
        law = roofline_law(model, accelerator, gpus)
        if table.step_seconds((), 1, 512.0) <= IMPLAUSIBLE_FACTOR * law.step_seconds((), 1, 512.0):
            yield table, law, model, accelerator


def capacity_ratios() -> Iterator[float]:
    """Logarithms of the measured capacity over the one of the data sheet, where both carry anything."""
    for table, law, model, accelerator in plausible_tables():
        host = usual_host(model.layers)
        limits = BatchLimits(default_max_num_seqs(accelerator), default_max_num_batched_tokens(accelerator))
        pairs = ((table, fit_law(table)), (law, law))
        rates = [
            working_point(EngineTimer(gpu, host), MIX, limits, KV_TOKENS, SLO, start=start).capacity.rate_rps
            for gpu, start in pairs
        ]
        if min(rates) > 0.0:
            yield math.log(rates[0] / rates[1])


def main() -> None:
    """Print how far the data sheets are off, and what the prior's deviation covers."""
    ratios = np.array(list(capacity_ratios()))
    low, middle, high = np.exp(np.percentile(ratios, (5, 50, 95)))
    print(
        f"{len(ratios)} tables: measured capacity is {middle:.2f} times the data sheet's, 90 % {low:.2f} to {high:.2f}"
    )
    deviation = DEVIATION[PriorSource.ROOFLINE]
    inside = float(np.mean(np.abs(ratios) < 1.645 * deviation))
    print(f"a deviation of {deviation:g} of the logarithm covers {inside:.0%} with its 90 % interval")


if __name__ == "__main__":
    main()
