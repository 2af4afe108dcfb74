"""Answer questions about one replica: the rate it carries, its step law at a rate, its best limits and queue limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceSpec, Slo
from holdfast.domain.value import value
from holdfast.enginemodel.admission import TYPICAL_MIX, prior_tokens
from holdfast.enginemodel.batching import best, candidates
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.class_mix import each_class, shares_ahead
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import DEVIATION, EnginePrior, PriorSource, option_prior
from holdfast.enginemodel.steadystate import Engine
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.enginemodel.working import WorkingPoint, law_at, working_point

SLOWNESS_GRID, RATE_GRID = 0.05, 0.25
"""Grid steps of the logarithms of slowness (for capacities) and of rate (for fitted step laws, queue limits)."""


@value
class ReplicaRate:
    """Requests per second that one replica carries within the objectives, the binding constraint, and the confidence.

    `confidence` is between 0 and 1, `deviation` that of the logarithm of the rate. `feasible` is False where even a
    single request would miss the objectives; then the rate is the largest that serves nearly as many requests well as
    no load would, and `attainment` is their share. `law` is the step law at that rate, if known: it gives the relative
    work of longer requests. `unknown` says what was guessed: the model, the accelerator, both or nothing.

    `slo` are the service's objectives where it has classes. Then `by_class` has the rate of each, as if all requests
    were of it, and `name` is the class that decides: one that cannot be met, else the one that allows the least. At the
    pace of the tightest TPOT, requests without a class need `slowed` times the replicas that they need at their own.
    """

    rate_rps: float
    bound_by: str
    feasible: bool
    confidence: float
    law: StepLaw | None = None
    deviation: float = DEVIATION[PriorSource.TABLE]
    attainment: float | None = None
    unknown: tuple[str, ...] = ()
    slo: Slo | None = None
    by_class: tuple[ReplicaRate, ...] = ()
    name: str = ""
    slowed: float = 1.0

    @property
    def rates(self) -> dict[Slo, ReplicaRate]:
        """The rate of each class by its objectives; empty without classes."""
        return {} if self.slo is None else dict(zip((self.slo, *self.slo.classes), self.by_class, strict=True))

    @property
    def unmet(self) -> tuple[Slo, ...]:
        """The classes that would miss their objectives even without load."""
        return tuple(each for each, rate in self.rates.items() if not rate.feasible)

    def of_mix(self, shares: Mapping[str, float]) -> ReplicaRate:
        """Return the rate of requests of all classes in these shares; without classes it is the same one.

        A class that cannot be met asks for no replicas as long as another one can: they would not help it.
        """
        if self.slo is None:
            return self
        rates, unmet, ahead = self.rates, self.unmet, shares_ahead(self.slo, shares)
        sized = [each for each in rates if each not in unmet] or [*rates]
        sized = [each for each in sized if each.name in ahead] or sized
        least = min(sized, key=lambda each: rates[each].rate_rps / ahead.get(each.name, 1.0))
        named = min(unmet, key=lambda each: (each.tpot_seconds, each.ttft_seconds), default=least)
        return replace(
            rates[least],
            rate_rps=rates[least].rate_rps / ahead.get(least.name, 1.0),
            feasible=not unmet,
            attainment=rates[named].attainment,
            slo=self.slo,
            by_class=self.by_class,
            name=named.name,
            slowed=self.slowed,
        )

    def relative_work(self, before: LengthMix, after: LengthMix) -> float:
        """Return the work of the mean request of mix `after` relative to mix `before`; 1 without a step law."""
        if self.law is None:
            return 1.0
        old, new = work_seconds(self.law, before), work_seconds(self.law, after)
        return new / old if old > 0.0 and new > 0.0 else 1.0


def work_seconds(law: StepLaw, mix: LengthMix) -> float:
    """Return the seconds that the mean request of a mix adds to the steps of an engine."""
    return Engine(law, mix, 1, 1, 1.0).work_seconds


class EngineModel(Protocol):
    """Pure answers about one replica; `slowness` multiplies the duration of every engine step.

    An answer is None where there is no time left for it.
    """

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return the rate the replica carries."""
        ...

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw | None:
        """Return the step law of an engine at this rate, without the slowness; the rate sets the operating point."""
        ...

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the limits, within those of the spec, that maximise the rate."""
        ...


class StepLawModel:
    """Answers from the working point of the prior for the model and accelerator.

    An engine whose steps all take twice as long equals the prior's engine observed with a clock that runs twice as
    fast. So answers at any slowness are answers about the prior's engine, with rates and objectives rescaled. Where
    drafts are accepted, answers take fewer steps than tokens, and a step may take as long as its tokens together.
    """

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        if not spec.slo.classes:
            return self._of_class(spec, option, mix, slowness)
        each = (replace(spec, slo=slo) for slo in each_class(spec.slo))
        rates = tuple(self._of_class(one, option, mix, slowness) for one in each)
        own = self._of_class(replace(spec, slo=replace(spec.slo, classes=())), option, mix, slowness)
        slowed = own.rate_rps / rates[0].rate_rps if rates[0].feasible else 1.0
        return replace(rates[0], slo=spec.slo, by_class=rates, slowed=slowed).of_mix({})

    def _of_class(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        found = self._rate(spec, option, mix, slowness)
        if option.facts.tokens_per_step == 1.0:
            return found
        # Drafts only make answers shorter. For answers of a few steps the fit may end at another working point, though.
        plain = replace(option, facts=replace(option.facts, accepted_drafts=None))
        least = self._rate(spec, plain, mix, slowness)
        return max(found, least, key=lambda each: (each.feasible, each.rate_rps))

    def _rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        prior, stretch = _prior(spec, option), on_grid(slowness, SLOWNESS_GRID)
        point = _point(prior, spec.batching, _in_steps(mix, option), _rescaled(spec.slo, option, stretch))
        found, rate = point.capacity, prior.engines * point.capacity.serving_rps / stretch
        sound = 0.0 < rate < math.inf
        return ReplicaRate(
            rate if sound else 0.0,
            str(found.bound_by),
            found.feasible and sound,
            prior.confidence,
            point.law,
            DEVIATION[prior.source],
            found.attainment,
            ("model",) * prior.unknown_model + ("accelerator",) * prior.unknown_accelerator,
        )

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw | None:
        prior, mix = _prior(spec, option), _in_steps(mix, option)
        # The results of a pipeline's overlapping micro-batches do not tell how long one of them takes.
        if prior.pipeline > 1 or not (0.0 <= rate_rps < math.inf and 0.0 < slowness < math.inf):
            return None
        return _law_at(prior, _limits(prior, spec.batching), mix, on_grid(max(rate_rps * slowness, 1e-3), RATE_GRID))

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits:
        if spec.batching_fixed:
            return spec.batching
        slo = _rescaled(each_class(spec.slo)[0], option, on_grid(slowness, SLOWNESS_GRID))
        return _best(_prior(spec, option), spec.batching, _in_steps(mix, option), slo)


def queue_limit_tokens(spec: ServiceSpec, option: AcceleratorOption, slowness: float) -> int | None:
    """Return the queue limit of an engine whose steps take `slowness` times as long as the prior's."""
    prior, slo = _prior(spec, option), _rescaled(spec.slo, option, on_grid(slowness, RATE_GRID))
    return prior_tokens(prior, _limits(prior, spec.batching), slo, _in_steps(TYPICAL_MIX, option))


def same_law(spec: ServiceSpec, one: AcceleratorOption, other: AcceleratorOption) -> bool:
    """Return whether steps of both engines take equally long by the prior."""
    return _prior(spec, one).law == _prior(spec, other).law


def _in_steps(mix: LengthMix, option: AcceleratorOption) -> LengthMix:
    return mix.in_steps(option.facts.tokens_per_step)


def _rescaled(slo: Slo, option: AcceleratorOption, factor: float) -> Slo:
    """Return the objectives rescaled to an engine without slowness, that of TPOT to its steps."""
    return replace(
        slo,
        ttft_seconds=slo.ttft_seconds / factor,
        tpot_seconds=slo.tpot_seconds * option.facts.tokens_per_step / factor,
        e2e_seconds=None if slo.e2e_seconds is None else slo.e2e_seconds / factor,
    )


def on_grid(value: float, step: float) -> float:
    """Return the nearest point of a logarithmic grid; 1 for anything but a positive finite number."""
    if not 0.0 < value < math.inf:
        return 1.0
    return math.exp(round(math.log(value) / step) * step)


def _prior(spec: ServiceSpec, option: AcceleratorOption) -> EnginePrior:
    return option_prior(spec.model_uri, option, spec.quantization)


def _limits(prior: EnginePrior, batching: BatchingLimits) -> BatchLimits:
    return prior.limits(batching.max_num_seqs, batching.max_num_batched_tokens)


@lru_cache(maxsize=8192)
def _point(prior: EnginePrior, batching: BatchingLimits, mix: LengthMix, slo: Slo) -> WorkingPoint:
    return working_point(prior.timer, mix, _limits(prior, batching), prior.kv_tokens, slo, start=prior.law)


@lru_cache(maxsize=8192)
def _law_at(prior: EnginePrior, limits: BatchLimits, mix: LengthMix, rate_rps: float) -> StepLaw:
    return law_at(prior.timer, mix, limits, prior.kv_tokens, rate_rps, prior.law)


@lru_cache(maxsize=8192)
def _best(prior: EnginePrior, batching: BatchingLimits, mix: LengthMix, slo: Slo) -> BatchingLimits:
    start = _limits(prior, batching)
    found = best(candidates(prior, start, mix, slo)).limits
    return batching if found == start else replace(batching, max_num_batched_tokens=found.max_num_batched_tokens)
