"""The step law of an engine on arrays: `holdfast_engine.steplaw.StepLawFit`, with its own arithmetic.

`fits` are the rows of one engine that `fast_loop_arrays` describes.
"""

from __future__ import annotations

import math

from holdfast.twin.compiled import compile_with, inner
from holdfast.twin.fast_loop_arrays import BLOCK, FOUND, LAW, ORDER, PRIOR, RECENT, ROWS, SCRATCH, SOLUTION, TERMS
from holdfast.twin.state_arrays import Record
from holdfast.twin.timers import Floats
from holdfast_engine import arithmetic, leastsquares
from holdfast_engine.arithmetic import Law
from holdfast_engine.leastsquares import FEATURES, UNITS
from holdfast_engine.steplaw import LARGEST_ERROR, OUTLIER

compile_with(arithmetic)
compile_with(leastsquares)


@inner
def law_of(fits: Floats) -> Law:
    """The law of an engine that has one."""
    row = fits[LAW]
    return Law(row[0], row[1], row[2], row[3], row[4])


@inner
def observe(loop: Record, engine: Record, fits: Floats, seconds: float) -> None:
    """Add the step that has just ended, and what the engine tells of its steps."""
    if not 0.0 < seconds < math.inf:
        return
    prefill, decodes, kv, pairs = loop["prefill"], loop["decodes"], loop["kv"], loop["pairs"]
    if loop["measured"]:
        seconds = min(seconds, OUTLIER * arithmetic.step_seconds(law_of(fits), prefill, decodes, kv, pairs))
    terms, block = fits[TERMS], fits[BLOCK]
    terms[0], terms[1], terms[2] = 1.0, prefill / UNITS[1], decodes / UNITS[2]
    terms[3], terms[4], terms[5] = kv / UNITS[3], pairs / UNITS[4], seconds
    place = 0
    for row in range(FEATURES + 1):
        for column in range(row, FEATURES + 1):
            block[place] += terms[row] * terms[column]
            place += 1
    loop["unfitted"] += 1
    engine["steps"] += 1
    engine["step_prefill"] += prefill
    engine["step_decodes"] += decodes
    engine["step_kv"] += kv
    engine["step_pairs"] += pairs
    engine["step_seconds"] += seconds


@inner
def update(loop: Record, fits: Floats) -> None:
    """Fit the law to the steps so far."""
    recent, block = fits[RECENT], fits[BLOCK]
    loop["fitted_steps"] += block[0]
    keep = leastsquares.kept_share(block[0], loop["fitted_steps"])
    for place in range(len(recent)):
        recent[place] = keep * recent[place] + block[place]
    loop["unfitted"] = 0
    if leastsquares.enough(recent):
        _solve(loop, fits)
        if leastsquares.is_to_begin_anew(loop["measured"] > 0, loop["fitted_steps"]):
            for place in range(len(recent)):
                recent[place] = block[place]
    for place in range(len(block)):
        block[place] = 0.0


@inner
def _solve(loop: Record, fits: Floats) -> None:
    recent, prior, law = fits[RECENT], fits[PRIOR], fits[LAW]
    rows, scratch = fits[ROWS : ROWS + FEATURES], fits[SCRATCH : SCRATCH + FEATURES]
    solution, found, order = fits[SOLUTION], fits[FOUND], fits[ORDER]
    leastsquares.equations(recent, rows)
    if loop["has_prior"]:
        leastsquares.add_prior(recent, prior, rows)
    leastsquares.solve(rows, scratch, order, found, solution)
    measured = leastsquares.unexplained(recent, solution) <= LARGEST_ERROR
    loop["measured"] = measured
    loop["has_law"] = measured or loop["has_prior"] > 0
    for place in range(FEATURES):
        law[place] = solution[place] / UNITS[place] if measured else prior[place]
