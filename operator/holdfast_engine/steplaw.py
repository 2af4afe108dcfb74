"""The engine's own step law, fitted while it serves from sums over its steps."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from operator import add, mul

from holdfast_engine.rules import Law, Mix

TERMS = ("one", "prefill", "decodes", "kv", "pairs", "seconds")
# Features are counted in these units, so that sums of their products keep their digits over weeks.
UNITS = (1.0, 1e3, 1e2, 1e5, 1e6, 1.0)
PRODUCTS = tuple(combinations_with_replacement(range(len(TERMS)), 2))
"""The products of two terms that are summed up, as indices into TERMS."""

# Steps after which what was seen counts half; fewer in the beginning, so that the first ones, slow for reasons of their
# own, are soon outweighed.
HALF_LIFE_STEPS = 4000.0
# The prior counts as this many steps, each coefficient being trusted to half of its value.
_PRIOR_STEPS = 50.0
_PRIOR_SPREAD = 0.5
# A stalled step must not bend the law; a lasting change still does, by this factor at a time.
_OUTLIER = 4.0
_LEAST_STEPS = 20.0
_LARGEST_ERROR = 0.5
_FEATURES = 5
# Where the product of two terms stands among the sums, whichever of the two is named first.
_AT = tuple(
    tuple(PRODUCTS.index((min(row, column), max(row, column))) for column in range(len(TERMS)))
    for row in range(len(TERMS))
)


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
            seconds = min(seconds, _OUTLIER * self.law.seconds(prefill, decodes, kv, pairs))
        self._steps.append((1.0, prefill / UNITS[1], decodes / UNITS[2], kv / UNITS[3], pairs / UNITS[4], seconds))

    def update(self) -> None:
        """Fit the law to the steps so far: a small solve, for a few times per second."""
        columns = list(zip(*self._steps, strict=True)) or [()] * len(TERMS)
        self._steps.clear()
        block = [sum(map(mul, columns[row], columns[column])) for row, column in PRODUCTS]
        self.totals = list(map(add, self.totals, block))
        keep = 0.5 ** (block[0] / min(HALF_LIFE_STEPS, max(_LEAST_STEPS, self.totals[0])))
        self._recent = [keep * old + new for old, new in zip(self._recent, block, strict=True)]
        self._fit()

    def mix(self) -> Mix | None:
        """What the recent steps were made of; None before both prefill and decodes were seen."""
        prefill, decodes, kv, pairs = (self._sum(0, column) * UNITS[column] for column in range(1, _FEATURES))
        if prefill <= 0.0 or decodes <= 0.0:
            return None
        return Mix(prefill / decodes, kv / decodes, pairs / prefill)

    def _fit(self) -> None:
        steps, squares = self._sum(0, 0), self._sum(5, 5)
        if steps < _LEAST_STEPS or squares <= 0.0:
            return
        coefficients = _nonnegative_solution(*self._equations(steps, squares))
        self.error = self._error(coefficients, squares)
        self._measured = self.error <= _LARGEST_ERROR
        measured = Law(*(value / unit for value, unit in zip(coefficients, UNITS, strict=False)))
        self.law = measured if self._measured else self._prior

    def _equations(self, steps: float, squares: float) -> tuple[list[list[float]], list[float]]:
        """The normal equations, with the prior as further observations of each coefficient."""
        matrix = [[self._sum(row, column) for column in range(_FEATURES)] for row in range(_FEATURES)]
        target = [self._sum(row, 5) for row in range(_FEATURES)]
        for index in range(_FEATURES):
            matrix[index][index] *= 1.0 + 1e-9
            matrix[index][index] += 1e-12
        if self._prior is not None:
            noise = _PRIOR_STEPS * 0.01 * squares / steps
            values = (self._prior.c0, self._prior.c1, self._prior.c2, self._prior.c3, self._prior.c4)
            for index, value in enumerate(values):
                scaled = value * UNITS[index]
                weight = noise / max(_PRIOR_SPREAD * scaled, 1e-9) ** 2
                matrix[index][index] += weight
                target[index] += weight * scaled
        return matrix, target

    def _error(self, coefficients: list[float], squares: float) -> float:
        explained = sum(2.0 * c * self._sum(row, 5) for row, c in enumerate(coefficients))
        indices = range(_FEATURES)
        fitted = sum(coefficients[i] * coefficients[j] * self._sum(i, j) for i in indices for j in indices)
        return math.sqrt(max(0.0, squares - explained + fitted) / squares)

    def _sum(self, row: int, column: int) -> float:
        return self._recent[_AT[row][column]]


def _nonnegative_solution(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Solve with every coefficient >= 0: what turns out negative is left out, the worst first."""
    kept = list(range(len(target)))
    while kept:
        found = _solve([[matrix[row][column] for column in kept] for row in kept], [target[row] for row in kept])
        if min(found) >= 0.0:
            solution = [0.0] * len(target)
            for index, value in zip(kept, found, strict=True):
                solution[index] = value
            return solution
        kept.pop(found.index(min(found)))
    return [0.0] * len(target)


def _solve(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Gaussian elimination with pivoting; a direction without data gets 0."""
    size = len(target)
    rows = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        if abs(rows[pivot][pivot]) < 1e-300:
            continue
        for row in range(pivot + 1, size):
            factor = rows[row][pivot] / rows[pivot][pivot]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        rest = rows[row][size] - sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = rest / rows[row][row] if abs(rows[row][row]) >= 1e-300 else 0.0
    return solution
