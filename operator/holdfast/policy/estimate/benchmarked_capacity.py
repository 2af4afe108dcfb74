"""How a benchmark's result becomes the capacity that sizing starts from.

The engine model answers for any lengths, objectives and limits, and is wrong by some factor; a benchmark is right
for one of each. So the model's answers are scaled by the factor that makes it give what was measured, where it was
measured: at the present belief of how slow steps are, so that what is learnt of the steps is not counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from holdfast.domain.benchmark import EngineKind, Measured
from holdfast.domain.service import AcceleratorOption, ServiceSpec
from holdfast.domain.value import value
from holdfast.enginemodel.mix import DEFAULT_CV, LengthMix
from holdfast.policy.estimate.engine_model import EngineModel

LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0
"""A model further off than this is not scaled: something else is the matter."""


@value
class Scaled:
    """A measurement, and the factor it puts on the model's answers; 1 where it could not be compared."""

    measured: Measured | None = None
    factor: float = 1.0
    compared: bool = False

    def confidence(self, prior: float) -> float:
        """How sure the capacity is from the start, instead of what the model alone gives."""
        if self.measured is None or not self.compared or not self.measured.rate_rps > 0.0:
            return prior
        return max(prior, 1.0 - min(1.0, self.measured.standard_error_rps / self.measured.rate_rps))


def newest(results: Iterable[Measured], spec: ServiceSpec) -> tuple[Measured, ...]:
    """For each accelerator of a service the newest result of an engine like its own, where there is one."""
    found = newest_by_engine(results)
    kinds = (EngineKind.of(spec, option).digest for option in spec.accelerators)
    return tuple(found[kind] for kind in kinds if kind in found) if found else ()


def newest_by_engine(results: Iterable[Measured]) -> dict[str, Measured]:
    """The result that counts for each kind of engine, by its digest."""
    found: dict[str, Measured] = {}
    for measured in results:
        if measured.engine not in found or found[measured.engine].measured_at < measured.measured_at:
            found[measured.engine] = measured
    return found


def scaled(
    measured: Measured | None,
    spec: ServiceSpec,
    option: AcceleratorOption,
    model: EngineModel,
    slowness: float,
    fast_loop: bool,
) -> Scaled | None:
    """The factor that makes the model give what was measured; None where there is no time for its answer."""
    if measured is None:
        return Scaled()
    engine, mix = replace(spec, slo=measured.slo, batching=measured.batching), mix_of(measured)
    limits = model.best_limits(engine, option, mix, slowness) if fast_loop else measured.batching
    found = None if limits is None else model.rate(replace(engine, batching=limits), option, mix, slowness)
    if found is None:
        return None
    factor = measured.rate_rps / found.rate_rps if found.feasible and found.rate_rps > 0.0 else 0.0
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        return Scaled(measured)
    return Scaled(measured, factor, compared=True)


def mix_of(measured: Measured) -> LengthMix:
    """The lengths of its requests."""
    cv = DEFAULT_CV if measured.length_cv is None else measured.length_cv
    return LengthMix.from_means(measured.prompt_tokens, measured.output_tokens, prompt_cv=cv, output_cv=cv)
