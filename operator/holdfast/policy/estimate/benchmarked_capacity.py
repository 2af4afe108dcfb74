"""Scale the engine model by a benchmark's result, to get the capacity that sizing starts from.

The engine model answers for any lengths, objectives and limits, but is wrong by some factor. A benchmark is accurate
for one combination of them. The factor makes the model reproduce the measurement under the conditions of the benchmark.
It is computed at the current belief about slowness, so that a correction of step times is not counted twice.
"""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.domain.benchmark import Measured
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.mix import DEFAULT_CV, LengthMix
from holdfast.enginemodel.replica_model import EngineModel


@value
class Scaled:
    """A measurement, and the factor by which it scales the model; the factor is 1 where they cannot be compared."""

    measured: Measured | None = None
    factor: float = 1.0
    compared: bool = False

    def confidence(self, prior: float) -> float:
        """Return the initial confidence (0..1) in the capacity; `prior` is that of the model alone."""
        if self.measured is None or not self.compared or not self.measured.rate_rps > 0.0:
            return prior
        return max(prior, 1.0 - min(1.0, self.measured.standard_error_rps / self.measured.rate_rps))


def scaled(
    measured: Measured | None,
    spec: ServiceSpec,
    option: AcceleratorOption,
    model: EngineModel,
    slowness: float,
    fast_loop: bool,
) -> Scaled | None:
    """Return the factor that makes the model reproduce the measurement; None where no model time is left this tick."""
    if measured is None:
        return Scaled()
    engine, mix = replace(spec, slo=measured.slo, batching=measured.batching), mix_of(measured)
    limits = model.best_limits(engine, option, mix, slowness) if fast_loop else measured.batching
    found = None if limits is None else model.rate(replace(engine, batching=limits), option, mix, slowness)
    if found is None:
        return None
    factor = measured.rate_rps / found.rate_rps if found.rate_rps > 0.0 else 0.0
    return Scaled(measured, factor, compared=True) if 0.0 < factor < math.inf else Scaled(measured)


def mix_of(measured: Measured) -> LengthMix:
    """Return the length mix of the requests of a benchmark."""
    cv = DEFAULT_CV if measured.length_cv is None else measured.length_cv
    return LengthMix.from_means(measured.prompt_tokens, measured.output_tokens, prompt_cv=cv, output_cv=cv)
