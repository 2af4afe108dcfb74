"""The engine model as two questions: how much a replica carries, and how fast it would answer."""

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
"""Answers that may have to be computed in one tick, at some 10 ms each."""

SEARCHES_PER_TICK = 2
"""Searches for the best limits, at some 100 ms each; they are never urgent, and take no answer from anybody else."""

SLOWNESS_GRID, RATE_GRID = 0.05, 0.25
"""Steps of the logarithms of slowness, for which capacities are computed, and of rate, for which laws are fitted."""


@value
class ReplicaRate:
    """Requests per second one replica carries within the objectives, what binds it, and how sure that is (0..1).

    `feasible` is False, and the rate 0, where not even a lone request would meet the objectives. `law` is how the
    steps were taken to last there, where there is one: it tells how much more work a longer request is.
    """

    rate_rps: float
    bound_by: str
    feasible: bool
    confidence: float
    law: StepLaw | None = None

    def relative_work(self, before: LengthMix, after: LengthMix) -> float:
        """Work of the mean request of one mix in units of another's; 1 where no law is known."""
        if self.law is None:
            return 1.0
        old, new = (Engine(self.law, mix, 1, 1, 1.0).work_seconds for mix in (before, after))
        return new / old if old > 0.0 and new > 0.0 else 1.0


class EngineModel(Protocol):
    """Pure answers about one replica; `slowness` stretches every step of it."""

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return what the replica carries; None where there is no time for the answer in this tick."""
        ...

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token at this rate; None where the rate is beyond what is stable."""
        ...

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return how long these steps would take an engine without slowness; the rate tells where it works."""
        ...

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the limits, within those of the spec, under which the replica carries most; None as for `rate`."""
        ...


class StepLawModel:
    """The working point of the prior of model and accelerator.

    An engine whose every step takes twice as long is the same engine seen by a clock that runs twice as fast, so that
    answers at any slowness are answers about the prior's engine, with rates and objectives stretched.
    """

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate:
        prior, stretch = _prior(spec, option), _on_grid(slowness, SLOWNESS_GRID)
        point = _point(prior, spec.batching, mix, _hastened(spec.slo, stretch))
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
        slo = _hastened(spec.slo, _on_grid(slowness, SLOWNESS_GRID))
        return _best(_prior(spec, option), spec.batching, mix, slo)


class RationedModel:
    """An engine model that answers only so many new questions, so that no tick takes seconds; one for each tick.

    All questions of the service that was answered last are answered, and what was asked before costs nothing.
    """

    def __init__(
        self, model: EngineModel, questions: int = QUESTIONS_PER_TICK, searches: int = SEARCHES_PER_TICK
    ) -> None:
        self._model = model
        self._left = questions
        self._searches = searches
        self._asked: set[object] = set()
        self._served: ServiceKey | None = None

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        """Return what the replica carries; None where this tick has answered enough."""
        question = (_engine(spec), spec.slo, option, mix, _on_grid(slowness, SLOWNESS_GRID))
        return self._model.rate(spec, option, mix, slowness) if self._granted(spec.key, question) else None

    def tpot_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> float | None:
        """Return the mean time per output token; None as well where this tick has answered enough."""
        cell = _on_grid(max(rate_rps * slowness, 1e-3), RATE_GRID)
        question = (_engine(spec), option, mix, cell)
        allocation = self._granted(spec.key, question)
        return self._model.tpot_seconds(spec, option, mix, slowness, rate_rps) if allocation else None

    def steps_seconds(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, rate_rps: float, steps: StepSums
    ) -> float | None:
        """Return how long these steps would take; None as well where this tick has answered enough."""
        question = (_engine(spec), option, mix, _on_grid(max(rate_rps, 1e-3), RATE_GRID))
        allocation = self._granted(spec.key, question)
        return self._model.steps_seconds(spec, option, mix, rate_rps, steps) if allocation else None

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        """Return the best limits; None as well where this tick has answered enough."""
        question = ("limits", _engine(spec), spec.slo, option, mix, _on_grid(slowness, SLOWNESS_GRID))
        if question not in self._asked:
            if self._searches <= 0:
                return None
            self._searches -= 1
            self._asked.add(question)
        return self._model.best_limits(spec, option, mix, slowness)

    def _granted(self, key: ServiceKey, question: object) -> bool:
        if question in self._asked:
            return True
        if self._left <= 0 and key != self._served:
            return False
        self._left -= 1
        self._asked.add(question)
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
    """What tells the engine of one service from that of another on the same accelerator."""
    return spec.model_uri, spec.quantization, spec.batching, spec.batching_fixed


def _hastened(slo: Slo, factor: float) -> Slo:
    """The objectives as an engine without its slowness would have to meet them."""
    return replace(
        slo,
        ttft_seconds=slo.ttft_seconds / factor,
        tpot_seconds=slo.tpot_seconds / factor,
        e2e_seconds=None if slo.e2e_seconds is None else slo.e2e_seconds / factor,
    )


def _on_grid(value: float, step: float) -> float:
    """The nearest point of a grid on the logarithm; what is no positive number counts as one."""
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
