"""Step timers as arrays, and how long a step takes by them: `StepTable` and `StepLaw`, operation by operation.

The order of additions is that of the originals, so that times are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.enginemodel.enginetimer import gpu_of
from holdfast.enginemodel.steplaw import StepLaw, StepTimer
from holdfast.enginemodel.steptable import Curve, StepTable, Surface
from holdfast.twin.arrays.compiled import inner

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LAW, TABLE = 0, 1


class Timers(NamedTuple):
    """Timers one after the other in `points`; a row of `layout` says where the parts of one are.

    A row is its kind; for each curve where xs begin, how many, where values begin; for each surface the same with its
    ys (where, how many) after the xs; last where the constants of a law begin.
    """

    points: Floats
    layout: Integers


def pack(timers: Sequence[StepTimer]) -> Timers:
    """Lay timers out; TypeError for one that is neither a table nor a law."""
    points: list[float] = []
    return Timers(layout=np.array([_row(timer, points) for timer in timers], np.int64), points=np.array(points))


def _row(timer: StepTimer, points: list[float]) -> list[int]:
    timer = gpu_of(timer)

    def put(values: Sequence[float]) -> int:
        points.extend(values)
        return len(points) - len(values)

    def curve(part: Curve) -> list[int]:
        return [put(part.xs), len(part.xs), put(part.values)]

    def surface(part: Surface) -> list[int]:
        # One place less than a curve's and a y axis more: where the ys are follows from where the xs end.
        return [put(part.xs + part.ys), len(part.xs), len(part.ys), put(part.values)]

    if isinstance(timer, StepLaw):
        constants = put((timer.c0, timer.c1, timer.c2, timer.c3, timer.c4))
        return [LAW] + [0] * 14 + [constants]
    if isinstance(timer, StepTable):
        parts = [*curve(timer.mixed), *curve(timer.decode_only)]
        parts += [*surface(timer.chunk_attention), *surface(timer.decode_attention)]
        return [TABLE, *parts, 0]
    raise TypeError(f"{type(timer).__name__} is neither a StepTable nor a StepLaw")


@inner
def step_seconds(points: Floats, row: Integers, chunks: Integers, count: int, decodes: int, mean_kv: float) -> float:
    """Seconds of a step by one timer; `chunks` holds `count` pairs of tokens computed and tokens before them."""
    if count == 0:
        return decode_seconds(points, row, decodes, mean_kv)
    tokens, pairs = 0, 0.0
    for each in range(count):
        tokens += chunks[each, 0]
        pairs += chunks[each, 0] * (chunks[each, 1] + 0.5 * chunks[each, 0])
    if row[0] == LAW:
        law = row[15]
        c0, c1, c2, c3, c4 = points[law], points[law + 1], points[law + 2], points[law + 3], points[law + 4]
        return float(c0 + c1 * tokens + (c2 + c3 * mean_kv) * decodes + c4 * pairs)
    # Numbers of one type, and no literals: numba compiles a function for each that it is called with.
    seconds = _curve_at(points, row[1:4], float(decodes + tokens))
    for each in range(count):
        seconds += _surface_at(points, row[7:11], float(chunks[each, 0]), float(chunks[each, 1]))
    if decodes:
        seconds += _surface_at(points, row[11:15], float(decodes), mean_kv)
    return seconds


@inner
def decode_seconds(points: Floats, row: Integers, decodes: int, mean_kv: float) -> float:
    """Seconds of a step without chunks."""
    if row[0] == LAW:
        law = row[15]
        return float(points[law] + (points[law + 2] + points[law + 3] * mean_kv) * decodes)
    if decodes == 0:
        return 0.0
    return _curve_at(points, row[4:7], float(decodes)) + _surface_at(points, row[11:15], float(decodes), mean_kv)


@inner
def _curve_at(points: Floats, place: Integers, x: float) -> float:
    xs, count, values = place[0], place[1], place[2]
    if x <= points[xs]:
        return float(points[values])
    left = _interval(points, xs, count, x)
    share = (x - points[xs + left]) / (points[xs + left + 1] - points[xs + left])
    return float(points[values + left] + share * (points[values + left + 1] - points[values + left]))


@inner
def _surface_at(points: Floats, place: Integers, x: float, y: float) -> float:
    xs, rows, columns, values = place[0], place[1], place[2], place[3]
    ys = xs + rows
    x, y = max(x, points[xs]), max(y, points[ys])
    row, column = _interval(points, xs, rows, x), _interval(points, ys, columns, y)
    across = (x - points[xs + row]) / (points[xs + row + 1] - points[xs + row])
    along = (y - points[ys + column]) / (points[ys + column + 1] - points[ys + column])
    corner = values + row * columns + column
    below = corner + columns
    near = points[corner] + along * (points[corner + 1] - points[corner])
    far = points[below] + along * (points[below + 1] - points[below])
    return float(near + across * (far - near))


@inner
def _interval(points: Floats, start: int, count: int, x: float) -> int:
    """Index of the interval that x is in, the last one for larger x (bisect_right)."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if x < points[start + middle]:
            high = middle
        else:
            low = middle + 1
    return min(low, count - 1) - 1
