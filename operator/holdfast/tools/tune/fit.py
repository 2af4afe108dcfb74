"""Levenberg-Marquardt for a handful of unknowns, where each look at the misfit is a simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from holdfast.twin.arrays.timers import Floats

NUDGE, EXACT = 0.05, 0.003
"""Of an unknown: to see what it changes, and how exact it is looked for."""

DAMPING, LESS, MOST_DAMPING = 0.3, 4.0, 30.0
MOST_STEPS = 10


def least_squares(misfit: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Unknowns near `start` with a small sum of squares of what `misfit` says of them; never a larger one."""
    at, off, damping = start, misfit(start), DAMPING
    for _ in range(MOST_STEPS):
        nudges = NUDGE * np.eye(len(at))
        slopes = np.column_stack([(misfit(at + nudge) - off) / NUDGE for nudge in nudges])
        while damping < MOST_DAMPING:
            damped = np.vstack([slopes, damping * np.eye(len(at))])
            stride: Floats = np.linalg.lstsq(damped, np.concatenate([-off, np.zeros(len(at))]), rcond=None)[0]
            left = misfit(at + stride)
            if left @ left < off @ off:
                break
            damping *= LESS
        else:
            return at
        at, off, damping = at + stride, left, damping / LESS
        if np.abs(stride).max() < EXACT:
            return at
    return at
