"""How fast the machine was during a run, and which runs do not count for it.

The measure is the time the engine's core needs for a fixed piece of work (`probe.py`), taken before, during and after a
run. It knows nothing of requests: what is thrown away is not chosen by its outcome. By the engine's own step times it
would be: a collapsed engine runs other batches, which their law fits worse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

# On a shared machine the means of 30 s differ by a tenth (standard deviation) while nothing changes for good.
TOLERANCE = 0.15
# A run's reference needs so many runs; the first ones are judged by their own course alone.
_LEAST_RUNS = 4
_LEAST_SAMPLES = 6
_PARTS = 3


@dataclass(frozen=True, slots=True)
class Speed:
    """Milliseconds for the fixed piece of work: higher is slower. `parts` are means over equal parts of the run."""

    before_ms: float
    parts_ms: tuple[float, ...]
    after_ms: float
    stolen_share: float = 0.0

    @property
    def during_ms(self) -> float:
        """Mean over the run, with what the host took away altogether; NaN where nothing was sampled."""
        left = 1.0 - self.stolen_share
        return fmean(self.parts_ms) / left if self.parts_ms and left > 0.0 else math.nan


@dataclass(frozen=True, slots=True)
class Reference:
    """The speed at which a cell's rates were chosen; runs are compared with it."""

    before_ms: float
    during_ms: float


def speed(before_ms: float, samples_ms: Sequence[float], after_ms: float, stolen_share: float = 0.0) -> Speed:
    """The speed of a run from its samples; those that are no positive number are left out, too few make no parts."""
    sound = [each for each in samples_ms if 0.0 < each < math.inf]
    if len(sound) < _LEAST_SAMPLES:
        return Speed(before_ms, (), after_ms, stolen_share)
    edges = [round(part * len(sound) / _PARTS) for part in range(_PARTS + 1)]
    parts = tuple(fmean(sound[low:high]) for low, high in itertools.pairwise(edges))
    return Speed(before_ms, parts, after_ms, stolen_share)


def reference(runs: Sequence[Speed]) -> Reference | None:
    """The median of a cell's runs, whatever became of their requests; None of too few."""
    sound = [each for each in runs if each.during_ms > 0.0 and each.before_ms > 0.0]
    if len(sound) < _LEAST_RUNS:
        return None
    return Reference(median(each.before_ms for each in sound), median(each.during_ms for each in sound))


def unsteady(found: Speed, against: Reference | None, tolerance: float = TOLERANCE) -> str:
    """Why a run does not count, empty where it does.

    Its mean may differ from the reference by the tolerance, its parts from each other by twice as much. What the idle
    machine did in the half second before and after it decides nothing: that is too short to tell a change from noise.
    """
    if not found.parts_ms or math.isnan(found.during_ms):
        return "its speed is not known"
    if against is not None and differs(found.during_ms, against.during_ms, tolerance):
        return f"{found.during_ms / against.during_ms:.2f} of the reference's time"
    if differs(max(found.parts_ms), min(found.parts_ms), 2.0 * tolerance):
        return f"the time changed by {max(found.parts_ms) / min(found.parts_ms):.2f} within the run"
    return ""


def differs(one: float, other: float, tolerance: float) -> bool:
    """Whether the ratio of two times, the larger to the smaller, is beyond the tolerance; what is no time differs."""
    if not (0.0 < one < math.inf and 0.0 < other < math.inf):
        return True
    return max(one / other, other / one) > 1.0 + tolerance
