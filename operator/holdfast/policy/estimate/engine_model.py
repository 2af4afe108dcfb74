"""Answer questions about one replica with the engine model: the rate it carries, and its latency at a rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from holdfast.domain.engine import StepSums
from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceKey, ServiceSpec, Slo
from holdfast.domain.value import value
from holdfast.enginemodel.batching import best, candidates
from holdfast.enginemodel.capacity import BatchLimits
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.prior import EnginePrior, engine_prior
from holdfast.enginemodel.steadystate import Engine, steady_state
from holdfast.enginemodel.steplaw import StepLaw
from holdfast.enginemodel.working import WorkingPoint, law_at, working_point

_Answer = TypeVar("_Answer")

QUESTIONS_PER_TICK = 32
"""Answers that may be computed in one tick, at about 10 ms each."""

SEARCHES_PER_TICK = 2
"""Searches for the best limits in one tick, at about 100 ms each; they are not urgent and have their own quota."""

SLOWNESS_GRID, RATE_GRID = 0.05, 0.25
"""Grid steps of the logarithms of slowness (for capacities) and of rate (for fitted step laws)."""


@value
class ReplicaRate:
    """Requests per second that one replica carries within the objectives, the binding constraint, and the confidence.

    `confidence` is between 0 and 1. `feasible` is False, and the rate 0, where even a single request would miss the
    objectives. `law` is the step law at that rate, if known: it gives the relative work of longer requests.
    """

    rate_rps: float
    bound_by: str
    feasible: bool
    confidence: float
    law: StepLaw | None = None

    def relative_work(self, before: LengthMix, after: LengthMix) -> float:
        """Return the work of the mean request of mix `after` relative to mix `before`; 1 without a step law."""
        if self.law is None:
            return 1.0
        old, new = (Engine(self.law, mix, 1, 1, 1.0).work_seconds for mix in (before, after))
        return new / old if old > 0.0 and new > 0.0 else 1.0


class EngineModel(Protocol):
    """Pure answers about one replica; `slowness` multiplies the duration of every engine step."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return the rate the replica carries; None where this tick has no time left for the answer."""
        ...

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token at this rate; None where the rate is unstable."""
        ...

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return the duration of these steps without slowness; the rate sets the operating point."""
        ...

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the limits, within those of the spec, that maximise the rate; None as for `rate`."""
        ...


class StepLawModel:
    """Answers from the working point of the prior for the model and accelerator.

    An engine whose steps all take twice as long equals the prior's engine observed with a clock that runs twice as
    fast. So answers at any slowness are answers about the prior's engine, with rates and objectives rescaled.
    """

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        prior, stretch = _prior(spec, option), _on_grid(slowness, SLOWNESS_GRID)
        point = _point(prior, spec.batching, mix, _rescaled(spec.slo, stretch))
        rate = point.capacity.rate_rps / stretch
        feasible = point.capacity.feasible and 0.0 < rate < math.inf
        bound_by = str(point.capacity.bound_by)
        return ReplicaRate(rate if feasible else 0.0, bound_by, feasible, prior.confidence, point.law)

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        if not (0.0 <= rate_rps < math.inf and 0.0 < slowness < math.inf):
            return None
        prior, rate = _prior(spec, option), rate_rps * slowness
        limits = _limits(prior, spec.batching)
        law = _law_at(prior, limits, mix, _on_grid(max(rate, 1e-3), RATE_GRID))
        engine = Engine(law, mix, limits.max_num_seqs, limits.max_num_batched_tokens, prior.kv_tokens)
        if rate >= engine.most_rate:
            return None
        return slowness * float(steady_state(engine, np.array([rate])).step_seconds[0])

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        if not 0.0 <= rate_rps < math.inf:
            return None
        prior = _prior(spec, option)
        law = _law_at(prior, _limits(prior, spec.batching), mix, _on_grid(max(rate_rps, 1e-3), RATE_GRID))
        work = law.c1 * steps.prefill_tokens + law.c2 * steps.decodes + law.c3 * steps.kv_tokens
        return law.c0 * steps.steps + work + law.c4 * steps.pairs

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits:
        if spec.batching_fixed:
            return spec.batching
        slo = _rescaled(spec.slo, _on_grid(slowness, SLOWNESS_GRID))
        return _best(_prior(spec, option), spec.batching, mix, slo)


class RationedModel:
    """An engine model with a quota of new answers per tick, so that no tick takes seconds; create one for each tick.

    Once the quota is used, further questions about the last answered service are still answered. A repeated question
    costs nothing.
    """

    def __init__(
        self, model: EngineModel, questions: int = QUESTIONS_PER_TICK, searches: int = SEARCHES_PER_TICK
    ) -> None:
        self._model = model
        self._remaining = questions
        self._searches = searches
        self._answered: set[object] = set()
        self._served: ServiceKey | None = None

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return the rate the replica carries; None where the quota of this tick is used."""
        question = (_engine(spec), spec.slo, option, mix, _on_grid(slowness, SLOWNESS_GRID))
        return self._model.rate(spec, option, mix, slowness) if self._granted(spec.key, question) else None

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token; None also where the quota of this tick is used."""
        cell = _on_grid(max(rate_rps * slowness, 1e-3), RATE_GRID)
        question = (_engine(spec), option, mix, cell)
        granted = self._granted(spec.key, question)
        return self._model.tpot_seconds(spec, option, mix, slowness, rate_rps) if granted else None

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return the duration of these steps; None also where the quota of this tick is used."""
        question = (_engine(spec), option, mix, _on_grid(max(rate_rps, 1e-3), RATE_GRID))
        granted = self._granted(spec.key, question)
        return self._model.steps_seconds(spec, option, mix, rate_rps, steps) if granted else None

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the best limits; None also where the quota of this tick is used."""
        question = ("limits", _engine(spec), spec.slo, option, mix, _on_grid(slowness, SLOWNESS_GRID))
        if question not in self._answered:
            if self._searches <= 0:
                return None
            self._searches -= 1
            self._answered.add(question)
        return self._model.best_limits(spec, option, mix, slowness)

    def _granted(self, key: ServiceKey, question: object) -> bool:
        """Charge a new question to the quota, and return whether it may be answered."""
        if question in self._answered:
            return True
        if self._remaining <= 0 and key != self._served:
            return False
        self._remaining -= 1
        self._answered.add(question)
        self._served = key
        return True


class NumberedModel:
    """An engine model that numbers the questions of one service's decision, from 0, and notes those without an answer.

    Questions whose numbers are given as `unanswered` stay so, as in the tick that is replayed.
    """

    def __init__(self, model: EngineModel, unanswered: Iterable[int] = ()) -> None:
        self._model = model
        self._skipped = frozenset(unanswered)
        self._number = -1
        self._unanswered: list[int] = []

    @property
    def unanswered(self) -> tuple[int, ...]:
        """Numbers of the questions that were not answered."""
        return tuple(self._unanswered)

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return what the replica carries."""
        return self._noted(None if self._skips() else self._model.rate(spec, option, mix, slowness))

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token."""
        skips = self._skips()
        return self._noted(None if skips else self._model.tpot_seconds(spec, option, mix, slowness, rate_rps))

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return how long these steps would take."""
        skips = self._skips()
        return self._noted(None if skips else self._model.steps_seconds(spec, option, mix, rate_rps, steps))

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the best limits."""
        return self._noted(None if self._skips() else self._model.best_limits(spec, option, mix, slowness))

    def _skips(self) -> bool:
        self._number += 1
        return self._number in self._skipped

    def _noted(self, answer: _Answer | None) -> _Answer | None:
        if answer is None:
            self._unanswered.append(self._number)
        return answer


def _engine(spec: ServiceSpec) -> object:
    """Return what distinguishes the engines of two services on the same accelerator."""
    return spec.model_uri, spec.quantization, spec.batching, spec.batching_fixed


def _rescaled(slo: Slo, factor: float) -> Slo:
    """Return the objectives rescaled to an engine without slowness."""
    return replace(
        slo,
        ttft_seconds=slo.ttft_seconds / factor,
        tpot_seconds=slo.tpot_seconds / factor,
        e2e_seconds=None if slo.e2e_seconds is None else slo.e2e_seconds / factor,
    )


def _on_grid(value: float, step: float) -> float:
    """Return the nearest point of a logarithmic grid; 1 for anything but a positive finite number."""
    if not 0.0 < value < math.inf:
        return 1.0
    return math.exp(round(math.log(value) / step) * step)


def _prior(spec: ServiceSpec, option: AcceleratorOption) -> EnginePrior:
    labels = dict(option.node_selector)
    return engine_prior(spec.model_uri, option.name, labels, option.gpus_per_replica, spec.quantization)


def _limits(prior: EnginePrior, batching: BatchingLimits) -> BatchLimits:
    return BatchLimits(
        batching.max_num_seqs or prior.max_num_seqs_default,
        batching.max_num_batched_tokens or prior.max_num_batched_tokens_default,
    )


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
