"""Least squares over the sums of products of a step's terms, with every coefficient >= 0.

Compiled by the simulator as it stands, like `arithmetic`: a `MatrixRow` is a list here and an array there.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any

from holdfast_engine.arithmetic import Mix

MatrixRow = Any
"""Numbers by their place, which can be set."""
MatrixRows = Any
"""Rows by their place."""

TERMS = ("one", "prefill", "decodes", "kv", "pairs", "seconds")
# Features are counted in these units, so that sums of their products keep their digits over weeks.
UNITS = (1.0, 1e3, 1e2, 1e5, 1e6, 1.0)
PRODUCTS = tuple(combinations_with_replacement(range(len(TERMS)), 2))
"""The products of two terms that are summed up, as indices into TERMS."""
FEATURES = 5
SECONDS = 5
"""The place of `seconds` among the terms, and of the right-hand side in a row of the equations."""

# Steps after which what was seen counts half; fewer in the beginning, so that the first ones, slow for reasons of their
# own, are soon outweighed.
HALF_LIFE_STEPS = 4000.0
LEAST_STEPS = 20.0
# The prior counts as this many steps, each coefficient being trusted to half of its value.
PRIOR_STEPS = 50.0
PRIOR_SPREAD = 0.5
_LN2 = math.log(2.0)
_NOTHING = 1e-300


def place(row: int, column: int) -> int:
    """Where the product of two terms stands among the sums, whichever of the two is named first."""
    low, high = min(row, column), max(row, column)
    return low * (FEATURES + 1) - low * (low - 1) // 2 + high - low


def kept_share(steps: float, known_steps: float) -> float:
    """What is left of the sums so far after more steps, of which `known_steps` is the count in all."""
    return math.exp(-_LN2 * steps / min(HALF_LIFE_STEPS, max(LEAST_STEPS, known_steps)))


def enough(sums: MatrixRow) -> bool:
    """Whether there are steps to find a law from."""
    return bool(sums[place(0, 0)] >= LEAST_STEPS and sums[place(SECONDS, SECONDS)] > 0.0)


def is_to_begin_anew(is_explained: bool, known_steps: float) -> bool:
    """Whether only the newest of the first steps are kept: one of 10 s would outweigh thousands of others."""
    return not is_explained and known_steps < HALF_LIFE_STEPS


def equations(sums: MatrixRow, rows: MatrixRows) -> None:
    """Write the normal equations into `rows`, the right-hand side last."""
    for row in range(FEATURES):
        for column in range(FEATURES + 1):
            rows[row][column] = sums[place(row, column)]
        rows[row][row] = rows[row][row] * (1.0 + 1e-9) + 1e-12


def add_prior(sums: MatrixRow, prior: MatrixRow, rows: MatrixRows) -> None:
    """Add a law as further observations of each coefficient."""
    noise = PRIOR_STEPS * 0.01 * sums[place(SECONDS, SECONDS)] / sums[place(0, 0)]
    for row in range(FEATURES):
        scaled = prior[row] * UNITS[row]
        spread = max(PRIOR_SPREAD * scaled, 1e-9)
        weight = noise / (spread * spread)
        rows[row][row] += weight
        rows[row][SECONDS] += weight * scaled


def solve(rows: MatrixRows, scratch: MatrixRows, kept: MatrixRow, found: MatrixRow, solution: MatrixRow) -> None:
    """Solve with every coefficient >= 0: what turns out negative is left out, the worst first.

    All but `rows` is written to: `kept`, `found` and `solution` hold FEATURES numbers, `scratch` is as large as `rows`.
    """
    for row in range(FEATURES):
        solution[row] = 0.0
        kept[row] = row
    count = FEATURES
    while count > 0:
        _eliminate(rows, scratch, kept, count, found)
        worst = 0
        for index in range(1, count):
            if found[index] < found[worst]:
                worst = index
        if found[worst] >= 0.0:
            for index in range(count):
                solution[int(kept[index])] = found[index]
            return
        count -= 1
        for index in range(worst, count):
            kept[index] = kept[index + 1]


def _eliminate(rows: MatrixRows, scratch: MatrixRows, kept: MatrixRow, count: int, found: MatrixRow) -> None:
    """Gaussian elimination with pivoting over what is kept; a direction without data gets 0."""
    for row in range(count):
        source = rows[int(kept[row])]
        for column in range(count):
            scratch[row][column] = source[int(kept[column])]
        scratch[row][count] = source[SECONDS]
    for pivot in range(count):
        _lift_largest(scratch, pivot, count)
        if abs(scratch[pivot][pivot]) < _NOTHING:
            continue
        for row in range(pivot + 1, count):
            factor = scratch[row][pivot] / scratch[pivot][pivot]
            for column in range(pivot, count + 1):
                scratch[row][column] -= factor * scratch[pivot][column]
    for row in range(count - 1, -1, -1):
        known = 0.0
        for column in range(row + 1, count):
            known += scratch[row][column] * found[column]
        rest = scratch[row][count] - known
        found[row] = rest / scratch[row][row] if abs(scratch[row][row]) >= _NOTHING else 0.0


def _lift_largest(rows: MatrixRows, pivot: int, count: int) -> None:
    """Exchange the row of the pivot for the one with the largest number in its column."""
    best = pivot
    for row in range(pivot + 1, count):
        if abs(rows[row][pivot]) > abs(rows[best][pivot]):
            best = row
    for column in range(count + 1):
        exchanged = rows[pivot][column]
        rows[pivot][column] = rows[best][column]
        rows[best][column] = exchanged


def unexplained(sums: MatrixRow, solution: MatrixRow) -> float:
    """Root mean square of what a solution leaves of the step times, relative to theirs."""
    squares, explained, fitted = sums[place(SECONDS, SECONDS)], 0.0, 0.0
    for row in range(FEATURES):
        explained += 2.0 * solution[row] * sums[place(row, SECONDS)]
        for column in range(FEATURES):
            fitted += solution[row] * solution[column] * sums[place(row, column)]
    return math.sqrt(max(0.0, squares - explained + fitted) / squares)


def has_mix(sums: MatrixRow) -> bool:
    """Whether both prefill and decodes were seen."""
    return bool(sums[place(0, 1)] > 0.0 and sums[place(0, 2)] > 0.0)


def mix_of(sums: MatrixRow) -> Mix:
    """What the steps were made of."""
    prefill, decodes = sums[place(0, 1)] * UNITS[1], sums[place(0, 2)] * UNITS[2]
    kv, pairs = sums[place(0, 3)] * UNITS[3], sums[place(0, 4)] * UNITS[4]
    return Mix(prefill / decodes, kv / decodes, pairs / prefill)
