"""The questions of a tick to the engine model: a quota of new answers, and which questions were not answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.domain.service import AcceleratorOption, BatchingLimits, ServiceKey, ServiceSpec
from holdfast.enginemodel.mix import LengthMix
from holdfast.enginemodel.replica_model import RATE_GRID, SLOWNESS_GRID, EngineModel, ReplicaRate, on_grid
from holdfast.enginemodel.steplaw import StepLaw

_Answer = TypeVar("_Answer")

QUESTIONS_PER_TICK = 32
"""Answers that may be computed in one tick, at about 10 ms each."""

SEARCHES_PER_TICK = 2
"""Searches for the best limits in one tick, at about 100 ms each; they are not urgent and have their own quota."""


class Quota:
    """New answers that one tick may compute, so that no tick takes seconds; create one for each tick.

    Once the quota is used, further questions about the last answered service are still answered. A repeated question
    costs nothing.
    """

    def __init__(self, questions: int = QUESTIONS_PER_TICK, searches: int = SEARCHES_PER_TICK) -> None:
        self._questions = questions
        self._searches = searches
        self._answered: set[object] = set()
        self._served: ServiceKey | None = None

    def grants(self, question: object, key: ServiceKey | None) -> bool:
        """Charge a new question about a service, or a search (no key), and return whether it may be answered."""
        if question in self._answered:
            return True
        if key is None and self._searches > 0:
            self._searches -= 1
        elif key is not None and (self._questions > 0 or key == self._served):
            self._questions, self._served = self._questions - 1, key
        else:
            return False
        self._answered.add(question)
        return True


class AskedModel:
    """An engine model as one service asks it, within the quota of the tick, if there is one.

    It numbers the questions from 0. Those given as `unanswered` have no answer, as in the tick that is replayed.
    """

    def __init__(self, model: EngineModel, quota: Quota | None = None, unanswered: Iterable[int] = ()) -> None:
        self._model = model
        self._quota = quota
        self._skipped = frozenset(unanswered)
        self._number = -1
        self.unanswered: list[int] = []

    def rate(self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float) -> ReplicaRate | None:
        question = (_engine(spec), spec.slo, option, mix, on_grid(slowness, SLOWNESS_GRID))
        return self._answer(question, spec.key, lambda: self._model.rate(spec, option, mix, slowness))

    def law(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float, rate_rps: float
    ) -> StepLaw | None:
        question = (_engine(spec), option, mix, on_grid(max(rate_rps * slowness, 1e-3), RATE_GRID))
        return self._answer(question, spec.key, lambda: self._model.law(spec, option, mix, slowness, rate_rps))

    def best_limits(
        self, spec: ServiceSpec, option: AcceleratorOption, mix: LengthMix, slowness: float
    ) -> BatchingLimits | None:
        question = ("limits", _engine(spec), spec.slo, option, mix, on_grid(slowness, SLOWNESS_GRID))
        return self._answer(question, None, lambda: self._model.best_limits(spec, option, mix, slowness))

    def _answer(self, question: object, key: ServiceKey | None, answer: Callable[[], _Answer | None]) -> _Answer | None:
        self._number += 1
        granted = self._quota is None or self._quota.grants(question, key)
        found = answer() if granted and self._number not in self._skipped else None
        if found is None:
            self.unanswered.append(self._number)
        return found


def _engine(spec: ServiceSpec) -> object:
    """Return what distinguishes the engines of two services on the same accelerator."""
    return spec.model_uri, spec.quantization, spec.batching, spec.batching_fixed
