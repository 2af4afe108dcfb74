"""The engine's own step law, fitted while it serves from sums over its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add, mul

from holdfast_engine import leastsquares
from holdfast_engine.arithmetic import Law, Mix
from holdfast_engine.leastsquares import FEATURES, PRODUCTS, TERMS, UNITS

# A stalled step must not bend the law; a lasting change still does, by this factor at a time.
OUTLIER = 4.0
LARGEST_ERROR = 0.5


class StepLawFit:
    """Least squares with forgetting over (prefill, decodes, kv, pairs, seconds) of steps.

    `law` is None until there is a prior or enough steps; `error` is the root mean square of what the law leaves
    unexplained, relative to that of the step times.
    """

    def __init__(self, prior: Law | None = None) -> None:
        self.law = prior
        self.error = math.inf
        self.totals = [0.0] * len(PRODUCTS)
        self._prior = prior
        self._measured = False
        self._steps: list[tuple[float, ...]] = []
        self._recent = [0.0] * len(PRODUCTS)

    @property
    def confident(self) -> bool:
        """Whether the law comes from this engine's own steps and explains them."""
        return self._measured

    @property
    def pending_steps(self) -> int:
        """Steps since the last `update`."""
        return len(self._steps)

    def take_prior(self, prior: Law | None) -> None:
        """Use another prior from the next update on."""
        self._prior = prior
        if not self._measured:
            self.law = prior

    def observe(self, prefill: float, decodes: float, kv: float, pairs: float, seconds: float) -> None:
        """Add one step."""
        if not 0.0 < seconds < math.inf:
            return
        if self._measured and self.law is not None:
            seconds = min(seconds, OUTLIER * self.law.seconds(prefill, decodes, kv, pairs))
        self._steps.append((1.0, prefill / UNITS[1], decodes / UNITS[2], kv / UNITS[3], pairs / UNITS[4], seconds))

    def update(self) -> None:
        """Fit the law to the steps so far: a small solve, for a few times per second."""
        columns = list(zip(*self._steps, strict=True)) or [()] * len(TERMS)
        self._steps.clear()
        block = [_dot(columns[row], columns[column]) for row, column in PRODUCTS]
        self.totals = list(map(add, self.totals, block))
        keep = leastsquares.kept_share(block[0], self.totals[0])
        self._recent = [keep * old + new for old, new in zip(self._recent, block, strict=True)]
        if leastsquares.enough(self._recent):
            self._fit()
            if leastsquares.is_to_begin_anew(self._measured, self.totals[0]):
                self._recent = block

    def mix(self) -> Mix | None:
        """What the recent steps were made of; None before both prefill and decodes were seen."""
        return leastsquares.mix_of(self._recent) if leastsquares.has_mix(self._recent) else None

    def _fit(self) -> None:
        rows, scratch = _zeros(), _zeros()
        solution, found = [0.0] * FEATURES, [0.0] * FEATURES
        leastsquares.equations(self._recent, rows)
        if self._prior is not None:
            leastsquares.add_prior(self._recent, self._prior, rows)
        leastsquares.solve(rows, scratch, [0] * FEATURES, found, solution)
        self.error = leastsquares.unexplained(self._recent, solution)
        self._measured = self.error <= LARGEST_ERROR
        measured = Law(*(value / unit for value, unit in zip(solution, UNITS, strict=False)))
        self.law = measured if self._measured else self._prior


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Summed up one after the other: since 3.12 Python's own sum is more exact, and not what the simulator does."""
    return reduce(add, map(mul, left, right), 0.0)


def _zeros() -> list[list[float]]:
    return [[0.0] * len(TERMS) for _ in range(FEATURES)]
