"""Least squares over the sums of products of a step's terms, with every coefficient >= 0.

Compiled by the simulator as it stands, like `arithmetic`: a `MatrixRow` is a list here and an array there.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any

from holdfast_engine.law.arithmetic import Mix

MatrixRow = Any
"""Numbers by their place, which can be set."""
MatrixRows = Any
"""Rows by their place."""

TERMS = ("one", "prefill", "decodes", "kv", "pairs", "seconds")
"""What is summed up of steps. In a product, the terms of a window stand relative to its seconds, which then are 1."""
# Features are counted in these units, so that sums of their products keep their digits over weeks.
UNITS = (1.0, 1e3, 1e2, 1e5, 1e6, 1.0)
PRODUCTS = tuple(combinations_with_replacement(range(len(TERMS)), 2))
"""The products of two terms that are summed up, as indices into TERMS."""
PLACE = tuple(
    tuple(PRODUCTS.index((min(row, column), max(row, column))) for column in range(len(TERMS)))
    for row in range(len(TERMS))
)
"""Where the product of two terms stands among the sums, whichever of the two is named first."""
FEATURES = SECONDS = 5
"""The place of `seconds` among the terms, and of the right-hand side in a row of the equations."""
WITH_SECONDS = PLACE[SECONDS]
"""Where the products of each term with the seconds stand."""
STEPS = WITH_SECONDS[SECONDS]
"""Where the number of steps stands, as the product of the seconds with themselves."""

# Steps of one stratum after which what was seen counts half; fewer in the beginning, so that the first ones, slow for
# reasons of their own, are soon outweighed. A stratum that sees no steps forgets nothing: steady load, which says
# little, does not wipe out what varied steps have taught.
HALF_LIFE_STEPS = 140.0
# The same for what steps are made of.
MIX_HALF_LIFE_STEPS = 4000.0
LEAST_STEPS = 20.0
PREFILL_BOUNDS, DECODE_BOUNDS = (0.0, 0.256, 0.512, 2.048), (0.32, 1.28)
STRATA = (len(PREFILL_BOUNDS) + 1) * (len(DECODE_BOUNDS) + 1)
# The prior counts as this many steps, each coefficient being trusted to half of its value.
PRIOR_STEPS = 50.0
# The usual shape of a law, where there is no prior, counts as fewer.
SHAPE_STEPS = 1.0
PRIOR_SPREAD = 0.5
# All in all it is trusted to within this factor: what engines do overrules it, however far it is off.
PRIOR_TRUST = 1.25
STEP_VARIANCE = 0.01
"""Of a step's seconds, relative."""
# A window that the law misses by more than this share counts less, the more it misses.
TRUSTED_ERROR = 0.15
# A stalled step must not bend the law; a lasting change still does, by this factor at a time.
OUTLIER = 4.0
# A stratum with so many steps says how long such steps have taken.
SETTLED_STEPS = 50.0
# Another speed of the whole engine: the latest windows, each by this share, differ by so much, and to the same side.
LAG_RATE = 1.0 / 32.0
LARGEST_LAG = 0.1
SAME_SIDE = 0.75
_LN2 = math.log(2.0)
_NOTHING = 1e-300


def kept_share(steps: float, known_steps: float, half_life_steps: float) -> float:
    """What is left of sums over so many steps after some more."""
    half = known_steps if known_steps > LEAST_STEPS else LEAST_STEPS
    return math.exp(-_LN2 * steps / (half if half < half_life_steps else half_life_steps))


def stratum_of(prefill: float, decodes: float) -> int:
    """Where windows with such a step are summed up, in the units of the terms: by its prompt tokens and decodes."""
    row, column = 0, 0
    while row < len(PREFILL_BOUNDS) and prefill > PREFILL_BOUNDS[row]:
        row += 1
    while column < len(DECODE_BOUNDS) and decodes >= DECODE_BOUNDS[column]:
        column += 1
    return row * (len(DECODE_BOUNDS) + 1) + column


def plausible_seconds(seconds: float, expected_seconds: float, measured: bool) -> float:
    """The seconds of a window between bounds around what the law expects; a prior bounds them from below only."""
    if seconds < expected_seconds / OUTLIER:
        return expected_seconds / OUTLIER
    return OUTLIER * expected_seconds if measured and seconds > OUTLIER * expected_seconds else seconds


def window_weight(seconds: float, expected_seconds: float) -> float:
    """How much each step of a window counts, the less the farther the law is off (Huber, 1964)."""
    error = abs(seconds - expected_seconds) / expected_seconds
    return 1.0 if error <= TRUSTED_ERROR else TRUSTED_ERROR / error


def add_window(sums: MatrixRow, terms: MatrixRow, seconds: float, weight: float) -> None:
    """Add a window to the sums of its stratum: its steps' terms and seconds."""
    steps = terms[0]
    keep, left = kept_share(steps, sums[STEPS], HALF_LIFE_STEPS), steps * weight
    one, prefill, decodes = terms[0] / seconds, terms[1] / seconds, terms[2] / seconds
    kv, pairs = terms[3] / seconds, terms[4] / seconds
    # The order of PRODUCTS, written out: this is done in nearly every step, and loops take four times as long.
    by_one, by_prefill, by_decodes, by_kv, by_pairs = (
        left * one,
        left * prefill,
        left * decodes,
        left * kv,
        left * pairs,
    )
    sums[0] = keep * sums[0] + by_one * one
    sums[1] = keep * sums[1] + by_one * prefill
    sums[2] = keep * sums[2] + by_one * decodes
    sums[3] = keep * sums[3] + by_one * kv
    sums[4] = keep * sums[4] + by_one * pairs
    sums[5] = keep * sums[5] + by_one
    sums[6] = keep * sums[6] + by_prefill * prefill
    sums[7] = keep * sums[7] + by_prefill * decodes
    sums[8] = keep * sums[8] + by_prefill * kv
    sums[9] = keep * sums[9] + by_prefill * pairs
    sums[10] = keep * sums[10] + by_prefill
    sums[11] = keep * sums[11] + by_decodes * decodes
    sums[12] = keep * sums[12] + by_decodes * kv
    sums[13] = keep * sums[13] + by_decodes * pairs
    sums[14] = keep * sums[14] + by_decodes
    sums[15] = keep * sums[15] + by_kv * kv
    sums[16] = keep * sums[16] + by_kv * pairs
    sums[17] = keep * sums[17] + by_kv
    sums[18] = keep * sums[18] + by_pairs * pairs
    sums[19] = keep * sums[19] + by_pairs
    sums[20] = keep * sums[20] + left


def lag(sums: MatrixRow, solution: MatrixRow, seconds: float, expected_seconds: float) -> float:
    """How much slower a window is than the windows of its stratum were, as a logarithm; 0 before there were some."""
    one, prefill, decodes, kv, pairs, steps = WITH_SECONDS
    if sums[steps] < SETTLED_STEPS:
        return 0.0
    mean = solution[0] * sums[one] + solution[1] * UNITS[1] * sums[prefill] + solution[2] * UNITS[2] * sums[decodes]
    mean += solution[3] * UNITS[3] * sums[kv]
    mean += solution[4] * UNITS[4] * sums[pairs]
    return math.log(seconds / expected_seconds * mean / sums[steps]) if mean > 0.0 else 0.0


def moved_lag(lags: MatrixRow, lag: float) -> float:
    """Move the mean lag and the mean of its sign by one window; returns by what factor the engine has become slower.

    1 where it has not; then the means begin anew.
    """
    lags[0] += LAG_RATE * (lag - lags[0])
    lags[1] += LAG_RATE * ((1.0 if lag > 0.0 else -1.0) - lags[1])
    if abs(lags[0]) < LARGEST_LAG or abs(lags[1]) < SAME_SIDE:
        return 1.0
    factor = math.exp(lags[0])
    lags[0] = lags[1] = 0.0
    return factor


def stretch(strata: MatrixRows, factor: float) -> None:
    """Take all windows so far for so many times as long: the whole engine has become slower, or faster."""
    for stratum in range(STRATA):
        sums = strata[stratum]
        for row in range(FEATURES):
            sums[PLACE[row][SECONDS]] /= factor
            for column in range(row, FEATURES):
                sums[PLACE[row][column]] /= factor * factor


def total(strata: MatrixRows, sums: MatrixRow) -> None:
    """Write the sums over all strata into `sums`."""
    for index in range(len(sums)):
        sums[index] = 0.0
    for stratum in range(STRATA):
        each = strata[stratum]
        if each[STEPS] > 0.0:  # most have seen no window
            for index in range(len(PRODUCTS)):
                sums[index] += each[index]


def enough(sums: MatrixRow) -> bool:
    """Whether there are steps to find a law from."""
    return bool(sums[STEPS] >= LEAST_STEPS)


def equations(sums: MatrixRow, rows: MatrixRows) -> None:
    """Write the normal equations into `rows`, the right-hand side last."""
    for row in range(FEATURES):
        for column in range(FEATURES + 1):
            rows[row][column] = sums[PLACE[row][column]]
        rows[row][row] = rows[row][row] * (1.0 + 1e-9) + 1e-12


def prior_scale(sums: MatrixRow, prior: MatrixRow) -> float:
    """By what factor a prior is moved before it counts: all windows together lie so far beyond what it is trusted."""
    linear, square = 0.0, 0.0
    for row in range(FEATURES):
        linear += prior[row] * UNITS[row] * sums[PLACE[row][SECONDS]]
        for column in range(FEATURES):
            square += prior[row] * UNITS[row] * prior[column] * UNITS[column] * sums[PLACE[row][column]]
    if not linear > 0.0 or not square > 0.0:
        return 1.0
    best = linear / square
    return max(best / PRIOR_TRUST, min(1.0, best * PRIOR_TRUST))


def add_prior(prior: MatrixRow, scale: float, steps: float, rows: MatrixRows) -> None:
    """Add a law as so many further observations of each coefficient."""
    for row in range(FEATURES):
        scaled = scale * prior[row] * UNITS[row]
        spread = max(PRIOR_SPREAD * scaled, 1e-9)
        weight = steps * STEP_VARIANCE / (spread * spread)
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
    """Root mean square of the share by which a solution misses the seconds of the windows."""
    ones, explained, fitted = sums[STEPS], 0.0, 0.0
    for row in range(FEATURES):
        explained += 2.0 * solution[row] * sums[PLACE[row][SECONDS]]
        for column in range(FEATURES):
            fitted += solution[row] * solution[column] * sums[PLACE[row][column]]
    return math.sqrt(max(0.0, ones - explained + fitted) / ones)


def has_mix(sums: MatrixRow) -> bool:
    """Whether both prefill and decodes were seen, in sums of the terms."""
    return bool(sums[1] > 0.0 and sums[2] > 0.0)


def mix_of(sums: MatrixRow) -> Mix:
    """What the steps were made of."""
    prefill, decodes = sums[1] * UNITS[1], sums[2] * UNITS[2]
    kv, pairs = sums[3] * UNITS[3], sums[4] * UNITS[4]
    return Mix(prefill / decodes, kv / decodes, pairs / prefill)
