"""The step law that lies closest to a step timer over the steps an engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from holdfast.enginemodel.steplaw import Chunk, StepLaw, StepTimer, prefill_work

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SampleStep:
    """One step to fit to, and how much it counts."""

    chunks: tuple[Chunk, ...]
    decodes: int
    mean_kv: float
    weight: float = 1.0


def fit_law(timer: StepTimer, steps: Sequence[SampleStep] | None = None) -> StepLaw:
    """Non-negative least squares over the steps; without any, of the relative error over a grid of usual ones."""
    relative = steps is None
    given = usual_steps() if steps is None else steps
    features, seconds = [], []
    for step in given:
        tokens, pairs = prefill_work(step.chunks)
        features.append((1.0, tokens, step.decodes, step.decodes * step.mean_kv, pairs))
        seconds.append(timer.step_seconds(step.chunks, step.decodes, step.mean_kv))
    target = np.array(seconds)
    factors = 1.0 / target if relative else np.sqrt([step.weight for step in given])
    return StepLaw(*nonnegative_least_squares(np.array(features) * factors[:, None], target * factors).tolist())


def usual_steps() -> list[SampleStep]:
    """Decodes, KV lengths and prompt chunks as chat and code services see them."""
    prompts: tuple[tuple[Chunk, ...], ...] = (
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
    decodes = (0, 1, 4, 16, 32, 64, 96, 128, 192, 256)
    grid = product(prompts, decodes, (256.0, 1024.0, 2048.0, 4096.0))
    return [SampleStep(chunks, count, kv) for chunks, count, kv in grid if chunks or count]


def nonnegative_least_squares(matrix: Matrix, target: Matrix) -> Matrix:
    """Least squares with every coefficient >= 0: what turns out negative is left out, the worst first."""
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    kept = list(range(matrix.shape[1]))
    solution = np.zeros(0)
    while kept:
        solution = np.linalg.lstsq(matrix[:, kept] / scale[kept], target, rcond=None)[0]
        if (solution >= 0).all():
            break
        kept.pop(int(solution.argmin()))
    coefficients = np.zeros(matrix.shape[1])
    coefficients[kept] = solution / scale[kept] if kept else 0.0
    return coefficients
