"""The step law of an engine on arrays: `holdfast_engine.steplaw.StepLawFit`, with its own arithmetic.

`fits` are the rows of one engine that `fast_loop_arrays` describes.
"""

from __future__ import annotations

import math

from holdfast.twin.compiled import compile_with, inner
from holdfast.twin.fast_loop_arrays import (
    BLOCK,
    FOUND,
    LAGS,
    LAW,
    ORDER,
    PRIOR,
    RECENT,
    ROWS,
    SCRATCH,
    SOLUTION,
    TERMS,
    TIMES,
    TOTAL,
)
from holdfast.twin.state_arrays import Record
from holdfast.twin.timers import Floats
from holdfast_engine import arithmetic, leastsquares, steptimes
from holdfast_engine.arithmetic import Law
from holdfast_engine.leastsquares import FEATURES, MIX_HALF_LIFE_STEPS, PRIOR_STEPS, SHAPE_STEPS, UNITS
from holdfast_engine.steplaw import LARGEST_ERROR
from holdfast_engine.steptimes import KINDS, LARGEST_PREFILL, LAUNCHES, WINDOW, WINDOW_SECONDS

compile_with(arithmetic)
compile_with(leastsquares)
compile_with(steptimes)


@inner
def law_of(fits: Floats) -> Law:
    """The law of an engine that has one."""
    row = fits[LAW]
    return Law(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8])


@inner
def observe(loop: Record, engine: Record, fits: Floats, seconds: float) -> None:
    """Add the step that has just ended to the sums, and to what the engine tells of its steps."""
    if not 0.0 < seconds < math.inf:
        return
    prefill, decodes, kv, pairs = loop["prefill"], loop["decodes"], loop["kv"], loop["pairs"]
    terms, block = fits[TERMS], fits[BLOCK]
    _write_terms(terms, prefill, decodes, kv, pairs)
    terms[5] = seconds
    for place in range(FEATURES + 1):
        block[place] += terms[place]
    loop["unfitted"] += 1
    engine["steps"] += 1
    engine["step_prefill"] += prefill
    engine["step_decodes"] += decodes
    engine["step_kv"] += kv
    engine["step_pairs"] += pairs
    engine["step_seconds"] += seconds


@inner
def came(loop: Record, fits: Floats, ahead: int, replayed: bool, launched_at: float, now: float) -> None:
    """Find what the results of a step say of its time."""
    prefill, decodes, kv, pairs = loop["prefill"], loop["decodes"], loop["kv"], loop["pairs"]
    terms, expected = fits[TERMS], math.inf
    _write_terms(terms, prefill, decodes, kv, pairs)
    if loop["has_law"]:
        expected = arithmetic.linear_seconds(law_of(fits), prefill, decodes, kv, pairs)
    if steptimes.came(fits[TIMES], terms, expected, ahead, replayed, launched_at, now):
        _learn(loop, fits)


@inner
def _write_terms(terms: Floats, prefill: float, decodes: float, kv: float, pairs: float) -> None:
    terms[0], terms[1], terms[2] = 1.0, prefill / UNITS[1], decodes / UNITS[2]
    terms[3], terms[4] = kv / UNITS[3], pairs / UNITS[4]


@inner
def _learn(loop: Record, fits: Floats) -> None:
    """Add the window that has just closed to its stratum."""
    row = fits[TIMES]
    terms, seconds = row[WINDOW:WINDOW_SECONDS], row[WINDOW_SECONDS]
    sums = fits[leastsquares.stratum_of(row[LARGEST_PREFILL], terms[2] / terms[0])]
    weight = 1.0
    if loop["has_law"]:
        law = law_of(fits)
        prefill, decodes, kv, pairs = terms[1] * UNITS[1], terms[2] * UNITS[2], terms[3] * UNITS[3], terms[4] * UNITS[4]
        expected = law.c0 * (terms[0] - 1.0) + arithmetic.linear_seconds(law, prefill, decodes, kv, pairs)
        seconds = leastsquares.plausible_seconds(seconds, expected, loop["measured"] > 0)
        if loop["measured"]:
            weight = leastsquares.window_weight(seconds, expected)
            _follow(fits, leastsquares.lag(sums, fits[LAW], seconds, expected))
    leastsquares.add_window(sums, terms, seconds, weight)


@inner
def _follow(fits: Floats, lag: float) -> None:
    """Follow the speed of the whole engine."""
    factor = leastsquares.moved_lag(fits[LAGS], lag)
    if factor != 1.0:
        leastsquares.stretch(fits, factor)


@inner
def update(loop: Record, fits: Floats) -> None:
    """Fit the law to the windows so far."""
    recent, block, total = fits[RECENT], fits[BLOCK], fits[TOTAL]
    loop["fitted_steps"] += block[0]
    keep = leastsquares.kept_share(block[0], loop["fitted_steps"], MIX_HALF_LIFE_STEPS)
    for place in range(FEATURES + 1):
        recent[place] = keep * recent[place] + block[place]
        block[place] = 0.0
    loop["unfitted"] = 0
    leastsquares.total(fits, total)
    if leastsquares.enough(total):
        _solve(loop, fits)
    for kind in range(KINDS):
        fits[LAW][FEATURES + kind] = fits[TIMES][LAUNCHES + kind]


@inner
def _solve(loop: Record, fits: Floats) -> None:
    total, prior, law = fits[TOTAL], fits[PRIOR], fits[LAW]
    rows, scratch = fits[ROWS : ROWS + FEATURES], fits[SCRATCH : SCRATCH + FEATURES]
    solution, found, order = fits[SOLUTION], fits[FOUND], fits[ORDER]
    leastsquares.equations(total, rows)
    steps = PRIOR_STEPS if loop["has_prior"] else SHAPE_STEPS
    leastsquares.add_prior(prior, leastsquares.prior_scale(total, prior), steps, rows)
    leastsquares.solve(rows, scratch, order, found, solution)
    measured = leastsquares.unexplained(total, solution) <= LARGEST_ERROR
    loop["measured"] = measured
    loop["has_law"] = measured or loop["has_prior"] > 0
    for place in range(FEATURES):
        law[place] = solution[place] / UNITS[place] if measured else prior[place]
