"""What bursts that nobody can foresee cost on the ten drawn days, whatever the policy: in fluid terms, not simulated.

    python benchmarks/unforeseen_bursts.py [--objective 0.99] [--seed N ...]

A burst of a drawn day begins without a sign. A policy that is as good as can be sees it at once, orders what it needs,
and has it one cold start later; until then it has what it keeps all day: the present load without bursts, so many times
(its headroom). Nothing else is lost, and what capacity carries stays good. So the requests beyond the headroom within
one cold start of a burst are late. The table says how many that are without headroom, the least headroom with which the
objective holds over the day, and its GPU-hours as a multiple of the oracle's, which knows the bursts. Whole replicas,
and engines that answer more in time than they are sized for, lose less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.drawn_days import HOURS, SEEDS, DrawnDay, drawn
from holdfast.twin.arrays.timers import Floats
from holdfast.twin.runs.peak import smallest

STEP_SECONDS = 1.0
OBJECTIVE = 0.99
FINEST = 1e-3


@dataclass(frozen=True, slots=True)
class Bound:
    """Share of the requests that is late without headroom, the least headroom, and its GPU-hours over the oracle's."""

    late: float
    headroom: float
    of_oracle: float


def bound(day: DrawnDay, objective: float = OBJECTIVE) -> Bound:
    """What the bursts of a day cost who cannot foresee them, at least."""
    times = np.arange(0.0, 3600.0 * HOURS, STEP_SECONDS)
    calm, load = _rates(replace(day, bursts=()), times), _rates(day, times)
    # What was ordered when the burst began serves one cold start later.
    ordered = calm * _before(load / calm, day.cold_start_seconds)
    headroom = _least(calm, load, ordered, 1.0 - objective)
    held = np.maximum(headroom * calm, ordered)
    return Bound(_late(calm, load, ordered, 1.0), headroom, float(held.sum() / load.sum()))


def _rates(day: DrawnDay, times: Floats) -> Floats:
    at, rates = np.array(day.rates()).T
    return np.asarray(np.interp(times, at, rates))


def _before(heights: Floats, seconds: float) -> Floats:
    """The heights of so long ago; replicas of a burst that has ended are gone at once."""
    steps = round(seconds / STEP_SECONDS)
    earlier = np.concatenate([np.ones(steps), heights[: len(heights) - steps]])
    return np.asarray(np.minimum(earlier, heights))


def _late(calm: Floats, load: Floats, ordered: Floats, headroom: float) -> float:
    """Share of the requests that neither the headroom nor what was ordered carries."""
    return float(np.maximum(0.0, load - np.maximum(headroom * calm, ordered)).sum() / load.sum())


def _least(calm: Floats, load: Floats, ordered: Floats, allowed: float) -> float:
    """The least headroom with which at most the allowed share is late."""
    headrooms = np.arange(1.0, float((load / calm).max()) + FINEST, FINEST)

    def keeps(size: int) -> bool:
        return _late(calm, load, ordered, headrooms[size - 1]) <= allowed

    return float(headrooms[smallest(keeps, len(headrooms)) - 1])


def table(seeds: Sequence[int], objective: float) -> Iterator[str]:
    """Lines of Markdown, and the median."""
    yield "| day | bursts | cold start | late without headroom | least headroom | GPU-hours over the oracle's |"
    yield "|---|---|---|---|---|---|"
    found = [(seed, drawn(seed)) for seed in seeds]
    bounds = [bound(day, objective) for _, day in found]
    for (seed, day), each in zip(found, bounds, strict=True):
        cells = (f"{day.cold_start_seconds:.0f} s", f"{100 * each.late:.2f} %", f"{each.headroom:.2f}")
        yield f"| {seed} | {len(day.bursts)} | {' | '.join(cells)} | {each.of_oracle:.2f} |"
    ratios = [each.of_oracle for each in bounds]
    yield f"\nGPU-hours over the oracle's: median {median(ratios):.2f}, most {max(ratios):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", type=float, default=OBJECTIVE, help="share from 0 to 1; default 0.99")
    parser.add_argument("--seed", type=int, action="append", help="may be repeated; the ten fixed days by default")
    given = parser.parse_args(arguments)
    if not 0.0 < given.objective < 1.0:
        parser.error(f"--objective {given.objective:g}: give a share between 0 and 1")
    for line in table(given.seed or SEEDS, given.objective):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
