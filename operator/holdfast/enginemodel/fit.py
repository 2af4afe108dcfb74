"""The step law that lies closest to a step timer over the steps engines really run."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from holdfast.enginemodel.steplaw import Chunk, StepLaw, StepTimer, prefill_work

DECODES = (0, 1, 4, 16, 32, 64, 96, 128, 192, 256)
MEAN_KV = (256.0, 1024.0, 2048.0, 4096.0)
CHUNKS: tuple[tuple[Chunk, ...], ...] = (
    (),
    ((128, 0),),
    ((512, 0),),
    ((1024, 0),),
    ((512, 0), (512, 0)),
    ((1024, 0), (1024, 0)),
    ((2048, 0),),
    ((2048, 2048),),
    ((2048, 0), (2048, 0)),
    ((4096, 4096),),
    ((8192, 0),),
)

Matrix = NDArray[np.float64]


def fit_law(timer: StepTimer) -> StepLaw:
    """Non-negative least squares of the relative error over a grid of decodes, KV lengths and prompt chunks."""
    rows, targets = [], []
    for chunks, decodes, mean_kv in product(CHUNKS, DECODES, MEAN_KV):
        if not chunks and not decodes:
            continue
        seconds = timer.step_seconds(chunks, decodes, mean_kv)
        tokens, pairs = prefill_work(chunks)
        rows.append(np.array([1.0, tokens, decodes, decodes * mean_kv, pairs]) / seconds)
        targets.append(1.0)
    return StepLaw(*nonnegative_least_squares(np.array(rows), np.array(targets)).tolist())


def nonnegative_least_squares(matrix: Matrix, target: Matrix) -> Matrix:
    """Least squares with every coefficient >= 0: what turns out negative is left out, the worst first."""
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    kept = list(range(matrix.shape[1]))
    while kept:
        solution = np.linalg.lstsq(matrix[:, kept] / scale[kept], target, rcond=None)[0]
        if (solution >= 0).all():
            break
        kept.pop(int(solution.argmin()))
    coefficients = np.zeros(matrix.shape[1])
    coefficients[kept] = solution / scale[kept] if kept else 0.0
    return coefficients
